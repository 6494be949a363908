#!/usr/bin/env python3
"""Draw docs/study.svg, a row for each data set of docs/study.csv: the weakest classes of each method, and the average.

draw_study.py
"""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from worstclass.report.figures import STYLE, save_figure

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOOK = {  # colour, marker, size
    "TRADES": ("#777777", "o", 5),
    "TRADES, balanced": ("#0072B2", "s", 5),
    "WAT": ("#D55E00", "D", 5),
    "guarded": ("#009E73", "o", 8),
}
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
        figure = Figure(figsize=(9, 0.27 * place + 1.1), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for panel, key in zip(panels, ("weakest", "average"), strict=True):
            for height, rows in zip(places, found.values(), strict=True):
                values = {row["method"]: float(row[key]) for row in rows}
                for method, value in values.items():
                    colour, marker, size = LOOK.get(method, ("#bbbbbb", "|", 6))
                    order = 3 + (method == "guarded") if method in LOOK else 2
                    panel.plot(value, height, marker, color=colour, markersize=size, zorder=order)
                panel.plot([min(values.values()), max(values.values())], [height] * 2, color="#dddddd", zorder=1)
            panel.grid(visible=False, axis="y")
            panel.set_xlim(left=-2 if key == "weakest" else None)
        panels[0].set_yticks(places, labels)
        panels[0].invert_yaxis()
        panels[0].tick_params(axis="y", length=0)
        panels[0].set_xlabel("worst class, or worst tenth of classes, %")
        panels[1].set_xlabel("average, %")
        for height, heading in headings:
            panels[0].text(-0.02, height, heading, fontweight="bold", ha="right", va="center",
                           transform=panels[0].get_yaxis_transform())  # fmt: skip
        handles = [
            panels[0].plot([], [], marker, color=colour, markersize=size, label=name)[0]
            for name, (colour, marker, size) in LOOK.items()
        ]
        handles += panels[0].plot([], [], "|", color="#bbbbbb", label=OTHERS)
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


if __name__ == "__main__":
    save_figure(draw(read(DOCS / "study.csv")), DOCS / "study.svg")
