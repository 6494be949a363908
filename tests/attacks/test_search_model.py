"""The model as attacks see it: the same function, whatever is folded and fused in it."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odd_models import (
    BakedRandom,
    Branching,
    Coin,
    Detached,
    Locked,
    Purifying,
    Quantised,
    Random,
    Stuck,
    Viewing,
    parametrized,
)
from oracles import unchanged
from worstclass.attacks.conv_relu import ConvRelu, conv_relu
from worstclass.attacks.folding import Folded, FoldedConv, _agree, fold
from worstclass.attacks.search_model import SearchModel, Strict, search_model
from worstclass.models import ResNet18, SmallCNN, WideResNet, make_model
from worstclass.models.normalization import Normalized
from worstclass.rng import generator


@pytest.mark.parametrize(
    "model",
    [
        SmallCNN(10, 3),
        ResNet18(10),
        ResNet18(10, preact=True),
        WideResNet(10, 1, 10),
        Normalized(SmallCNN(10, 3), (0.5, 0.4, 0.3), (0.2, 0.2, 0.3)),
        Viewing(),
    ],
    ids=["small-cnn", "resnet18", "preact", "wrn", "normalized", "view"],
)
def test_the_view_is_the_same_function(model: nn.Module) -> None:
    """Logits and gradients, with BatchNorm statistics that are not the initial ones."""
    noise = generator(0, "noise")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=noise))
            module.running_var.copy_(torch.rand(module.num_features, generator=noise) + 0.5)
    model.eval()
    x = torch.rand(5, 3, 16, 16, generator=noise)
    with unchanged(model):
        view = search_model(model, x)

    def norms(module: nn.Module) -> int:
        return sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())

    assert view.folded
    assert norms(view.model) < norms(model) or isinstance(model, WideResNet)  # whose norms come before convolutions
    for wanted in (False, True):
        with torch.set_grad_enabled(wanted):
            assert torch.allclose(view(x), model(x), atol=1e-4)
    one, other = (x.clone().requires_grad_() for _ in range(2))
    view(one).square().sum().backward()
    model(other).square().sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    assert ((one.grad - other.grad).flatten(1).norm(dim=1) < 0.01 * other.grad.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize(
    "wrapper",
    [BakedRandom, Coin, Random, Quantised, Detached, Purifying, Branching, Locked, Stuck],
)
def test_a_model_that_a_view_would_change_is_used_as_it_is(wrapper: Any) -> None:
    """Draws, backwards, contexts, branches that a trace loses; layers that cannot be folded or copied."""
    model = wrapper(SmallCNN(10, 1)).eval()
    view = search_model(model, torch.rand(4, 1, 8, 8))
    assert view.model is model
    assert not view.folded


def test_passes_are_counted() -> None:
    model = SmallCNN(3, 1).eval()
    view = search_model(model, torch.rand(2, 1, 8, 8))
    x = torch.rand(5, 1, 8, 8, requires_grad=True)
    torch.autograd.grad(view(x).sum(), x)
    with torch.no_grad():
        view(x[:2])
    assert (view.passes.forward, view.passes.backward) == (7, 5)
    judge = Strict(model)
    judge(x[:3].detach())
    assert (judge.passes.forward, judge.passes.backward) == (3, 0)
    assert isinstance(view, SearchModel)


def trained_a_little(model: nn.Module, x: Tensor) -> None:
    """A few steps, so that weights and statistics are not those that were folded."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    model.eval()


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    "name", ["resnet18", pytest.param("preact-resnet18", marks=pytest.mark.slow), "wrn10-1", "weight norm"]
)
def test_a_folded_model_follows_the_one_that_trains(name: str, fuse: bool) -> None:
    """After `refresh` it is the model of now, and before it was not; no gradient leaks into the model."""
    x = torch.rand(4, 3, 16, 16, generator=generator(0, "images"))
    kind = "small-cnn" if name == "weight norm" else name
    model = make_model(kind, num_classes=10, in_channels=3, seed=0).eval()
    model = parametrized(model) if name == "weight norm" else model
    folded = fold(model, x, fuse=fuse)
    assert folded is not None
    trained_a_little(model, x)
    with torch.no_grad():
        assert not torch.allclose(folded(x), model(x), atol=1e-3)
        folded.refresh()
        assert torch.allclose(folded(x), model(x), atol=1e-4)
    model.zero_grad()
    folded(x.requires_grad_()).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in folded.parameters())


@pytest.mark.slow
def test_roundings_at_the_corners_of_relus_are_no_reason_to_refuse() -> None:
    """Of 32 x 32 images, one in forty meets a ReLU that rounding turns; its gradient moves by up to half a percent."""
    for seed in range(3):
        model = make_model("resnet18", num_classes=10, in_channels=3, seed=seed).eval()
        assert fold(model, torch.rand(16, 3, 32, 32, generator=generator(seed, "noise"))) is not None


def test_a_deep_network_is_folded_too() -> None:
    """Shaken weights that were all larger made the values of a deep network overflow: nothing could be compared."""
    model = make_model("wrn70-2", num_classes=10, in_channels=3, seed=1).eval()
    assert fold(model, torch.rand(4, 3, 8, 8, generator=generator(0, "noise"))) is not None


def test_sums_and_relus_become_part_of_the_convolutions() -> None:
    """A ResNet has a ReLU for each convolution but those on the shortcuts, and calls none of them by itself."""
    folded = Folded(ResNet18(10).eval(), torch.rand(2, 3, 16, 16), fuse=True)
    calls = [node for node in folded.module.graph.nodes if node.op == "call_module"]
    fused = [node for node in calls if node.kwargs.get("relu")]
    assert len(folded.convolutions) == 20
    assert len(fused) == 17
    assert sum(node.args[1] is not None for node in fused) == 8
    assert not [node for node in folded.module.graph.nodes if node.op == "call_function" and "relu" in node.name]


@pytest.mark.parametrize("wrapper", [Random, BakedRandom, Coin, Quantised])
def test_an_untrained_model_cannot_hide_behind_zeros(wrapper: Any) -> None:
    """With a last layer of zeros every model has the same logits and no slope; it is not folded for that."""
    model = wrapper(SmallCNN(10, 3)).eval()
    with torch.no_grad():
        model.model.linear.weight.zero_()
        model.model.linear.bias.zero_()
    assert fold(model, torch.rand(4, 3, 16, 16)) is None
    plain = SmallCNN(10, 3).eval()
    with torch.no_grad():
        plain.linear.weight.zero_()
    assert fold(plain, torch.rand(4, 3, 16, 16)) is not None


class Whisper(nn.Module):
    """Beside a model, a random branch that is scaled down nearly to nothing, as ConvNeXt scales untrained ones."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.model, self.scale = SmallCNN(10, 3), nn.Parameter(torch.full(shape, 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x + self.scale * torch.randn(1, 3, 16, 16))
        return logits


@pytest.mark.parametrize("shape", [(), (3, 1, 1), (1, 3, 1, 1)])
def test_nor_behind_what_is_nearly_zero(shape: tuple[int, ...]) -> None:
    assert fold(Whisper(*shape).eval(), torch.rand(4, 3, 16, 16)) is None


def test_models_in_half_precision_and_with_empty_weights_are_folded() -> None:
    x = torch.rand(4, 3, 16, 16)
    for seed in range(3):
        model = make_model("small-cnn", num_classes=10, in_channels=3, seed=seed).eval()
        model.empty = nn.Parameter(torch.zeros(0, 2))
        assert fold(model, x) is not None
        assert fold(model.half(), x.half()) is not None


class Turned(nn.Module):
    """The same values with the opposite slope; both `size` times larger than in a linear model."""

    def __init__(self, size: float, turned: bool) -> None:
        super().__init__()
        self.size, self.turned = size, turned

    def forward(self, x: Tensor) -> Tensor:
        logits = self.size * x.flatten(1)[:, :10]
        return 2 * logits.detach() - logits if self.turned else logits


@pytest.mark.parametrize("size", [1.0, 1e25])
def test_slopes_that_overflow_are_not_the_same(size: float) -> None:
    x, model = torch.rand(4, 3, 4, 4), Turned(size, turned=False)
    assert not _agree(model, Turned(size, turned=True), x)
    assert _agree(model, model, x) == (size == 1)


class Hooked(nn.Module):
    """A ReLU with a hook: fused into the convolution it would lose it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.head = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 10)
        self.relu.register_forward_hook(lambda module, inputs, output: output.clamp(max=0.2))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.relu(self.conv(x)).mean((2, 3)))
        return logits


def test_a_hook_is_kept() -> None:
    model, x = Hooked().eval(), torch.rand(4, 3, 16, 16)
    folded = fold(model, x, fuse=True)
    assert folded is not None
    assert torch.allclose(folded(x), model(x), atol=1e-6)


class Peculiar(nn.Module):
    """Convolutions that may not be fused: used twice, added to themselves, to one picture for all, padded by a word."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.same = nn.Conv2d(3, 3, 3, padding="same")
        self.norm, self.relu = nn.BatchNorm2d(3, affine=False), nn.ReLU(inplace=True)
        self.picture = nn.Parameter(torch.rand(1, 3, 16, 16))
        self.hooked = nn.Conv2d(3, 3, 1)
        self.hooked.register_forward_hook(lambda module, inputs, output: 2 * output)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.one(x) + self.picture)
        both = self.two(x)
        x = (both + both).relu() + self.same(x).relu()
        x = self.relu(self.norm(self.hooked(x)))
        return x.mean((2, 3))


@pytest.mark.parametrize("images", [1, 4])
def test_what_may_not_be_fused_is_not(images: int) -> None:
    model, x = Peculiar().eval(), torch.rand(4, 3, 16, 16)
    trained_a_little(model, x)
    folded = fold(model, x[:images], fuse=True)
    assert folded is not None
    assert not [node for node in folded.module.graph.nodes if node.op == "call_module" and node.args[1:] != ()]
    assert torch.allclose(folded(x), model(x), atol=1e-6)
    trained_a_little(model, x)
    folded.refresh()
    assert torch.allclose(folded(x), model(x), atol=1e-6)
    assert {name for name, part in folded.module.named_modules() if isinstance(part, FoldedConv)} == {"one", "two"}


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("channels", [1, 9], ids=["few channels", "many"])
@pytest.mark.parametrize(
    ("kernel", "padding", "stride"),
    [((3, 3), (1, 1), 1), ((3, 3), (1, 1), 2), ((3, 2), (1, 0), 1), ((1, 1), (1, 1), 1)],
)
def test_the_fused_convolution_has_the_gradient_of_its_parts(
    kernel: tuple[int, int], padding: tuple[int, int], stride: int, channels: int, adds: bool, full: bool
) -> None:
    noise = generator(1, "noise")

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise, dtype=torch.float64)

    x, weight, bias = random(2, channels, 6, 5).requires_grad_(), random(6, channels, *kernel), random(6)
    add = random(*F.conv2d(x, weight, bias, stride, padding).shape).requires_grad_()

    def called(operation: Any, x: Tensor, add: Tensor) -> Tensor:
        out: Tensor = operation(x, weight, bias, add if adds else None, [stride] * 2, [*padding], [1, 1], 1)
        return out

    fused = partial(called, conv_relu)
    for each in (fused, partial(called, ConvRelu.apply)):
        assert torch.allclose(each(x, add), (F.conv2d(x, weight, bias, stride, padding) + (add if adds else 0)).relu())
        assert torch.autograd.gradcheck(each, (x, add))
    if not full and (channels > 1 or kernel != (3, 3)):  # the compiler takes longest
        return
    torch.compiler.reset()  # else, after eight functions of one code, the function itself is called
    compiled = torch.compile(fused, backend="aot_eager", dynamic=False)  # fake tensors, as the fast engine traces it
    wanted = [x, add] if adds else [x]
    one, other = (torch.autograd.grad(f(x, add).square().sum(), wanted) for f in (fused, compiled))
    assert all(torch.allclose(a, b) for a, b in zip(one, other, strict=True))


def test_folded_in_bfloat16_it_is_near() -> None:
    model, x = SmallCNN(10, 3).eval(), torch.rand(8, 3, 16, 16)
    folded = fold(copy.deepcopy(model), x, dtype=torch.bfloat16, fuse=True)
    assert folded is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(folded(x), model(x), atol=0.02)
