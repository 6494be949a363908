"""Base objectives against independent float64 transcriptions of their formulas."""

import math

import pytest
import torch

from oracles import Linear, interior_batch
from worstclass.attacks import pgd, trades_attack
from worstclass.objectives import Madry, Natural, Trades, kl_divergence
from worstclass.types import ClassWeights

pytestmark = pytest.mark.fast


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = sum(math.exp(z - top) for z in row)
    return [math.exp(z - top) / total for z in row]


def test_trades_is_cross_entropy_plus_beta_kl() -> None:
    model = Linear(4)
    x, y = interior_batch(6, 4, 0.1)
    x_adv = x + 0.05
    losses = Trades(beta=6.0, attack=trades_attack(eps=0.1)).losses(model, x, x_adv, y)
    for i in range(6):
        p, q = softmax(model(x)[i].tolist()), softmax(model(x_adv)[i].tolist())
        assert math.isclose(losses.natural[i].item(), -math.log(p[y[i]]), rel_tol=1e-10)
        divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert math.isclose(losses.robust[i].item(), 6 * divergence, rel_tol=1e-8)


def test_trades_gradient_goes_through_both_branches() -> None:
    """d/dW of the KL term by central differences, with both logits moving."""
    model = Linear(3)
    x, y = interior_batch(5, 3, 0.1)
    objective = Trades(beta=1.0, attack=trades_attack(eps=0.1))
    objective.losses(model, x, x + 0.05, y).robust.sum().backward()
    assert model.weight.grad is not None
    for index in ((0, 0), (1, 7), (2, 15)):
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                model.weight[index] += step
                values.append(objective.losses(model, x, x + 0.05, y).robust.sum().item())
                model.weight[index] -= step
        assert math.isclose((values[0] - values[1]) / 2e-6, model.weight.grad[index].item(), rel_tol=1e-5, abs_tol=1e-9)


def test_kl_stays_finite_where_probabilities_underflow() -> None:
    clean = torch.tensor([[200.0, 0.0, -200.0]], requires_grad=True)
    other = torch.tensor([[-200.0, 0.0, 200.0]], requires_grad=True)
    kl_divergence(clean, other).sum().backward()
    assert clean.grad is not None
    assert clean.grad.isfinite().all()
    assert other.grad is not None
    assert other.grad.isfinite().all()


def test_madry_and_natural_use_one_image_each() -> None:
    model = Linear(4)
    x, y = interior_batch(6, 4, 0.1)
    attack = pgd(5, eps=0.1)
    madry = Madry(attack=attack)
    x_adv = madry.perturb(model, x, y)
    assert torch.equal(x_adv, attack(model, x, y))
    losses = madry.losses(model, x, x_adv, y)
    assert torch.allclose(losses.robust, torch.nn.functional.cross_entropy(model(x_adv), y, reduction="none"))
    assert not losses.natural.any()
    natural = Natural()
    assert natural.perturb(model, x, y) is x
    losses = natural.losses(model, x, x, y)
    assert torch.allclose(losses.natural, torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
    assert not losses.robust.any()


def test_class_weights_reduce() -> None:
    model = Linear(3)
    x, y = interior_batch(8, 3, 0.1)
    losses = Trades(beta=6.0, attack=trades_attack(eps=0.1)).losses(model, x, x + 0.05, y)
    weights = ClassWeights.uniform(3)
    weights.set(natural=torch.tensor([1.0, 2.0, 0.5]), robust=torch.tensor([0.0, 3.0, 1.0]))
    a, b = [1.0, 2.0, 0.5], [0.0, 3.0, 1.0]
    n, r = losses.natural.tolist(), losses.robust.tolist()
    labels = y.tolist()
    expected = sum(a[k] * n[i] + b[k] * r[i] for i, k in enumerate(labels)) / 8
    assert math.isclose(weights.reduce(losses, y).item(), expected, rel_tol=1e-6)
    normalized = ClassWeights(weights.natural, weights.robust, weights.radius_scale, normalized=True)
    expected = sum(a[k] * n[i] for i, k in enumerate(labels)) / sum(a[k] for k in labels)
    expected += sum(b[k] * r[i] for i, k in enumerate(labels)) / sum(b[k] for k in labels)
    assert math.isclose(normalized.reduce(losses, y).item(), expected, rel_tol=1e-6)
