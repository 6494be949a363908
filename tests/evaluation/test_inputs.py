"""What images, labels and models an evaluation takes, and what it leaves behind."""

import hashlib
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import Linear, interior_batch, smallest_margin
from worstclass import metrics
from worstclass.attacks import PGD, make_attack, pgd
from worstclass.data import Augment, Images, channel_statistics, make_feed, open_source, to_float
from worstclass.data.arrays import read_npz
from worstclass.errors import AttackError, UserError
from worstclass.evaluation.evaluate import Event, as_input, evaluate
from worstclass.models import SmallCNN, make_model
from worstclass.objectives import Madry
from worstclass.runs.run import fingerprint
from worstclass.strategies import ClassHedge, uniform
from worstclass.training import Plan, fit, new_state

EPS = 0.1
WEAK: dict[str, Any] = {"pgd": pgd(3, eps=EPS)}


def pixels(size: int = 40, num_classes: int = 4) -> tuple[Tensor, Tensor]:
    """uint8 images, and labels of which a linear model gets some right."""
    source = torch.Generator().manual_seed(0)
    x = torch.randint(30, 226, (size, 1, 4, 4), generator=source, dtype=torch.uint8)
    y = Linear(num_classes)(x.double() / 255).argmax(1)
    return x, torch.where(torch.arange(size) % 4 == 0, (y + 1) % num_classes, y)


# --- floats are not divided by 255 again ---


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_floats_and_bytes_are_the_same_images(dtype: torch.dtype) -> None:
    x, y = pixels()
    as_bytes, as_floats = Images(x, y), Images((x.double() / 255).to(dtype), y)
    model = Linear(4).float()
    seen, expected = as_input(model, as_floats)[0], as_input(model, as_bytes)[0]
    assert seen.dtype == torch.float32
    assert torch.allclose(seen, expected, rtol=0, atol=torch.finfo(dtype).eps)
    if torch.finfo(dtype).eps < 1e-6:
        one, other = (evaluate(model, images, WEAK).predictions for images in (as_bytes, as_floats))
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_float_images_keep_the_precision_of_the_model() -> None:
    """The closed form holds to rounding in float64, which float32 images would not reach."""
    x, y = interior_batch(60, 2, EPS)
    model = Linear(2)
    y = model(x).argmax(1)
    outcomes = evaluate(model, Images(x, y), {"pgd": PGD(eps=EPS, steps=5, step_size=EPS)})
    standing = smallest_margin(model, x, y, EPS, "linf") > 0
    assert np.array_equal(outcomes.predictions["pgd"] == outcomes.labels, standing.numpy())
    assert (outcomes.predictions["natural"] == outcomes.labels).all()


def test_training_takes_floats_as_it_takes_bytes() -> None:
    """The same steps, to the last bit: both are float32 in [0, 1] when the model sees them."""
    x, y = pixels(32)
    weights = []
    for images in (Images(x, y), Images(to_float(x), y), Images(to_float(x).double(), y.int())):
        layer = nn.Linear(16, 4)
        model = nn.Sequential(nn.Flatten(), layer)
        with torch.no_grad():
            layer.weight.copy_(Linear(4).weight)
            layer.bias.zero_()
        attack = PGD(eps=EPS, steps=1, step_size=EPS)
        plan = Plan(epochs=2, batch_size=8, lr=0.1, valid_attack=attack, augment=Augment(crop_padding=1, flip=True))
        for _ in fit(new_state(model, uniform(4), plan), images, images, Madry(attack=attack), plan):
            pass
        weights.append(layer.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    assert not torch.allclose(weights[0], Linear(4).weight.float())


def test_statistics_of_floats_are_those_of_bytes() -> None:
    x = open_source("fashion-mini").read("test").x[:1500].expand(-1, 3, -1, -1)
    for one, other in zip(channel_statistics(x), channel_statistics(x.double() / 255), strict=True):
        assert torch.allclose(one, other, rtol=1e-12, atol=0)


def test_a_feed_of_floats_brings_floats() -> None:
    x, y = pixels(20)
    images = Images(to_float(x), y)
    for limit in (None, 0):
        feed = make_feed(images, torch.device("cpu"), window=8, limit=limit)
        parts = [
            (feed.images.x[index].clone(), feed.images.y[index].clone()) for index in feed.batches(torch.arange(20), 8)
        ]
        assert torch.equal(torch.cat([part for part, _ in parts]), images.x)
        assert torch.equal(torch.cat([part for _, part in parts]), images.y)


# --- what is refused at the door ---

X, Y = pixels(12)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "floats of 0..255": (lambda: Images(X.float(), Y), "divide by 255"),
    "normalised floats": (lambda: Images((to_float(X) - 0.5) / 0.2, Y), "inside the model"),
    "NaN": (lambda: Images(to_float(X) * torch.nan, Y), "not finite"),
    "int32 pixels": (lambda: Images(X.int(), Y), "torch.int32"),
    "truncated floats": (lambda: Images(to_float(X).round().byte(), Y), "only 0 and 1"),
    "grey without a channel": (lambda: Images(X[:, 0], Y), r"x\[:, None\]"),
    "HWC": (lambda: Images(X.new_zeros(12, 32, 32, 3), Y), "permute"),
    "arrays": (lambda: Images(X.numpy(), Y.numpy()), "torch tensor"),  # type: ignore[arg-type]
    "one-hot labels": (lambda: Images(X, nn.functional.one_hot(Y, 4)), "argmax"),
    "float labels": (lambda: Images(X, Y.float()), "whole numbers"),
    "negative labels": (lambda: Images(X, Y - 9), r"0\.\.K-1"),
    "labels missing": (lambda: Images(X, Y[1:]), "12 images have 11 labels"),
    "labels beyond the model": (lambda: evaluate(Linear(3), Images(X, Y), WEAK), r"0\.\.3, expected 0\.\.2"),
    "no images": (lambda: evaluate(Linear(4), Images(X[:0], Y[:0]), WEAK), "no images"),
    "a pair": (lambda: evaluate(Linear(4), (X, Y), WEAK), r"Images\(x, y\)"),  # type: ignore[arg-type]
    "a list of attacks": (lambda: evaluate(Linear(4), Images(X, Y), [WEAK["pgd"]]), "by name"),  # type: ignore[arg-type]
    "a batch of -3": (lambda: evaluate(Linear(4), Images(X, Y), WEAK, batch_size=-3), "at least 1"),
    "an unknown precision": (
        lambda: evaluate(Linear(4), Images(X, Y), WEAK, precision="fp16"),  # type: ignore[arg-type]
        "unknown precision 'fp16'",
    ),
    "an attack called natural": (
        lambda: evaluate(Linear(4), Images(X, Y), {"natural": WEAK["pgd"]}),
        "cannot be called",
    ),
    "an attack called any": (lambda: evaluate(Linear(4), Images(X, Y), {"a/any": WEAK["pgd"]}), "cannot be called"),
    "the name of an attack": (
        lambda: evaluate(Linear(4), Images(X, Y), {"a": "pgd-20"}),  # type: ignore[dict-item]
        "such as make_attack gives, not 'pgd-20'",
    ),
    "a function": (lambda: evaluate(lambda x: x, Images(X, Y), WEAK), r"torch\.nn\.Module"),  # type: ignore[arg-type]
    "a model in bfloat16": (lambda: evaluate(Linear(4).bfloat16(), Images(X, Y), WEAK), r"model\.float\(\)"),
    "inference mode": (lambda: torch.inference_mode()(evaluate)(Linear(4), Images(X, Y), WEAK), "inference_mode"),
    "natural as an attack": (lambda: make_attack("natural", eps=0.1), "is no attack"),
    "counts of too few classes": (lambda: Images(X, Y).class_counts(3), r"expected 0\.\.2"),
    "one class": (lambda: evaluate(Linear(1), Images(X, Y), WEAK), "one logit"),
    "a wide L2 ball": (
        lambda: evaluate(Linear(4), Images(X, Y), {"a": make_attack("pgd-2", eps=128, norm="l2")}),
        "128/255",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_would_be_a_wrong_number_is_refused(wrong: str) -> None:
    call, message = WRONG[wrong]
    with pytest.raises(UserError, match=message):
        call()


def test_fit_checks_its_images_once() -> None:
    attack = PGD(eps=EPS, steps=1, step_size=EPS)
    plan = Plan(epochs=1, batch_size=4, lr=0.1, valid_attack=attack)
    good, wide = Images(X, Y), Images(X.repeat(1, 1, 1, 2), Y)
    for train, valid, message in (
        (good, Images(X, Y + 1), r"expected 0\.\.3"),
        (Images(X, Y + 1), good, r"expected 0\.\.3"),
        (good, Images(X[:0], Y[:0]), "valid has no images"),
        (good, wide, r"\(1, 4, 4\), validation images \(1, 4, 8\)"),
        ((X, Y), good, r"train must be worstclass.data.Images"),
    ):
        state = new_state(Linear(4).float(), uniform(4), plan)
        with pytest.raises(UserError, match=message):
            next(iter(fit(state, train, valid, Madry(attack=attack), plan)))  # type: ignore[arg-type]


def test_an_attack_that_returns_something_else_is_an_error() -> None:
    class Odd:
        eps, norm = EPS, "linf"

        def __init__(self, answer: Callable[[Tensor], Any]) -> None:
            self.answer = answer

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **_: Any) -> Any:
            return self.answer(x)

    for answer in (lambda x: x[:1], lambda x: x[:, :, :, :1], lambda x: (x, x)):  # the first two would broadcast
        with pytest.raises(AttackError, match="must return images of"):
            evaluate(Linear(4), Images(X, Y), {"odd": Odd(answer)})  # type: ignore[dict-item]


def test_measures_refuse_what_does_not_belong_together() -> None:
    y = np.array([0, 1, 2, 2])
    for labels, predictions in ((y, y[:3]), (y, y[:, None]), (y, y.astype(float)), (y - 1, y)):
        for measure in (
            lambda a, b: metrics.average_accuracy(a, b),
            lambda a, b: metrics.per_class_accuracy(a, b, 3),
            lambda a, b: metrics.compare(a, b, a, 3),
        ):
            with pytest.raises(UserError):
                measure(labels, predictions)
    with pytest.raises(UserError, match=r"expected 0\.\.1"):
        metrics.compare(y, y, y, 2)
    with pytest.raises(UserError, match="counts"):
        metrics.binomial_interval([5], [4])
    assert metrics.average_accuracy(y, y) == 1
    assert np.isnan(metrics.average_accuracy([], []))


def test_class_hedge_does_not_take_minus_one_for_the_last_class() -> None:
    hedge, losses = ClassHedge(3), torch.ones(4)
    for y in (torch.tensor([0, 1, 2, -1]), torch.tensor([0, 1, 2, 3]), torch.tensor([0.0, 1, 2, 1])):
        with pytest.raises(UserError):
            hedge.weigh(losses, y)
        with pytest.raises(UserError):
            hedge.update(losses, y)
    assert torch.equal(hedge.weigh(losses, torch.tensor([0, 1, 2, 1], dtype=torch.int32)), losses)


# --- the caller's model is left as it was ---


class Interrupted(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("end", ["well", "error", "interrupt"])
def test_each_layer_keeps_its_mode(end: str) -> None:
    """Also of a model half of which is frozen, and whatever ends the evaluation."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).train()
    model[2].eval()  # frozen statistics
    before = [module.training for module in model.modules()]
    seen = list[bool]()

    def notify(_: Event) -> None:
        seen.append(any(module.training for module in model.modules()))
        if end != "well":
            raise Interrupted if end == "interrupt" else RuntimeError

    try:
        evaluate(model, Images(X, Y), WEAK, notify=notify, must_harm=False)
    except (Interrupted, RuntimeError):
        assert end != "well"
    assert set(seen) == {False}
    assert [module.training for module in model.modules()] == before == [True, True, True, False, True, True]


# --- factories, files and fingerprints ---


def test_an_error_inside_a_factory_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factories_of_a_user.py").write_text(
        "from torch import nn\n"
        "def broken(num_classes, in_channels): return nn.Linear(num_classes + 'x', 1)\n"
        "def short(num_classes): return nn.Linear(num_classes, 1)\n"
        "def bare(): return nn.Linear(2, 1)\n"
        "def more(num_classes, in_channels, depth): return nn.Linear(1, 1)\n"
        "def positional(num_classes, in_channels, /): return nn.Linear(1, 1)\n"
        "def nothing(num_classes, in_channels): pass\n"
        "def any_of_them(**settings): return nn.Linear(settings['in_channels'], settings['num_classes'])\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, num_classes, in_channels, width=2): super().__init__(in_channels, num_classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(name: str) -> nn.Module:
        return make_model(f"factories_of_a_user:{name}", num_classes=3, in_channels=1)

    with pytest.raises(TypeError, match="unsupported operand"):
        make("broken")
    for name, message in (("more", "depth"), ("positional", "positional")):
        with pytest.raises(UserError, match=f"num_classes and in_channels, one of them, or nothing: .*{message}"):
            make(name)
    assert make("short").weight.shape == (1, 3)
    assert make("bare").weight.shape == (1, 2)
    with pytest.raises(UserError, match=r"must return a torch\.nn\.Module, not NoneType"):
        make("nothing")
    for name in ("any_of_them", "Net"):
        assert make(name).weight.shape == (3, 1)


@pytest.mark.parametrize("shape", [(6, 3, 8, 4), (6, 1, 8, 1), (6, 3, 3, 3), (6, 4, 4, 3), (6, 1, 4, 4)])
def test_a_file_of_two_readings_must_say_which(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    arrays: dict[str, Any] = {"x_test": x, "y_test": np.arange(6) % 2, "y_train": np.arange(6) % 2}
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError, match="layout='NHWC' or layout='NCHW'"):
        read_npz(path, "test")
    for layout, expected in (("NCHW", x), ("NHWC", x.transpose(0, 3, 1, 2))):
        np.savez(path, layout=layout, **arrays)
        assert np.array_equal(read_npz(path, "test").x.numpy(), expected)
    np.savez(path, layout="NCWH", **arrays)
    with pytest.raises(UserError, match="Did you mean 'NCHW'"):
        read_npz(path, "test")


def test_a_layout_settles_other_numbers_of_channels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 13, 8, 8), dtype=np.uint8)
    path = tmp_path / "data.npz"
    np.savez(path, x_test=x, y_test=np.arange(6) % 2, y_train=np.arange(6) % 2)
    with pytest.raises(UserError, match="no axis has the size of channels"):
        read_npz(path, "test")
    np.savez(path, x_test=x, y_test=np.arange(6) % 2, y_train=np.arange(6) % 2, layout="NCHW")
    assert read_npz(path, "test").x.shape == (6, 13, 8, 8)


def test_a_fingerprint_copies_no_data() -> None:
    """12 MB of images in less than 1 MB; those that lie in memory in another order, some at a time."""
    images = open_source("fashion-mini").read("train")
    known = hashlib.sha256(images.x.numpy().tobytes() + images.y.numpy().tobytes()).hexdigest()
    assert fingerprint(images) == known
    turned = Images(images.x.transpose(2, 3).contiguous().transpose(2, 3), images.y)
    assert fingerprint(turned) == known
    large = Images(images.x.repeat(6, 1, 1, 1), images.y.repeat(6))
    tracemalloc.start()
    try:
        fingerprint(large)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1e6 < large.x.nbytes / 10
    assert fingerprint(Images(to_float(images.x[:10]), images.y[:10])) != fingerprint(images.select(torch.arange(10)))


def test_a_network_evaluates_grey_and_colour_alike() -> None:
    """From a notebook: floats of a data loader, int32 labels, a network in training mode."""
    source = torch.Generator().manual_seed(0)
    for channels in (1, 3):
        x, y = torch.rand(8, channels, 16, 16, generator=source), torch.arange(8, dtype=torch.int32)
        model = SmallCNN(10, channels).train()
        outcomes = evaluate(model, Images(x, y), {"fgsm": make_attack("fgsm", eps=8 / 255)}, must_harm=False)
        assert outcomes.labels.tolist() == list(range(8))
        assert model.training
