"""Train a run on disk: how it is started, continued and logged."""

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from worstclass.config import Config, to_toml
from worstclass.data import fits, open_source, split_validation
from worstclass.data.sources import Notify
from worstclass.distributed import ALONE, Team
from worstclass.errors import UserError
from worstclass.files import locked, write_atomic, write_json
from worstclass.names import RECIPE
from worstclass.runs.run import Run, build_model, check_classifier, fingerprint, refuse_code
from worstclass.runs.saver import ABOUT, LAST, LOG, Saver
from worstclass.runs.selection import selection_score
from worstclass.runs.warm_start import Fork, check_fork, fork_state, log_until, start_from
from worstclass.strategies.hedge import class_costs
from worstclass.tail import worst_tenth
from worstclass.training import EpochRecord, fit, new_state
from worstclass.training.engine import Engine
from worstclass.training.prepare import check_batch
from worstclass.versions import versions


def train_run(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    fork: Fork | None = None,
    keep: Collection[int] = (),
    data_dir: Path = Path("data"),
    device: torch.device | str = "cpu",
    engine: Engine | None = None,
    checkpoint_minutes: float = 1.0,
    allow_code: bool = False,
    team: Team = ALONE,
    data_limit: int | None = None,
    notify: Notify | None = None,
    on_step: Callable[[int, int, int], None] | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_fallback: Callable[[str], None] = warnings.warn,
) -> Run:
    """Train, or continue, a run in the folder `out`; only training and validation images are read.

    After each epoch a line is added to the log. Once `checkpoint_minutes` have passed since the last time, and at the
    end, the whole state is saved while training goes on, with the epoch selected so far; each file is replaced
    atomically, and what came after the last checkpoint that was written is made again. A damaged checkpoint is found by
    its digest, and the one before it taken. A folder that another process trains in is refused.
    `on_step(epoch, step, steps)` and `on_epoch(record)` watch, and `on_fallback(line)` hears what was taken in the
    place of something else. Images of more than `data_limit` bytes stay in host memory, as `fit` says. Every process of
    a `team` calls this with the same arguments; the leader alone touches the folder, and watches. A run may go on from
    an epoch of another, its `fork`. The state at the end of each epoch in `keep` stays, for forks to come.
    """
    refuse_code(config, allow_code)
    if not resume and team.leads:
        _refuse_folder(out)
    engine = engine or Engine()
    source = team.leader_first(lambda: open_source(config.data, data_dir=data_dir, notify=notify))
    images = source.read("train")
    train, valid = split_validation(images, source.num_classes, config.valid_fraction)
    about: dict[str, Any] = {
        "num_classes": source.num_classes,
        "class_names": list(source.class_names),
        "in_channels": images.x.shape[1],
        "image_size": list(images.x.shape[2:]),
        "train_images": len(train),
        "valid_images": len(valid),
        "data_digest": fingerprint(images),
        "versions": versions(),
        "engine": asdict(engine) | _describe_device(torch.device(device)) | {"processes": team.size},
    }
    plan, objective = config.make_plan(), config.make_objective()
    strategy = config.make_strategy(train.class_counts(source.num_classes))
    model = build_model(config, source.num_classes, images.x.shape[1], train)
    check_classifier(model, train, source.num_classes, config.model)
    if fork:
        check_fork(fork, config, about["data_digest"])
    late = max(keep, default=0)
    if late > config.epochs:
        raise UserError(f"epoch {late} cannot be kept: the run has {config.epochs}.")
    continued = fork is not None or (resume and (out / LAST).is_file())
    if config.init and team.leads and not continued:
        about["init"] = start_from(config, model, about["data_digest"], allow_code=allow_code)
    state = new_state(model, strategy, plan, device)
    same = json.dumps([to_toml(config), about["data_digest"], asdict(engine), resume])
    team.check_same(same, "the processes were not started alike: their recipes, data or options differ.")
    check_batch(plan.batch_size_for(len(train)), team)
    train_on = partial(fit, state, train, valid, objective, plan, engine=engine, team=team, data_limit=data_limit)
    if not team.leads:
        for _ in train_on(on_fallback=lambda _: None):  # the leader's to tell
            pass
        return Run(out, config, about)
    saver = Saver(out, state, 60 * checkpoint_minutes, on_fallback)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "train"), saver:
        if resume:
            now = about
            about = saver.restore(about)
            keep = {*keep, *about.get("keep", [])}
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

        def after_step(step: int, steps: int) -> None:
            if on_step:
                on_step(state.epoch + 1, step, steps)
            if step < steps:  # after the last one comes the epoch's end
                saver.save_if_due()

        def note_engine(**what: Any) -> None:
            (about["resumed"][-1] if resume else about)["engine"].update(what)
            write_json(out / ABOUT, about)

        notes: list[str] = []

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
        window = deque(before, maxlen=config.select_smoothing)
        for record in train_on(
            on_step=after_step, on_engine=lambda used: note_engine(fast=used.fast), on_fallback=fall_back
        ):
            line = describe(record)
            window.append(line)
            score = selection_score(config.select, window)
            line["selected"] = saver.select(record.epoch, score)
            if smoothed:
                line["selection_score"] = score
            _append_log(out / LOG, line)
            if record.epoch in keep:  # first: once a checkpoint is written, the epoch is not made again
                saver.keep()
            saver.save_if_due(at_once=record.epoch == plan.epochs)
            if on_epoch:
                on_epoch(line)
    return Run(out, config, about)


def _describe_device(device: torch.device) -> dict[str, Any]:
    """What a run was trained on."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {"device": str(device), "threads": torch.get_num_threads(), **gpu}


def describe(record: EpochRecord) -> dict[str, Any]:
    """A record as one line of the log."""
    sampling = record.weights.sampling
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
        "class_costs": class_costs(record.valid).tolist(),
        "class_natural_accuracy": record.valid.mean("natural_correct").tolist(),
        "class_robust_accuracy": record.valid.mean("robust_correct").tolist(),
        "expert_weights": record.expert_weights.tolist(),
        "class_weights": record.weights.natural.tolist(),
        "class_robust_weights": record.weights.robust.tolist(),
        "class_radius_scales": record.weights.radius_scale.tolist(),
        **({} if sampling is None else {"class_sampling": sampling.tolist()}),
        "strategy": {key: value.tolist() for key, value in record.strategy_before.items()},
        "next_class_weights": record.next_weights.tolist(),
    }


def _refuse_folder(out: Path) -> None:
    if (out / RECIPE).exists():
        raise UserError(f"{out} holds a run already: continue it with `--resume {out}`, or choose another --out.")
    if out.exists() and (not out.is_dir() or any(not _left_by_a_kill(entry.name) for entry in out.iterdir())):
        raise UserError(f"{out} is in use for something else; choose another --out.")


def _left_by_a_kill(name: str) -> bool:
    """Whether a run that was killed before it had a recipe may have left this file."""
    return name in (ABOUT, LOG, LAST) or name.endswith((".partial", ".lock"))


def _append_log(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
