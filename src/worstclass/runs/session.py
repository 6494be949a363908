"""One training on disk: prepared, begun or continued, logged and saved as it goes on."""

import json
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from worstclass.config.keys import Config
from worstclass.config.recipe import to_toml
from worstclass.data import Source, fits
from worstclass.errors import TrainingError, UserError
from worstclass.execution.compile_cache import CompileCache
from worstclass.execution.distributed import Team
from worstclass.files import locked, write_atomic, write_json
from worstclass.inputs.names import RECIPE
from worstclass.runs.about import describe_run, last_process, note, refuse_past
from worstclass.runs.log import append_line, describe
from worstclass.runs.logit_adjustment import check_adjustable
from worstclass.runs.notes import counts_of, distribution, effective_classes
from worstclass.runs.run import Run, build_model, check_classifier, check_trainable, learned_images
from worstclass.runs.saver import ABOUT, KEPT, LAST, LOG, Saver, check_recipe, read_about, recipe_digest
from worstclass.runs.seen import SEEN, note_seen, refuse_trained
from worstclass.runs.selection import Selector, is_validated, smooths
from worstclass.runs.warm_start import Fork, check_fork, fork_state, log_until, start_from
from worstclass.training import State, fit, new_state
from worstclass.training.engine import Engine
from worstclass.training.prepare import check_batch

COMPILED = (
    *("model", "normalize", "batch_size", "optimizer", "clip_grad_norm", "label_smoothing", "average", "awp_gamma"),
    *("norm", "eps", "attack_steps", "early_attack_steps", "attack_step_size", "beta"),
)
"""Keys whose values are compiled into a step: runs that agree in them share what was compiled."""


def train_one(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    fork: Fork | None = None,
    keep: Collection[int] = (),
    on_start: Callable[[Run], None] | None = None,
    data: Callable[[], Source],
    device: torch.device | str,
    engine: Engine | None,
    checkpoint_minutes: float,
    allow_code: bool,
    team: Team,
    data_limit: int | None,
    compile_cache: Path | None,
    stop: Callable[[], bool] | None,
    on_step: Callable[[int, int, int], None] | None,
    on_epoch: Callable[[dict[str, Any]], None] | None,
    on_fallback: Callable[[str], None],
) -> Run:
    """One run, as `train_run` says."""
    started = time.perf_counter()
    if not resume and team.leads:
        _refuse_folder(out)
    engine, device = engine or Engine(), torch.device(device)
    source = data()
    learned = learned_images(config, source)
    images, train, valid = learned.images, learned.train, learned.valid
    about = describe_run(source, learned, engine, device, team)
    plan, objective = config.make_plan(), config.make_objective()
    strategy = config.make_strategy(train.class_counts(source.num_classes))
    model = build_model(config, source.num_classes, images.x.shape[1], train)
    check_classifier(model, train, source.num_classes, config.model)
    check_trainable(model, train, config.model)
    if config.adjust_budget is not None:  # before anything is trained
        check_adjustable(model, valid, source.num_classes, source.class_names)
    if fork:
        check_fork(fork, config, about)
    late = max(keep, default=0)
    if late > config.epochs:
        raise UserError(f"epoch {late} cannot be kept: the run has {config.epochs}.")
    if fork:
        refuse_past(keep, fork.epoch)
    continued = fork is not None or (resume and (out / LAST).is_file())
    if config.init and team.leads and not continued:
        about["init"] = start_from(config, model, about, allow_code=allow_code)
    start = fork.run.folder if fork else Path(config.init) if config.init else None
    if start is not None and (fork or not continued):
        refuse_trained(start, valid, about.get("valid_in_train", 0))
    state = new_state(model, strategy, plan, device)
    same = json.dumps([to_toml(config), about["data_digest"], asdict(engine), resume])
    team.check_same(same, "the processes were not started alike: their recipes, data or options differ.")
    check_batch(plan.batch_size_for(len(train)), team)
    train_on = partial(fit, state, train, valid, objective, plan, engine=engine, team=team, data_limit=data_limit)
    cache = None
    if engine.fast and compile_cache is not None:
        shapes = [*images.x.shape[1:], source.num_classes, len(train), len(valid), team.size]
        work = repr([config.base_objective, *(getattr(config, key) for key in COMPILED), *shapes, engine])
        cache = CompileCache(compile_cache, work, device, on_fallback if team.leads else _silence)
        cache.load()
    if not team.leads:
        for _ in train_on(on_fallback=_silence):
            pass
        return Run(out, config, about)

    saver = Saver(out, state, 60 * checkpoint_minutes, on_fallback)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "train"), saver:
        if resume:
            about = _go_on(out, state, saver, about, keep, plan.epochs, on_fallback)
        else:
            _begin(out, state, saver, about, keep, config, fork)
        note_seen(out, images, train, start)
        run = Run(out, config, about)
        if on_start:
            on_start(run)
        if not fits(train, device, data_limit):
            size = train.x.nbytes / 2**30
            on_fallback(f"the training images ({size:.3g} GiB) stay in host memory, and are fetched a batch ahead.")
        own = about.get("fork", {}).get("epoch", 0)  # lines before that are of another run
        selector = Selector(config, run.log[own:] if smooths(config) and state.epoch > own else ())
        notes: list[str] = []

        def after_step(step: int, steps: int) -> None:
            if on_step:
                on_step(state.epoch + 1, step, steps)
            if step < steps:  # after the last one comes the epoch's end
                saver.save_if_due()
                stop_if_asked()

        def stop_if_asked() -> None:  # only where the state is whole
            if stop and stop():
                with suppress(TrainingError):  # weights that are not finite: the checkpoint before them is kept
                    saver.save_if_due(at_once=True)
                raise KeyboardInterrupt

        def fall_back(line: str) -> None:
            notes.append(line)
            note(out, about, {"notes": notes})
            on_fallback(line)

        def on_engine(used: Engine) -> None:
            now = time.perf_counter()
            start: dict[str, Any] = {"seconds": round(now - started, 3), "prepare_seconds": round(now - ready, 3)}
            if cache and used.fast:
                start["compile_cache"] = cache.save()
            note(out, about, {"fast": used.fast}, start=start)

        ready = time.perf_counter()
        for record in train_on(on_step=after_step, on_engine=on_engine, on_fallback=fall_back):
            if cache:
                cache.save_news()  # a step may change its form on the way
            line = describe(record)
            line["selected"] = False
            if is_validated(line):
                score = selector.score(line)
                line["selected"] = saver.select(record.epoch, score)
                if smooths(config):
                    line["selection_score"] = score
            line["effective_classes"] = effective_classes(distribution(line, counts_of(about, "train")))
            append_line(out / LOG, line)
            if record.epoch in about.get("keep", []):  # first: once a checkpoint is written, it is not made again
                saver.keep()
            saver.save_if_due(at_once=record.epoch == plan.epochs)
            if on_epoch:
                on_epoch(line)
            stop_if_asked()
    return run


def _begin(
    out: Path,
    state: State,
    saver: Saver,
    about: dict[str, Any],
    keep: Collection[int],
    config: Config,
    fork: Fork | None,
) -> None:
    """Make the folder that of a run, from its first epoch or from one of another run."""
    _refuse_folder(out)
    for name in (LOG, LAST, SEEN):  # of a fork that was killed before it was a run
        (out / name).unlink(missing_ok=True)
    if keep:
        about["keep"] = sorted(keep)
    if fork:
        about["fork"] = fork_state(fork, state, config)
        write_atomic(out / LOG, log_until(fork))
        saver.save_if_due(at_once=True)  # what a run that is killed soon goes on from
    recipe = to_toml(config).encode()
    about["recipe_digest"] = recipe_digest(recipe)
    write_json(out / ABOUT, about)
    write_atomic(out / RECIPE, recipe)  # last: a folder with a recipe is a run


def _go_on(
    out: Path,
    state: State,
    saver: Saver,
    now: dict[str, Any],
    keep: Collection[int],
    epochs: int,
    on_fallback: Callable[[str], None],
) -> dict[str, Any]:
    """Take up the run in the folder where it stopped; what it says of itself, with the process that goes on."""
    _check_unchanged(out, now)
    about = saver.restore(now)
    about.setdefault("class_counts", now["class_counts"])  # of the same data, split the same way
    asked = {*keep} - {*about.get("keep", [])}
    asked = {epoch for epoch in asked if not (out / KEPT.format(epoch)).is_file()}
    if state.epoch in asked and not state.step:  # its end was loaded just now
        saver.keep()
        asked.remove(state.epoch)
    refuse_past(asked, state.epoch)
    kept = {*keep, *about.get("keep", [])}
    about |= {"keep": sorted(kept)} if kept else {}
    before, here = (each["engine"].get("processes", 1) for each in (last_process(about), now))
    if before != here:
        on_fallback(f"{before} process(es) trained this run, {here} go on: the same run but for rounding.")
    if state.epoch < epochs:
        process = {key: now[key] for key in ("engine", "versions")}
        about["resumed"] = [
            *about.get("resumed", []),
            {"epoch": state.epoch + 1, "step": state.step, **process},
        ]
        write_json(out / ABOUT, about)
    return about


def _check_unchanged(out: Path, now: Mapping[str, Any]) -> None:
    """Raise where a run is to go on with another recipe, or may have trained on images that are held out now."""
    before = read_about(out)
    check_recipe(out, before)
    counts = before.get("class_counts", now["class_counts"])
    if before["data_digest"] == now["data_digest"] and counts != now["class_counts"]:
        raise UserError(f"{out} held out other validation images than this; nothing was changed.")


def _silence(line: str) -> None:
    """It is the leader's to tell."""


def _refuse_folder(out: Path) -> None:
    if (out / RECIPE).exists():
        raise UserError(f"{out} holds a run already: continue it with `--resume {out}`, or choose another --out.")
    if out.exists() and (not out.is_dir() or any(not _left_by_a_kill(entry.name) for entry in out.iterdir())):
        raise UserError(f"{out} is in use for something else; choose another --out.")


def _left_by_a_kill(name: str) -> bool:
    """Whether a run that was killed before it had a recipe may have left this file."""
    return name in (ABOUT, LOG, LAST, SEEN) or name.endswith((".partial", ".lock"))
