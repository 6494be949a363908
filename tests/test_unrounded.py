"""Attacks in bfloat16 see the pixels themselves: rounded ones all lie on one side of the image."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worstclass.attacks import trades_attack
from worstclass.attacks.folding import fold, twice, unrounded
from worstclass.data import to_float
from worstclass.models import SmallCNN, make_model
from worstclass.models.normalization import Normalized
from worstclass.objectives import Natural
from worstclass.rng import generator
from worstclass.train.engine import Engine, Frozen

BF16 = torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bfloat16 of its own


def pictures(size: int) -> Tensor:
    return to_float(torch.randint(0, 256, (size, 3, 8, 8), generator=generator(0, "pixels"), dtype=torch.uint8))


def test_bfloat16_rounds_every_pixel_up() -> None:
    """Why: k/255 repeats the bits of k, and the first that does not fit is a one."""
    pixels = torch.arange(256) / 255
    assert bool((pixels.to(BF16) >= pixels).all())
    assert float((pixels.to(BF16) - pixels).mean()) > 5e-4


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_a_convolution_of_unrounded_images_is_that_of_the_images(channels: int) -> None:
    """In float64, where the arithmetic adds nothing to the roundings."""
    x = torch.rand(4, channels, 9, 9, generator=generator(1, "noise")).requires_grad_()
    weight = torch.randn(7, channels, 3, 3, generator=generator(2, "noise")).to(BF16)
    parts, weights = unrounded(x, BF16), twice(weight)
    assert parts.dtype == weights.dtype == BF16
    assert parts.shape[1] % 8 == weights.shape[1] % 8 == 0
    out, exact, rounded = (
        F.conv2d(images.double(), filters.double(), padding=1)
        for images, filters in ((parts, weights), (x, weight), (x.to(BF16), weight))
    )
    size = exact.detach().abs().max()
    assert bool((out - exact).abs().max() < 2e-5 * size)
    assert bool((rounded - exact).abs().max() > 1e-3 * size)
    (slope,), (exact_slope,) = (torch.autograd.grad(each.square().sum(), x) for each in (out, exact))
    assert torch.allclose(slope, exact_slope, rtol=0.01, atol=0.01 * float(exact_slope.abs().max()))


def test_unrounded_images_are_the_images() -> None:
    x = pictures(8)
    high, low, nothing = unrounded(x, BF16).split((3, 3, 2), dim=1)
    assert torch.allclose(high.float() + low.float(), x, atol=2**-17)
    assert not bool(nothing.any())


def sides(model: nn.Module, x: Tensor, *, bf16: bool) -> float:
    """The share of images that the attack of TRADES made brighter."""
    attack = trades_attack(eps=8 / 255, steps=10, step_size=0.007)
    y = torch.zeros(len(x), dtype=torch.long)
    with torch.autocast("cpu", BF16, enabled=bf16):
        moved = attack(model, x, y, generator=torch.Generator().manual_seed(0)) - x
    return float((moved.mean((1, 2, 3)) > 0).float().mean())


@pytest.mark.parametrize("normalised", [False, True])
def test_the_attack_of_trades_takes_no_side(normalised: bool) -> None:
    """With rounded pixels it makes most images darker (the larger, the more of them); else half of them."""
    x = pictures(300)
    model: nn.Module = make_model("small-cnn", num_classes=10, in_channels=3, seed=1)
    model = Normalized(model, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)).eval() if normalised else model.eval()
    folded = fold(model, x, dtype=BF16)
    assert folded is not None
    assert 0.4 < sides(model, x, bf16=False) < 0.6
    assert 0.4 < sides(folded, x, bf16=True) < 0.6
    if not normalised:
        assert sides(model, x, bf16=True) < 0.4


class Grouped(nn.Module):
    """Its images go to a convolution that is not split in two."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, groups=3), SmallCNN(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.two(self.one(x))
        return logits


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)), Grouped()], ids=["linear", "grouped"]
)
def test_a_model_that_would_round_its_images_is_not_folded(model: nn.Module) -> None:
    x = pictures(16)
    assert fold(model.eval(), x) is not None
    assert fold(model, x, dtype=BF16) is None


def test_a_last_layer_of_zeros_hides_nothing() -> None:
    model = SmallCNN(10, 3).eval()
    nn.init.zeros_(model.linear.weight)
    assert fold(model, pictures(16), dtype=BF16) is not None


@pytest.mark.parametrize("kind", ["small-cnn", "linear"])
def test_either_engine_attacks_what_is_not_rounded(kind: str) -> None:
    """The eager one too: it folds for this alone. What cannot be folded is attacked outside of bfloat16."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10))
    model = linear if kind == "linear" else make_model(kind, num_classes=10, in_channels=3, seed=1)
    engine, x = Engine(precision="bf16"), pictures(300)
    _, view = engine.forwards(model, model, Natural(), x)
    seen = view()
    assert isinstance(seen, Frozen) == (kind == "linear")
    assert 0.4 < sides(seen, x, bf16=True) < 0.6
    with torch.no_grad(), engine.context(torch.device("cpu")):
        before = view()(x)
        for parameter in model.parameters():
            parameter.mul_(1.5)
        assert not torch.allclose(view()(x), before, rtol=0.1)  # it follows the model that trains


def test_the_compiler_takes_it_whole() -> None:
    x = pictures(16)
    folded = fold(SmallCNN(10, 3).eval(), x, dtype=BF16, fuse=True)
    assert folded is not None
    compiled = torch.compile(folded, backend="aot_eager", fullgraph=True, dynamic=False)
    slopes = []
    for model in (folded, compiled):
        images = x.clone().requires_grad_()
        with torch.autocast("cpu", BF16):
            slopes.append(torch.autograd.grad(model(images).logsumexp(1).sum(), images)[0])
    assert slopes[0].dtype == x.dtype
    assert bool(slopes[0].any())
    assert torch.equal(*slopes)
