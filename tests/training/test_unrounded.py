"""Attacks in bfloat16 see the pixels themselves: rounded ones all lie on one side of the image."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from team_models import Double
from worstclass.attacks import trades_attack
from worstclass.attacks.active_set import predict
from worstclass.attacks.folding import Folded, FoldedConv, fold, in_two_parts
from worstclass.attacks.search_model import search_model
from worstclass.data import to_float
from worstclass.models import SmallCNN, make_model
from worstclass.models.normalization import Normalized
from worstclass.objectives import kl_divergence
from worstclass.rng import generator
from worstclass.training import engine as engine_module
from worstclass.training.engine import Engine, OneGraph, OutsideAutocast

BF16 = torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul")  # a CPU without bfloat16 of its own
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")


def pictures(size: int, side: int = 8) -> Tensor:
    g = generator(0, "pixels")
    return to_float(torch.randint(0, 256, (size, 3, side, side), generator=g, dtype=torch.uint8))


def small() -> nn.Module:
    return make_model("small-cnn", num_classes=10, in_channels=3, seed=1).eval()


class Rounds(torch.autograd.Function):
    """To bfloat16, as autocast does it; the gradient goes through."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.to(BF16).to(x.dtype)

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        return grads[0]


class Rounded(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(Rounds.apply(x))  # type: ignore[no-untyped-call]
        return logits


def test_bfloat16_rounds_every_pixel_up() -> None:
    """k/255 repeats the bits of k, and the first that does not fit is a one."""
    pixels = torch.arange(256) / 255
    assert bool((pixels.to(BF16) >= pixels).all())
    assert float((pixels.to(BF16) - pixels).mean()) > 5e-4


def test_rounded_pixels_lead_the_attack_of_trades_to_one_side() -> None:
    """What goes wrong with them, in float32 otherwise: the share of images that are made brighter."""
    x, y, model = pictures(200, 16), torch.zeros(200, dtype=torch.long), small().requires_grad_(False)
    attack = trades_attack(eps=8 / 255)
    brighter = []
    for its in (model, Rounded(model)):
        moved = attack(its, x, y, generator=torch.Generator().manual_seed(0)) - x
        brighter.append(float((moved.mean((1, 2, 3)) > 0).float().mean()))
    assert 0.4 < brighter[0] < 0.6
    assert brighter[1] < 0.3


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_a_convolution_of_both_parts_is_that_of_the_images(channels: int) -> None:
    """In float64, where the arithmetic adds nothing to the roundings."""
    x = torch.rand(4, channels, 9, 9, generator=generator(1, "noise")).requires_grad_()
    convolution = nn.Conv2d(channels, 7, 3, padding=1, bias=False)
    weight = convolution.weight.detach().to(BF16)
    parts = in_two_parts(x)
    assert parts.dtype == BF16
    assert parts.shape[1] % 8 == 0
    weights = F.pad(torch.cat([weight, weight], 1), (0, 0, 0, 0, 0, parts.shape[1] - 2 * channels))
    out, exact, rounded = (
        F.conv2d(images.double(), filters.double(), padding=1)
        for images, filters in ((parts, weights), (x, weight), (x.to(BF16), weight))
    )
    size = exact.detach().abs().max()
    assert bool((out - exact).abs().max() < 2e-5 * size)
    assert bool((rounded - exact).abs().max() > 1e-3 * size)
    (slope,), (exact_slope,) = (torch.autograd.grad(each.square().sum(), x) for each in (out, exact))
    assert torch.allclose(slope, exact_slope, rtol=0.01, atol=0.01 * float(exact_slope.abs().max()))
    folded = FoldedConv(convolution, None, BF16, of_images=True)
    assert torch.allclose(folded(x).double(), exact, rtol=2**-7, atol=2**-7 * float(size))


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler warns of what it does itself
def test_the_compiler_does_not_cancel_the_parts() -> None:
    """It computes in float32 inside a kernel, and takes x.to(bfloat16).to(float32) for x."""
    x = pictures(4)
    low = in_two_parts(x)[:, 3:6]
    assert bool(low.any())
    assert torch.equal(torch.compile(in_two_parts)(x)[:, 3:6], low)


def kl_reached(model: nn.Module, x: Tensor, *, bf16: bool) -> float:
    """By the attack of TRADES, in float32."""
    with torch.autocast("cpu", BF16, enabled=bf16):
        y, seed = torch.zeros(len(x), dtype=torch.long), generator(0, "start")
        x_adv = trades_attack(eps=8 / 255)(model, x, y, generator=seed)
    logits, moved = (predict(model, images) for images in (x, x_adv))
    return float(kl_divergence(logits, moved).mean())


def test_the_last_layer_keeps_the_attack_of_trades_strong() -> None:
    """Next to an image, logits of bfloat16 are those of the image, and lead nowhere."""
    x, model = pictures(100), small()
    strict, kept = (kl_reached(model, x, bf16=bf16) for bf16 in (False, True))
    assert abs(kept - strict) < 0.05 * strict
    model.linear.__class__ = nn.Linear
    assert kl_reached(model, x, bf16=True) < 0.7 * strict


def felt(model: nn.Module, x: Tensor, *, bf16: bool) -> Tensor:
    """What rounding the images beforehand changes in the logits, on the average."""
    with torch.no_grad(), torch.autocast("cpu", BF16, enabled=bf16):
        logits, rounded = (predict(model, images) for images in (x, x.to(BF16).to(x.dtype)))
    return (logits.double() - rounded.double()).mean(0)


def whole(model: nn.Module, seen: nn.Module, x: Tensor) -> bool:
    """Whether a model under autocast feels that as it does in float32; one that rounds by itself feels nothing."""
    own, other = felt(model, x, bf16=False), felt(seen, x, bf16=True)
    return bool((own - other).norm() < 0.5 * own.norm())


def attacked(model: nn.Module, x: Tensor, engine: Engine, notes: list[str]) -> Callable[[], nn.Module]:
    return engine.attacked(model, x, on_fallback=notes.append)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_folded_model_sees_the_images_whole(normalised: bool) -> None:
    x, model = pictures(500), small()
    model = Normalized(model, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)).eval() if normalised else model
    folded = fold(model, x, dtype=BF16)
    assert folded is not None
    assert folded.whole
    assert whole(model, folded, x)
    assert whole(model, search_model(model, x, precision="bf16"), x)
    if not normalised:
        assert not whole(model, model, x)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_it_does_too() -> None:
    x, model = pictures(500), small()
    folded = fold(model, x, dtype=BF16, fuse=True)
    assert folded is not None
    with Engine(fast=True).settings(x.device):
        assert whole(model, OneGraph(torch.compile(folded, dynamic=False, fullgraph=True)), x)


def test_the_eager_engine_folds_for_this_alone_and_follows_the_model() -> None:
    x, model, notes = pictures(500), small(), list[str]()
    view = attacked(model, x, Engine(precision="bf16"), notes)
    assert notes == []
    for _ in range(2):
        assert whole(model, view(), x)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.startswith("conv"):
                    parameter.mul_(1.5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_without_a_fused_kernel_a_model_is_folded_all_the_same(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def no_kernel(*arguments: Any, fuse: bool = False, **options: Any) -> Any:
        seen.append(fuse)
        return None if fuse else fold(*arguments, **options)

    monkeypatch.setattr(engine_module, "fold", no_kernel)
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    x, model, notes = pictures(50), small(), list[str]()
    view = attacked(model, x, Engine(fast=True, precision=precision), notes)()
    assert seen == [True, False]
    assert notes == []
    assert isinstance(view, OneGraph)
    assert isinstance(view.model, Folded)


class Drawing(nn.Module):
    """It draws at random in evaluation mode too, so that no copy of it is the same function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 10))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits + torch.randn_like(logits)


def test_a_model_that_cannot_be_folded_is_told_so() -> None:
    notes: list[str] = []
    attacked(Drawing(), pictures(16), Engine(precision="bf16"), notes)
    assert [line.split(":")[0] for line in notes] == ["this model cannot be folded, and bf16 would round its images"]


class Grouped(nn.Module):
    """Its images go to a convolution that cannot take them in two parts, and to one that can."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.two = nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(3, 6, 3), SmallCNN(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.two(self.one(x) + self.other(x))
        return logits


class Bare(nn.Module):
    """A linear model whose weights are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 3 * 8 * 8, generator=generator(0, "weights")))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)), Bare(), Grouped()])
def test_a_model_that_would_round_is_attacked_outside_of_bfloat16(model: nn.Module) -> None:
    """With a line; a search in an evaluation, which cannot invent a break, stays folded and fast."""
    x, notes = pictures(500), list[str]()
    folded = fold(model.eval(), x, dtype=BF16)
    assert folded is not None
    assert not folded.whole
    seen = attacked(model, x, Engine(precision="bf16"), notes)()
    assert isinstance(seen, OutsideAutocast)
    assert len(notes) == 1
    assert whole(model, seen, x)


@pytest.mark.parametrize("scripted", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_models_that_cannot_leave_autocast_or_be_called_with_other_weights_train_on(scripted: bool) -> None:
    x = pictures(16)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()
    model = torch.jit.script(layers) if scripted else layers.to(BF16)
    seen = attacked(model, x, Engine(precision="bf16"), [])()
    with torch.autocast("cpu", BF16):
        moved = trades_attack(eps=8 / 255)(seen, x, torch.zeros(16, dtype=torch.long))
    assert bool((moved - x).abs().max() > 0.01)


def test_inner_convolutions_take_one_part() -> None:
    """Although their input may be float32 too, after an operation that autocast keeps in it."""
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Softmax(1), nn.Conv2d(8, 4, 3), nn.Flatten())
    folded = fold(layers.eval(), pictures(16), dtype=BF16)
    assert folded is not None
    assert [convolution.in_two for convolution in folded.convolutions] == [True, False]
    assert folded.whole


def test_a_model_in_float64_is_left_there() -> None:
    """Without a type of its own for the convolutions, nothing is taken apart."""
    model = Double(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()
    folded = fold(model, pictures(16))
    assert folded is not None
    assert not any(convolution.in_two for convolution in folded.convolutions)
