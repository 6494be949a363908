#!/usr/bin/env python3
"""Attack two runs, the demo's or `demo_untouched.py TRADES WAT`, on Fashion-MNIST test images that fashion-mini lacks.

The demo's settings were revised after its test table had been seen (LOG.md). These images, from the 301st of each
class on, had no part in that. Needs the original files (Debian's package dataset-fashion-mnist) and two finished runs.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from make_fashion_mini import read_idx

from worstclass.attacks import make_attack
from worstclass.card import compare_with_base, measure
from worstclass.data import Images
from worstclass.evaluate import evaluate
from worstclass.report.tables import number, percent
from worstclass.runs import open_run

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")


def untouched() -> Images:
    """7000 images, mean-pooled as fashion-mini's are."""
    x, y = (read_idx(ORIGINALS / f"t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    keep = np.sort(np.concatenate([np.flatnonzero(y == k)[300:] for k in range(10)]))
    pooled = np.rint(x[keep].reshape(-1, 14, 2, 14, 2).astype(np.float64).mean((2, 4))).astype(np.uint8)
    return Images(torch.from_numpy(pooled[:, None]), torch.from_numpy(y[keep].astype(np.int64)))


def main() -> None:
    folders = sys.argv[1:] or ["demo/fashion-mini-trades", "demo/fashion-mini-wat"]
    if len(folders) != 2:
        sys.exit("usage: demo_untouched.py [TRADES WAT], the folders of two runs")
    runs = [open_run(Path(folder)) for folder in folders]
    images, names = untouched(), runs[0].class_names
    attacks = {"pgd-100": make_attack("pgd-100", eps=runs[0].config.eps)}
    base, wat = (evaluate(run.load_model()[0], images, attacks) for run in runs)
    for attack in ("natural", "pgd-100"):
        for title, outcomes in (("TRADES", base), ("WAT", wat)):
            column = measure(outcomes.labels, outcomes.predictions[attack], names)
            print(attack, title, percent(column["average"]), percent(column["worst"]), column["worst"]["class"])
        against = compare_with_base(wat, base, attack, len(names))
        print(attack, "worst gain", percent(against["worst_difference"]), "rho", number(against["rho"], 2, sign=True))


if __name__ == "__main__":
    main()
