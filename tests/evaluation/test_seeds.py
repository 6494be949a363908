"""Means and differences over seeds: grouping, closed forms, and coverage where both sources of noise are known."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from scipy.stats import norm

from worstclass import metrics
from worstclass.config.recipe import make_config
from worstclass.errors import UserError
from worstclass.evaluation.seeds import (
    Ints,
    Spread,
    Spreads,
    compare_seeds,
    pooled_spread,
    same_but_for_the_seed,
    seed_groups,
    seed_means,
    standard_deviation,
)
from worstclass.metrics import bootstrap_runs, compare

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(3)
LABELS = np.repeat(np.arange(3), 60)


def runs(*accuracies: float) -> Ints:
    """Predictions (n, N) of runs that are right so often; the next class otherwise."""
    right = RNG.random((len(accuracies), len(LABELS))) < np.array(accuracies)[:, None]
    return np.where(right, LABELS, (LABELS + 1) % 3)


def test_groups_are_of_runs_that_differ_in_the_seed_alone() -> None:
    wat, trades = make_config({"method": "wat"}), make_config({"method": "trades"})
    seeds = [wat.model_copy(update={"seed": seed}) for seed in (1, 2, 3)]
    other = make_config({"method": "wat", "eta": 0.5, "seed": 2})
    assert same_but_for_the_seed(seeds[0], seeds[1])
    assert not same_but_for_the_seed(seeds[0], other)
    assert seed_groups([seeds[0], trades, seeds[1], other, None, seeds[2], None]) == [[0, 2, 5], [1], [3], [4], [6]]
    assert seed_groups([seeds[0], seeds[1], seeds[1]]) == [[0, 1], [2]]  # the same seed again is not another one
    assert seed_groups(seeds, ["selected", "last", "selected"]) == [[0, 2], [1]]


def test_one_seed_each_is_the_comparison_of_two_runs() -> None:
    ours, base = runs(0.6, 0.5)
    found = compare_seeds(LABELS, [ours], [base], 3)
    known = compare(LABELS, ours, base, 3)
    assert (found.avg_difference, found.worst_difference) == (known.avg_difference, known.worst_difference)
    assert found.degrees == 0  # nothing is known of seeds
    mean = seed_means(LABELS, [ours], 3)
    correct, counts = metrics.class_counts(LABELS, ours, 3)
    low, high = (float(end) for end in metrics.binomial_interval(correct.sum(), counts.sum()))
    assert mean.average == pytest.approx((correct.sum() / counts.sum(), low, high))
    assert mean.worst == pytest.approx(((correct / counts).min(), *metrics.worst_interval(correct, counts)))
    assert mean.pooled_worst == mean.worst


def test_equal_seeds_have_the_interval_of_one() -> None:
    """Runs that are right on the same images say no more than one of them; nor do they spread."""
    (ours,), (base,) = runs(0.6), runs(0.5)
    one, three = (compare_seeds(LABELS, [ours] * n, [base] * n, 3) for n in (1, 3))
    assert three.degrees == 4
    for mine, its in zip(three[:2], one[:2], strict=True):
        assert mine == pytest.approx(its)
    single, several = (seed_means(LABELS, [ours] * n, 3) for n in (1, 3))
    for mine, its in zip(several[:3], single[:3], strict=True):
        assert mine == pytest.approx(its)


def test_images_without_noise_leave_students_t() -> None:
    """Each class is right everywhere or nowhere, so that drawing images again changes nothing."""
    levels = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]])  # seeds x classes
    predictions = np.where(levels[:, LABELS] == 1, LABELS, (LABELS + 1) % 3)
    averages = levels.mean(axis=1)
    ours, base = averages[:2], averages[2:]
    expected = scipy_stats.ttest_ind(ours, base).confidence_interval(0.95)
    found = compare_seeds(LABELS, predictions[:2], predictions[2:], 3).avg_difference
    assert found == pytest.approx((ours.mean() - base.mean(), expected.low, expected.high))


def test_pooled_spread_is_that_of_an_analysis_of_variance() -> None:
    methods = [RNG.normal(size=n) for n in (2, 3, 1, 4)]
    within = sum(float(((each - each.mean()) ** 2).sum()) for each in methods)
    assert list(pooled_spread(methods)) == pytest.approx([within / 6, 6])
    assert pooled_spread([[0.4], [0.5]]) == Spread(0.0, 0)
    assert standard_deviation([0.4]) is None
    assert standard_deviation([0.4, 0.6]) == pytest.approx(0.2 / np.sqrt(2))


def test_the_pooled_worst_class_is_lowest_over_all_seeds() -> None:
    """Two seeds, each with another weak class: the mean of minima is lower than the minimum of means."""
    right = np.ones((2, len(LABELS)), dtype=bool)
    right[0, :45], right[1, 60:120] = False, False  # class 0 at 0.25, class 1 at 0
    found = seed_means(LABELS, np.where(right, LABELS, (LABELS + 1) % 3), 3)
    assert (found.worst.value, found.pooled_worst.value, found.pooled_class) == (0.125, 0.5, 1)
    assert found.pooled_worst[1:] == metrics.worst_interval([37.5, 30, 60], [60, 60, 60])
    assert found.worst.low >= 0


def test_spread_given_widens_a_single_seed() -> None:
    ours, base = runs(0.6), runs(0.5)
    alone = compare_seeds(LABELS, ours, base, 3)
    spreads = Spreads(Spread(1e-4, 6), Spread(4e-4, 6), Spread(4e-4, 6))
    wider = compare_seeds(LABELS, ours, base, 3, spreads=spreads)
    assert wider.degrees == 6
    for one, other in zip(alone[:3], wider[:3], strict=True):
        assert other.value == one.value
        assert other.low < one.low < one.high < other.high


def test_drawing_images_keeps_what_runs_share() -> None:
    """The covariance of two runs over draws is that of their outcomes on an image, divided by the images."""
    labels = np.zeros(400, dtype=int)
    right = RNG.random((2, 400)) < 0.6
    right[1, :300] = right[0, :300]
    drawn = bootstrap_runs(labels, right, draws=20_000)
    assert drawn.shape == (20_000, 2, 1)
    expected = np.cov(right.astype(float), bias=True) / 400
    assert np.cov(drawn[:, :, 0].T) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("ours", "base"), [(2, 2), (3, 1)])
def test_intervals_hold_with_both_sources_of_noise(ours: int, base: int) -> None:
    """95% intended, of 150 test sets; with images alone the same data hold in less than two thirds."""
    rng, truth, rounds, size = np.random.default_rng(1), (0.6, 0.5), 150, 150
    labels = np.repeat(np.arange(2), size)
    held = {"both": 0, "images": 0}
    for trial in range(rounds):
        image = np.sqrt(0.6) * rng.standard_normal(len(labels))
        found = []
        for count, accuracy in ((ours, truth[0]), (base, truth[1])):
            level = norm.ppf(accuracy) * np.sqrt(1 + 0.2**2) + 0.2 * rng.standard_normal((count, 1))
            right = level + image + np.sqrt(0.4) * rng.standard_normal((count, len(labels))) > 0
            found.append(np.where(right, labels, 1 - labels))
        nothing = Spreads(*[Spread(0.0, 0)] * 3)
        for name, spreads in (("both", None), ("images", nothing)):
            _, low, high = compare_seeds(
                labels, found[0], found[1], 2, spreads=spreads, draws=400, seed=trial
            ).avg_difference
            held[name] += low <= truth[0] - truth[1] <= high
    assert held["both"] >= 0.91 * rounds  # three standard errors below 95% are 89.7%
    assert held["images"] < 0.67 * rounds


def test_what_cannot_be_compared() -> None:
    with pytest.raises(UserError, match="a row for each seed"):
        compare_seeds(LABELS, runs(0.5)[0], runs(0.5), 3)
    with pytest.raises(UserError, match="a row for each seed"):
        seed_means(LABELS, np.zeros((0, len(LABELS)), dtype=int), 3)
