"""Measures of class-wise robustness and their uncertainty: pure functions of labels and predictions.

Accuracies are fractions. The worst of K noisy classes is an extreme: a plain percentile bootstrap of it misses
the truth almost always when classes are equal (docs/uncertainty.md has the measurement), so the worst class and the
worst tenth get intervals of their own, and class variance and rho a reverse (bias-correcting) bootstrap. A bootstrap
knows nothing of a class that is never, or always, right: there the exact bounds of that class widen the interval.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as scipy_stats
from scipy.special import bdtr

from worstclass.errors import UserError
from worstclass.metrics.tail import tenth_weights, worst_tenths
from worstclass.metrics.tail import worst_tenth as worst_tenth

Floats = NDArray[np.float64]
DRAWS = 4000
TRIALS = 1000  # test sets behind an interval of the worst tenth
RESOLUTION = 2e-4  # of its upper end


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
    """An interval for the accuracy of the worst class that holds with at least `level`, whatever the classes.

    Its ends are the lowest exact bounds. Below, it holds if the bound of the truly worst class does. Above, any class
    can be unlucky, so each bound is taken at 1 - (1 - level) / K (Bonferroni).
    """
    k, n = _present(correct, counts)
    low, _ = binomial_interval(k, n, level)
    _, high = binomial_interval(k, n, 1 - (1 - level) / len(n))
    return Interval(float(low.min()), float(high.min()))


def worst_tenth_interval(correct: ArrayLike, counts: ArrayLike, level: float = 0.95, *, seed: int = 0) -> Interval:
    """An interval for `worst_tenth` that knows that the lowest of many classes are the unlucky ones.

    Below, the truly worst classes are measured no lower than those that look worst, so the exact bound for as many
    images is taken; of the smallest classes, since any may be among them. Above, it is the highest accuracy that all
    classes could share and still have a worst tenth as low as this with a chance of (1 - level) / 2, by `TRIALS`
    simulated test sets: bad luck has most room where classes are equal. Of one class it is `worst_interval`.
    """
    k, n = _present(correct, counts)
    weights, tail = tenth_weights(len(n)), (1 - level) / 2
    if len(weights) == 1:
        return worst_interval(k, n, level)
    value = worst_tenth(k / n)
    images = float(1 / (weights**2 @ (1 / np.sort(n)[: len(weights)])))
    low = float(scipy_stats.beta.ppf(tail, value * images, (1 - value) * images + 1)) if value > 0 else 0.0
    chances = np.random.default_rng(seed).random((TRIALS, len(n)))
    lowest = {  # of classes of one size, no others can be in the worst tenth
        size: np.partition(chances[:, n == size], min(len(weights), int((n == size).sum())) - 1)[:, : len(weights)]
        for size in np.unique(n)
    }

    def still_as_low(shared: float) -> float:
        accuracies = [  # the quantiles of a binomial distribution
            np.searchsorted(bdtr(np.arange(size), size, shared), each) / size for size, each in lowest.items()
        ]
        tenths = np.sort(np.concatenate(accuracies, axis=1))[:, : len(weights)] @ weights
        return float((tenths <= value + 1e-12).mean())

    inside, outside = value, 1.0
    while outside - inside > RESOLUTION:
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if still_as_low(middle) > tail else (inside, middle)
    return Interval(low, outside)


def _present(correct: ArrayLike, counts: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of the classes that have images."""
    k, n = np.asarray(correct), np.asarray(counts)
    return k[n > 0], n[n > 0]


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
    k, n = _present(correct, counts)
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
    worst_tenth_difference: Measure
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

    def measures(accuracies: NDArray[Any]) -> tuple[Any, Any, Any, Any]:
        """Differences of average, worst and worst tenth, and rho, of the accuracies of both runs (..., 2, K)."""
        avg, worst, tenth = (np.moveaxis(each, -1, 0) for each in headline_measures(accuracies, counts))
        return avg[0] - avg[1], worst[0] - worst[1], tenth[0] - tenth[1], _rho(avg[0], worst[0], avg[1], worst[1])

    avg, worst, tenth, ratio = (float(value) for value in measures(np.stack([ours, base]) / counts))
    drawn_avg, drawn_worst, drawn_tenth, drawn_ratio = measures(bootstrap_runs(y, [right, base_right], seed=seed))
    only_ours, only_base = int((right & ~base_right).sum()), int((base_right & ~right).sum())
    discordant = only_ours + only_base
    (room, tenth_room), (base_room, base_tenth_room) = (
        (room_above(each, counts, level), tenth_room_above(each, counts, level)) if discordant else (0.0, 0.0)
        for each in (ours, base)
    )
    base_worst = float((base / counts).min())
    low, high = reverse_interval(worst, drawn_worst, level)
    tenth_low, tenth_high = reverse_interval(tenth, drawn_tenth, level)
    p_value = float(scipy_stats.binomtest(only_ours, discordant).pvalue) if discordant else 1.0
    return Comparison(
        Measure(avg, *reverse_interval(avg, drawn_avg, level)),
        Measure(worst, low - base_room, high + room),
        Measure(tenth, tenth_low - base_tenth_room, tenth_high + tenth_room),
        _relative(ratio, drawn_ratio, room / base_worst if base_worst else 0.0, level),
        p_value,
    )


def headline_measures(accuracies: NDArray[Any], counts: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
    """Average, worst class and worst tenth from the accuracies of classes (..., K) that all have images."""
    return accuracies @ counts / counts.sum(), accuracies.min(-1), worst_tenths(accuracies)


def room_above(correct: NDArray[Any], counts: NDArray[Any], level: float) -> float:
    """How far above a measured worst class of 0 the true one may be; nothing where the bootstrap can tell."""
    return worst_interval(correct, counts, level).high if correct.min() == 0 else 0.0


def tenth_room_above(correct: NDArray[Any], counts: NDArray[Any], level: float) -> float:
    """The same for the worst tenth: by the part of it that is measured at 0."""
    weights = tenth_weights(len(counts))
    at_nothing = float(weights[: int((correct == 0).sum())].sum())
    return at_nothing * worst_tenth_interval(correct, counts, level).high if at_nothing else 0.0


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
