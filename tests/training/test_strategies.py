"""One table of laws for every strategy, and each against an independent float64 transcription of its formula."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from worstclass.stats import COLUMNS, ClassStats
from worstclass.strategies import CSL, FRL, WAT, ClassHedge, Fixed, Hedge, focus, uniform
from worstclass.types import ClassStrategy

pytestmark = pytest.mark.fast

K = 4
COUNTS = torch.tensor([10, 20, 30, 40])
MAKERS: dict[str, Callable[[Tensor], ClassStrategy]] = {
    "wat": lambda counts: WAT(counts, eta=0.1),
    "wat-reference": lambda counts: WAT(counts, eta=0.1, variant="reference"),
    "frl-rw": lambda counts: FRL(len(counts), tau=0.05, rate=0.05),
    "frl-rwrm": lambda counts: FRL(len(counts), tau=0.05, rate=0.05, margin_rate=0.2),
    "csl": lambda counts: CSL(len(counts), rate=0.05),
    "fixed": lambda counts: Fixed(counts, torch.arange(1, len(counts) + 1) / sum(range(1, len(counts) + 1))),
    "uniform": lambda counts: uniform(len(counts)),
}


def make_stats(seed: int, *, num_classes: int = K, absent: tuple[int, ...] = ()) -> ClassStats:
    """A plausible validation table: losses, and robust accuracy below natural accuracy."""
    rng = np.random.default_rng(seed)
    stats = ClassStats(num_classes)
    y = rng.integers(num_classes, size=60 * num_classes)
    y = y[~np.isin(y, absent)]
    level = rng.uniform(0.3, 0.9, size=num_classes)
    natural = rng.uniform(size=len(y)) < level[y]
    robust = natural & (rng.uniform(size=len(y)) < level[y])
    tensors: dict[str, Any] = {
        "natural_loss": rng.exponential(size=len(y)) / level[y],
        "robust_loss": rng.exponential(size=len(y)),
    }
    tensors |= {"natural_correct": natural, "robust_correct": robust}
    stats.add(torch.from_numpy(y), **{name: torch.from_numpy(tensors[name]) for name in COLUMNS})
    return stats


def play(strategy: ClassStrategy, stats: ClassStats) -> None:
    """An epoch with the same table of training and of validation."""
    strategy.update(stats, stats)


def permuted(stats: ClassStats, order: list[int]) -> ClassStats:
    other = ClassStats(len(order))
    other.table.copy_(stats.table[order])
    return other


def vectors(strategy: ClassStrategy) -> Tensor:
    return torch.stack([strategy.weights.natural, strategy.weights.robust, strategy.weights.radius_scale])


@pytest.mark.parametrize("name", MAKERS)
def test_laws(name: str) -> None:
    strategy = MAKERS[name](COUNTS)
    storage = [
        tensor.data_ptr()
        for tensor in (strategy.weights.natural, strategy.weights.robust, strategy.weights.radius_scale)
    ]
    for seed in range(30):
        play(strategy, make_stats(seed, absent=(seed % K,) if seed % 3 == 0 else ()))
        assert vectors(strategy).isfinite().all()
        assert (vectors(strategy) >= 0).all()
    same = [strategy.weights.natural, strategy.weights.robust, strategy.weights.radius_scale]
    assert storage == [tensor.data_ptr() for tensor in same]


@pytest.mark.parametrize("name", MAKERS)
def test_state_round_trips(name: str) -> None:
    one, other = MAKERS[name](COUNTS), MAKERS[name](COUNTS)
    for seed in range(3):
        other.load_state_dict({key: value.clone() for key, value in one.state_dict().items()})
        assert torch.equal(vectors(one), vectors(other))
        play(one, make_stats(seed))
    other.load_state_dict(one.state_dict())
    play(one, make_stats(9))
    play(other, make_stats(9))
    assert torch.equal(vectors(one), vectors(other))


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "fixed"])
def test_permuting_classes_permutes_weights(name: str) -> None:
    order = [2, 0, 3, 1]
    one, other = MAKERS[name](COUNTS), MAKERS[name](COUNTS[order])
    for seed in range(5):
        stats = make_stats(seed)
        play(one, stats)
        play(other, permuted(stats, order))
    assert torch.allclose(vectors(one)[:, order], vectors(other))


@pytest.mark.parametrize("num_classes", [2, 3, 100])
@pytest.mark.parametrize("name", MAKERS)
def test_any_number_of_classes(name: str, num_classes: int) -> None:
    strategy = MAKERS[name](torch.ones(num_classes))
    play(strategy, make_stats(0, num_classes=num_classes))
    assert vectors(strategy).shape == (3, num_classes)
    assert vectors(strategy).isfinite().all()


def class_means(stats: ClassStats, *columns: str) -> "np.ndarray[Any, Any]":
    table = stats.table.numpy()
    picked = table[:, [1 + COLUMNS.index(c) for c in columns]].sum(1)
    return np.asarray(picked / table[:, 0])


def test_wat_is_algorithm_1() -> None:
    strategy = WAT(COUNTS, eta=0.1)
    share = np.array([0.1, 0.2, 0.3, 0.4])
    assert np.allclose(strategy.weights.natural, 1 / 5 + (1 / 5) / share)  # w^1 is uniform on K + 1
    total = np.zeros(K + 1)
    for seed in range(20):
        stats = make_stats(seed)
        play(strategy, stats)
        costs = class_means(stats, "natural_loss", "robust_loss")
        table = stats.table.numpy()
        overall = (table[:, 1] + table[:, 2]).sum() / table[:, 0].sum()
        total += np.concatenate([[overall], costs])
        raw = np.exp(0.1 * total)
        w = raw / raw.sum()
        assert np.allclose(strategy.weights.natural, w[0] + w[1:] / share, rtol=1e-6)
        assert torch.equal(strategy.weights.natural, strategy.weights.robust)
        assert (strategy.weights.radius_scale == 1).all()


def test_wat_weights_give_the_weighted_sum_of_class_losses() -> None:
    """Over one pass of unbalanced data the weighted mean equals sum_k w_k L_k exactly."""
    strategy = WAT(COUNTS, eta=0.3)
    play(strategy, make_stats(3))
    y = torch.repeat_interleave(torch.arange(K), COUNTS)
    losses = torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = strategy.hedge.weights
    expected = w[0] * losses.mean() + sum(w[1 + k] * losses[y == k].mean() for k in range(K))
    assert torch.allclose((strategy.weights.natural.double()[y] * losses).mean(), expected, rtol=1e-6)


def test_wat_reference_is_the_public_code() -> None:
    strategy = WAT(torch.ones(K), eta=0.1, variant="reference")
    assert (strategy.weights.natural == 2).all()
    strategy.load_state_dict(strategy.state_dict())
    assert (strategy.weights.natural == 2).all()
    stats = make_stats(0)
    play(strategy, stats)
    costs = class_means(stats, "natural_loss", "robust_loss")
    table = stats.table.numpy()
    factor = np.exp(0.1 * np.append(costs, (table[:, 1] + table[:, 2]).sum() / table[:, 0].sum()))
    public = K * factor / factor.sum()
    assert np.allclose(strategy.weights.natural, public[:K] + public[K], rtol=1e-6)


@pytest.mark.parametrize("margin_rate", [0.0, 0.2])
def test_frl(margin_rate: float) -> None:
    strategy = FRL(K, tau=0.01, rate=0.5, margin_rate=margin_rate)  # fast, so that the projection binds
    l0, l1, l2 = np.zeros(K), np.zeros(K), np.zeros(K)

    def project(v: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        v = np.maximum(v, 0)
        return v * 0.5 / v.sum() if v.sum() > 0.5 else v

    projected = False
    for _ in range(20):
        stats = make_stats(0)
        play(strategy, stats)
        clean, robust = class_means(stats, "natural_correct"), class_means(stats, "robust_correct")
        e, b = 1 - clean, clean - robust
        l0 = project(l0 + 0.5 * (e - e.mean() - 0.01))
        before = l1 + 1.0 * (b - b.mean() - 0.01)
        projected |= bool(np.maximum(before, 0).sum() > 0.5)
        l1 = project(before)
        l2 = np.clip(l2 + margin_rate * (b - b.mean() - 0.01), np.log(0.98) / 2, np.log(3) / 2)
        assert np.allclose(strategy.weights.natural, 1 / K + l0 - l0.sum() / K, atol=1e-6)
        assert np.allclose(strategy.weights.robust, 1 / K + l1 - l1.sum() / K, atol=1e-6)
        assert np.allclose(strategy.weights.radius_scale, np.clip(np.exp(2 * l2), 0.98, 3), atol=1e-6)
    assert strategy.weights.normalized
    assert projected


@pytest.mark.parametrize("ahead", [True, False])
def test_a_radius_leaves_its_bound_at_once(ahead: bool) -> None:
    """However long it was there: what is beyond the bound is not kept."""

    def stats(gap: float) -> ClassStats:
        """Of two classes, one with that much more boundary error than the other."""
        y, table = torch.arange(2).repeat_interleave(100), ClassStats(2)
        held = torch.arange(100).repeat(2) < torch.where(y == 0, 50 - 100 * gap, 50)
        zeros, ones = torch.zeros(200), torch.ones(200)
        table.add(y, natural_loss=zeros, robust_loss=zeros, natural_correct=ones, robust_correct=held)
        return table

    sign = 1 if ahead else -1
    strategy = FRL(2, tau=0.0, rate=0.05, margin_rate=1.0)
    for _ in range(50):
        play(strategy, stats(sign * 0.4))
    bound = 3.0 if ahead else 0.98
    assert float(strategy.weights.radius_scale[0]) == pytest.approx(bound)
    play(strategy, stats(-sign * 0.02))
    assert float(strategy.weights.radius_scale[0]) == pytest.approx(bound * np.exp(-sign * 0.02))


def test_csl() -> None:
    strategy = CSL(K, rate=0.05)
    cost = np.ones(K)
    for seed in range(10):
        stats = make_stats(seed)
        play(strategy, stats)
        a = class_means(stats, "robust_correct")
        cost = np.maximum(0, cost + 0.05 * (a.mean() - a) / a.mean())
        cost /= cost.mean()
        assert np.allclose(strategy.weights.natural, cost, rtol=1e-6)
        assert np.allclose(strategy.weights.robust, cost, rtol=1e-6)


def test_csl_survives_a_model_that_is_never_right() -> None:
    strategy = CSL(2, rate=0.05)
    stats = ClassStats(2)
    y = torch.tensor([0, 1])
    zeros = torch.zeros(2)
    stats.add(y, natural_loss=zeros, robust_loss=zeros, natural_correct=zeros, robust_correct=zeros)
    play(strategy, stats)
    assert (strategy.weights.natural == 1).all()


def test_fixed_and_focus() -> None:
    assert torch.allclose(focus(10, 3, 0.25), torch.tensor([0.75 / 9] * 3 + [0.25] + [0.75 / 9] * 6).double())
    strategy = Fixed(COUNTS, focus(4, 1, 0.7))
    assert torch.allclose(strategy.weights.natural, torch.tensor([0.1 / 0.1, 0.7 / 0.2, 0.1 / 0.3, 0.1 / 0.4]))
    assert (uniform(7).weights.natural == 1).all()


def test_hedge_does_not_overflow() -> None:
    hedge = Hedge(3, eta=0.5)
    for _ in range(100):
        hedge.update(torch.tensor([1.0, 50.0, 49.0]))
    assert hedge.weights.isfinite().all()
    assert hedge.weights.argmax() == 1


@settings(max_examples=50)
@given(
    costs=st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=60),
    eta=st.floats(0.01, 0.5),
)
def test_hedge_regret_bound(costs: list[list[float]], eta: float) -> None:
    """Against any costs in [0, 1]: what Hedge collects is at least the best expert's, less eta T + log N / eta."""
    hedge = Hedge(4, eta)
    collected, totals = 0.0, np.zeros(4)
    for row in costs:
        collected += float((hedge.weights * torch.tensor(row, dtype=torch.float64)).sum())
        totals += row
        hedge.update(torch.tensor(row))
    assert collected >= totals.max() - eta * len(costs) - math.log(4) / eta - 1e-9


class TestClassHedge:
    def test_three_lines(self) -> None:
        hedge = ClassHedge(num_classes=3, eta=0.2)
        y = torch.tensor([0, 1, 2, 2])
        losses = torch.tensor([1.0, 2.0, 3.0, 5.0], requires_grad=True)
        assert torch.allclose(hedge.weights, torch.full((4,), 0.25).double())
        assert torch.allclose(hedge.weigh(losses, y), losses)  # w_0 + K w_k = 1 at the start
        hedge.update(losses, y)
        w = torch.softmax(0.2 * torch.tensor([11 / 4, 1.0, 2.0, 4.0]).double(), 0)
        assert torch.allclose(hedge.weights, w)
        weighed = hedge.weigh(losses, y)
        assert torch.allclose(weighed, losses * (w[0] + 3 * w[1:][y]).float())
        weighed.mean().backward()
        assert losses.grad is not None
        assert weighed.dtype == losses.dtype

    def test_same_as_wat(self) -> None:
        """The three lines and the trainer's strategy are one algorithm."""
        hedge, strategy = ClassHedge(K, eta=0.1, class_counts=COUNTS), WAT(COUNTS, eta=0.1)
        rng = torch.Generator().manual_seed(0)
        for _ in range(5):
            y, losses = torch.randint(K, (50,), generator=rng), torch.rand(50, generator=rng, dtype=torch.float64)
            hedge.update(losses, y)
            stats = ClassStats(K)
            none = torch.zeros(50)
            stats.add(y, natural_loss=losses / 2, robust_loss=losses / 2, natural_correct=none, robust_correct=none)
            play(strategy, stats)
        assert torch.allclose(hedge.weigh(torch.ones(K), torch.arange(K)), strategy.weights.natural)

    def test_absent_class_counts_as_average(self) -> None:
        hedge = ClassHedge(3, eta=1.0)
        hedge.update(torch.tensor([1.0, 3.0]), torch.tensor([0, 2]))
        assert hedge.weights[2] == hedge.weights[0]
        assert hedge.weights[1] < hedge.weights[2] < hedge.weights[3]

    def test_state_round_trips(self) -> None:
        one, other = ClassHedge(3), ClassHedge(3)
        one.update(torch.tensor([1.0, 2.0, 9.0]), torch.arange(3))
        other.load_state_dict(one.state_dict())
        assert torch.equal(one.weights, other.weights)
        ones = torch.ones(3)
        assert torch.equal(one.weigh(ones, torch.arange(3)), other.weigh(ones, torch.arange(3)))

    def test_bad_input(self) -> None:
        with pytest.raises(ValueError, match="num_classes"):
            ClassHedge(1)
        for eta in (0.0, -1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match="eta"):
                ClassHedge(3, eta=eta)
        with pytest.raises(ValueError, match="class_counts"):
            ClassHedge(3, class_counts=torch.tensor([1, 2]))
        hedge = ClassHedge(3)
        with pytest.raises(ValueError, match="reduction='none'"):
            hedge.weigh(torch.tensor(1.0), torch.tensor([0, 1]))
        before = hedge.weights
        with pytest.raises(ValueError, match="not finite"):
            hedge.update(torch.tensor([1.0, math.nan]), torch.tensor([0, 1]))
        assert torch.equal(before, hedge.weights)


def test_stats_add_up() -> None:
    """Two halves make the whole, and an absent class has the overall mean."""
    whole, parts = make_stats(0), ClassStats(K)
    parts.table += make_stats(0).table * 0.5
    parts.table += make_stats(0).table * 0.5
    assert torch.allclose(whole.table, parts.table)
    gap = make_stats(1, absent=(2,))
    assert gap.counts[2] == 0
    assert gap.mean("natural_loss")[2] == gap.overall("natural_loss")
