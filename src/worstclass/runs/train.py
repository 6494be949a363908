"""Train a run on disk: how it is started, continued and logged."""

import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from worstclass.config.keys import Config
from worstclass.config.recipe import to_toml
from worstclass.data import Images, Source, exact_duplicates, fits, mirror_pairs, validation_shift
from worstclass.data.sources import Notify
from worstclass.errors import UserError
from worstclass.execution.compile_cache import CompileCache
from worstclass.execution.distributed import ALONE, Team
from worstclass.execution.versions import versions
from worstclass.files import locked, write_atomic, write_json
from worstclass.inputs.names import RECIPE
from worstclass.metrics.tail import worst_tenth
from worstclass.runs.adjust import adjust_selected
from worstclass.runs.base import BASE, base_config, base_epoch, check_base, settle
from worstclass.runs.finished import is_trained
from worstclass.runs.logit_adjustment import check_adjustable
from worstclass.runs.notes import counts_of, distribution, effective_classes
from worstclass.runs.run import (
    Run,
    build_model,
    check_classifier,
    fingerprint,
    open_data,
    split,
    training_images,
)
from worstclass.runs.saver import ABOUT, KEPT, LAST, LOG, Saver, read_about
from worstclass.runs.selection import is_validated, selection_score
from worstclass.runs.warm_start import Fork, check_fork, fork_state, log_until, start_from
from worstclass.strategies.hedge import class_costs
from worstclass.training import EpochRecord, fit, new_state
from worstclass.training.engine import Engine
from worstclass.training.prepare import check_batch

MAX_COMPARED = 2**29  # bytes of images
COMPILED = (
    *("model", "normalize", "batch_size", "optimizer", "clip_grad_norm", "label_smoothing", "average", "awp_gamma"),
    *("norm", "eps", "attack_steps", "early_attack_steps", "attack_step_size", "beta"),
)
"""Keys whose values are compiled into a step: runs that agree in them share what was compiled."""


def train_run(
    config: Config,
    out: Path | str,
    *,
    resume: bool = False,
    fork: Fork | None = None,
    keep: Collection[int] = (),
    data_dir: Path | str = Path("data"),
    device: torch.device | str = "cpu",
    engine: Engine | None = None,
    checkpoint_minutes: float = 1.0,
    allow_code: bool = False,
    team: Team = ALONE,
    data_limit: int | None = None,
    compile_cache: Path | str | None = None,
    notify: Notify | None = None,
    on_start: Callable[[Run], None] | None = None,
    on_step: Callable[[int, int, int], None] | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_base: Callable[[], None] | None = None,
    on_fallback: Callable[[str], None] = warnings.warn,
) -> Run:
    """Train, or continue, a run in the folder `out`; of the test part nothing is read but the size of its images.

    After each epoch a line is added to the log. Once `checkpoint_minutes` have passed since the last time, and at the
    end, the whole state is saved while training goes on, with the epoch selected so far; each file is replaced
    atomically, and what came after the last checkpoint that was written is made again. A damaged checkpoint is found by
    its digest, and the one before it taken. A folder that another process trains in is refused.
    `on_start(run)`, before the first step, `on_step(epoch, step, steps)` and `on_epoch(record)` watch, and
    `on_fallback(line)` hears what was taken in the place of something else. Images of more than `data_limit` bytes stay
    in host memory, as `fit` says. Every process of a `team` calls this with the same arguments; the leader alone
    touches the folder, and watches. A run may go on from an epoch of another, its `fork`. The state at the end of each
    epoch in `keep` stays, for forks to come.
    What the fast engine compiles is kept in the folder `compile_cache`, where a later run of the same kind finds it:
    whoever can write there can run code (docs/security.md).
    With `base_start` in the recipe a run without class weights is trained too, in the folder `base`, and what is
    selected is the better of the two or a network between them (`runs.base`); `on_base()` is called before it starts.
    With `adjust_budget` its logits are adjusted last (`runs.logit_adjustment`).
    """
    out = Path(out)

    @cache
    def data() -> Source:  # opened, and its training images read, once for the run and its base
        opened = partial(open_data, config, allow_code=allow_code, data_dir=data_dir, notify=notify)
        source = team.leader_first(opened)
        return replace(source, read=cache(source.read))

    one = partial(
        _train_one,
        data=data,
        device=device,
        engine=engine,
        checkpoint_minutes=checkpoint_minutes,
        allow_code=allow_code,
        team=team,
        data_limit=data_limit,
        compile_cache=None if compile_cache is None else Path(compile_cache),
        on_step=on_step,
        on_epoch=on_epoch,
        on_fallback=on_fallback,
    )
    if config.select == "worst":  # the recipe of the run says what it was
        config = config.for_classes(data().num_classes)
    config = config.from_epoch(fork.epoch if fork and fork.run.config.method != config.method else 0)
    if config.base_start is None and config.adjust_budget is None:
        return one(config, out, resume=resume, fork=fork, keep=keep, on_start=on_start)
    if fork and config.base_start is not None:
        check_base(config, fork.epoch)
    done = torch.tensor(int(resume and team.leads and is_trained(Run(out, config, {}))))
    if team.broadcast(done).item() == 1:  # its own weights would take the place of those that ship
        return Run(out, config, read_about(out) if team.leads else {})
    bases = set() if config.base_start is None else {base_epoch(config)}
    run = one(config, out, resume=resume, fork=fork, keep={*keep, *bases}, on_start=on_start)
    if bases:
        begun = team.broadcast(torch.tensor(int((out / BASE / RECIPE).is_file()))).item() == 1  # as the leader sees it
        if on_base and team.leads:
            on_base()
        if begun:
            one(base_config(config), out / BASE, resume=True)
        else:
            one(base_config(config), out / BASE, fork=Fork(run, base_epoch(config)))
    if not team.leads:
        return run
    parts = split(config, data(), training_images(config, data()))
    if bases:
        run = Run(out, config, settle(run, *parts, torch.device(device)))
    if config.adjust_budget is not None:
        run = Run(out, config, adjust_selected(run, parts[1], torch.device(device), allow_code=allow_code))
    return run


def _train_one(
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
    on_step: Callable[[int, int, int], None] | None,
    on_epoch: Callable[[dict[str, Any]], None] | None,
    on_fallback: Callable[[str], None],
) -> Run:
    """One run, as `train_run` says."""
    started = time.perf_counter()
    if not resume and team.leads:
        _refuse_folder(out)
    engine = engine or Engine()
    source = data()
    images = training_images(config, source)
    train, valid = split(config, source, images)
    counts = {"train": train.class_counts(source.num_classes), "valid": valid.class_counts(source.num_classes)}
    about: dict[str, Any] = {
        "num_classes": source.num_classes,
        "class_names": list(source.class_names),
        "in_channels": images.x.shape[1],
        "image_size": list(images.x.shape[2:]),
        "train_images": len(train),
        "valid_images": len(valid),
        "class_counts": {part: count.tolist() for part, count in counts.items()},
        **_compare(train, valid, source.num_classes),
        **_test_shape(source),
        "data_digest": fingerprint(images),
        "versions": versions(),
        "engine": asdict(engine) | _describe_device(torch.device(device)) | {"processes": team.size},
    }
    plan, objective = config.make_plan(), config.make_objective()
    strategy = config.make_strategy(counts["train"])
    model = build_model(config, source.num_classes, images.x.shape[1], train)
    check_classifier(model, train, source.num_classes, config.model)
    if config.adjust_budget is not None:  # before anything is trained
        check_adjustable(model, valid, source.num_classes)
    if fork:
        check_fork(fork, config, about)
    late = max(keep, default=0)
    if late > config.epochs:
        raise UserError(f"epoch {late} cannot be kept: the run has {config.epochs}.")
    if fork:
        _refuse_past(keep, fork.epoch)
    continued = fork is not None or (resume and (out / LAST).is_file())
    if config.init and team.leads and not continued:
        about["init"] = start_from(config, model, about, allow_code=allow_code)
    state = new_state(model, strategy, plan, device)
    same = json.dumps([to_toml(config), about["data_digest"], asdict(engine), resume])
    team.check_same(same, "the processes were not started alike: their recipes, data or options differ.")
    check_batch(plan.batch_size_for(len(train)), team)
    train_on = partial(fit, state, train, valid, objective, plan, engine=engine, team=team, data_limit=data_limit)
    cache = None
    if engine.fast and compile_cache is not None:
        values = [getattr(config, key) for key in COMPILED]
        shapes = [*images.x.shape[1:], source.num_classes, len(train), len(valid), team.size]
        work = repr([config.base_objective, *values, *shapes, engine])
        cache = CompileCache(compile_cache, work, torch.device(device), on_fallback if team.leads else _silence)
        cache.load()
    if not team.leads:
        for _ in train_on(on_fallback=_silence):
            pass
        return Run(out, config, about)
    saver = Saver(out, state, 60 * checkpoint_minutes, on_fallback)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "train"), saver:
        if resume:
            now = about
            about = saver.restore(about)
            about.setdefault("class_counts", now["class_counts"])  # of the same data, split the same way
            asked = {*keep} - {*about.get("keep", [])}
            asked = {epoch for epoch in asked if not (out / KEPT.format(epoch)).is_file()}
            if state.epoch in asked and not state.step:  # its end was loaded just now
                saver.keep()
                asked.remove(state.epoch)
            _refuse_past(asked, state.epoch)
            keep = {*keep, *about.get("keep", [])}
            about |= {"keep": sorted(keep)} if keep else {}
            before = [about, *about.get("resumed", [])][-1]["engine"].get("processes", 1)
            if before != team.size:
                on_fallback(f"{before} process(es) trained this run, {team.size} go on: the same run but for rounding.")
            if state.epoch < plan.epochs:
                note = {
                    "epoch": state.epoch + 1,
                    "step": state.step,
                    "engine": now["engine"],
                    "versions": now["versions"],
                }
                about["resumed"] = [*about.get("resumed", []), note]
                write_json(out / ABOUT, about)
        else:
            _refuse_folder(out)
            for name in (LOG, LAST):  # of a fork that was killed before it was a run
                (out / name).unlink(missing_ok=True)
            if keep:
                about["keep"] = sorted(keep)
            if fork:
                about["fork"] = fork_state(fork, state, config)
                write_atomic(out / LOG, log_until(fork))
                saver.save_if_due(at_once=True)  # what a run that is killed soon goes on from
            write_json(out / ABOUT, about)
            write_atomic(out / RECIPE, to_toml(config).encode())  # last: a folder with a recipe is a run

        if on_start:
            on_start(Run(out, config, about))

        def after_step(step: int, steps: int) -> None:
            if on_step:
                on_step(state.epoch + 1, step, steps)
            if step < steps:  # after the last one comes the epoch's end
                saver.save_if_due()

        def note_engine(**what: Any) -> None:
            process = about["resumed"][-1] if resume else about
            process["engine"].update(what)
            if start:
                process["start"] = start
            write_json(out / ABOUT, about)

        notes: list[str] = []
        start: dict[str, Any] = {}

        def fall_back(line: str) -> None:
            notes.append(line)
            note_engine(notes=notes)
            on_fallback(line)

        if not fits(train, torch.device(device), data_limit):
            size = train.x.nbytes / 2**30
            on_fallback(f"the training images ({size:.3g} GiB) stay in host memory, and are fetched a batch ahead.")
        smoothed = config.select != "last" and config.select_smoothing > 1
        own = about.get("fork", {}).get("epoch", 0)  # lines before that are of another run
        before = Run(out, config, about).log[own:] if smoothed and state.epoch > own else []
        window = deque(filter(is_validated, before), maxlen=config.select_smoothing)

        def on_engine(used: Engine) -> None:
            now = time.perf_counter()
            start.update(seconds=round(now - started, 3), prepare_seconds=round(now - ready, 3))
            if cache and used.fast:
                start["compile_cache"] = cache.save()
            note_engine(fast=used.fast)

        ready = time.perf_counter()
        for record in train_on(on_step=after_step, on_engine=on_engine, on_fallback=fall_back):
            if cache:
                cache.save_news()  # a step may change its form on the way
            line = describe(record)
            line["selected"] = False
            if is_validated(line):
                window.append(line)
                score = selection_score(config.select, window)
                line["selected"] = saver.select(record.epoch, score)
                if smoothed:
                    line["selection_score"] = score
            line["effective_classes"] = effective_classes(distribution(line, counts_of(about, "train")))
            _append_log(out / LOG, line)
            if record.epoch in keep:  # first: once a checkpoint is written, the epoch is not made again
                saver.keep()
            saver.save_if_due(at_once=record.epoch == plan.epochs)
            if on_epoch:
                on_epoch(line)
    return Run(out, config, about)


def _test_shape(source: Source) -> dict[str, Any]:
    """The shape of a test image, where it is known without its pixels; what is wrong with that part is for later."""
    try:
        shape = source.test_shape()
    except UserError:
        return {}
    return {} if shape is None else {"test_shape": list(shape)}


def _compare(train: Images, valid: Images, num_classes: int) -> dict[str, Any]:
    """How many validation images are training images too, and how unlike theirs those of each class are. Of data so
    large that this takes long, nothing."""
    if train.x.nbytes + valid.x.nbytes > MAX_COMPARED:
        return {}
    copies = exact_duplicates({"train": train, "valid": valid})[0]["train", "valid"]
    shift = [round(each, 3) for each in validation_shift(train, valid, num_classes)]
    mirrored = [list(pair) for pair in mirror_pairs(train, num_classes)]
    return {"valid_in_train": copies, "valid_shift": shift, "mirrored": mirrored}


def _describe_device(device: torch.device) -> dict[str, Any]:
    """What a run was trained on."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {"device": str(device), "threads": torch.get_num_threads(), **gpu}


def describe(record: EpochRecord) -> dict[str, Any]:
    """A record as one line of the log."""
    drawn = {"class_sampling": record.weights.sampling, "class_quota": record.weights.quota}
    return {
        "epoch": record.epoch,
        "lr": record.lr,
        "seconds": round(record.seconds, 3),
        "train": {
            "loss": float(record.train.overall("natural_loss", "robust_loss")),
            "accuracy": float(record.train.overall("robust_correct")),  # on the images trained on: attacked, or clean
        },
        "valid": {
            "loss": float(record.valid.overall("natural_loss", "robust_loss")),
            "natural_accuracy": float(record.valid.overall("natural_correct")),
            "robust_accuracy": float(record.valid.overall("robust_correct")),
            "worst_natural_accuracy": float(record.valid.mean("natural_correct").min()),
            "worst_robust_accuracy": float(record.valid.mean("robust_correct").min()),
            "worst_tenth_robust_accuracy": worst_tenth(record.valid.mean("robust_correct").tolist()),
        },
        "class_train_accuracy": record.train.mean("robust_correct").tolist(),
        "class_costs": class_costs(record.valid).tolist(),
        "class_natural_accuracy": record.valid.mean("natural_correct").tolist(),
        "class_robust_accuracy": record.valid.mean("robust_correct").tolist(),
        "expert_weights": record.expert_weights.tolist(),
        "class_weights": (record.weights.natural * record.frequency).tolist(),
        "class_robust_weights": (record.weights.robust * record.frequency).tolist(),
        "class_radius_scales": record.weights.radius_scale.tolist(),
        **{name: share.tolist() for name, share in drawn.items() if share is not None},
        "strategy": {key: value.tolist() for key, value in record.strategy_before.items()},
        "next_class_weights": record.next_weights.tolist(),
        **({} if record.valid_epoch is None else {"valid_epoch": record.valid_epoch}),
    }


def _silence(line: str) -> None:
    """It is the leader's to tell."""


def _refuse_folder(out: Path) -> None:
    if (out / RECIPE).exists():
        raise UserError(f"{out} holds a run already: continue it with `--resume {out}`, or choose another --out.")
    if out.exists() and (not out.is_dir() or any(not _left_by_a_kill(entry.name) for entry in out.iterdir())):
        raise UserError(f"{out} is in use for something else; choose another --out.")


def _refuse_past(keep: Collection[int], epoch: int) -> None:
    """Raise if an epoch is to be kept that a run, which goes on from this one, does not make."""
    early = min(keep, default=epoch + 1)
    if early <= epoch:
        raise UserError(f"epoch {early} cannot be kept: the run goes on from epoch {epoch}.")


def _left_by_a_kill(name: str) -> bool:
    """Whether a run that was killed before it had a recipe may have left this file."""
    return name in (ABOUT, LOG, LAST) or name.endswith((".partial", ".lock"))


def _append_log(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
