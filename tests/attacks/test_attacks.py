"""Laws of every attack, the linear oracle, and a peer library."""

import copy
from typing import get_args

import foolbox
import pytest
import torch
from torch import Tensor

from oracles import Linear, interior_batch, smallest_margin, unchanged
from robust_cnn import EPS, batch
from worstclass.attacks import (
    APGD,
    FAB,
    PGD,
    Ensemble,
    Square,
    autoattack,
    cw,
    fgsm,
    make_attack,
    pgd,
    trades_attack,
)
from worstclass.attacks.apgd import APGDLoss
from worstclass.attacks.pgd import Loss
from worstclass.errors import UserError
from worstclass.inputs.names import ATTACK_NAMES
from worstclass.models import SmallCNN
from worstclass.rng import PerSample, generator
from worstclass.types import BallAttack, Norm

pytestmark = pytest.mark.fast

ATTACKS: list[BallAttack] = [
    fgsm(eps=EPS),
    fgsm(eps=EPS, norm="l2"),
    pgd(20, eps=EPS),
    pgd(20, eps=1.0, norm="l2"),
    cw(eps=EPS),
    cw(eps=1.0, norm="l2"),
    trades_attack(eps=EPS, step_size=0.02),
    PGD(eps=EPS, steps=5, step_size=0.03, start="none", restarts=2),
    PGD(eps=EPS, steps=5, step_size=0.03, restarts=3, keep="any"),
    PGD(eps=1.0, steps=5, step_size=0.3, norm="l2", start="gaussian", loss="kl", keep="any"),
    *[APGD(eps=EPS, steps=8, loss=loss, restarts=2) for loss in get_args(APGDLoss)],
    *[APGD(eps=1.0, steps=8, loss=loss, norm="l2", eot=2) for loss in get_args(APGDLoss)],
    FAB(eps=EPS, steps=8),
    FAB(eps=1.0, steps=8, norm="l2", targets=2, restarts=2),
    FAB(eps=EPS, steps=3, targets=0, restarts=2),
    Square(eps=EPS, queries=60),
    Square(eps=1.0, queries=60, norm="l2", restarts=2),
    Ensemble(attacks={"apgd": APGD(eps=EPS, steps=3), "square": Square(eps=EPS, queries=10)}),
]


def distance(delta: Tensor, norm: str) -> Tensor:
    flat = delta.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else flat.norm(dim=1)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_laws(attack: BallAttack, robust: SmallCNN) -> None:
    x, y = batch(12)
    x[0], x[1] = 0.0, 1.0  # corners of the image range
    with unchanged(robust):
        x_adv = attack(robust, x, y, generator=generator(1, "attack"))
    assert x_adv.shape == x.shape
    assert not x_adv.requires_grad
    assert distance(x_adv - x, attack.norm).max() <= attack.eps + 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    again = attack(robust, x, y, generator=generator(1, "attack"))
    assert torch.equal(x_adv, again)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_no_generator_means_a_fixed_seed_not_the_global_one(attack: BallAttack, robust: SmallCNN) -> None:
    x, y = batch(4)
    torch.manual_seed(1)
    first = attack(robust, x, y)
    state = torch.get_rng_state()
    assert torch.equal(first, attack(robust, x, y))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "cw"])
@pytest.mark.parametrize("num_classes", [2, 5])
def test_finds_what_exists_on_a_linear_model(norm: Norm, loss: Loss, num_classes: int) -> None:
    """A ten-step attack breaks exactly the samples whose smallest margin in the ball is negative."""
    model = Linear(num_classes)
    eps = 0.05 if norm == "linf" else 0.2
    x, y = interior_batch(300, num_classes, 0.25)
    y = torch.where(torch.rand(300, generator=generator(2, "y")) < 0.7, model(x).argmax(1), y)
    margin = smallest_margin(model, x, y, eps, norm)
    attack = PGD(eps=eps, steps=20, step_size=eps / 4, norm=norm, loss=loss, keep="any")
    x_adv = attack(model, x, y, generator=generator(3, "attack"))
    broken = model(x_adv).argmax(1) != y
    clear = margin.abs() > 1e-3
    assert not (broken & (margin > 0)).any()  # nothing exists that is not there
    assert broken[clear & (margin < 0)].float().mean() == 1.0
    assert 0.1 < broken.float().mean() < 0.9  # the question was not trivial


def test_two_class_margin_is_reached_exactly() -> None:
    """With two classes every loss has one direction, and PGD must land on the closed form."""
    model = Linear(2)
    x, y = interior_batch(50, 2, 0.1)
    for norm in ("linf", "l2"):
        for loss in ("ce", "cw"):
            attack = PGD(eps=0.1, steps=40, step_size=0.02, norm=norm, loss=loss)
            logits = model(attack(model, x, y, generator=generator(0, "a")))
            reached = logits.gather(1, y[:, None]).squeeze(1) - logits.gather(1, 1 - y[:, None]).squeeze(1)
            expected = smallest_margin(model, x, y, 0.1, norm)
            # sign steps end exactly in the corner; L2 steps may stop a rounding short of the sphere's pole
            assert torch.allclose(reached.detach(), expected, atol=1e-9 if norm == "linf" else 1e-4)


def test_kl_attack_raises_the_divergence_to_its_maximum_on_a_linear_model() -> None:
    model = Linear(2, scale=0.5)
    x, y = interior_batch(50, 2, 0.1)
    attack = trades_attack(eps=0.1, steps=40, step_size=0.02)
    clean = model(x).log_softmax(1)
    reached = (clean.exp() * (clean - model(attack(model, x, y)).log_softmax(1))).sum(1)
    direction = (model.weight[0] - model.weight[1]).sign().view(1, 1, 4, 4)
    ends = [(clean.exp() * (clean - model(x + s * 0.1 * direction).log_softmax(1))).sum(1) for s in (-1, 1)]
    either = torch.minimum((reached - ends[0]).abs(), (reached - ends[1]).abs())
    assert either.max() < 1e-9  # one of the two corners: the ascent picks a side and goes all the way


def test_margin_scales_each_radius() -> None:
    model = Linear(5)
    x, y = interior_batch(40, 5, 0.3)
    radius_scale = torch.linspace(0.0, 3.0, 40, dtype=torch.float64)
    for norm in ("linf", "l2"):
        attack = PGD(eps=0.1, steps=30, step_size=0.02, norm=norm)
        x_adv = attack(model, x, y, radius_scale=radius_scale, generator=generator(0, "a"))
        assert torch.allclose(distance(x_adv - x, norm), 0.1 * radius_scale, atol=1e-3)
        assert (distance(x_adv - x, norm) <= 0.1 * radius_scale + 1e-12).all()


def test_any_iterate_is_never_weaker_and_restarts_never_weaken(robust: SmallCNN) -> None:
    x, y = batch(300)
    one = PGD(eps=0.05, steps=2, step_size=0.015)
    found = one.search(robust, x, y, generator=generator(0, "a"))
    last, first = (robust(z).argmax(1) != y for z in found)
    assert (first | ~last).all()
    many = PGD(eps=0.05, steps=2, step_size=0.015, restarts=4)
    more = robust(many(robust, x, y, generator=generator(0, "a"))).argmax(1) != y
    assert (more | ~last).all()
    assert more.sum() > last.sum() > 0  # and here they do help


def test_search_returns_the_last_iterate_of_a_plain_call(robust: SmallCNN) -> None:
    x, y = batch(12)
    attack = pgd(10, eps=EPS)
    plain = attack(robust, x, y, generator=generator(5, "a"))
    assert torch.equal(plain, attack.search(robust, x, y, generator=generator(5, "a")).last)


def test_samples_draw_their_own_starts(robust: SmallCNN) -> None:
    """With a generator for each sample the answer does not depend on the batch. In float64: a sign step turns the
    rounding of a tiny gradient into a whole step."""
    model = copy.deepcopy(robust).double()
    x, y = batch(12)
    x = x.double()
    for attack in (pgd(5, eps=EPS), pgd(5, eps=1.0, norm="l2"), trades_attack(eps=EPS)):
        whole = attack(model, x, y, generator=PerSample(0, "s", range(12)))
        parts = [
            attack(model, x[i : i + 5], y[i : i + 5], generator=PerSample(0, "s", range(i, min(i + 5, 12))))
            for i in (0, 5, 10)
        ]
        assert torch.allclose(whole, torch.cat(parts), atol=1e-6)


def test_uniform_start_fills_the_ball() -> None:
    """The radius of a uniform point in a d-ball has mean d / (d + 1); in a cube each coordinate is uniform."""
    x = torch.full((4000, 1, 2, 2), 0.5, dtype=torch.float64)
    start = PGD(eps=0.1, steps=0, step_size=0.0, norm="l2")(Linear(2), x, torch.zeros(4000, dtype=torch.long))
    radius = (start - x).flatten(1).norm(dim=1) / 0.1
    assert radius.mean().item() == pytest.approx(4 / 5, abs=0.01)
    start = PGD(eps=0.1, steps=0, step_size=0.0)(Linear(2), x, torch.zeros(4000, dtype=torch.long))
    moments = ((start - x) / 0.1).flatten()
    assert moments.mean().item() == pytest.approx(0, abs=0.02)
    assert moments.var().item() == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_same_iterates_as_foolbox(norm: Norm, robust: SmallCNN) -> None:
    """On a real network, from the same start, step for step."""
    model = copy.deepcopy(robust).double()
    x, y = batch(50)
    x = x.double()
    eps, step = (0.1, 0.02) if norm == "linf" else (1.0, 0.2)
    ours = PGD(eps=eps, steps=15, step_size=step, norm=norm, start="none")(model, x, y)
    peer_class = foolbox.attacks.LinfProjectedGradientDescentAttack if norm == "linf" else foolbox.attacks.L2PGD
    peer = peer_class(abs_stepsize=step, steps=15, random_start=False)
    _, theirs, _ = peer(foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=eps)
    assert (ours - x).abs().max() > 0.9 * (eps if norm == "linf" else 0.1)
    assert torch.allclose(ours, theirs, atol=1e-9)


def test_names() -> None:
    assert make_attack("pgd-100", eps=8 / 255) == PGD(eps=8 / 255, steps=100, step_size=0.003)
    assert make_attack("cw", eps=8 / 255) == PGD(eps=8 / 255, steps=30, step_size=0.003, loss="cw")
    assert make_attack("cw-7", eps=8 / 255) == cw(7, eps=8 / 255)
    assert make_attack("fgsm", eps=0.5, norm="l2") == PGD(eps=0.5, steps=1, step_size=0.5, norm="l2", start="none")
    assert make_attack("autoattack", eps=0.1) == autoattack(eps=0.1)
    assert make_attack("autoattack-plus", eps=0.5, norm="l2") == autoattack(eps=0.5, norm="l2", version="plus")
    assert make_attack("apgd-t", eps=0.1) == APGD(eps=0.1, loss="targeted-dlr")
    assert make_attack("fab", eps=0.1) == FAB(eps=0.1, targets=0)
    for name in set(ATTACK_NAMES) - {"pgd-N", "cw-N"}:
        assert make_attack(name, eps=0.2, norm="l2").eps == 0.2
    for wrong in ("pgd", "pgd-0", "pgd-x", "fgsm-3", "cv", "", "PGD-20"):
        with pytest.raises(UserError, match=wrong or "unknown attack"):
            make_attack(wrong, eps=0.1)
    with pytest.raises(UserError, match="Did you mean 'pgd-20'"):
        make_attack("pdg-20", eps=0.1)


def test_the_step_of_trades_grows_with_its_radius() -> None:
    """The paper's at 8/255 to the last bit, and ten of them cross any ball."""
    assert trades_attack(eps=8 / 255).step_size == 0.007
    for eps in (1 / 255, 0.1, 0.3, 1.0):
        assert 2 * eps < 10 * trades_attack(eps=eps).step_size < 3 * eps
