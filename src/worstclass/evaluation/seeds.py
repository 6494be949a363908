"""Runs that differ in the seed alone: which they are, and what they say together.

A mean over seeds has two sources of noise. The test images are a draw that all seeds share, so their noise does not
average out; the seeds are a draw of a few. With d_si = mu + a_s + b_i + e_si for seed s and image i, the variance of
the mean over n seeds is that of b, found as the covariance of two seeds when images are drawn again, and the variance
over seeds divided by n, which holds e too. Of two or three seeds a bootstrap knows nothing, so seeds get Student's t.
docs/uncertainty.md has the rule and its measured coverage.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as scipy_stats

from worstclass import metrics
from worstclass.config.differences import differing_keys
from worstclass.config.keys import Config
from worstclass.errors import UserError
from worstclass.metrics.measures import DRAWS, Floats, Measure

Ints = NDArray[np.int64]


def same_but_for_the_seed(one: Config, other: Config) -> bool:
    """Whether two runs differ in the seed alone: the one definition, of reports, tables and sweeps."""
    return differing_keys(one, other) == ["seed"]


def seed_groups(configs: Sequence[Config | None], kinds: Sequence[Hashable] | None = None) -> list[list[int]]:
    """Places of runs that differ in the seed alone, group by group; `kinds`, such as the epoch taken, must agree too.

    A second run of a seed is not another seed: it starts a group of its own, and so does a model without a recipe.
    """
    groups: list[list[int]] = []
    for place, config in enumerate(configs):
        for group in groups:
            members = [configs[other] for other in group]
            alike = kinds is None or kinds[group[0]] == kinds[place]
            if config and alike and all(each and same_but_for_the_seed(config, each) for each in members):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


class Spread(NamedTuple):
    """The variance of a measure over seeds, and its degrees of freedom: none where no method has two seeds."""

    variance: float
    degrees: int


class Spreads(NamedTuple):
    """Those of average, worst class and worst tenth."""

    average: Spread
    worst: Spread
    worst_tenth: Spread


def pooled_spread(methods: Iterable[ArrayLike]) -> Spread:
    """The variance over seeds of several methods together, each given by its values (n,): two or three seeds alone say
    little, so methods are taken to spread alike."""
    values = [np.asarray(each, dtype=np.float64) for each in methods]
    degrees = sum(len(each) - 1 for each in values)
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in values)
    return Spread(squares / degrees if degrees else 0.0, degrees)


def standard_deviation(values: ArrayLike) -> float | None:
    """Over seeds (n - 1); None for one."""
    found = np.asarray(values, dtype=np.float64)
    return float(found.std(ddof=1)) if len(found) > 1 else None


class SeedMeans(NamedTuple):
    """One method under one attack: the means over its seeds, and the worst class of all its seeds together."""

    average: Measure
    worst: Measure
    worst_tenth: Measure
    pooled_worst: Measure
    pooled_class: int


def seed_means(
    labels: ArrayLike,
    predictions: ArrayLike,
    num_classes: int,
    *,
    spreads: Spreads | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> SeedMeans:
    """Means over the seeds of a method, predictions (n, N), with intervals for the draw of images and of seeds.

    `spreads` are those of its own seeds, or of several methods together. Without any (one seed), an interval is that of
    a single run, about images alone. So is that of the pooled worst class, the class of the lowest mean accuracy.
    """
    y, runs = _checked(labels, predictions)
    correct, counts, present = _counted(y, runs, num_classes)
    found = metrics.headline_measures(correct[:, present] / counts[present], counts[present])
    ends = (
        [metrics.binomial_interval(each.sum(), counts.sum(), level) for each in correct],
        [metrics.worst_interval(each, counts, level) for each in correct],
        [metrics.worst_tenth_interval(each, counts, level) for each in correct],
    )
    spreads = spreads or Spreads(*(pooled_spread([values]) for values in found))
    drawn = (
        metrics.headline_measures(metrics.bootstrap_runs(y, runs == y, draws=draws, seed=seed), counts[present])
        if len(runs) > 1
        else None
    )
    means = []
    for i, values in enumerate(found):
        low, high = np.mean(ends[i], axis=0)
        share = 1.0 if drawn is None else _shared_part(drawn[i])
        value = float(values.mean())
        wide = _widened(value, value, low, high, share, spreads[i], 1 / len(values), level)
        means.append(Measure(value, max(0.0, wide.low), min(1.0, wide.high)))
    pooled = correct.mean(axis=0)  # as of one run: all seeds see the same images
    accuracy = np.divide(pooled, counts, out=np.full(num_classes, np.nan), where=present)
    index, worst = metrics.worst_class(accuracy)
    pooled_worst = Measure(worst, *metrics.worst_interval(pooled, counts, level))
    return SeedMeans(means[0], means[1], means[2], pooled_worst, index)


class SeedComparison(NamedTuple):
    """A method against another: differences of the means over seeds of average, worst class and worst tenth, and the
    degrees of freedom of the spread over seeds; at 0 the intervals are about images alone."""

    avg_difference: Measure
    worst_difference: Measure
    worst_tenth_difference: Measure
    degrees: int


def compare_seeds(
    labels: ArrayLike,
    predictions: ArrayLike,
    base_predictions: ArrayLike,
    num_classes: int,
    *,
    spreads: Spreads | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> SeedComparison:
    """Compare two methods on the same images, by the predictions (n, N) and (m, N) of their seeds.

    Images are paired. Seeds are not: that would halve the degrees of freedom, and where runs of one seed are alike, the
    interval is only wider than it need be. `spreads` are those of both methods together, or of more. With one seed each
    and none given, it is `metrics.compare`, which knows nothing of seeds.
    """
    y, ours = _checked(labels, predictions)
    _, base = _checked(labels, base_predictions)
    n, m = len(ours), len(base)
    runs = np.concatenate([ours, base])
    correct, counts, present = _counted(y, runs, num_classes)
    values = metrics.headline_measures(correct[:, present] / counts[present], counts[present])
    drawn = metrics.headline_measures(metrics.bootstrap_runs(y, runs == y, draws=draws, seed=seed), counts[present])
    spreads = spreads or Spreads(*(pooled_spread([each[:n], each[n:]]) for each in values))
    apart = not np.array_equal((ours == y).mean(axis=0), (base == y).mean(axis=0))
    rooms = np.zeros((len(values), len(runs)))
    for r, each in enumerate(correct if apart else []):
        rooms[1, r] = metrics.room_above(each[present], counts[present], level)
        rooms[2, r] = metrics.tenth_room_above(each[present], counts[present], level)
    found = []
    for i in range(len(values)):
        gap = float(values[i][:n].mean() - values[i][n:].mean())
        gaps = drawn[i][:, :n].mean(axis=1) - drawn[i][:, n:].mean(axis=1)
        low, high = metrics.reverse_interval(gap, gaps, level)
        center = 2 * gap - float(gaps.mean())  # the value less its bias by images
        share = _shared_part(drawn[i], n)
        low, high = low - float(rooms[i, n:].mean()), high + float(rooms[i, :n].mean())
        found.append(_widened(gap, center, low, high, share, spreads[i], 1 / n + 1 / m, level))
    return SeedComparison(found[0], found[1], found[2], min(spread.degrees for spread in spreads))


def _checked(labels: ArrayLike, predictions: ArrayLike) -> tuple[Ints, Ints]:
    y, runs = np.asarray(labels), np.asarray(predictions)
    if runs.ndim != 2 or runs.shape[1:] != y.shape or runs.size == 0:
        raise UserError(f"predictions must be (n, {len(y)}), a row for each seed, not {runs.shape}.")
    return y, runs


def _counted(y: Ints, runs: Ints, num_classes: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Right predictions (n, K), images of each class (K,), and which classes have any (K,)."""
    counted = [metrics.class_counts(y, each, num_classes) for each in runs]
    return np.stack([correct for correct, _ in counted]), counted[0][1], counted[0][1] > 0


def _shared_part(drawn: Floats, first: int | None = None) -> float:
    """How much of the variance by images is common to all seeds, from the draws of each run (draws, R).

    Of one method, that of each run; of two, the first so many runs and the others, that of the difference of means.
    """
    covariance = np.atleast_2d(np.cov(drawn, rowvar=False))
    if first is None:
        whole, common = float(np.diag(covariance).mean()), _between(covariance)
    else:
        signs = np.where(np.arange(len(covariance)) < first, 1 / first, -1 / max(1, len(covariance) - first))
        whole = float(signs @ covariance @ signs)
        own, other = _between(covariance[:first, :first]), _between(covariance[first:, first:])
        common = own + other - 2 * float(covariance[:first, first:].mean())
    return float(np.clip(common / whole, 0, 1)) if whole > 0 else 1.0


def _between(covariance: Floats) -> float:
    """The mean covariance of two runs; of a single one its variance, of which no part can be told."""
    n = len(covariance)
    return float((covariance.sum() - np.trace(covariance)) / (n * (n - 1))) if n > 1 else float(covariance[0, 0])


def _widened(
    value: float, center: float, low: float, high: float, share: float, spread: Spread, weight: float, level: float
) -> Measure:
    """An interval by images, widened by seeds: the distances from its center add up as squares (Zou and Donner)."""
    if spread.degrees == 0:
        return Measure(value, low, high)
    reach = float(scipy_stats.t.ppf((1 + level) / 2, spread.degrees)) * np.sqrt(spread.variance * weight)
    return Measure(
        value,
        float(center - np.hypot(np.sqrt(share) * (center - low), reach)),
        float(center + np.hypot(np.sqrt(share) * (high - center), reach)),
    )
