"""Post-hoc logit adjustment: against closed forms and brute force, what it refuses, and what it leaves alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from robust_cnn import load_cnn
from worstclass.attacks import PGD
from worstclass.data import Images
from worstclass.errors import UserError
from worstclass.runs.logit_adjustment import (
    LEAST,
    SCALES,
    SMOOTHING,
    accept,
    add_bias,
    adjust_logits,
    best_bias,
    halves,
    last_layer,
    leads,
    margins,
    minimax_bias,
    score,
    score_slope,
    soft_min,
)

pytestmark = pytest.mark.fast

EPS = 0.05
ATTACK = PGD(eps=EPS, steps=5, step_size=EPS)


def linear_model(weight: list[list[float]], bias: list[float]) -> nn.Sequential:
    last = nn.Linear(len(weight[0]), len(weight)).double()
    last.load_state_dict({"weight": torch.tensor(weight).double(), "bias": torch.tensor(bias).double()})
    return nn.Sequential(nn.Flatten(), last)


def points(values: Tensor, y: Tensor) -> Images:
    """Images of two pixels (N, 2)."""
    return Images(values[:, None, None, :].contiguous(), y)


def objective(lead: Tensor, y: Tensor, bias: Tensor) -> float:
    """J, transcribed: the mean of a sigmoid over each class, then soft-min and twice the mean."""
    zero = torch.zeros(lead.shape[1], dtype=torch.float64)
    width = SMOOTHING * float(margins(lead, y, zero).std())
    accuracy = []
    for k in range(lead.shape[1]):
        own = [
            bias[k] - max(lead[i, j] + bias[j] for j in range(lead.shape[1]) if j != k)
            for i in range(len(y))
            if y[i] == k
        ]
        accuracy.append(np.mean([1 / (1 + np.exp(-float(margin) / width)) for margin in own]))
    low = -np.log(np.mean(np.exp(-20 * np.array(accuracy)))) / 20
    return float(low + 2 * np.mean(accuracy))


def test_two_classes_by_hand() -> None:
    """Grey values of class 0 end at 0.50 and those of class 1 begin at 0.40, both evenly spaced over 0.3, and the
    border is at 0.35: wrong for class 0 alone. The fair border is in the middle, 0.45, attacked or not."""
    spread = torch.linspace(0, 0.3, 31, dtype=torch.float64)
    values = torch.cat([0.2 + spread, 0.4 + spread])
    y = torch.arange(62) // 31
    model = linear_model([[-1.0, -1.0], [1.0, 1.0]], [0.7, -0.7])  # logits -s + 0.7 and s - 0.7, s = 2 * grey value
    found = minimax_bias(model, last_layer(model, 2), points(values[:, None].expand(-1, 2), y), ATTACK, seed=1)
    border = 0.35 + float(found[0] - found[1]) / 4  # -s + 0.7 + c0 = s - 0.7 + c1 at s = 0.7 + (c0 - c1) / 2
    assert border == pytest.approx(0.45, abs=0.005)
    assert float(found.sum()) == pytest.approx(0, abs=1e-12)


def test_attacks_find_the_leads_of_a_linear_model() -> None:
    """Of two classes the lead under attack is the clean one plus eps times the L1 distance of the weights, so the bias
    that the game finds is the one that the closed form has."""
    draw = torch.Generator().manual_seed(0)
    values = 0.3 + 0.4 * torch.rand(60, 2, generator=draw, dtype=torch.float64)
    y = torch.arange(60) % 2
    weight = [[1.0, -2.0], [-0.5, 1.0]]
    model = linear_model(weight, [0.8, 0.3])
    own = points(values, y)
    with torch.no_grad():
        closed = leads(model(own.x), y) + EPS * float((torch.tensor(weight[0]) - torch.tensor(weight[1])).abs().sum())
    found = minimax_bias(model, last_layer(model, 2), own, ATTACK, seed=1)
    assert found.tolist() == pytest.approx(best_bias(closed, y).tolist(), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_three_classes_by_brute_force(seed: int) -> None:
    draw = np.random.default_rng(seed)
    y = torch.arange(45) % 3
    logits = torch.from_numpy(draw.normal(size=(45, 3))) + 1.5 * nn.functional.one_hot(y, 3)
    logits[:, 2] -= 1.5  # the last class is weak
    lead = leads(logits, y)
    found = best_bias(lead, y)
    spread = float(margins(lead, y, torch.zeros(3, dtype=torch.float64)).std())
    assert float(found.sum()) == pytest.approx(0, abs=1e-9)
    assert float(found.abs().max()) <= spread + 1e-9
    grid = np.linspace(-spread, spread, 13)
    biases = [torch.tensor([a, b, -a - b]) for a in grid for b in grid if abs(a + b) <= spread]
    assert objective(lead, y, found) >= max(objective(lead, y, bias) for bias in biases) - 0.005


def test_the_highest_leads_are_all_that_counts() -> None:
    """An image is right under several attacks where its margin from the highest leads is positive."""
    draw = torch.Generator().manual_seed(3)
    y = torch.randint(4, (50,), generator=draw)
    logits = torch.randn(3, 50, 4, generator=draw, dtype=torch.float64)
    bias = torch.randn(4, generator=draw, dtype=torch.float64)
    lead = torch.stack([leads(each, y) for each in logits]).amax(0)
    right = ((logits + bias).argmax(2) == y).all(0)
    assert torch.equal(margins(lead, y, bias) > 0, right)


def test_the_soft_min() -> None:
    accuracy = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert float(soft_min(accuracy)) == pytest.approx(-np.log(np.mean(np.exp([-2.0, -10, -18]))) / 20)
    assert float(soft_min(torch.full((4,), 0.3, dtype=torch.float64))) == pytest.approx(0.3)


def test_the_gradient_of_the_score() -> None:
    accuracy = torch.tensor([0.1, 0.15, 0.9], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(score(accuracy), [accuracy])
    assert score_slope(accuracy.detach()).tolist() == pytest.approx(expected.tolist())


@given(seed=st.integers(0, 2**32 - 1), per_class=st.integers(2, 40), budget=st.floats(0, 1))
def test_what_is_accepted_is_never_worse(seed: int, per_class: int, budget: float) -> None:
    draw = np.random.default_rng(seed)
    y = torch.arange(3 * per_class) % 3
    rates = draw.uniform(size=(len(SCALES), 3))
    right = {s: torch.from_numpy(draw.uniform(size=len(y)) < rates[i][y]) for i, s in enumerate(SCALES)}
    kept, readings = accept(right, y, 3, budget)
    base, chosen = readings[0], next(each for each in readings if each.scale == kept)
    assert base.average - chosen.average <= budget
    assert chosen.soft_min >= base.soft_min
    accuracy = {s: torch.tensor([float(each[y == k].double().mean()) for k in range(3)]) for s, each in right.items()}
    assert chosen.worst == pytest.approx(float(accuracy[kept].min()))
    assert float(score(accuracy[kept])) >= float(score(accuracy[0.0])) - 1e-6


def test_a_gain_within_the_noise_is_not_accepted() -> None:
    """One image of ten more is noise, one in ten of a thousand is not."""
    for per_class, expected in ((10, 0.0), (1000, 1.0)):
        y = torch.arange(2 * per_class) % 2
        place = torch.arange(2 * per_class) // 2
        tenth = per_class // 10
        before = (y == 0) | (place < 3 * tenth)
        right = dict.fromkeys(SCALES, before) | {1.0: (y == 0) | (place < 4 * tenth)}
        assert accept(right, y, 2, 0.05)[0] == expected


def tiny_images(per_class: int = 20) -> Images:
    """Bright rows in noise, as tests/weights/tiny_cnn tells them apart."""
    draw = np.random.default_rng(5)
    y = np.arange(3 * per_class) % 3
    x = draw.normal(90, 35, size=(len(y), 8, 8))
    x[np.arange(len(y)), 2 * y, :] += np.array([90, 60, 30])[y][:, None]
    return Images(torch.from_numpy(np.clip(x, 0, 255).astype(np.uint8))[:, None], torch.from_numpy(y))


def test_a_class_that_was_put_down_is_raised_again() -> None:
    """The network that ships with the tests, its last class made unlikely by hand. It is left as it was, and the same
    call gives the same answer."""
    model, images = load_cnn("tiny_cnn", 3), tiny_images()
    attack = PGD(eps=0.01, steps=4, step_size=0.005)
    add_bias(last_layer(model, 3), torch.tensor([2.0, 2.0, -4.0]))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found, again = (adjust_logits(model, images, attack, num_classes=3, budget=0.5, seed=4) for _ in range(2))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert found.scale > 0
    assert found.bias[2] > 0
    assert torch.equal(found.bias, again.bias)
    assert found.readings == again.readings
    assert adjust_logits(model, images, attack, num_classes=3, budget=0.0, seed=4).readings == found.readings


def test_halves_share_no_image_and_have_every_class() -> None:
    y = torch.tensor([0, 1, 1, 0, 2, 2, 2, 1, 1, 0, 0, 2, 2])
    x = torch.arange(13, dtype=torch.uint8)[:, None, None, None]
    one, other = halves(Images(x, y), 3)
    assert sorted([*one.x.flatten().tolist(), *other.x.flatten().tolist()]) == list(range(13))
    assert one.class_counts(3).tolist() == [2, 2, 3]
    assert other.class_counts(3).tolist() == [2, 2, 2]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1))
        return 2 * logits


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=False)), "3 outputs and a bias"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "3 outputs and a bias"),
        (nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), "3 outputs and a bias"),
        (Scaled(), "output of its last linear layer"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 3, bias=False)), "3 outputs and a bias"),
    ],
)
def test_models_that_cannot_be_adjusted(model: nn.Module, word: str) -> None:
    with pytest.raises(UserError, match=word):
        adjust_logits(model, tiny_images(), ATTACK, num_classes=3)


def test_too_few_images() -> None:
    images = tiny_images(LEAST)
    fewer = images.select(torch.arange(len(images) - 1))
    with pytest.raises(UserError, match=f"needs {LEAST} validation images of each class or more; class 2 has 3"):
        adjust_logits(load_cnn("tiny_cnn", 3), fewer, ATTACK, num_classes=3)
    with pytest.raises(UserError, match="class 'cat' has 3"):
        adjust_logits(load_cnn("tiny_cnn", 3), fewer, ATTACK, num_classes=3, class_names=("ant", "bee", "cat"))
