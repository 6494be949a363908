"""Figures as Matplotlib objects: class-wise bars, methods as a forest plot, and what a run did over its epochs."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from worstclass.errors import choose
from worstclass.files import write_atomic
from worstclass.metrics.tail import has_many, worst_tenth
from worstclass.report.groups import Group, by_worst, has_seeds
from worstclass.report.results import Result, attack_title
from worstclass.runs.run import Run
from worstclass.runs.selection import is_validated

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")  # Okabe and Ito
ENDS = 10  # of many classes, those shown at either end
TENTH = "worst tenth of classes"
FIGURE_FORMATS = ("svg", "pdf", "png")
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "svg.hashsalt": "worstclass",  # equal figures, equal bytes
    "svg.fonttype": "none",
    "text.parse_math": False,  # a class may be called $x$
}


class Picture(Figure):
    """A figure that a notebook shows, without pyplot too."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def run_color(index: int) -> str:
    """A colour of its own for each run: after the first eight the same ones, lighter."""
    rounds, place = divmod(index, len(COLORS))
    red, green, blue = (1 - 0.4**rounds * (1 - part) for part in to_rgb(COLORS[place]))
    return to_hex((red, green, blue))


def classwise(results: Sequence[Result], attack: str) -> Figure:
    """Accuracy of each class under one attack, runs side by side, with exact 95% intervals.

    Of many classes the lowest and the highest, beside the accuracies of all in order.
    """
    if has_many(len(results[0].class_names)):
        return _ranked(results, attack)
    with matplotlib.rc_context(STYLE):
        figure = Picture(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots()
        names = [_short(name, 16) for name in results[0].class_names]
        places, width = np.arange(len(names)), 0.8 / len(results)
        for index, result in enumerate(results):
            classes = result.columns[attack]["classes"]
            value, low, high = (
                100 * np.array([c[key] for c in classes], dtype=float) for key in ("value", "low", "high")
            )
            offset = (index - (len(results) - 1) / 2) * width
            color = run_color(index)
            axes.bar(places + offset, value, 0.92 * width, color=color, label=_short(result.title))
            errors = np.stack([value - low, high - value])
            axes.errorbar(places + offset, value, errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
            axes.axhline(100 * result.columns[attack]["average"]["value"], color=color, linewidth=1, linestyle="--")
        if len(names) > 6 or max(map(len, names)) > 10:
            axes.set_xticks(places, names, rotation=30, ha="right")
        else:
            axes.set_xticks(places, names)
        axes.set_ylabel("accuracy (%)")
        axes.set_ylim(0, 100)
        axes.grid(axis="x", visible=False)
        axes.set_title(f"{attack_title(attack)}: accuracy of each class (dashed: average)", loc="left")
        _add_legend(figure, len(results))
        return figure


def _ranked(results: Sequence[Result], attack: str) -> Figure:
    """Left, the classes that are lowest and highest on average over the runs; right, all of each run in its order."""
    with matplotlib.rc_context(STYLE):
        figure = Picture(figsize=(9, 1.6 + 2 * ENDS * (0.12 + 0.09 * len(results))), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        names = results[0].class_names
        ends = {  # (runs, K) each
            key: 100 * np.array([[c[key] for c in r.columns[attack]["classes"]] for r in results], dtype=float)
            for key in ("value", "low", "high")
        }
        means = ends["value"].mean(axis=0)
        order = np.argsort(means, kind="stable")[: int((~np.isnan(means)).sum())]  # without classes that have no images
        between = max(0, len(order) - 2 * ENDS)
        shown = np.concatenate([order[:ENDS], order[ENDS + between :]])
        places = -np.arange(len(shown)) - 1.0 * (np.arange(len(shown)) >= ENDS)
        height = 0.8 / len(results)
        for index, result in enumerate(results):
            value, low, high = (ends[key][index, shown] for key in ("value", "low", "high"))
            at, color = places - (index - (len(results) - 1) / 2) * height, run_color(index)
            left.barh(at, value, 0.92 * height, color=color, label=_short(result.title))
            errors = np.stack([value - low, high - value])
            left.errorbar(value, at, xerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
            ranked = np.sort(ends["value"][index, order])
            right.plot(np.arange(1, len(ranked) + 1), ranked, color=color, drawstyle="steps-mid")
        labels = [_short(names[k], 24) for k in shown]
        fold = f"\u2026 {between} more \u2026" if between else ""
        left.set_yticks([*places, -float(ENDS)], [*labels, fold], fontsize=8)
        left.tick_params(axis="y", length=0)
        left.grid(axis="y", visible=False)
        left.set_xlim(0, 100)
        left.set_xlabel("accuracy (%)")
        left.set_title(f"{attack_title(attack)}: the lowest and the highest", loc="left")
        right.axvspan(0.5, len(order) / 10 + 0.5, color="#f3e6c8", zorder=0)
        right.set_ylim(0, 100)
        right.set_xlabel("classes, from worst to best")
        right.set_title(f"all {len(order)} (shaded: the worst tenth)", loc="left")
        _add_legend(figure, len(results))
        return figure


def forest(groups: Sequence[Group], attack: str) -> Figure:
    """A row for each method, the best worst class on top: its seeds as dots, their mean with its 95% interval as a bar,
    and the paper's number as a cross; average on the left, worst class on the right, and with many classes the worst
    tenth beside it."""
    ordered = by_worst(groups, attack)
    places = np.arange(len(ordered))[::-1]
    with matplotlib.rc_context(STYLE):
        figure = Picture(figsize=(9, 1.3 + 0.42 * len(ordered)), layout="constrained")
        measures = {"average": "average", "worst": "worst class"} | ({"worst_tenth": TENTH} if groups[0].many else {})
        panels = figure.subplots(1, len(measures), sharey=True)
        for axes, (key, title) in zip(panels, measures.items(), strict=True):
            for place, group in zip(places, ordered, strict=True):
                column = group.columns[attack]
                mean, paper = column[key], column["paper"]
                low, value, high = (100 * mean[end] for end in ("low", "value", "high"))
                axes.plot([low, high], [place, place], color=COLORS[0], linewidth=1.4, solid_capstyle="butt")
                axes.plot([value, value], [place - 0.13, place + 0.13], color=COLORS[0], linewidth=2.6)
                seeds = 100 * np.array(mean["seeds"])
                axes.plot(seeds, np.full(len(seeds), place - 0.24), "o", color=COLORS[1], markersize=4.5, alpha=0.85)
                if paper and key in paper:  # above the bar, as seeds are below it: none covers another
                    axes.plot(100 * paper[key], place + 0.24, "x", color=COLORS[6], markersize=5.5, markeredgewidth=1.3)
            axes.set_xlabel(f"{title} (%)")
            axes.set_ylim(-0.6, len(ordered) - 0.4)
            axes.grid(axis="y", visible=False)
        names = [f"{_short(g.title, 48)} ({_count(len(g.results), 'seed')})" for g in ordered]
        panels[0].set_title(f"Accuracy under {attack_title(attack)}", loc="left")
        panels[0].set_yticks(places, names)
        for axes in panels:
            axes.tick_params(axis="y", length=0)
        marks = [
            Line2D([], [], color=COLORS[1], marker="o", linestyle="", markersize=4.5, label="a seed"),
            Line2D([], [], color=COLORS[0], marker="|", markersize=9, markeredgewidth=2.6, label=_interval(ordered)),
        ]
        if any(group.columns[attack]["paper"] for group in ordered):
            marks.append(Line2D([], [], color=COLORS[6], marker="x", linestyle="", label="the paper"))
        figure.legend(handles=marks, frameon=False, ncols=len(marks), loc="outside upper left", fontsize=9)
        return figure


def _interval(groups: Sequence[Group]) -> str:
    return f"mean, 95% interval for {'images and seeds' if has_seeds(groups) else 'images alone'}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def training(runs: Sequence[tuple[str, Run]]) -> Figure:
    """Average and worst validation accuracy over the epochs, and the weights of the classes, by title and run."""
    with matplotlib.rc_context(STYLE):
        figure = Picture(figsize=(9, 3.0 * len(runs)), layout="constrained")
        panels = figure.subplots(len(runs), 2, squeeze=False)
        for (left, right), (title, run) in zip(panels, runs, strict=True):
            log = run.log
            epochs = [line["epoch"] for line in log]
            mark = "o" if len(epochs) == 1 else ""
            ends = []
            many = has_many(len(run.class_names))
            validated = [line for line in log if is_validated(line)]
            measured = [line["epoch"] for line in validated]
            lines = {
                ("average", "-"): [line["valid"]["robust_accuracy"] for line in validated],
                ("worst class", "--"): [line["valid"]["worst_robust_accuracy"] for line in validated],
            }
            if many:
                lines["worst tenth", ":"] = [worst_tenth(line["class_robust_accuracy"]) for line in validated]
            for (label, style), values in lines.items():
                accuracy = [100 * value for value in values]
                left.plot(measured, accuracy, style, color=COLORS[0], marker=mark)
                ends.append((accuracy[-1], label, COLORS[0]))
            kept = [line["epoch"] for line in log if line["selected"]][-1]
            left.axvline(kept, color="#999999", linewidth=0.8)
            across = left.get_xaxis_transform()
            left.text(kept, 0.02, "kept", transform=across, color="#666666", fontsize=8, ha="right", rotation=90)
            left.set_ylim(0, None)
            left.set_title(f"{_short(title)}\nvalidation accuracy under attack (%)", loc="left")
            _name_lines(left, epochs[-1], ends)
            weights = np.array([line["class_weights"] for line in log])
            heavy = set(np.argsort(weights[-1])[::-1][:3].tolist()) if np.ptp(weights) > 1e-6 else set()
            heaviest = []
            if many:  # as lines they would be one surface
                for share, color in ((0.0, "#ececec"), (0.1, "#d4d4d4")):
                    right.fill_between(epochs, *np.quantile(weights, [share, 1 - share], axis=1), color=color)
            for k, name in enumerate(run.class_names):
                if many and k not in heavy:
                    continue
                color = COLORS[1 + sorted(heavy).index(k)] if k in heavy else "#bbbbbb"
                right.plot(epochs, weights[:, k], color=color, linewidth=1.6 if k in heavy else 0.9, marker=mark)
                if k in heavy:
                    heaviest.append((weights[-1, k], _short(name, 16), color))
            room = max(0.05 * np.ptp(weights), 0.25 * weights.mean())
            right.set_ylim(weights.min() - room, weights.max() + room)
            bands = "\nall classes; darker: without the end tenths" if many else ""
            named = ", the heaviest named" if heavy else ""
            right.set_title(f"class weights in training{named}{bands}", loc="left")
            _name_lines(right, epochs[-1], heaviest)
            for axes in (left, right):
                axes.set_xlabel("epoch")
                axes.xaxis.get_major_locator().set_params(integer=True)
        return figure


def _add_legend(figure: Figure, entries: int) -> None:
    """Above the axes, in as many columns as fit, in room of its own."""
    for columns in range(entries, 0, -1):
        legend = figure.legend(frameon=False, ncols=columns, loc="outside upper left")
        if columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            figure.set_figheight(figure.get_figheight() + 0.22 * -(-entries // columns))
            return
        legend.remove()


def _short(title: str, longest: int = 64) -> str:
    """A title that fits: of a long one, both ends."""
    half = longest // 2
    return title if len(title) <= longest else f"{title[:half]}\u2026{title[1 - half :]}"


def _name_lines(axes: Axes, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names of lines, each with its colour, where they end at `x`; apart where they end close to each other."""
    low, high = axes.get_ylim()
    apart, top = 0.08 * (high - low), high
    for below, (y, name, color) in reversed(list(enumerate(sorted(ends)))):
        place = max(min(y, top), low + below * apart)  # so many more are to find room below
        axes.annotate(
            name,
            (x, place),
            (6, 0),
            textcoords="offset points",
            color=color,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )
        top = place - apart


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure by the ending of its path, or without one as SVG, PDF and PNG; returns what was written."""
    endings = [path.suffix.removeprefix(".")] if path.suffix else list(FIGURE_FORMATS)
    for ending in endings:
        choose("ending of a figure", ending, FIGURE_FORMATS)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for ending in endings:
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)  # equal figures, equal bytes
            written.append(path.with_name(f"{path.name.removesuffix(path.suffix)}.{ending}"))
            content = io.BytesIO()
            figure.savefig(content, format=ending, dpi=150, metadata=metadata)
            write_atomic(written[-1], content.getvalue())
    return written
