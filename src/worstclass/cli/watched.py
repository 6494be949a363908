"""Training and evaluation as the commands run them: watched, and with a word on how to go on when they are stopped."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import typer

from worstclass.cli.console import say, short
from worstclass.cli.progress import clock, watch
from worstclass.cli.stopping import Stop
from worstclass.config.keys import Config
from worstclass.errors import exit_code
from worstclass.evaluation.evaluate import Event
from worstclass.evaluation.run_notes import base_note, cost_note, run_notes, start_notes, step_note, time_note
from worstclass.evaluation.targets import PART, PROGRESS, Target, evaluate_target
from worstclass.execution.distributed import ALONE, Team
from worstclass.inputs.names import RECIPE
from worstclass.metrics.percentages import percent
from worstclass.metrics.tail import has_many
from worstclass.runs.about import last_process
from worstclass.runs.base import BASE, base_config, base_epoch
from worstclass.runs.notes import training_notes
from worstclass.runs.run import Run, consent, open_run
from worstclass.runs.saver import LAST, LOG
from worstclass.runs.selection import is_validated
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import Fork
from worstclass.training.checkpoint import load_header
from worstclass.training.engine import Engine


def train_with_progress(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    fork: Fork | None = None,
    keep: Collection[int] = (),
    data_dir: Path = Path("data"),
    device: torch.device,
    engine: Engine | None = None,
    checkpoint_minutes: float = 1.0,
    allow_code: bool = False,
    team: Team = ALONE,
    data_limit: int | None = None,
    compile_cache: Path | None = None,
    on_record: Sequence[Callable[[dict[str, Any]], None]] = (),
) -> Run:
    """Train with a line after each epoch; Ctrl-C and SIGTERM say how to go on."""
    if device.type == "cuda":
        engine = engine or Engine()
        kind = "fast engine (compiled, one CUDA graph a step)" if engine.fast else "eager engine"
        exact = ", deterministic" if engine.deterministic else ""
        many = f"{team.size} processes, the first on " if team.size > 1 else ""
        say(f"{many}{torch.cuda.get_device_name(device)}: {kind}, {engine.precision}{exact}")
    elif team.size > 1:
        say(f"{team.size} processes on CPUs")
    trained, of, notes = 0, config, NewNotes(config.select, averaged=config.average != "none")
    stop = Stop(here=team.alone)
    try:
        with watch() as progress, stop:

            def on_start(run: Run) -> None:
                notes.start(run)
                epoch, done, steps = first_step(run, resumed=resume)
                long = time_note(run, epoch - 1) if device.type == "cpu" and team.alone else []
                alone = [] if resume else base_note(run)
                for note in cost_note(run) + long + start_notes(run) + step_note(run) + alone:
                    say(f"Note: {note}")
                if epoch <= config.epochs:  # the first step may take minutes
                    progress.begin(f"{config.method} epoch {epoch}/{config.epochs}", done, steps)

            def on_step(epoch: int, step: int, steps: int) -> None:
                stop.waits = True
                progress.step(f"{config.method if of is config else 'base'} epoch {epoch}/{config.epochs}", step, steps)

            def on_epoch(line: dict[str, Any]) -> None:
                nonlocal trained
                trained += 1
                stop.waits = line["epoch"] < config.epochs  # what follows on the last one has nothing to save
                run = open_run(folder)
                if trained == 1 and (ready := ready_line(run.about)):
                    progress.epoch(ready)
                progress.epoch(epoch_line(line, of.for_classes(len(run.class_names)), run.class_names))
                if of is not config:
                    return
                for note in notes.after(line, run.about):
                    progress.epoch(f"Note: {note}")
                for record in on_record:
                    record(line)

            def on_base() -> None:
                nonlocal of
                of = base_config(config)
                progress.epoch(f"The base: {of.title}, from epoch {base_epoch(config)} on.")

            run = train_run(
                config,
                folder,
                resume=resume,
                fork=fork,
                keep=keep,
                data_dir=data_dir,
                device=device,
                engine=engine,
                checkpoint_minutes=checkpoint_minutes,
                allow_code=allow_code,
                team=team,
                data_limit=data_limit,
                compile_cache=compile_cache,
                notify=progress.download,
                stop=stop,
                on_start=on_start,
                on_step=on_step,
                on_epoch=on_epoch,
                on_base=on_base,
                on_compare=lambda done, total: progress.count("comparing with the base", done, total),
                on_adjust=lambda done, total: progress.count("adjusting the logits", done, total),
                on_fallback=lambda line: say(f"Note: {line}"),
            )
    except KeyboardInterrupt as error:
        started = (folder / RECIPE).is_file()
        again = f" Continue with: worstclass train --resume {folder}{consent(config)}" if started else ""
        say(f"\nStopped.{lost_note(folder if of is config else folder / BASE)}{again}")
        raise typer.Exit(128 + stop.heard[0] if stop.heard else exit_code(error)) from None
    if not trained:
        say(f"All {config.epochs} epochs were trained before: nothing is left to do.")
    told = run_notes(open_run(folder)) if team.leads else []
    if told:
        say("\n- ".join(["Notes on this run:", *told]))
    return run


def first_step(run: Run, *, resumed: bool) -> tuple[int, int, int]:
    """The epoch that a training begins with, the steps done of it, and its steps."""
    images, batch_size = run.about["train_images"], run.config.batch_size
    done = last_process(run.about).get("step", 0) if resumed else 0
    return epochs_logged(run.folder) + 1, done, images // min(batch_size, images)


def epochs_logged(folder: Path) -> int:
    """How many epochs a run has ended, saved or not."""
    return (folder / LOG).read_bytes().count(b"\n") if (folder / LOG).is_file() else 0


def lost_note(folder: Path) -> str:
    """How many epochs of a run that was stopped came after its last checkpoint; empty where none did."""
    lost = epochs_logged(folder) - load_header(folder / LAST).get("epoch", 0)
    return f" Epochs since the last checkpoint, which will be made again: {lost}." if lost > 0 else ""


def ready_line(about: Mapping[str, Any]) -> str:
    """How long a compiled run took to start, and whether it found what was compiled before; empty for an eager one."""
    process = [about, *about.get("resumed", [])][-1]
    start = process.get("start")
    if not process["engine"]["fast"] or not start:
        return ""
    found = {"hit": ", all from the compile cache", "part": ", some from the compile cache"}
    cached = found.get(start.get("compile_cache", ""), "")
    return f"Started in {start['seconds']:.1f} s, {start['prepare_seconds']:.1f} s to compile and capture{cached}."


class NewNotes:
    """Says each note on a run's training once, when it first holds, though its numbers change."""

    def __init__(self, select: str, *, averaged: bool = False) -> None:
        self._select, self._averaged = select, averaged
        self._log: list[dict[str, Any]] = []
        self._said: set[str] = set()

    def start(self, run: Run) -> None:
        """Take what `select` means there. Of a run that goes on: what its log said before was said."""
        self._select = run.config.select
        self._log = run.log if (run.folder / LOG).is_file() else []
        self._said = set(self._notes(run.about))

    def after(self, line: dict[str, Any], about: Mapping[str, Any]) -> list[str]:
        """What is new after an epoch."""
        self._log.append(line)
        now = self._notes(about)
        new = [note for key, note in now.items() if key not in self._said]
        self._said |= set(now)
        return new

    def _notes(self, about: Mapping[str, Any]) -> dict[str, str]:
        return training_notes(self._log, about, self._select, averaged=self._averaged)


def epoch_line(line: dict[str, Any], config: Config, names: Sequence[str]) -> str:
    """One epoch in one line: average and worst validation accuracy, and the class that now weighs most.

    With many classes the worst tenth too; where the score that selects is smoothed, that score.
    """
    valid, weights = line["valid"], line["next_class_weights"]
    worst = min(range(len(names)), key=lambda k: line["class_robust_accuracy"][k])
    heaviest = max(range(len(names)), key=lambda k: weights[k])
    moving = max(weights) - min(weights) > 1e-6
    measured = (
        f"natural {percent(valid['natural_accuracy'])}  "
        f"validation {config.valid_attack.upper()} {percent(valid['robust_accuracy'])}, "
        f"worst {percent(valid['worst_robust_accuracy'])} {short(names[worst])}"
        + (f", worst tenth {percent(valid['worst_tenth_robust_accuracy'])}" if has_many(len(names)) else "")
    )
    return (
        f"{line['epoch']:3d}/{config.epochs}  loss {line['train']['loss']:.3f}  "
        + (measured if is_validated(line) else "no validation")
        + (f"  heaviest {short(names[heaviest])} {weights[heaviest]:.2f}" if moving else "")
        + (f"  effective classes {line['effective_classes']:.1f}" if moving and "effective_classes" in line else "")
        + (f"  {smoothed_score(line, config)}" if "selection_score" in line else "")
        + ("  kept" if line["selected"] and config.select != "last" else "")
        + f"  {line['seconds']:.1f}s, {clock(line['seconds'] * (config.epochs - line['epoch']))} left"
    )


def smoothed_score(line: dict[str, Any], config: Config) -> str:
    """What was judged, of the mean over epochs: `smoothed worst tenth 27.1`."""
    score = line["selection_score"][0]
    words = {
        "worst-accuracy": "worst",
        "worst-tenth": "worst tenth",
        "average": "average",
        "average-and-worst": "score",
    }
    return f"smoothed {words[config.select]} {percent(score)}" if score >= 0 else f"smoothed worst loss {-score:.3f}"


def evaluate_with_progress(target: Target, names: list[str], folder: Path, **options: Any) -> dict[str, Any]:
    """Evaluate with a bar, or lines, for each attack; Ctrl-C and SIGTERM say how to go on."""
    with watched_attacks(folder) as notify:
        return evaluate_target(
            target, names, folder, notify=notify, on_note=lambda line: say(f"Note: {line}"), **options
        )


@contextmanager
def watched_attacks(folder: Path | None) -> Iterator[Callable[[Event], None]]:
    """A bar, or lines, for each attack in the body; Ctrl-C and SIGTERM say how to go on, if `folder` keeps progress."""
    try:
        with watch() as progress:
            yield progress.attack
    except KeyboardInterrupt as stop:
        kept = ""
        if folder is not None and (folder / PROGRESS).is_file():
            kept = f" The same command goes on from {folder / PROGRESS}."
        elif folder is not None and list(folder.glob(PART.format("*", "*"))):
            kept = " The same command goes on where it was."
        say(f"\nStopped.{kept}")
        raise typer.Exit(exit_code(stop)) from None
