"""Time to robustness: how long a run takes from the start of its process to selected weights, and how good they are."""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from worstclass.errors import UserError
from worstclass.evaluation.saved import CARD, load_card
from worstclass.report.figures import STYLE, run_color
from worstclass.report.results import STRONGEST, attack_title
from worstclass.runs.base import BASE
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import LOG
from worstclass.runs.selection import is_validated


@dataclass(frozen=True)
class Point:
    """A validated epoch: seconds until its end, and validation accuracy under attack."""

    epoch: int
    seconds: float
    average: float
    worst: float
    selected: bool


@dataclass(frozen=True)
class Curve:
    """A run by the clock.

    `seconds` are all of it; of them `prepare` went to compiling and capturing, and `process`, known where the process
    was timed from outside, to all that the run itself does not time: imports, the last checkpoint, the exit. `points`
    are validated with the attack `valid_attack`; of a fork they are its own, those before it another run's. `test` has
    average and worst class on the test images by attack, where they were attacked.
    """

    name: str
    title: str
    machine: str
    seconds: float
    prepare: float | None
    process: float | None
    points: list[Point]
    valid_attack: str
    test: dict[str, dict[str, Any]]

    @property
    def kept(self) -> Point:
        """The epoch whose weights were selected."""
        return [point for point in self.points if point.selected][-1]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"kept": asdict(self.kept)}


def time_command(*words: str) -> float:
    """Seconds of a `worstclass` command in a process of its own; raises `CalledProcessError` if it fails."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "worstclass", *words], check=True)
    return time.perf_counter() - started


def read_curve(folder: Path, wall: float | None = None) -> Curve:
    """The curve of a run from its log. Times are those that the run took itself, or `wall` seconds in all: what the
    run did not time is then counted as its start."""
    run = open_run(folder)
    log = run.log if (folder / LOG).is_file() else []
    if not any(line["selected"] for line in log[run.fork or 0 :]):
        raise UserError(f"{folder} has no selected weights yet: no epoch has ended.")
    starts = _starts(run)
    start, spent = sum(each["seconds"] for each in starts), [line["seconds"] for line in log]
    base = _base_seconds(folder)
    process = None if wall is None else max(wall - start - base - sum(spent), 0.0)
    ends = accumulate(spent, initial=start + (process or 0.0))
    next(ends)
    points = [
        Point(
            line["epoch"],
            round(end, 3),
            line["valid"]["robust_accuracy"],
            line["valid"]["worst_robust_accuracy"],
            line["selected"],
        )
        for line, end in zip(log, ends, strict=True)
        if is_validated(line) and line["epoch"] > (run.fork or 0)
    ]
    columns = load_card(folder)["columns"] if (folder / CARD).is_file() else {}
    return Curve(
        name=folder.resolve().name,
        title=run.config.title,
        machine=run.about["engine"].get("gpu", "") or run.about["engine"]["device"],
        seconds=round(start + base + sum(spent) if wall is None else wall, 3),
        prepare=sum(each["prepare_seconds"] for each in starts) if starts else None,
        process=process,
        points=points,
        valid_attack=run.config.valid_attack,
        test={name: {key: column[key] for key in ("average", "worst")} for name, column in columns.items()},
    )


def _starts(run: Run) -> list[dict[str, Any]]:
    """How the processes of a run started, as far as they say so."""
    return [each["start"] for each in (run.about, *run.about.get("resumed", [])) if each.get("start")]


def _base_seconds(folder: Path) -> float:
    """Seconds of the base beside a run, from where it left the run; 0 without one."""
    if not (folder / BASE / LOG).is_file():
        return 0.0
    base = open_run(folder / BASE)
    own = base.log[base.about.get("fork", {}).get("epoch", 0) :]
    return float(sum(each["seconds"] for each in _starts(base)) + sum(line["seconds"] for line in own))


def shared_attack(curves: Sequence[Curve]) -> str | None:
    """The strongest attack that all have on the test images; None if there is none."""
    return next((name for name in STRONGEST if all(name in curve.test for curve in curves)), None)


def draw_front(curves: Sequence[Curve]) -> Figure:
    """The worst class by the clock: on the left the best validation so far, on the right the test images under the
    strongest attack that all runs have, where they have one; dashed: the best until then."""
    attack, names = shared_attack(curves), _short_names([curve.name for curve in curves])
    if len({curve.valid_attack for curve in curves}) > 1:
        names = [f"{name} ({curve.valid_attack.upper()})" for name, curve in zip(names, curves, strict=True)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.8) if attack else (7, 3.8), layout="constrained")
        left, *right = figure.subplots(1, 2 if attack else 1, squeeze=False)[0]
        for index, (curve, name) in enumerate(zip(curves, names, strict=True)):
            color = run_color(index)
            times = [point.seconds / 60 for point in curve.points]
            best = [100 * each for each in accumulate((point.worst for point in curve.points), max)]
            left.plot(times, best, color=color, drawstyle="steps-post", linewidth=1.2)
            left.plot(times[-1:], best[-1:], "o", color=color, label=name, markersize=5)
            for axes in right:
                worst = curve.test[attack or ""]["worst"]
                value, low, high = (100 * worst[key] for key in ("value", "low", "high"))
                spread = [[max(value - low, 0)], [max(high - value, 0)]]
                axes.errorbar([curve.seconds / 60], [value], yerr=spread, fmt="o", color=color, markersize=5, lw=1)
        for axes in right:
            front = sorted((curve.seconds / 60, 100 * curve.test[attack or ""]["worst"]["value"]) for curve in curves)
            best = list(accumulate((value for _, value in front), max))
            axes.plot([at for at, _ in front], best, "--", color="#999999", drawstyle="steps-post", lw=1, zorder=0)
        left.set_title("worst class on validation, best so far (%)", loc="left", fontsize=10)
        for axes in right:
            axes.set_title(f"worst class, {attack_title(attack or '')}, test images (%)", loc="left", fontsize=10)
            axes.set_xlim(0, None)
            axes.set_xlabel("minutes, all in all")
        left.set_xscale("log")
        left.xaxis.set_major_formatter("{x:g}")
        left.xaxis.set_minor_formatter("")
        left.set_xlabel("minutes since the start (log scale)")
        figure.legend(frameon=False, loc="outside right center", fontsize=8)
        return figure


def _short_names(names: Sequence[str]) -> list[str]:
    """Names without the words that all begin with."""
    words = [name.split("-") for name in names]
    common = 0
    while len(names) > 1 and all(len(each) > common + 1 and each[common] == words[0][common] for each in words):
        common += 1
    return ["-".join(each[common:]) for each in words]
