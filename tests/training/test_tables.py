"""What strategies read and decide: class tables, pair weights, samplers and aimed attacks, against plain loops."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Images
from worstclass.data.sampling import ClassSampler, class_order, draw_classes
from worstclass.errors import TrainingError, UserError
from worstclass.models import SmallCNN
from worstclass.objectives import Madry
from worstclass.stats import COLUMNS, EXTRA_COLUMNS, MATRICES, ClassStats
from worstclass.training import Plan, fit, new_state
from worstclass.training.step import draw_targets, tally
from worstclass.types import ClassWeights, Losses

pytestmark = pytest.mark.fast

K = 4


def batch(size: int = 60, absent: int | None = 2, seed: int = 0) -> tuple[Losses, Tensor]:
    """Losses and logits of no network in particular; of one class there are no samples."""
    generator = rng.generator(seed, "batch")
    y = torch.randint(K, (size,), generator=generator)
    y = torch.where(y == absent, 0, y) if absent is not None else y
    draws = [torch.rand(size, dtype=torch.float64, generator=generator) for _ in range(2)]
    logits = [2 * torch.randn(size, K, dtype=torch.float64, generator=generator) for _ in range(2)]
    return Losses(*draws, *logits), y


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(z) for z in row)
    return [math.exp(z) / total for z in row]


def top(row: list[float]) -> int:
    return max(range(len(row)), key=row.__getitem__)


def expected(losses: Losses, y: Tensor) -> dict[str, list[Any]]:
    """Sums by class of every column and matrix, one sample after another."""
    sums: dict[str, list[Any]] = {name: [0.0] * K for name in (*COLUMNS, *EXTRA_COLUMNS)}
    sums |= {name: [[0.0] * K for _ in range(K)] for name in MATRICES}
    for i, k in enumerate(y.tolist()):
        clean, attacked = losses.natural_logits[i].tolist(), losses.robust_logits[i].tolist()
        sums["natural_loss"][k] += losses.natural[i].item()
        sums["robust_loss"][k] += losses.robust[i].item()
        sums["natural_correct"][k] += top(clean) == k
        sums["robust_correct"][k] += top(attacked) == k
        p = softmax(attacked)
        sums["robust_margin"][k] += max(p[j] for j in range(K) if j != k) - p[k]
        for name, row in (("natural", clean), ("robust", attacked)):
            sums[f"{name}_predictions"][k][top(row)] += 1
            for j in range(K):
                sums[f"{name}_probabilities"][k][j] += softmax(row)[j]
    return sums


def filled(extra: tuple[str, ...] = (*EXTRA_COLUMNS, *MATRICES)) -> tuple[ClassStats, Losses, Tensor]:
    """A table of three batches, the last of them empty."""
    losses, y = batch()
    stats = ClassStats(K, extra=extra)
    for part in (slice(0, 25), slice(25, 60), slice(60, 60)):
        tally(stats, Losses(*(each[part] for each in losses)), y[part])
    stats.add(y[:0])  # a process without a share of the batch has no losses either
    return stats, losses, y


def test_every_table_is_its_loop() -> None:
    stats, losses, y = filled()
    wanted, counts = expected(losses, y), [int((y == k).sum()) for k in range(K)]
    assert counts[2] == 0
    assert stats.counts.tolist() == counts
    for name in (*COLUMNS, *EXTRA_COLUMNS):
        assert stats.sums(name).tolist() == pytest.approx(wanted[name], rel=1e-12)
        mean = sum(wanted[name]) / sum(counts)
        means = [wanted[name][k] / counts[k] if counts[k] else mean for k in range(K)]
        assert stats.mean(name).tolist() == pytest.approx(means, rel=1e-12)
    for name in MATRICES:
        means = [[value / max(counts[k], 1) for value in wanted[name][k]] for k in range(K)]
        right = sum(means[k][k] for k in range(K) if counts[k]) / 3
        means[2] = [right if j == 2 else (1 - right) / (K - 1) for j in range(K)]  # nobody has seen it: as the others
        for k in range(K):
            assert stats.matrix(name)[k].tolist() == pytest.approx(means[k], rel=1e-12)
            assert sum(means[k]) == pytest.approx(1)
    correct = stats.matrix("robust_predictions").diagonal()[stats.counts > 0]
    assert torch.allclose(correct, stats.mean("robust_correct")[stats.counts > 0])


def test_a_table_is_only_as_wide_as_was_asked_for() -> None:
    assert ClassStats(K).table.shape == (K, 5)
    stats, losses, y = filled(("robust_probabilities", "robust_margin"))
    assert stats.table.shape == (K, 1 + 4 + K + 1)
    assert stats.columns == (*COLUMNS, "robust_probabilities", "robust_margin")
    wanted = expected(losses, y)
    assert stats.sums("robust_margin").tolist() == pytest.approx(wanted["robust_margin"])
    assert stats.copy().columns == stats.columns
    assert torch.equal(stats.copy().table, stats.table)


def test_what_is_asked_for_twice_is_there_once() -> None:
    """Two strategies in one may ask for the same, or for what every table has."""
    once, *_ = filled(("robust_margin",))
    twice, *_ = filled(("robust_margin", "robust_loss", "robust_margin"))
    assert twice.columns == once.columns
    assert torch.equal(once.table, twice.table)


def test_a_table_that_there_is_not() -> None:
    with pytest.raises(UserError, match=r"unknown table 'robust_margins'\. Did you mean 'robust_margin'"):
        ClassStats(K, extra=("robust_margins",))


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
def test_the_loss_of_a_batch_is_its_loop(normalized: bool, pairs: bool) -> None:
    """Weights by class, and on the robust loss by (class predicted under attack, label); parts of a batch add up."""
    losses, y = batch(absent=None)
    generator = rng.generator(1, "weights")
    weights = ClassWeights.uniform(K, normalized=normalized, pair=pairs)
    natural, robust = torch.rand(2, K, generator=generator)
    weights.set(natural=natural, robust=robust)
    pair = torch.rand(K, K, generator=generator)
    if pairs:
        weights.set(pair=pair)
    sums, sizes = [0.0, 0.0], [0.0, 0.0]
    for i, k in enumerate(y.tolist()):
        factor = pair[top(losses.robust_logits[i].tolist()), k].item() if pairs else 1.0
        sums[0] += natural[k].item() * losses.natural[i].item()
        sums[1] += robust[k].item() * losses.robust[i].item() * factor
        sizes = [sizes[0] + natural[k].item(), sizes[1] + robust[k].item()]
    wanted = sums[0] / sizes[0] + sums[1] / sizes[1] if normalized else sum(sums) / len(y)
    assert weights.reduce(losses, y).item() == pytest.approx(wanted, rel=1e-6)
    parts = [Losses(*(each[part] for each in losses)) for part in (slice(0, 17), slice(17, 60))]
    split = sum(weights.reduce(part, own, y).item() for part, own in zip(parts, (y[:17], y[17:]), strict=True))
    assert split == pytest.approx(wanted, rel=1e-6)


def test_pair_weights_pass_no_gradient_by_the_prediction() -> None:
    losses, y = batch()
    logits = losses.robust_logits.clone().requires_grad_()
    weights = ClassWeights.uniform(K, pair=True)
    weights.set(pair=torch.full((K, K), 3.0))
    robust = logits.logsumexp(1)
    loss = weights.reduce(losses._replace(robust_logits=logits, robust=robust), y)
    (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (wanted,) = torch.autograd.grad(3 * robust.sum() / len(y), logits)
    torch.testing.assert_close(found, wanted)


def test_weights_that_a_strategy_has_not_are_not_set() -> None:
    weights = ClassWeights.uniform(K)
    with pytest.raises(UserError, match="pair"):
        weights.set(pair=torch.ones(K, K))


LABELS = torch.tensor([3, 0, 1, 0, 3, 3, 0, 1, 0, 0])  # no 2, and not in order


def test_the_sampler_draws_by_its_probabilities() -> None:
    """Every image of every class that is there, none of one that is not; a chi-square bound on how often."""
    probabilities = torch.tensor([0.2, 0.5, 0.2, 0.1])
    sampler, draws = ClassSampler(LABELS, probabilities), 20_000
    index = sampler(torch.zeros(draws, dtype=torch.int64), rng.generator(0, "draws"))
    counts = torch.bincount(index, minlength=len(LABELS)).double()
    present = [0.25, 0.625, 0.0, 0.125]  # of 0.8, without the absent class
    of_class = torch.bincount(LABELS, minlength=K)
    wanted = torch.tensor([draws * present[k] / int(of_class[k]) for k in LABELS.tolist()], dtype=torch.float64)
    assert len(index) == draws
    assert int(counts.min()) > 0
    assert float(((counts - wanted) ** 2 / wanted).sum()) < 27.9  # 9 degrees of freedom, one in a thousand
    probabilities.copy_(torch.tensor([0.0, 0.0, 0.9, 0.1]))  # read anew in each call
    index = sampler(torch.zeros(100, dtype=torch.int64), rng.generator(1, "draws"))
    assert set(LABELS[index].tolist()) == {3}


def test_the_same_generator_draws_the_same_images() -> None:
    sampler = ClassSampler(LABELS, torch.full((K,), 0.25))
    one, other, third = (sampler(torch.arange(50), rng.generator(seed, "draws")) for seed in (0, 0, 1))
    assert torch.equal(one, other)
    assert not torch.equal(one, third)


def test_classes_by_inversion() -> None:
    """The class whose part of [0, 1) a number falls into; rows need not sum to 1, and zeros are never drawn."""
    row = [0.0, 2.0, 0.0, 1.0, 1.0, 0.0]
    draws = [0.0, 0.2, 0.499, 0.5, 0.7, 0.75, 0.9, 1 - 2**-53]
    found = draw_classes(torch.tensor([row] * len(draws)).double(), torch.tensor(draws, dtype=torch.float64))
    assert found.tolist() == [1, 1, 1, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_next_to_one_is_not_past_the_last_class(dtype: torch.dtype) -> None:
    """Nor is one that rounding has made 1."""
    rows = torch.rand(2000, K, dtype=dtype, generator=rng.generator(0, "rows"))
    rows[:, 3] = 0
    one = torch.ones(2000, dtype=dtype)
    for draws in (one.nextafter(torch.zeros_like(one)), one):
        assert (draw_classes(rows, draws) == 2).all()


def test_targets_by_the_row_of_the_label() -> None:
    targets = torch.zeros(K, K)
    targets[0, 3], targets[1] = 2.0, torch.tensor([0.5, 0.0, 0.25, 0.25])
    y = torch.tensor([0, 1, 2, 3]).repeat(500)
    found = draw_targets(targets, y, rng.generator(0, "targets"))
    assert set(found[y == 0].tolist()) == {3}
    assert set(found[y == 1].tolist()) == {0, 2, 3}
    assert set(found[y >= 2].tolist()) == {-1}
    share = (found[y == 1] == 0).double().mean().item()
    assert abs(share - 0.5) < 5 * math.sqrt(0.25 / 500)
    rows = [rng.Rows(rng.generator(0, "targets"), rows, len(y)) for rows in (slice(0, 700), slice(700, 2000))]
    split = [draw_targets(targets, y[each.rows], each) for each in rows]
    assert torch.equal(torch.cat(split), found)  # processes aim as one does


class Planes(nn.Module):
    """Logits w_k . x: the steepest way to raise the probability of a class is known."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(rows, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


ROWS = [3.0, -1.0, 0.5, 0.0], [-1.0, 2.0, 0.5, 1.0]


@pytest.mark.parametrize("keep", ["last", "any"])
@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "cw", "kl"])
def test_an_aimed_attack_between_two_planes(loss: Any, norm: Any, restarts: int, keep: Any) -> None:
    """With two classes the best way to class t is along w_t - w_s, to the border of the ball: for a target of the other
    class away from the label, and for one of its own class back to it."""
    model, eps = Planes(*ROWS), 0.05
    attack = PGD(eps=eps, steps=20, step_size=eps / 2, norm=norm, loss=loss, restarts=restarts, keep=keep)
    x = torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)
    y, target = torch.tensor([0, 1, 0, 1]), torch.tensor([1, 0, 0, 1])
    if keep == "any":  # it would end at the first image that fools: from here none does
        with torch.no_grad():
            model.weight[0] += 10.0
        y = torch.zeros(4, dtype=torch.int64)
    way = (model.weight[1] - model.weight[0]).detach().view(1, 2, 2)
    step = way.sign() if norm == "linf" else way / way.norm()
    wanted = x + eps * step * torch.where(target == 1, 1.0, -1.0).view(-1, 1, 1, 1)
    found = attack(model, x, y, target=target, generator=rng.generator(0, "attack"))
    moves = (way != 0).expand_as(x) if norm == "linf" else torch.ones_like(x, dtype=torch.bool)
    torch.testing.assert_close(found[moves], wanted[moves], rtol=0, atol=1e-9 if norm == "linf" else 1e-4)


@pytest.mark.parametrize("loss", ["ce", "cw", "kl"])
def test_minus_one_is_an_attack_without_an_aim(loss: Any) -> None:
    model = Planes([3.0, -1.0, 0.5, 0.0], [-1.0, 2.0, 0.5, 1.0], [0.2, 0.3, -2.0, 1.0])
    attack = PGD(eps=0.1, steps=5, step_size=0.03, loss=loss)
    x, y = torch.rand(6, 1, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    free = attack(model, x, y, generator=rng.generator(0, "attack"))
    target = torch.tensor([-1, 2, -1, 1, -1, 0])
    mixed = attack(model, x, y, target=target, generator=rng.generator(0, "attack"))
    aimed = attack(model, x, y, target=target.clamp_min(0), generator=rng.generator(0, "attack"))
    assert torch.equal(mixed[target < 0], free[target < 0])
    assert torch.equal(mixed[target >= 0], aimed[target >= 0])
    assert not torch.equal(mixed[target >= 0], free[target >= 0])


@pytest.mark.parametrize("shape", [(1,), (3, 1), (4,), ()])
def test_a_target_for_each_image(shape: tuple[int, ...]) -> None:
    attack = PGD(eps=0.1, steps=1, step_size=0.1)
    x, y = torch.full((3, 1, 2, 2), 0.5, dtype=torch.float64), torch.tensor([0, 1, 0])
    with pytest.raises(UserError, match=r"target must be one class for each image, \(3,\)"):
        attack(Planes(*ROWS), x, y, target=torch.zeros(shape, dtype=torch.int64))


class Drawing:
    """Says after its first epoch what to draw and what to aim at."""

    def __init__(self, **later: Tensor) -> None:
        self.weights, self.later = ClassWeights.uniform(3, sampling=True, quota=True, targets=True), later

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.weights.set(**self.later)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


@pytest.mark.parametrize(
    ("later", "complaint"),
    [
        ({"sampling": torch.tensor([0.5, math.nan, 0.5])}, "'sampling' are no probabilities"),
        ({"sampling": torch.tensor([1.5, 0.0, -0.5])}, "'sampling' are no probabilities"),
        ({"sampling": torch.tensor([0.0, 0.0, 1.0])}, "zero for every class that there are images of"),
        ({"quota": torch.tensor([0.5, 0.5, math.nan])}, "'quota' are no probabilities"),
        ({"quota": torch.tensor([0.0, 0.0, 1.0])}, "'quota' is zero for every class that there are images of"),
        ({"targets": torch.full((3, 3), math.inf)}, "'targets' are no probabilities"),
        ({"natural": torch.tensor([1.0, 1.0, -1.0])}, "'natural' are no weights: some are negative or not finite"),
        ({"robust": torch.tensor([1.0, math.nan, 1.0])}, "'robust' are no weights"),
        ({"radius_scale": torch.tensor([1.0, math.inf, 1.0])}, "'radius_scale' are no weights"),
        ({"natural": torch.zeros(3), "robust": torch.zeros(3)}, "weights are zero for every class"),
    ],
)
def test_what_cannot_be_drawn_or_weighed_stops_the_run(later: dict[str, Tensor], complaint: str) -> None:
    """No loss would show it: some class would be drawn all the same."""
    x = torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8)
    images = Images(x, torch.arange(24) % 2)  # no image of the third class
    plan = Plan(epochs=2, batch_size=8, lr=0.1, valid_attack=PGD(eps=0.1, steps=1, step_size=0.1))
    state = new_state(SmallCNN(3, 1), Drawing(**later), plan)
    objective = Madry(attack=PGD(eps=0.1, steps=1, step_size=0.1))  # its attack can be aimed
    records = fit(state, images, images, objective, plan)
    assert next(records).epoch == 1
    with pytest.raises(TrainingError, match=complaint):
        next(records)


def test_new_weights_in_the_place_of_those_of_the_step_stop_the_run() -> None:
    """A step that was captured would go on with the old ones, without a word."""

    class Replacing(Drawing):
        def update(self, train: ClassStats, valid: ClassStats) -> None:
            self.weights = self.weights.copy()

    images = Images(torch.randint(0, 256, (24, 1, 8, 8), dtype=torch.uint8), torch.arange(24) % 3)
    plan = Plan(epochs=2, batch_size=8, lr=0.1, valid_attack=PGD(eps=0.1, steps=1, step_size=0.1))
    state = new_state(SmallCNN(3, 1), Replacing(), plan)
    with pytest.raises(TrainingError, match=r"write them in place, with weights\.set"):
        next(fit(state, images, images, Madry(attack=PGD(eps=0.1, steps=1, step_size=0.1)), plan))


@pytest.mark.parametrize("values", [torch.tensor(2.0), torch.ones(1), torch.ones(4), torch.ones(3, 3)])
def test_weights_of_another_shape_are_refused(values: Tensor) -> None:
    """What is one number would be written to all classes; a row of pairs, to each row."""
    with pytest.raises(UserError, match=r"'natural' must be \(3,\), not \("):
        ClassWeights.uniform(3).set(natural=values)
    with pytest.raises(UserError, match=r"'pair' must be \(3, 3\), not \(3,\)"):
        ClassWeights.uniform(3, pair=True).set(pair=torch.ones(3))


@given(
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=8).filter(sum),
    quota=st.lists(st.floats(0.01, 1), min_size=8, max_size=8),
    epoch=st.integers(1, 5),
)
def test_classes_have_their_share_of_an_epoch(counts: list[int], quota: list[float], epoch: int) -> None:
    """Each class its share but for rounding, and no image twice more than another of its class."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=rng.generator(0, "labels"))]
    shares = torch.tensor(quota[: len(counts)], dtype=torch.float64)
    order = class_order(y, shares, seed=3, epoch=epoch)
    assert torch.equal(order, class_order(y, shares, seed=3, epoch=epoch))
    assert len(order) == len(y)
    present = [share if count else 0.0 for share, count in zip(shares.tolist(), counts, strict=True)]
    taken = torch.bincount(order, minlength=len(y))
    for k, share in enumerate(present):
        of_class = taken[y == k]
        assert abs(int(of_class.sum()) - share / sum(present) * len(y)) < 1 + 1e-9
        if len(of_class):
            assert int(of_class.max() - of_class.min()) <= 1


def test_the_shares_of_the_data_take_each_image_once() -> None:
    """In another order each epoch."""
    y = torch.tensor([0, 1, 1, 2, 2, 2, 2, 1, 0, 2])
    orders = [class_order(y, torch.tensor([2.0, 3.0, 5.0]), seed=1, epoch=epoch) for epoch in (1, 2)]
    assert all(torch.equal(order.sort().values, torch.arange(10)) for order in orders)
    assert not torch.equal(*orders)
