"""How often 95% intervals hold the truth: simulated test sets of 10 classes. Prints docs/uncertainty.md's table.

    python tools/coverage.py [TRIALS]

Every image of class k is right with a known probability, so the truth is known; an interval should hold it in
95% of trials. A base run on the same images, correlated with ours, gives rho.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from worstclass.evaluation import metrics

SEED = 1
SIZES = (100, 1000)  # images a class
LEVEL = (0.025, 0.975)
CORRELATION = 0.6  # of the two runs' outcomes: 0 independent, 1 as equal as their accuracies allow
ONE_LOW = np.array([0.25] + [0.58] * 9)
CASES = {  # name: (class accuracies of our run, of the base run)
    "equal classes": (np.full(10, 0.5), ONE_LOW),
    "one low": (np.array([0.35] + [0.55] * 9), ONE_LOW),
    "spread": (np.linspace(0.30, 0.75, 10), np.linspace(0.20, 0.80, 10)),
    "most at nothing": (np.array([0.002] * 7 + [0.2, 0.4, 0.6]), np.array([0.004] * 7 + [0.3, 0.4, 0.5])),
}
COLUMNS = ("worst, percentile", "worst, exact", "variance, percentile", "variance, reverse", "worst gain", "rho")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def draw_pair(ours: Floats, base: Floats, size: int, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Labels and the predictions of both runs on `size` images a class; a wrong prediction is the next class."""
    both = CORRELATION * np.minimum(ours, base) + (1 - CORRELATION) * ours * base
    cells = np.stack([both, ours - both, base - both, 1 - ours - base + both], axis=1)
    kinds = np.concatenate([np.repeat(np.arange(4), rng.multinomial(size, row)) for row in cells])
    labels = np.repeat(np.arange(len(ours)), size)
    wrong = (labels + 1) % len(ours)
    return labels, np.where(kinds < 2, labels, wrong), np.where(kinds % 2 == 0, labels, wrong)


def intervals(labels: Ints, predictions: Ints, base_predictions: Ints, seed: int) -> list[tuple[float, float]]:
    """The six intervals of one trial, in the order of COLUMNS."""
    correct, counts = metrics.class_counts(labels, predictions, 10)
    drawn = metrics.bootstrap_accuracies(correct, counts, seed=seed)
    worst_low, worst_high = np.quantile(drawn.min(axis=1), LEVEL)
    variance_low, variance_high = np.quantile(drawn.var(axis=1), LEVEL)
    compared = metrics.compare(labels, predictions, base_predictions, 10, seed=seed)
    return [
        (worst_low, worst_high),
        metrics.worst_interval(correct, counts),
        (variance_low, variance_high),
        metrics.variance_interval(correct, counts, seed=seed),
        compared.worst_difference[1:],
        compared.rho[1:],
    ]


def measure(ours: Floats, base: Floats, size: int, trials: int, seed: int) -> tuple[Floats, Floats]:
    """Coverage and median width of each interval, (6,) each."""
    rng = np.random.default_rng(seed)
    rho = metrics.rho(avg=ours.mean(), worst=ours.min(), base_avg=base.mean(), base_worst=base.min())
    variance = metrics.class_variance(ours)
    truth = np.array([ours.min(), ours.min(), variance, variance, ours.min() - base.min(), rho])
    found = np.array([intervals(*draw_pair(ours, base, size, rng), seed=trial) for trial in range(trials)])
    holds = (found[..., 0] <= truth + 1e-12) & (truth - 1e-12 <= found[..., 1])
    return holds.mean(axis=0), np.median(found[..., 1] - found[..., 0], axis=0)


def main(trials: int = 400) -> None:
    """Print one row for each case and size: coverage in percent, and the median width."""
    print("| classes | images a class | " + " | ".join(COLUMNS) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for index, (name, (ours, base)) in enumerate(CASES.items()):
        for size in SIZES:
            coverage, width = measure(ours, base, size, trials, seed=SEED + index)
            cells = [f"{100 * c:.1f} ({w:.2g})" for c, w in zip(coverage, width, strict=True)]
            print(f"| {name} | {size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
