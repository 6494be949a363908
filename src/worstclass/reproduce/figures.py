"""Figures 2 to 6 of the paper as Matplotlib objects. (Figure 1 is a drawing of the idea, without data.)"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from worstclass.errors import UserError, choose
from worstclass.metrics.measures import Floats
from worstclass.report.figures import STYLE, Picture
from worstclass.report.results import Result, attack_title
from worstclass.reproduce.rows import Row, collect, rows_of
from worstclass.reproduce.specs import FIGURES, RESNET

BLUE, PURPLE = "#0072B2", "#8E44AD"  # ours is blue and the others purple, as in the paper


def draw_figure(name: str, folders: Sequence[Path], setting: tuple[str, str] = RESNET) -> tuple[Figure, list[str]]:
    """A figure of the paper (`figure2` to `figure6`) from evaluated runs, and what is missing or to be noted."""
    spec = FIGURES[choose("figure", name, list(FIGURES))]
    groups, notes = collect(folders, [setting])
    if len(groups) > 1:
        raise UserError("a figure shows one data set and network; the runs are of several.")
    ((found, results),) = groups.items()
    rows = rows_of(results, spec.recipes, found)
    missing = [line for row in rows for line in row.missing([spec.attack])]
    notes += [line for row in rows for line in row.differences()]
    with matplotlib.rc_context(STYLE):
        if name == "figure2":
            figure = _bars(rows, spec.attack)
        elif name == "figure3":
            figure = _weights(rows, spec.attack)
        else:
            figure = _pairs(rows, spec.attack)
    return figure, [*(f"missing: {line}" for line in missing), *(f"note: {line}" for line in notes)]


def _bars(rows: Sequence[Row], attack: str) -> Figure:
    """A panel for each method: the accuracy of each class, its interval, and the average."""
    figure = Picture(figsize=(9, 3.4), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), sharey=True), rows, strict=True):
        axes.set_title(row.title, loc="left")
        result = _shown(row, attack)
        if result is None:
            _absent(axes)
            continue
        value, low, high = _classes(result, attack)
        weakest = int(np.nanargmin(value))
        colors = [PURPLE if k == weakest else BLUE for k in range(len(value))]
        axes.bar(range(len(value)), value, color=colors)
        axes.errorbar(range(len(value)), value, [value - low, high - value], fmt="none", ecolor="#333333", capsize=2)
        average = 100 * result.columns[attack]["average"]["value"]
        axes.axhline(average, color="#333333", linestyle="--", linewidth=1)
        worst = f"{result.class_names[weakest]} {value[weakest]:.1f}"
        axes.set_title(f"{row.title}: average {average:.1f} (dashed), {worst}", loc="left")
        _class_axis(axes, result.class_names)
    figure.axes[0].set_ylabel(f"accuracy under {attack_title(attack)} (%)")
    return figure


def _weights(rows: Sequence[Row], attack: str) -> Figure:
    """Average and worst-class accuracy over the weight of the class in focus."""
    figure = Picture(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    shown = [result for row in rows if (result := _shown(row, attack))]
    if not shown:
        _absent(axes)
        return figure
    weights = [result.config.focus_weight or 0.0 for result in shown]
    for measure, color, label in (("average", BLUE, "average"), ("worst", PURPLE, "worst class")):
        cells = [result.columns[attack][measure] for result in shown]
        value, low, high = (100 * np.array([cell[key] for cell in cells]) for key in ("value", "low", "high"))
        axes.errorbar(weights, value, [value - low, high - value], color=color, marker="o", capsize=2, label=label)
    focus = shown[0].class_names[shown[0].config.focus_class or 0]
    axes.set_xlabel(f"weight of {focus}")
    axes.set_ylabel(f"accuracy under {attack_title(attack)} (%)")
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    return figure


def _pairs(rows: Sequence[Row], attack: str) -> Figure:
    """A panel for each other method: ours in blue and the other in purple, class by class."""
    figure = Picture(figsize=(12, 3.4), layout="constrained")
    ours = _shown(rows[0], attack)
    for axes, row in zip(figure.subplots(1, len(rows) - 1, sharey=True), rows[1:], strict=True):
        axes.set_title(f"WAT and {row.title}", loc="left")
        drawn = False
        for result, color, marker, title in ((ours, BLUE, "o", "WAT"), (_shown(row, attack), PURPLE, "s", row.title)):
            if result is None:
                continue
            value, low, high = _classes(result, attack)
            axes.fill_between(range(len(value)), low, high, color=color, alpha=0.15, linewidth=0)
            axes.plot(range(len(value)), value, color=color, marker=marker, markersize=4, label=title)
            _class_axis(axes, result.class_names)
            drawn = True
        if drawn:
            axes.legend(frameon=False, fontsize=8)
        else:
            _absent(axes)
    figure.axes[0].set_ylabel(f"accuracy under {attack_title(attack)} (%)")
    return figure


def _shown(row: Row, attack: str) -> Result | None:
    """The first run of a row that was evaluated under the attack."""
    return next((result for result in row.results if attack in result.columns), None)


def _classes(result: Result, attack: str) -> tuple[Floats, Floats, Floats]:
    """Accuracy of each class in percent, and its interval."""
    classes = result.columns[attack]["classes"]
    value, low, high = (100 * np.array([c[key] for c in classes], dtype=float) for key in ("value", "low", "high"))
    return value, low, high


def _class_axis(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), list(names), rotation=40, ha="right", fontsize=8)
    axes.set_ylim(0, 100)
    axes.grid(axis="x", visible=False)


def _absent(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no run", transform=axes.transAxes, ha="center", color="#666666")
    axes.set_xticks([])
