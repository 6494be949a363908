"""AutoAttack and its parts, against a linear model, linear programs and themselves."""

import copy
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

from oracles import Linear, interior_batch, smallest_margin
from robust_cnn import EPS, RADIUS, batch, some
from worstclass.attacks import APGD, FAB, Ensemble, Square, active_set, autoattack
from worstclass.attacks.apgd import checkpoints
from worstclass.attacks.ball import distance, shortest_step
from worstclass.attacks.ensemble import NATURAL_ERROR, STANDING
from worstclass.attacks.losses import dlr_loss, margin, targeted_dlr_loss
from worstclass.attacks.search_model import search_model
from worstclass.errors import UserError
from worstclass.evaluation.evaluate import Event, evaluate
from worstclass.evaluation.outcomes import Outcomes, Progress
from worstclass.models import SmallCNN
from worstclass.rng import PerSample, generator
from worstclass.types import BallAttack, Norm


def small(eps: float, norm: Norm = "linf") -> Ensemble:
    """AutoAttack with a budget for tests."""
    return Ensemble(
        attacks={
            "apgd-ce": APGD(eps=eps, norm=norm, steps=10),
            "apgd-t": APGD(eps=eps, norm=norm, steps=10, loss="targeted-dlr", targets=3),
            "fab-t": FAB(eps=eps, norm=norm, steps=10, targets=3),
            "square": Square(eps=eps, norm=norm, queries=100),
        }
    )


# Closed forms


SLOW = pytest.mark.slow


@pytest.mark.parametrize("num_classes", [2, 3, pytest.param(4, marks=SLOW), pytest.param(5, marks=SLOW), 12])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_part_finds_what_exists_on_a_linear_model(norm: Norm, num_classes: int, full: bool) -> None:
    """The suite as a whole in the slow tier alone: it takes as long as its parts."""
    model = Linear(num_classes)
    eps = 0.05 if norm == "linf" else 0.2
    x, y = interior_batch(200, num_classes, 0.25)
    y = torch.where(torch.rand(200, generator=generator(2, "y")) < 0.8, model(x).argmax(1), y)
    closest = smallest_margin(model, x, y, eps, norm)
    parts: dict[str, BallAttack] = {
        **autoattack(eps=eps, norm=norm).attacks,
        "square": Square(eps=eps, norm=norm, queries=2000),
        "apgd-dlr": APGD(eps=eps, norm=norm, loss="dlr"),
        "fab": FAB(eps=eps, norm=norm, targets=0),
    }
    if full:
        parts["all"] = autoattack(eps=eps, norm=norm)
    # A walk up CE or DLR may end on the wrong hill if there are several, and a random search of a sphere does not reach
    # its pole; everything else finds all of it.
    at_least = {"apgd-ce": 0.85, "apgd-dlr": 0.95, "square": 0.95} if num_classes > 2 else {}
    at_least |= {"square": 0.6} if norm == "l2" else {}
    reachable = smallest_margin(model, x, y, 0.98 * eps, norm) < 0  # FAB ends a little past the boundary, by design
    for name, attack in parts.items():
        x_adv = attack(model, x, y, generator=generator(3, "attack"))
        broken = model(x_adv).argmax(1) != y
        assert not (broken & (closest > 1e-9)).any(), name  # nothing is found that does not exist
        found = broken[reachable].double().mean().item()
        assert found >= at_least.get(name, 1.0), f"{name} finds {found:.3f} of what exists"
        assert 0.1 < broken.float().mean() < 0.9, name


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_shortest_step_to_a_plane_in_the_box(norm: Norm) -> None:
    """Against a linear program (L-inf) and a quadratic one (L2), with planes inside and outside the box's reach."""
    rng = np.random.default_rng(0)
    reached = 0
    for _ in range(60):
        t = rng.choice([0.0, 1.0, rng.random()], size=6) * rng.choice([1.0, 0.5], size=6)
        w = rng.normal(size=6) * (rng.random(6) < 0.8)
        gap = rng.normal() * rng.choice([0.1, 1.0, 5.0])
        d = shortest_step(torch.tensor(t[None]), torch.tensor(w[None]), torch.tensor([gap]), norm)[0].numpy()
        assert (t + d >= -1e-12).all()
        assert (t + d <= 1 + 1e-12).all()
        bounds = np.stack([-t, 1 - t], axis=1)
        wanted = -gap
        corner = np.maximum(wanted * w * -t, wanted * w * (1 - t)).sum() / wanted
        if abs(corner) <= abs(wanted):
            assert w @ d == pytest.approx(corner)
            continue
        reached += 1
        assert w @ d == pytest.approx(wanted, abs=1e-9)
        if norm == "linf":  # minimise s with -s <= d <= s
            sides = np.block([[np.eye(6), -np.ones((6, 1))], [-np.eye(6), -np.ones((6, 1))]])
            best = scipy.optimize.linprog(
                [0] * 6 + [1], A_ub=sides, b_ub=np.zeros(12), A_eq=[[*w, 0]], b_eq=[wanted], bounds=[*bounds, (0, None)]
            ).fun
            assert np.abs(d).max() == pytest.approx(best, abs=1e-9)
        else:
            best = scipy.optimize.minimize(
                lambda v: v @ v,
                np.zeros(6),
                jac=lambda v: 2 * v,
                bounds=bounds,
                constraints={"type": "eq", "fun": lambda v, w=w, wanted=wanted: w @ v - wanted},
                options={"ftol": 1e-14},
            )
            assert d @ d <= best.fun + 1e-7
    assert 15 < reached < 60


def test_losses_below_four_classes() -> None:
    """By the formula where its logits exist; the margin where a ratio would be constant."""
    logits = torch.tensor([[3.0, 1.0, 0.5, -1.0]])
    y, target = torch.tensor([0]), torch.tensor([2])
    assert dlr_loss(logits, y).item() == pytest.approx(-2 / 2.5)
    assert dlr_loss(logits[:, :3], y).item() == pytest.approx(-2 / 2.5)
    assert dlr_loss(logits[:, :2], y).item() == pytest.approx(-2)
    assert targeted_dlr_loss(logits, y, target).item() == pytest.approx(-2.5 / (3 + 0.25))
    assert targeted_dlr_loss(logits[:, :3], y, target).item() == pytest.approx(-2.5)
    assert margin(logits, torch.tensor([1])).item() == pytest.approx(-2)


def test_checkpoints_are_the_published_ones() -> None:
    assert list(checkpoints(100)) == [21, 40, 56, 69, 79, 86, 92, 98]
    assert list(checkpoints(1)) == [0]


# What the verdict may depend on


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_batch_does_not_matter(norm: Norm, robust: SmallCNN) -> None:
    """Batches of 7 and of 32, and the global random state: the same verdict, by the same attack."""
    images = some(60)
    attack = small(RADIUS[norm], norm)
    torch.manual_seed(1)
    seven = evaluate(robust, images, {"aa": attack}, seed=4, batch_size=7)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    many = evaluate(robust, images, {"aa": attack}, seed=4, batch_size=32)
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(seven.broken_by["aa"], many.broken_by["aa"])
    assert len(set(seven.broken_by["aa"])) >= 3


def test_another_seed_is_another_search(robust: SmallCNN) -> None:
    x, y = batch(30)
    attack = APGD(eps=EPS, steps=2)
    one, other = (attack(robust, x, y, generator=PerSample(seed, "a", range(30))) for seed in (0, 1))
    assert not torch.equal(one, other)
    assert torch.equal(one, attack(robust, x, y, generator=PerSample(0, "a", range(30))))


@pytest.mark.parametrize(("every", "share"), [(1, 0.0), (5, 0.0), (5, 0.3), (5, 2.0), (1000, 2.0)])
def test_leaving_early_changes_no_verdict(
    every: int, share: float, robust: SmallCNN, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = batch(40)
    sources = PerSample(0, "a", range(40)), PerSample(0, "a", range(40))
    usual = small(EPS).eliminate(robust, x, y, generator=sources[0])
    monkeypatch.setattr(active_set, "LOOK_EVERY", every)
    monkeypatch.setattr(active_set, "WORTH_PACKING", share)  # 2: nobody ever leaves
    other = small(EPS).eliminate(robust, x, y, generator=sources[1])
    assert torch.equal(usual.by, other.by)
    if every == 5:  # what is found first stays, though its lane goes on
        assert torch.allclose(usual.x_adv, other.x_adv, atol=1e-6)


def test_square_asks_nothing_that_it_knows(robust: SmallCNN, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch that is there already is not asked about: fewer images go through the model, the result is the same."""
    robust, (x, y) = copy.deepcopy(robust).double(), batch(40)
    x, results, asked = x.double(), [], []
    for known in (True, False):
        if not known:
            monkeypatch.setattr(Square, "_changed", lambda *_: None)
        view = search_model(robust, x)
        results.append(Square(eps=EPS, queries=300).breaks(view, x, y, generator=PerSample(0, "a", range(40))))
        asked.append(view.passes.forward)
    assert asked[0] < 0.95 * asked[1]
    assert torch.equal(results[0].found, results[1].found)
    assert torch.allclose(results[0].x_adv, results[1].x_adv)
    assert results[0].found.any()


def test_claims_are_judged_in_batches_of_few_sizes() -> None:
    sizes = set()
    for count in range(1, 5001):
        images = torch.arange(count).view(-1, 1, 1, 1)
        filled = active_set.filled_up(images)
        assert torch.equal(filled[:count], images)
        assert count <= len(filled) <= 9 / 8 * count
        sizes.add(len(filled))
    assert len(sizes) < 100


def test_targets_side_by_side_or_one_by_one(robust: SmallCNN) -> None:
    x, y = batch(30)
    for attack in (
        APGD(eps=EPS, steps=10, loss="targeted-dlr"),
        APGD(eps=EPS, steps=5, restarts=3),
        FAB(eps=EPS, steps=10),
        FAB(eps=EPS, steps=5, targets=0, restarts=2),
    ):
        one, other = (
            attack.breaks(robust, x, y, generator=PerSample(0, "a", range(30)), rows=rows) for rows in (30, 300)
        )
        assert torch.equal(one.found, other.found)


def test_which_attack_broke_what(robust: SmallCNN) -> None:
    x, y = batch(100)
    result = small(EPS).eliminate(robust, x, y)
    wrong = robust(x).argmax(1) != y
    assert ((result.by == NATURAL_ERROR) == wrong).all()
    broken = robust(result.x_adv).argmax(1) != y
    assert (broken == (result.by != STANDING)).all()
    assert torch.equal(result.x_adv[result.by < 0], x[result.by < 0])
    first = APGD(eps=EPS, steps=10).breaks(robust, x, y)
    assert torch.equal(first.found & ~wrong, result.by == 0)


class Offset(nn.Module):
    """The model, with the margin of class 0 moved: it sees failures that are not there."""

    def __init__(self, model: nn.Module, by: float) -> None:
        super().__init__()
        self.model, self.by = model, by

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits + self.by * nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), logits.shape[1])


@pytest.mark.parametrize("name", ["apgd-ce", "apgd-t", "fab-t", "square"])
def test_a_break_counts_once_the_judge_is_fooled(name: str, robust: SmallCNN) -> None:
    x, y = batch(60)
    attack = small(EPS).attacks[name]
    lying = Offset(robust, 3.0)
    claimed = attack.breaks(lying, x, y)
    judged = attack.breaks(lying, x, y, judge=robust)
    assert torch.equal(judged.found, robust(judged.x_adv).argmax(1) != y)
    assert judged.found.sum() < claimed.found.sum()


def test_margin_scales_each_radius(robust: SmallCNN) -> None:
    x, y = batch(40)
    scale = torch.linspace(0.2, 2, 40)
    for norm in ("linf", "l2"):
        attack = small(RADIUS[norm], norm)
        for part in attack.attacks.values():
            moved = distance(part(robust, x, y, radius_scale=scale) - x, norm)
            assert (moved <= attack.eps * scale + 1e-5).all()
            assert (moved > attack.eps).any()


class Noisy(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.model(x + 0.05 * torch.randn_like(x))
        return logits


def test_rand_averages_gradients(robust: SmallCNN) -> None:
    x, y = batch(20)
    model = Noisy(robust)
    attack = Ensemble(attacks={"apgd-ce": APGD(eps=EPS, steps=3, eot=5)})
    attack(model, x, y)
    assert model.calls >= 4 * 5
    parts = autoattack(eps=EPS, version="rand").attacks.values()
    assert [part.eot for part in parts if isinstance(part, APGD)] == [20, 20]


def test_versions_and_their_budgets() -> None:
    assert list(autoattack(eps=EPS).attacks) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    plus = autoattack(eps=EPS, version="plus")
    assert list(plus.attacks) == ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]
    assert plus.attacks["fab"] == FAB(eps=EPS, targets=0, restarts=5)
    standard = autoattack(eps=EPS, norm="l2")
    assert (standard.eps, standard.norm) == (EPS, "l2")
    assert [part.work(10) for part in standard.attacks.values()] == [202, 9 * 202, 9 * 300, 5001]
    assert [part.work(3) for part in standard.attacks.values()] == [202, 2 * 202, 2 * 300, 5001]
    with pytest.raises(UserError, match="Did you mean 'standard'"):
        autoattack(eps=EPS, version="standart")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="one eps, one norm"):
        Ensemble(attacks={"a": APGD(eps=0.1), "b": APGD(eps=0.2)})
    for wrong in ({"eps": -1.0}, {"steps": 0}, {"loss": "c"}, {"norm": "l1"}):
        with pytest.raises(UserError):
            APGD(**({"eps": 0.1} | wrong))


# Stopping and going on


@pytest.fixture(scope="module")
def whole(robust: SmallCNN) -> Outcomes:
    """An evaluation that nothing stopped."""
    return evaluate(robust, some(32), {"aa": small(EPS)}, batch_size=8)


@pytest.mark.parametrize("size", [8, 5])
@pytest.mark.parametrize("stop_after", [1, 3, 9, 25])
def test_an_evaluation_that_was_stopped_goes_on(
    stop_after: int, size: int, robust: SmallCNN, whole: Outcomes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worstclass.evaluation.outcomes.SAVE_EVERY", 0.0)
    images = some(32)
    attacks: dict[str, BallAttack] = {"aa": small(EPS)}
    seen: list[Event] = []

    def stop(event: Event) -> None:
        seen.append(event)
        if len(seen) > stop_after:
            raise KeyboardInterrupt

    path = tmp_path / "progress.npz"
    with pytest.raises(KeyboardInterrupt):
        evaluate(robust, images, attacks, batch_size=8, progress=Progress(path, "k"), notify=stop)
    later: list[Event] = []
    resumed = evaluate(robust, images, attacks, batch_size=size, progress=Progress(path, "k"), notify=later.append)
    assert np.array_equal(whole.broken_by["aa"], resumed.broken_by["aa"])
    if size == 8:  # with another batch size another target may be the one that breaks a sample
        assert np.array_equal(whole.predictions["aa"], resumed.predictions["aa"])
    if stop_after == 25:
        assert later[0].attack != seen[0].attack  # what was done is not done again
    done = [event.done for event in later]
    assert done == sorted(done)
    assert 0 <= done[0] <= done[-1] == pytest.approx(later[-1].total)
    assert later[-1].standing == int((whole.broken_by["aa"] == "").sum())
    seen, stop_after = [], 0
    with pytest.raises(KeyboardInterrupt):
        evaluate(robust, images, attacks, progress=Progress(path, "another model"), notify=stop)
    assert seen[0].attack == "aa: apgd-ce"  # what belongs to something else is not continued
