"""Measures against closed forms and brute force, and intervals against simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from worstclass import metrics
from worstclass.metrics import (
    average_accuracy,
    binomial_interval,
    class_counts,
    class_variance,
    compare,
    per_class_accuracy,
    rho,
    variance_interval,
    worst_class,
    worst_interval,
    worst_tenth,
    worst_tenth_interval,
    worst_ties,
)

pytestmark = pytest.mark.fast


def test_per_class_accuracy() -> None:
    labels, predictions = [0, 0, 0, 1, 1, 3], [0, 1, 0, 1, 0, 3]
    accuracy = per_class_accuracy(labels, predictions, 4)
    assert accuracy[[0, 1, 3]].tolist() == pytest.approx([2 / 3, 1 / 2, 1.0])
    assert math.isnan(accuracy[2])
    assert worst_class(accuracy) == (1, 0.5)
    assert average_accuracy(labels, predictions) == pytest.approx(4 / 6)
    assert [c.tolist() for c in class_counts(labels, predictions, 4)] == [[2, 1, 0, 1], [3, 2, 0, 1]]
    with pytest.raises(ValueError, match=r"0\.\.2"):
        per_class_accuracy(labels, predictions, 3)
    with pytest.raises(ValueError, match="must both be"):
        per_class_accuracy([0, 1], [0], 2)


def test_class_variance() -> None:
    assert class_variance([0.2, 0.4, 0.6]) == pytest.approx((0.04 + 0 + 0.04) / 3)


def test_the_worst_tenth_is_cvar() -> None:
    """Of 43 classes 4.3: the largest t - E(t - accuracy)+ / 0.1 over t, whatever their order."""
    accuracy = np.random.default_rng(0).random(43)
    at_most = [t - np.maximum(t - accuracy, 0).mean() / 0.1 for t in accuracy]
    assert worst_tenth(accuracy) == pytest.approx(max(at_most))
    assert worst_tenth(accuracy[::-1]) == worst_tenth(accuracy)
    assert worst_tenth(np.repeat(accuracy, 7)) == pytest.approx(worst_tenth(accuracy))
    assert worst_tenth(np.linspace(0, 0.99, 100)) == pytest.approx(np.linspace(0, 0.99, 100)[:10].mean())
    assert worst_tenth([0.3, math.nan, 0.1, 0.9]) == 0.1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_the_worst_tenth_of_up_to_ten_classes_is_the_worst_class(accuracy: list[float]) -> None:
    assert worst_tenth(accuracy) == min(accuracy)


@pytest.mark.parametrize(
    ("avg", "worst", "expected"),
    [(49.13, 36.6, 0.403), (47.57, 33.3, 0.326), (46.08, 25.4, 0.118), (40.32, 29.2, 0.175)],
)
def test_rho_of_the_paper(avg: float, worst: float, expected: float) -> None:
    """Cells of the paper's Table 1 whose base is PGD-100 51.69 / 25.2, CW 50.38 / 24.1, AutoAttack 48.64 / 21.7."""
    base = {49.13: (51.69, 25.2), 47.57: (50.38, 24.1)}.get(avg, (48.64, 21.7))
    assert rho(avg=avg, worst=worst, base_avg=base[0], base_worst=base[1]) == pytest.approx(expected, abs=0.001)


def test_rho_without_a_base() -> None:
    assert rho(avg=0.5, worst=0.5, base_avg=0.5, base_worst=0.5) == 0
    assert rho(avg=0.5, worst=0.1, base_avg=0.5, base_worst=0.0) == math.inf
    assert math.isnan(rho(avg=0.4, worst=0.0, base_avg=0.5, base_worst=0.0))
    assert math.isnan(rho(avg=0.4, worst=0.1, base_avg=0.0, base_worst=0.0))


def test_binomial_interval_is_clopper_pearson() -> None:
    for k, n in ((0, 10), (3, 10), (10, 10), (217, 1000)):
        low, high = binomial_interval([k], [n])
        expected = scipy_stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))
    assert [float(end[0]) for end in binomial_interval([0], [0])] == [0.0, 1.0]


def exact_coverage_of_worst(truth: list[float], n: int) -> float:
    """The chance that the interval holds the truth, by summing over every outcome of a few classes."""
    covered = 0.0
    chances = [[float(scipy_stats.binom.pmf(k, n, p)) for k in range(n + 1)] for p in truth]
    for ks in itertools.product(range(n + 1), repeat=len(truth)):
        low, high = worst_interval(ks, [n] * len(truth))
        chance = math.prod(of_class[k] for of_class, k in zip(chances, ks, strict=True))
        covered += chance * (low <= min(truth) <= high)
    return covered


@pytest.mark.parametrize("truth", [[0.5, 0.5], [0.2, 0.6], [0.3, 0.35], [0.05, 0.9]])
def test_worst_interval_holds_exactly(truth: list[float]) -> None:
    assert exact_coverage_of_worst(truth, 12) >= 0.95


TENTHS = {  # class accuracies, images of each class
    "43 alike": (np.full(43, 0.5), np.full(43, 30)),
    "43 spread, of 10 to 300 images": (np.linspace(0.1, 0.9, 43), np.array([10] * 15 + [60] * 13 + [300] * 15)),
    "200 low": (np.full(200, 0.05), np.full(200, 50)),
    "200, half of the worst at nothing": (np.array([0.0] * 10 + [0.1] * 190), np.full(200, 50)),
    "200, the worst apart": (np.array([0.05] * 20 + [0.5] * 180), np.full(200, 50)),
}


@pytest.mark.parametrize("name", TENTHS)
def test_worst_tenth_interval_holds(name: str) -> None:
    """95% intended, of 40 test sets; 88% are two standard errors less. A bootstrap held in a quarter of the first."""
    truth, counts = TENTHS[name]
    drawn = np.random.default_rng(0).binomial(counts, truth, size=(40, len(truth)))
    found = [worst_tenth_interval(correct, counts) for correct in drawn]
    assert np.mean([low <= worst_tenth(truth) <= high for low, high in found]) >= 0.88
    wide = [worst_interval(correct, counts) for correct in drawn]
    assert np.mean([high - low for low, high in found]) < np.mean([high - low for low, high in wide])


def test_the_worst_tenth_of_few_classes_has_the_interval_of_the_worst_class() -> None:
    correct, counts = [3, 0, 9, 7], [10, 0, 10, 20]
    assert worst_tenth_interval(correct, counts) == worst_interval(correct, counts)
    y = np.repeat(np.arange(3), 20)
    found = compare(y, np.where(np.arange(60) % 3 > 0, y, -1), np.where(y > 0, y, -1), 3)
    assert found.worst_tenth_difference == found.worst_difference


def test_classes_at_nothing_leave_doubt() -> None:
    """No image of any class is right: the truth may be a little more, and the classes may differ a little."""
    correct, counts = np.zeros(43, dtype=int), np.full(43, 30)
    assert worst_ties(correct / counts) == 43
    _, high = binomial_interval([0], [30], 1 - 0.05 / 43)
    low, most = worst_tenth_interval(correct, counts)
    assert low == 0 < most < high[0]  # 4.3 classes at nothing say more than one
    low, high_variance = variance_interval(correct, counts)
    assert low == 0
    assert high_variance == pytest.approx(float(high[0]) ** 2 / 4, rel=0.01)  # half at nothing, half at the bound
    none = np.zeros(43 * 30, dtype=int)
    labels = np.repeat(np.arange(43), 30)
    one = np.where(np.arange(len(labels)) == 5, labels, -1)  # the runs differ in one image
    found = compare(labels, one, none - 1, 43)
    assert list(found.worst_difference) == pytest.approx([0, -high[0], high[0]])
    assert list(found.worst_tenth_difference) == pytest.approx([0, -most, most])


CLOSE_TO_NOTHING = {
    "all alike": np.full(43, 0.002),
    "30 of 43": np.concatenate([np.full(30, 0.002), np.linspace(0.1, 0.8, 13)]),
    "both ends": np.concatenate([np.full(20, 0.003), np.full(23, 0.997)]),
}


@pytest.mark.parametrize("name", CLOSE_TO_NOTHING)
def test_intervals_hold_where_most_classes_are_at_nothing(name: str) -> None:
    """30 images a class, so that most are never right, or never wrong: 95% intended, and never without width."""
    truth, rounds = CLOSE_TO_NOTHING[name], 40
    counts = np.full(len(truth), 30)
    drawn = np.random.default_rng(0).binomial(counts, truth, size=(rounds, len(truth)))
    variances = [variance_interval(correct, counts) for correct in drawn]
    tenths = [worst_tenth_interval(correct, counts) for correct in drawn]
    for intervals, value in ((variances, class_variance(truth)), (tenths, worst_tenth(truth))):
        assert sum(low <= value <= high for low, high in intervals) >= 0.9 * rounds
        assert all(high > low for low, high in intervals)


def test_rho_is_undefined_where_neither_worst_class_holds() -> None:
    """0 / 0 is no gain, and no loss either."""
    y = np.repeat([0, 1, 2], 50)
    ours, base = np.where(y > 0, y, -1), np.where((y > 0) & (np.arange(150) % 2 == 0), y, -1)
    found = compare(y, ours, base, 3).rho
    assert math.isnan(found.value)
    assert (found.low, found.high) == (-2, math.inf)
    few = np.where(np.arange(150) == 0, y, base)  # one image of the base's worst class: many draws have none
    found = compare(y, ours, few, 3).rho
    assert list(found) == pytest.approx([100 / 51 - 2, -2, math.inf])


def test_worst_interval_ignores_absent_classes() -> None:
    assert worst_interval([3, 0, 9], [10, 0, 10]) == worst_interval([3, 9], [10, 10])


def test_bootstrap_is_resampling_of_images() -> None:
    """The binomial shortcut has the mean and variance of drawing images with replacement."""
    correct, counts = np.array([30, 80]), np.array([100, 100])
    drawn = metrics.bootstrap_accuracies(correct, counts, draws=20_000)
    assert drawn.mean(0) == pytest.approx([0.3, 0.8], abs=0.002)
    assert drawn.var(0) == pytest.approx([0.3 * 0.7 / 100, 0.8 * 0.2 / 100], rel=0.05)


def simulate(joint: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", n: int, rounds: int) -> dict[str, float]:
    """How often the intervals hold the truth; `joint` (K, 4) are the chances of neither, base, ours, both right."""
    rng = np.random.default_rng(0)
    num_classes = len(joint)
    y = np.repeat(np.arange(num_classes), n)
    ours, base = joint[:, 2] + joint[:, 3], joint[:, 1] + joint[:, 3]
    truth = rho(avg=ours.mean(), worst=ours.min(), base_avg=base.mean(), base_worst=base.min())
    hits = {"rho": 0, "worst difference": 0, "average difference": 0, "variance": 0}
    for _ in range(rounds):
        kinds = np.concatenate([rng.choice(4, size=n, p=row) for row in joint])
        predictions, base_predictions = np.where(kinds >= 2, y, -1), np.where(kinds % 2 == 1, y, -1)
        result = compare(y, predictions, base_predictions, num_classes)
        hits["rho"] += result.rho.low <= truth <= result.rho.high
        difference = result.worst_difference
        hits["worst difference"] += difference.low <= ours.min() - base.min() <= difference.high
        difference = result.avg_difference
        hits["average difference"] += difference.low <= ours.mean() - base.mean() <= difference.high
        low, high = variance_interval(*class_counts(y, predictions, num_classes))
        hits["variance"] += low <= ours.var() <= high
    return {name: count / rounds for name, count in hits.items()}


def test_intervals_hold_about_as_often_as_they_say() -> None:
    """A vanilla run with one weak class against a flatter one, 300 images a class: 95% intended."""
    ours = np.array([0.25, 0.4, 0.5, 0.6, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8])
    base = np.array([0.10, 0.4, 0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.8, 0.9])
    both = np.minimum(ours, base) * 0.6 + ours * base * 0.4
    joint = np.stack([1 - ours - base + both, base - both, ours - both, both], axis=1)
    for name, share in simulate(joint, 300, 150).items():
        assert 0.88 <= share <= 1.0, name


def test_compare_is_paired() -> None:
    """The same errors cancel: a run against itself differs by exactly nothing."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 50)
    predictions = np.where(rng.uniform(size=200) < 0.6, y, (y + 1) % 4)
    same = compare(y, predictions, predictions, 4)
    assert same.avg_difference == (0, 0, 0)
    assert same.worst_difference == (0, 0, 0)
    assert same.rho == pytest.approx((0, 0, 0), abs=1e-12)
    assert same.p_value == 1.0
    better = np.where(rng.uniform(size=200) < 0.5, y, predictions)
    result = compare(y, better, predictions, 4)
    accuracy, base_accuracy = per_class_accuracy(y, better, 4), per_class_accuracy(y, predictions, 4)
    assert result.worst_difference.value == pytest.approx(accuracy.min() - base_accuracy.min())
    assert result.rho.value == pytest.approx(
        rho(avg=accuracy.mean(), worst=accuracy.min(), base_avg=base_accuracy.mean(), base_worst=base_accuracy.min())
    )
    gained = int(((better == y) & (predictions != y)).sum())
    assert result.p_value == pytest.approx(2 * 0.5**gained)
    assert result.avg_difference.low > 0


def test_compare_with_a_hopeless_base_is_unbounded() -> None:
    y = np.repeat([0, 1], 20)
    result = compare(y, y, np.where(y == 0, y, 0), 2)
    assert result.rho.value == math.inf
    assert result.rho.high == math.inf
