"""Networks: their sizes counted by hand, their shapes, and weights that depend on the seed alone."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worstclass.data import channel_statistics
from worstclass.errors import UserError
from worstclass.inputs.names import MODEL_NAMES, check_model_name, factory_file, runs_user_code
from worstclass.models import MODELS, Normalized, ResNet18, SmallCNN, WideResNet, make_model
from worstclass.models.layers import AverageTo, ImageConv2d
from worstclass.models.resnet import Block, PreActBlock

pytestmark = pytest.mark.fast


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def conv(channels_in: int, channels_out: int, size: int = 3) -> int:
    return channels_in * channels_out * size * size


def norm(channels: int) -> int:
    return 2 * channels


def linear(features: int, outputs: int) -> int:
    return features * outputs + outputs


@pytest.mark.parametrize(
    ("name", "num_classes", "expected"),
    [
        ("resnet18", 10, 11_173_962),
        ("resnet18", 100, 11_173_962 + 90 * 513),
        ("wrn34-10", 10, 46_160_474),
        ("wrn28-10", 10, 36_479_194),
        ("wrn16-4", 10, 2_748_890),
    ],
)
def test_published_parameter_counts(name: str, num_classes: int, expected: int) -> None:
    with torch.device("meta"):  # shapes without memory
        assert count(make_model(name, num_classes=num_classes, in_channels=3)) == expected


def test_preact_resnet18_counted_by_hand() -> None:
    stem = conv(3, 64)
    widths = [(64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)]
    blocks = sum(norm(a) + conv(a, b) + norm(b) + conv(b, b) for a, b in widths)
    projections = conv(64, 128, 1) + conv(128, 256, 1) + conv(256, 512, 1)
    expected = stem + blocks + projections + norm(512) + linear(512, 10)
    assert expected == 11_172_170
    assert count(make_model("preact-resnet18", num_classes=10, in_channels=3)) == expected


def test_small_cnn_counted_by_hand() -> None:
    for channels, num_classes in ((1, 10), (3, 2)):
        expected = conv(channels, 16) + norm(16) + conv(16, 32) + norm(32) + linear(32 * 16, 128)
        assert count(SmallCNN(num_classes, channels)) == expected + linear(128, num_classes)


@pytest.mark.parametrize(("channels", "num_classes"), [(1, 2), (3, 100), (4, 3)])
def test_small_cnn_takes_every_size_from_8_to_32(channels: int, num_classes: int) -> None:
    model = make_model("small-cnn", num_classes=num_classes, in_channels=channels).train()
    for size in range(8, 33):
        x = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(size), requires_grad=True)
        logits = model(x)
        assert logits.shape == (2, num_classes)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0, 1])), x)
        assert gradient.isfinite().all()
        assert gradient.abs().sum((1, 2, 3)).min() > 0


@pytest.mark.parametrize("name", ["resnet18", "preact-resnet18", "wrn10-1", "wrn10-2", "wrn16-1", "wrn22-1"])
def test_logits_of_every_family(name: str) -> None:
    for channels, num_classes, size in ((3, 10, 32), (1, 2, 14)):
        model = make_model(name, num_classes=num_classes, in_channels=channels).eval()
        x = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            logits = model(x)
            assert logits.shape == (3, num_classes)
            assert torch.allclose(model(x[1:2]), logits[1:2], atol=1e-4)  # a sample does not see its batch
        assert (logits[0] - logits[1]).abs().max() > 0


@pytest.mark.parametrize(
    ("name", "side", "channels"),
    [("resnet18", 4, 512), ("preact-resnet18", 4, 512), ("wrn10-1", 8, 64), ("wrn16-2", 8, 128)],
)
def test_features_are_pooled_from_the_right_grid(name: str, side: int, channels: int) -> None:
    model = make_model(name, num_classes=10, in_channels=3)
    assert isinstance(model, ResNet18 | WideResNet)
    with torch.no_grad():
        assert model.blocks(model.stem(torch.rand(1, 3, 32, 32))).shape == (1, channels, side, side)


def batch_norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return (x - mean) / (variance + layer.eps).sqrt()


@pytest.mark.parametrize("stride", [1, 2])
def test_residual_blocks_by_their_formula(stride: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 6, 6)
    plain = Block(8, 16, stride)
    inner = batch_norm(plain.bn1, F.conv2d(x, plain.conv1.weight, stride=stride, padding=1)).relu()
    inner = batch_norm(plain.bn2, F.conv2d(inner, plain.conv2.weight, padding=1))
    projection = plain.shortcut[0]
    assert isinstance(projection, nn.Conv2d)
    skip = batch_norm(plain.bn1, F.conv2d(x, projection.weight, stride=stride))
    assert torch.allclose(plain(x), (inner + skip).relu(), atol=1e-4)
    block = PreActBlock(8, 16, stride)
    active = batch_norm(block.bn1, x).relu()
    inner = batch_norm(block.bn2, F.conv2d(active, block.conv1.weight, stride=stride, padding=1)).relu()
    assert block.shortcut is not None
    skip = F.conv2d(active, block.shortcut.weight, stride=stride)
    assert torch.allclose(block(x), F.conv2d(inner, block.conv2.weight, padding=1) + skip, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kernel", [(3, 2, 1, 1, True), (5, 3, 0, 1, False), (3, 1, 2, 2, True)])
def test_the_first_convolution_is_torchs(channels: int, kernel: tuple[int, int, int, int, bool]) -> None:
    """The same output and gradients, by the matrix product that grey images take on a CPU too."""
    size, stride, padding, dilation, bias = kernel
    ours = ImageConv2d(channels, 4, size, stride, padding, dilation, bias=bias).double()
    theirs = nn.Conv2d(channels, 4, size, stride, padding, dilation, bias=bias).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.rand(5, channels, 11, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    outputs = [ours(x), theirs(x)]
    weight = torch.linspace(-1, 1, outputs[0].numel(), dtype=x.dtype).view_as(outputs[0])
    gradients = [
        torch.autograd.grad((output * weight).sum(), [x, *model.parameters()])
        for output, model in zip(outputs, (ours, theirs), strict=True)
    ]
    assert torch.allclose(*outputs)
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_pooling_leaves_small_maps_as_they_are() -> None:
    small, large = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 7)
    assert AverageTo(4)(small) is small
    assert torch.equal(F.adaptive_avg_pool2d(small, 4), small)
    assert torch.equal(AverageTo(4)(large), F.adaptive_avg_pool2d(large, 4))


def test_normalized_is_normalisation_by_hand() -> None:
    model = make_model("small-cnn", num_classes=3, in_channels=3).eval()
    mean, std = [0.1, 0.5, 0.7], [0.2, 0.3, 0.9]
    x = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    wrapped = Normalized(model, mean, std)
    assert torch.allclose(wrapped(x), model(by_hand), atol=1e-6)
    assert {"mean", "std"} <= set(wrapped.state_dict())  # they travel with the weights
    assert count(wrapped) == count(model)  # and are not trained


@pytest.mark.parametrize("name", ["small-cnn", "wrn10-1", "preact-resnet18"])
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    def weights(seed: int) -> list[Tensor]:
        return list(make_model(name, num_classes=3, in_channels=1, seed=seed).state_dict().values())

    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = weights(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    assert all(torch.equal(a, b) for a, b in zip(first, weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, weights(2), strict=True))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "unknown model 'resnet19'. Did you mean 'resnet18'?"),
        ("smallcnn", "Did you mean 'small-cnn'?"),
        ("wrn33-10", "depth is 6n + 4"),
        ("wrn4-1", "depth is 6n + 4"),
        ("wrn10-0", "width at least 1"),
        ("wrn-34-10", "Did you mean 'wrn34-10'?"),
        ("", "unknown model ''"),
        (":factory", "unknown model"),
        ("module:", "unknown model"),
        (".relative:factory", "unknown model"),
        ("two:colons:here", "unknown model"),
    ],
)
def test_names_that_are_no_model(name: str, message: str) -> None:
    for use in (check_model_name, lambda name: make_model(name, num_classes=2, in_channels=1)):
        with pytest.raises(UserError) as caught:
            use(name)
        assert message in str(caught.value)
        if message.startswith(("unknown", "Did")):
            assert all(known in str(caught.value) for known in MODELS)


FACTORY = """
import torch

def build(num_classes, in_channels):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * in_channels, num_classes))

not_callable = 3
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with modules of the user's own, entered; sys.path and sys.modules are put back afterwards."""
    (tmp_path / "own_nets").mkdir()
    (tmp_path / "own_nets" / "deep.py").write_text(FACTORY)
    (tmp_path / "own_flat.py").write_text(FACTORY)
    (tmp_path / "own_broken.py").write_text("import no_such_library\n")
    (tmp_path / "torch.py").write_text(FACTORY.replace("torch", "own_torch"))  # a name that others need
    (tmp_path / "own_torch.py").write_text("from torch import nn\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for name in ("own_nets", "own_nets.deep", "own_flat", "own_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    "name", ["own_flat:build", "own_nets.deep:build", "own_flat.py:build", "own_nets/deep.py:build", "./torch.py:build"]
)
def test_own_factory_from_the_current_folder(name: str) -> None:
    before = torch.get_rng_state()
    model = make_model(name, num_classes=5, in_channels=2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert model(torch.rand(1, 2, 8, 8)).shape == (1, 5)
    again = make_model(name, num_classes=5, in_channels=2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_nothing:build", "model 'own_nothing:build': cannot import 'own_nothing'"),
        ("own_nets.nothing:build", "cannot import 'own_nets.nothing'"),
        ("own_broken:build", "cannot import 'no_such_library'"),
        ("own_flat:bild", "unknown factory in module own_flat 'bild'. Did you mean 'build'?"),
        ("own_flat.py:bild", "unknown factory in file own_flat.py 'bild'. Did you mean 'build'?"),
        ("own_gone.py:build", "model 'own_gone.py:build': there is no file own_gone.py"),
        ("own_broken.py:build", "own_broken.py cannot import 'no_such_library'"),
        ("own_flat:not_callable", "unknown factory in module own_flat 'not_callable'. Allowed: build."),
    ],
)
def test_own_factory_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_model(name, num_classes=5, in_channels=2)
    assert message in str(caught.value)


def test_every_name_has_a_constructor() -> None:
    assert tuple(MODELS) == MODEL_NAMES


def test_which_names_run_user_code() -> None:
    assert runs_user_code("own.nets:build")
    assert runs_user_code("own/nets.py:build")
    assert factory_file("C:\\nets\\own.py:build") == Path("C:\\nets\\own.py")
    assert factory_file("own.nets:build") is None
    assert not any(runs_user_code(name) for name in (*MODELS, "wrn10-1"))


def test_channel_statistics_are_torch_s() -> None:
    x = torch.randint(0, 256, (2500, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = x.double() / 255
    mean, std = channel_statistics(x)
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)))
    torch.testing.assert_close(std, pixels.std((0, 2, 3)))
