"""How often 95% intervals hold the truth: simulated test sets of 10 classes. Prints docs/uncertainty.md's tables.

    python tools/coverage.py [TRIALS]

Every image of class k is right with a known probability, so the truth is known; an interval should hold it in
95% of trials. A base run on the same images, correlated with ours, gives rho. The second table has several seeds of
two methods, and noise of known size over images and over seeds.
"""

import sys
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from worstclass import metrics
from worstclass.evaluation import seeds

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


SPREAD = (0.012, 0.05)  # deviations over seeds: of all classes together and of each; 0.4 is about a share of right
SHARED = np.sqrt([0.5, 0.2, 0.3])  # of the noise of an image: in all runs, in those of a method, in each alone
SEED_CASES = {  # name: (seeds of our method, of the base, factors on their spread, further methods of two seeds)
    "1 and 1 seed": (1, 1, (1.0, 1.0), 0),
    "2 and 2 seeds": (2, 2, (1.0, 1.0), 0),
    "3 and 1 seeds": (3, 1, (1.0, 1.0), 0),
    "3 and 3 seeds": (3, 3, (1.0, 1.0), 0),
    "2 and 2 of 5 methods": (2, 2, (1.0, 1.0), 3),
    "1 and 2 of 5 methods": (1, 2, (1.0, 1.0), 3),
    "2 and 2 without seed noise": (2, 2, (0.0, 0.0), 0),
    "2 and 2, ours three times as noisy": (2, 2, (1.5, 0.5), 0),
    "1 and 2 of 5, ours three times as noisy": (1, 2, (3.0, 1.0), 3),
}
SEED_COLUMNS = ("average, images alone", "average", "worst class, images alone", "worst class", "mean of worst classes")


def class_levels(accuracy: Floats, factor: float, count: int, rng: np.random.Generator) -> Floats:
    """Accuracies (count, K) of the classes of so many seeds, as far as the noise of images goes."""
    common, own = (factor * each for each in SPREAD)
    center = norm.ppf(accuracy) * np.sqrt(1 + common**2 + own**2)
    return center + common * rng.standard_normal((count, 1)) + own * rng.standard_normal((count, len(accuracy)))


def draw_seeds(accuracy: Floats, factor: float, count: int, shared: Floats, rng: np.random.Generator) -> Ints:
    """Predictions of so many seeds on images whose noise in all runs is `shared` (K, images)."""
    levels = class_levels(accuracy, factor, count, rng)[:, :, None]
    size = shared.shape[1]
    noise = SHARED[0] * shared + SHARED[1] * rng.standard_normal(shared.shape)
    right = levels + noise + SHARED[2] * rng.standard_normal((count, len(accuracy), size)) > 0
    labels = np.repeat(np.arange(len(accuracy)), size)
    return np.where(right.reshape(count, -1), labels, (labels + 1) % len(accuracy))


@cache
def expected(which: int, factor: float) -> tuple[float, float]:
    """Average and worst class of a seed of our method or of the base, on average: given, and over many seeds."""
    accuracy = CASES["spread"][which]
    many = norm.cdf(class_levels(accuracy, factor, 200_000, np.random.default_rng(0)))
    return float(accuracy.mean()), float(many.min(axis=1).mean())


def spreads_of(methods: list[Ints], labels: Ints) -> seeds.Spreads:
    """Of average, worst class and worst tenth, over the seeds of several methods together."""
    accuracies = [np.stack([metrics.per_class_accuracy(labels, run, 10) for run in method]) for method in methods]
    measured = zip(*(metrics.headline_measures(each, np.ones(10)) for each in accuracies), strict=True)
    return seeds.Spreads(*map(seeds.pooled_spread, measured))


def measure_seeds(name: str, trials: int, size: int = 1000) -> tuple[Floats, Floats]:
    """Coverage and median width of the intervals of SEED_COLUMNS, (5,) each."""
    ours_seeds, base_seeds, factors, further = SEED_CASES[name]
    ours, base = CASES["spread"]
    rng = np.random.default_rng(SEED)
    labels = np.repeat(np.arange(10), size)
    (avg, worst), (base_avg, base_worst) = (expected(which, factor) for which, factor in enumerate(factors))
    truth = np.array([avg - base_avg] * 2 + [worst - base_worst] * 2 + [worst])
    found = []
    for trial in range(trials):
        shared = rng.standard_normal((10, size))
        methods = [draw_seeds(ours, factors[0], ours_seeds, shared, rng)]
        methods += [draw_seeds(base, factors[1], base_seeds, shared, rng)]
        methods += [draw_seeds(base, 1.0, 2, shared, rng) for _ in range(further)]
        spreads = spreads_of(methods, labels)
        nothing = seeds.Spreads(*[seeds.Spread(0, 0)] * 3)
        alone, both = (
            seeds.compare_seeds(labels, methods[0], methods[1], 10, spreads=each, draws=1000, seed=trial)
            for each in (nothing, spreads)
        )
        mean = seeds.seed_means(labels, methods[0], 10, spreads=spreads, draws=1000, seed=trial)
        differences = (alone.avg_difference, both.avg_difference, alone.worst_difference, both.worst_difference)
        found.append([each[1:] for each in (*differences, mean.worst)])
    low, high = np.moveaxis(np.array(found), -1, 0)
    return ((low <= truth) & (truth <= high)).mean(axis=0), np.median(high - low, axis=0)


def main(trials: int = 400) -> None:
    """Print one row for each case and size: coverage in percent, and the median width, below in points."""
    print("| classes | images a class | " + " | ".join(COLUMNS) + " |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for index, (name, (ours, base)) in enumerate(CASES.items()):
        for size in SIZES:
            coverage, width = measure(ours, base, size, trials, seed=SEED + index)
            cells = [f"{100 * c:.1f} ({w:.2g})" for c, w in zip(coverage, width, strict=True)]
            print(f"| {name} | {size} | " + " | ".join(cells) + " |", flush=True)
    print("\n| seeds | images a class | " + " | ".join(SEED_COLUMNS) + " |")
    print("|---" * (2 + len(SEED_COLUMNS)) + "|")
    for name in SEED_CASES:
        coverage, width = measure_seeds(name, trials)
        cells = [f"{100 * c:.1f} ({100 * w:.1f})" for c, w in zip(coverage, width, strict=True)]
        print(f"| {name} | 1000 | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
