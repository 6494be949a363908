"""The guarded class weights: their bounds for any costs, and each rule against a plain transcription."""

import math
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worstclass.errors import UserError
from worstclass.stats import ClassStats
from worstclass.strategies.guarded import Guarded, class_cost, divergence, heard, max_share, tilted

pytestmark = pytest.mark.fast


def table(right: list[int], total: list[int]) -> ClassStats:
    """A class table with so many images of each class right under attack."""
    stats = ClassStats(len(right))
    y = torch.tensor([k for k, count in enumerate(total) for _ in range(count)], dtype=torch.int64)
    correct = torch.tensor([i < right[k] for k, count in enumerate(total) for i in range(count)])
    stats.add(y, natural_loss=correct, robust_loss=correct, natural_correct=correct, robust_correct=correct)
    return stats


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[ClassStats, ClassStats]]]:
    """Training counts, and tables of a few epochs chosen by an adversary; classes may be missing from validation."""
    classes = draw(st.integers(2, 12))
    counts = draw(st.lists(st.integers(1, 5000), min_size=classes, max_size=classes))
    epochs = []
    for _ in range(draw(st.integers(1, 6))):
        totals = [draw(st.lists(st.integers(low, 40), min_size=classes, max_size=classes)) for low in (1, 0)]
        totals[1][0] = max(totals[1][0], 1)
        rights = [[draw(st.integers(0, each)) for each in total] for total in totals]
        epochs.append((table(rights[0], totals[0]), table(rights[1], totals[1])))
    return counts, epochs


@given(
    history=histories(),
    radius=st.floats(0.01, 1.0),
    tilt=st.floats(0.1, 20),
    balanced=st.booleans(),
    sample=st.booleans(),
)
def test_no_history_leads_out_of_the_ball(
    history: tuple[list[int], list[tuple[ClassStats, ClassStats]]],
    radius: float,
    tilt: float,
    balanced: bool,
    sample: bool,
) -> None:
    counts, epochs = history
    strategy = Guarded(torch.tensor(counts), radius=radius, tilt=tilt, balanced=balanced, sample=sample)
    for train, valid in epochs:
        strategy.update(train, valid)
        p = strategy.distribution
        assert float(p.sum()) == pytest.approx(1)
        assert divergence(p, strategy.base) <= radius + 1e-9
        assert float((p / strategy.base).max() / (p / strategy.base).min()) <= math.exp(tilt) + 1e-6
        if balanced:
            assert float(p.max()) <= max_share(len(counts), radius) + 1e-6
        share = torch.tensor(counts).double() / sum(counts)
        drawn = share if strategy.weights.quota is None else strategy.weights.quota.double()
        assert torch.allclose(strategy.weights.natural.double() * drawn, p, rtol=1e-5)
        assert torch.equal(strategy.weights.natural, strategy.weights.robust)
        assert float(strategy.cost.min()) >= 0
        assert float(strategy.cost.max()) <= 1


@given(cost=st.lists(st.floats(0, 1), min_size=2, max_size=20), tilt=st.floats(0.1, 20), radius=st.floats(0.01, 1.0))
def test_the_tilt_is_the_largest_allowed(cost: list[float], tilt: float, radius: float) -> None:
    """Either all of it, or up to the edge of the ball; a costlier class never weighs less."""
    costs = torch.tensor(cost, dtype=torch.float64)
    base = torch.full_like(costs, 1 / len(cost))
    p = tilted(base, costs, tilt, radius)
    assert bool((p[costs.argsort()].diff() >= -1e-12).all())
    free = torch.softmax(tilt * costs, 0)
    if divergence(free, base) <= radius:
        assert torch.allclose(p, free)
    else:
        assert divergence(p, base) == pytest.approx(radius, abs=1e-6)


def test_equal_costs_leave_the_base() -> None:
    counts = torch.tensor([10, 30, 60])
    for balanced, expected in ((True, [10 / 3, 10 / 9, 5 / 9]), (False, [1, 1, 1])):
        strategy = Guarded(counts, balanced=balanced)
        strategy.update(table([5, 5, 5], [10, 10, 10]), table([4, 4, 4], [8, 8, 8]))
        assert strategy.weights.natural.tolist() == pytest.approx(expected)


def test_the_cost_of_a_class() -> None:
    """Class by class, as the docstring says it."""
    counts = [100, 400, 25, 900]
    train, valid = table([9, 5, 8, 2], [10, 10, 10, 10]), table([8, 3, 0, 1], [10, 5, 50, 0 + 4])
    trained, held_out, images = [0.1, 0.5, 0.2, 0.8], [0.2, 0.4, 1.0, 0.75], [10, 5, 50, 4]
    scales = [math.sqrt(sum(counts) / 4 / count) for count in counts]
    gap = median_low((h - t) / scale for h, t, scale in zip(held_out, trained, scales, strict=True))
    expected = []
    for t, h, m, scale in zip(trained, held_out, images, scales, strict=True):
        guess = t + gap * scale
        expected.append(min((m * h + 15 * guess) / (m + 15), guess + 0.1))
    cost = class_cost(train, valid, torch.tensor(counts).double(), prior=15, slack=0.1)
    assert cost.tolist() == pytest.approx([min(max(each, 0), 1) for each in expected])
    assert expected[2] == pytest.approx(
        trained[2] + gap * scales[2] + 0.1
    )  # fails on validation alone: it is not paid for


def median_low(values: object) -> float:
    """torch's median: the lower of the two in the middle."""
    ordered = sorted(values)  # type: ignore[call-overload]
    return float(ordered[(len(ordered) - 1) // 2])


def test_few_images_say_little() -> None:
    """Two classes of one training error, both missed on validation: the one with more images weighs more."""
    valid = table([0, 0, 20, 20], [2, 20, 40, 40])
    cost = class_cost(table([5, 5, 5, 5], [10] * 4), valid, torch.ones(4).double(), prior=15, slack=1.0)
    assert cost[0] < cost[1]
    assert median(cost.tolist()) < float(cost[1])


@pytest.mark.parametrize("classes", [2, 10, 43, 200])
def test_the_largest_share(classes: int) -> None:
    """By its definition, and reached by one class of cost 1 beside others of cost 0."""
    share = max_share(classes, 0.15)
    rest = (1 - share) / (classes - 1)
    assert share * np.log(share * classes) + (1 - share) * np.log(rest * classes) == pytest.approx(0.15, abs=1e-6)
    costs = torch.zeros(classes, dtype=torch.float64)
    costs[0] = 1
    base = torch.full_like(costs, 1 / classes)
    assert float(tilted(base, costs, 50.0, 0.15)[0]) == pytest.approx(share, abs=1e-6)


def test_old_costs_fade() -> None:
    """After the last bad epoch a class's excess halves and halves: nothing adds up over a run."""
    strategy = Guarded(torch.ones(3), memory=0.5)
    bad, good = table([10, 10, 0], [10] * 3), table([10, 10, 10], [10] * 3)
    for _ in range(30):
        strategy.update(bad, bad)
    high = float(strategy.cost[2])
    for _ in range(3):
        strategy.update(good, good)
    assert float(strategy.cost[2]) == pytest.approx(high / 8, rel=1e-6)


def test_a_class_is_heard_as_far_as_training_fits_it() -> None:
    """In plain Python: accuracies 0.8, 0.6, 0.1 and 0; costs above and below their mean."""
    base, trained, cost = [0.4, 0.2, 0.2, 0.2], [0.8, 0.6, 0.1, 0.0], [0.3, 0.5, 0.9, 1.0]
    enough = 0.5 * sum(b * t for b, t in zip(base, trained, strict=True))
    kept = [min(t / enough, 1) for t in trained]
    mean = sum(b * h * c for b, h, c in zip(base, kept, cost, strict=True))
    mean /= sum(b * h for b, h in zip(base, kept, strict=True))
    given = (torch.tensor(each).double() for each in (cost, trained, base))
    assert heard(*given).tolist() == pytest.approx([mean + h * (c - mean) for h, c in zip(kept, cost, strict=True)])
    assert 0 < kept[2] < 1


def test_where_training_fits_nothing_no_class_is_raised() -> None:
    cost = heard(torch.tensor([0.9, 1.0, 0.8]), torch.zeros(3), torch.full((3,), 1 / 3))
    assert cost.unique().numel() == 1


@given(history=histories(), balanced=st.booleans())
def test_what_training_never_fits_is_never_raised(
    history: tuple[list[int], list[tuple[ClassStats, ClassStats]]], balanced: bool
) -> None:
    counts, epochs = history
    strategy = Guarded(torch.tensor(counts), balanced=balanced)
    for train, valid in epochs:
        train.sums("robust_correct")[0] = 0
        strategy.update(train, valid)
        assert float(strategy.distribution[0]) <= float(strategy.base[0]) * (1 + 1e-6)


def test_the_tilt_comes_in_slowly() -> None:
    """With the same errors each epoch the cost goes from zero to them as 1 - memory^t."""
    strategy = Guarded(torch.ones(2), memory=0.8)
    stats = table([9, 4], [10, 10])
    for epoch in range(1, 8):
        strategy.update(stats, stats)
        assert strategy.cost.tolist() == pytest.approx([0.1 * (1 - 0.8**epoch), 0.6 * (1 - 0.8**epoch)])


def test_a_memory_that_never_learns_is_refused() -> None:
    with pytest.raises(UserError, match="nothing is learned"):
        Guarded(torch.ones(3), memory=1.0)
