"""Measures of class-wise robustness and their uncertainty: pure functions of labels and predictions.

Accuracies are fractions. The worst of K noisy classes is an extreme: a plain percentile bootstrap of it misses
the truth almost always when classes are equal (docs/uncertainty.md has the measurement), so the worst class and the
worst 10% get exact intervals, and class variance and rho a reverse (bias-correcting) bootstrap. A bootstrap knows
nothing of a class that is never, or always, right: there the exact bounds of that class widen the interval.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as scipy_stats

from worstclass.errors import UserError

Floats = NDArray[np.float64]
DRAWS = 4000


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Measure(NamedTuple):
    """A value and its interval."""

    value: float
    low: float
    high: float


def per_class_accuracy(labels: ArrayLike, predictions: ArrayLike, num_classes: int) -> Floats:
    """The share of each class that is predicted right (K,); NaN for a class without samples."""
    correct, counts = class_counts(labels, predictions, num_classes)
    accuracy: Floats = np.divide(correct, counts, out=np.full(num_classes, np.nan), where=counts > 0)
    return accuracy


def class_counts(
    labels: ArrayLike, predictions: ArrayLike, num_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Right predictions and samples of each class, (K,) each."""
    y, predicted = _paired(labels, predictions, num_classes)
    correct = np.bincount(y[y == predicted], minlength=num_classes).astype(np.int64)
    return correct, np.bincount(y, minlength=num_classes).astype(np.int64)


def _paired(
    labels: ArrayLike, predictions: ArrayLike, num_classes: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels and predictions as int64, if both are whole numbers (N,) and the labels are among the classes."""
    y, predicted = np.asarray(labels), np.asarray(predictions)
    if y.shape != predicted.shape or y.ndim != 1:
        raise UserError(f"labels and predictions must both be (N,), not {y.shape} and {predicted.shape}.")
    if len(y) and (y.dtype.kind not in "iu" or predicted.dtype.kind not in "iu"):
        raise UserError(f"labels and predictions must be whole numbers, not {y.dtype} and {predicted.dtype}.")
    if len(y) and (y.min() < 0 or (num_classes is not None and y.max() >= num_classes)):
        expected = f"0..{num_classes - 1}" if num_classes is not None else "0..K-1"
        raise UserError(f"labels lie in {y.min()}..{y.max()}, expected {expected}.")
    return y.astype(np.int64), predicted.astype(np.int64)


def average_accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """The share of all samples that is predicted right; NaN without samples."""
    y, predicted = _paired(labels, predictions)
    return float(np.mean(y == predicted)) if len(y) else float("nan")


def worst_class(accuracy: ArrayLike) -> tuple[int, float]:
    """The weakest class and its accuracy; the first of equals."""
    values = np.asarray(accuracy, dtype=np.float64)
    index = int(np.nanargmin(values))
    return index, float(values[index])


def worst_ties(accuracy: ArrayLike) -> int:
    """How many classes share the lowest accuracy: one, unless the weakest class is a matter of order."""
    values = np.asarray(accuracy, dtype=np.float64)
    return int((values == np.nanmin(values)).sum())


def worst_share(accuracy: ArrayLike, share: float = 0.1) -> float:
    """The mean accuracy of the worst `share` of classes, at least one: steadier than the worst class."""
    values = np.sort(np.asarray(accuracy, dtype=np.float64))
    values = values[~np.isnan(values)]
    return float(values[: _count(share, len(values))].mean())


def _count(share: float, num_classes: int) -> int:
    return max(1, round(share * num_classes))


def class_variance(accuracy: ArrayLike) -> float:
    """The paper's CV: the mean squared deviation of the class accuracies from their mean."""
    return float(np.nanvar(np.asarray(accuracy, dtype=np.float64)))


def rho(*, avg: float, worst: float, base_avg: float, base_worst: float) -> float:
    """Eq. (7): the relative gain of the worst class, less the relative loss of the average.

    `base_*` are those of the vanilla run under the same attack. Relative to a worst class of 0 the gain is infinite;
    where there is none it is 0 / 0, and rho is NaN. So it is with a base average of 0.
    """
    return float(_rho(np.float64(avg), np.float64(worst), np.float64(base_avg), np.float64(base_worst)))


def _rho(avg: Any, worst: Any, base_avg: Any, base_worst: Any) -> Any:
    gain = np.where(worst > base_worst, np.inf, np.nan)
    gain = np.divide(worst - base_worst, base_worst, out=gain, where=base_worst > 0)
    loss = np.divide(base_avg - avg, base_avg, out=np.full_like(gain, np.nan), where=base_avg > 0)
    return gain - loss


def binomial_interval(successes: ArrayLike, trials: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Clopper and Pearson's exact interval for each proportion; [0, 1] without trials."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n)):
        raise UserError("successes must be counts between 0 and the trials.")
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, scipy_stats.beta.ppf(tail, k, n - k + 1), 0.0)
        high = np.where(k < n, scipy_stats.beta.ppf(1 - tail, k + 1, n - k), 1.0)
    return low, high


def worst_interval(correct: ArrayLike, counts: ArrayLike, level: float = 0.95) -> Interval:
    """An interval for the accuracy of the worst class that holds with at least `level`, whatever the classes."""
    return _lowest_interval(correct, counts, lambda classes: 1, level)


def worst_share_interval(correct: ArrayLike, counts: ArrayLike, share: float = 0.1, *, level: float = 0.95) -> Interval:
    """An interval for `worst_share` that holds with at least `level`, whatever the classes."""
    return _lowest_interval(correct, counts, lambda classes: _count(share, classes), level)


def _lowest_interval(correct: ArrayLike, counts: ArrayLike, how_many: Callable[[int], int], level: float) -> Interval:
    """For the mean accuracy of the m lowest of K classes, the mean of their m lowest exact bounds.

    Below, it holds if the bounds of the m truly lowest do, so each is taken at 1 - (1 - level) / m (Bonferroni). Above,
    any class can be unlucky, so each is taken at 1 - (1 - level) / K.
    """
    k, n = np.asarray(correct), np.asarray(counts)
    k, n = k[n > 0], n[n > 0]
    m = how_many(len(n))
    low, _ = binomial_interval(k, n, 1 - (1 - level) / m)
    _, high = binomial_interval(k, n, 1 - (1 - level) / len(n))
    return Interval(*(float(np.sort(bounds)[:m].mean()) for bounds in (low, high)))


def bootstrap_accuracies(correct: ArrayLike, counts: ArrayLike, *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Class accuracies (draws, K) when images are drawn again with replacement, within each class.

    NaN for a class without samples.
    """
    k, n = np.asarray(correct), np.asarray(counts)
    rng = np.random.default_rng(seed)
    drawn = rng.binomial(n, np.divide(k, n, out=np.zeros(len(n)), where=n > 0), size=(draws, len(n)))
    accuracies: Floats = np.divide(drawn, n, out=np.full(drawn.shape, np.nan), where=n > 0)
    return accuracies


def bootstrap_runs(labels: ArrayLike, right: ArrayLike, *, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Class accuracies (draws, R, K) of R runs when the images that they share are drawn again, within each class.

    `right` (R, N) says where each run is right, and K counts the classes that have images. Images that the same runs
    have right are alike, so drawing images is drawing from a multinomial.
    """
    y = np.asarray(labels)
    kinds, kind = np.unique(np.asarray(right, dtype=bool).T, axis=0, return_inverse=True)
    rng = np.random.default_rng(seed)
    classes = []
    for k in np.unique(y):
        counts = np.bincount(kind.reshape(-1)[y == k], minlength=len(kinds))
        n = counts.sum()
        classes.append(rng.multinomial(n, counts / n, size=draws) @ kinds.astype(np.int64) / n)
    return np.stack(classes, axis=-1)


def variance_interval(correct: ArrayLike, counts: ArrayLike, *, level: float = 0.95, seed: int = 0) -> Interval:
    """A reverse bootstrap of the class variance: noise only ever adds to it, so the percentiles are mirrored."""
    k, n = np.asarray(correct), np.asarray(counts)
    k, n = k[n > 0], n[n > 0]
    value = class_variance(k / n)
    low, high = reverse_interval(value, bootstrap_accuracies(k, n, seed=seed).var(axis=1), level)
    least, largest = _variance_range(k, n, level)
    return Interval(max(0.0, low - value + least), max(0.0, high - value + largest))


def _edges(correct: NDArray[Any], counts: NDArray[Any], level: float) -> tuple[Floats, Floats]:
    """The measured accuracies, and in place of each that is 0 or 1, where a bootstrap never leaves it, one end of an
    exact interval that holds for all of those classes together (Bonferroni)."""
    accuracy = correct / counts
    edge = (correct == 0) | (correct == counts)
    low, high = binomial_interval(correct, counts, 1 - (1 - level) / max(1, int(edge.sum())))
    return np.where(edge, low, accuracy), np.where(edge, high, accuracy)


def _variance_range(correct: NDArray[Any], counts: NDArray[Any], level: float) -> tuple[float, float]:
    """The least and the largest class variance that `_edges` leave room for."""
    low, high = _edges(correct, counts, level)
    if np.array_equal(low, high):
        return class_variance(low), class_variance(low)
    centers = np.linspace(0, 1, 1001)[:, None]
    least = np.clip(centers, low, high).var(axis=1).min()  # every class as near as it can to one center
    order = np.argsort(low + high)
    split = np.arange(len(order) + 1)[:, None]  # so many classes at their lower ends, the others at their upper ones
    largest = np.where(np.arange(len(order)) < split, low[order], high[order]).var(axis=1).max()
    return float(least), float(largest)


class Comparison(NamedTuple):
    """A run against a base run on the same images: differences, rho, and McNemar's exact p-value of the averages."""

    avg_difference: Measure
    worst_difference: Measure
    rho: Measure
    p_value: float


def compare(
    labels: ArrayLike,
    predictions: ArrayLike,
    base_predictions: ArrayLike,
    num_classes: int,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare two runs image by image: images are drawn again in pairs, within each class.

    The intervals are reverse bootstraps, rho's on the logarithm of rho + 2 = worst / base_worst + avg / base_avg,
    because a ratio is skewed. Where the worst class of the base is at 0, rho is not a finite number.
    """
    y, predicted = _paired(labels, predictions, num_classes)
    _, base_predicted = _paired(labels, base_predictions, num_classes)
    if len(y) == 0:
        raise UserError("there are no images to compare on.")
    right, base_right = predicted == y, base_predicted == y
    (ours, counts), (base, _) = (class_counts(y, each, num_classes) for each in (predicted, base_predicted))
    ours, base, counts = ours[counts > 0], base[counts > 0], counts[counts > 0]

    def measures(accuracies: NDArray[Any]) -> tuple[Any, Any, Any]:
        """Differences of average and worst, and rho, of the accuracies of both runs (..., 2, K)."""
        avg, worst = accuracies @ counts / counts.sum(), accuracies.min(-1)
        (avg, base_avg), (worst, base_worst) = np.moveaxis(avg, -1, 0), np.moveaxis(worst, -1, 0)
        return avg - base_avg, worst - base_worst, _rho(avg, worst, base_avg, base_worst)

    avg, worst, ratio = (float(value) for value in measures(np.stack([ours, base]) / counts))
    drawn_avg, drawn_worst, drawn_ratio = measures(bootstrap_runs(y, [right, base_right], seed=seed))
    only_ours, only_base = int((right & ~base_right).sum()), int((base_right & ~right).sum())
    discordant = only_ours + only_base
    room, base_room = (room_above(each, counts, level) if discordant else 0.0 for each in (ours, base))
    base_worst = float((base / counts).min())
    low, high = reverse_interval(worst, drawn_worst, level)
    p_value = float(scipy_stats.binomtest(only_ours, discordant).pvalue) if discordant else 1.0
    return Comparison(
        Measure(avg, *reverse_interval(avg, drawn_avg, level)),
        Measure(worst, low - base_room, high + room),
        _relative(ratio, drawn_ratio, room / base_worst if base_worst else 0.0, level),
        p_value,
    )


def room_above(correct: NDArray[Any], counts: NDArray[Any], level: float) -> float:
    """How far above a measured worst class of 0 the true one may be; nothing where the bootstrap can tell."""
    return worst_interval(correct, counts, level).high if correct.min() == 0 else 0.0


def reverse_interval(value: float, drawn: Floats, level: float) -> Interval:
    """A reverse bootstrap: the percentiles of what was drawn, mirrored at the value."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(2 * value - high), float(2 * value - low))


def _relative(ratio: float, drawn: Floats, room: float, level: float) -> Measure:
    """rho with its interval, a reverse bootstrap of the logarithm of rho + 2; `room` is added above.

    A draw in which the base's worst class is at 0 counts as the most extreme one in either direction.
    """
    if not (np.isfinite(ratio) and ratio > -2):  # nothing is known
        return Measure(ratio, -2.0, float("inf"))
    tail = (1 - level) / 2
    low = float(np.quantile(np.where(np.isnan(drawn), -2.0, drawn) + 2, tail, method="inverted_cdf"))
    high = float(np.quantile(np.where(np.isnan(drawn), np.inf, drawn) + 2, 1 - tail, method="inverted_cdf"))
    value = ratio + 2
    return Measure(ratio, value**2 / high - 2, value**2 / low - 2 + room if low > 0 else float("inf"))
