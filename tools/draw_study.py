#!/usr/bin/env python3
"""Draw docs/study.svg, a row for each data set of docs/study.csv: the weakest classes of each method, and the average.

draw_study.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from worstclass.report.figures import STYLE, save_figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOOK = {  # colour, marker, size, filled
    "TRADES": ("#777777", "o", 5, True),
    "TRADES, balanced": ("#0072B2", "s", 5, True),
    "TRADES, balanced by sampling": ("#0072B2", "s", 6, False),
    "WAT": ("#D55E00", "D", 5, True),
    "guarded": ("#009E73", "o", 8, True),
}
OTHER = ("#bbbbbb", "|", 6, True)
OTHERS = "FRL-RWRM, DAFA, FAAL, CFA"
MODELS = {"small-cnn": "", "resnet18": ", ResNet-18"}
ATTACKS = {"pgd-20": "", "autoattack": ", AutoAttack"}

Row = dict[str, str]


def read(path: Path) -> dict[tuple[str, str], list[Row]]:
    """The lines of each data set, by group and title, in the order of the file."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            title = f"{row['data']}{MODELS[row['model']]}{ATTACKS[row['attack']]}"
            found[row["group"], title].append(row)
    return found


def plot(panel: Axes, x: Any, y: Any, look: tuple[str, str, float, bool], **more: Any) -> Line2D:
    """One marker, or its line in the legend."""
    colour, marker, size, filled = look
    face = colour if filled else "none"
    return panel.plot(x, y, marker, color=colour, markersize=size, markerfacecolor=face, **more)[0]


def draw(found: dict[tuple[str, str], list[Row]]) -> Figure:
    """Two panels that share their rows; a gap and a heading before each group."""
    places, labels, place, group = [], [], 0.0, ""
    headings = []
    for key in found:
        if key[0] != group:
            group = key[0]
            headings.append((place, group))
            place += 1
        places.append(place)
        labels.append(f"{key[1]} ({'tenth' if found[key][0]['measure'] == 'worst tenth' else 'class'})")
        place += 1
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.27 * place + 1.3), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for panel, column in zip(panels, ("weakest", "average"), strict=True):
            for height, rows in zip(places, found.values(), strict=True):
                values = {row["method"]: float(row[column]) for row in rows}
                for method, value in values.items():
                    order = 3 + (method == "guarded") if method in LOOK else 2
                    plot(panel, value, height, LOOK.get(method, OTHER), zorder=order)
                panel.plot([min(values.values()), max(values.values())], [height] * 2, color="#dddddd", zorder=1)
            panel.grid(visible=False, axis="y")
            panel.set_xlim(left=-2 if column == "weakest" else None)
        panels[0].set_yticks(places, labels)
        panels[0].invert_yaxis()
        panels[0].tick_params(axis="y", length=0)
        panels[0].set_xlabel("worst class, or worst tenth of classes, %")
        panels[1].set_xlabel("average, %")
        for height, heading in headings:
            panels[0].text(-0.02, height, heading, fontweight="bold", ha="right", va="center",
                           transform=panels[0].get_yaxis_transform())  # fmt: skip
        handles = [plot(panels[0], [], [], look, label=name) for name, look in (LOOK | {OTHERS: OTHER}).items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


if __name__ == "__main__":
    save_figure(draw(read(DOCS / "study.csv")), DOCS / "study.svg")
