"""The preflight of an audit: each mistake that it knows is one line, an error or a warning, before the first attack."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import worstclass as wc
from odd_models import Detached, Discrete, Mixing, Probabilities, Random, Wrapped
from oracles import unchanged
from robust_cnn import load_cnn
from tiny import write_tiny_npz
from worstclass.auditing.audit import TRAINING
from worstclass.auditing.preflight import preflight
from worstclass.data import Images, open_source, to_float
from worstclass.errors import UserError
from worstclass.evaluation.evaluate import Event
from worstclass.models import Normalized, SmallCNN
from worstclass.runs.run import check_classifier

EPS = 0.05


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"npz:{write_tiny_npz(tmp_path_factory.mktemp('audit') / 'tiny.npz')}"


@pytest.fixture
def model() -> SmallCNN:
    return load_cnn("tiny_cnn", 3)


@pytest.fixture(scope="module")
def images(data: str) -> Images:
    return open_source(data).read("test")


class InPlace(Wrapped):
    """Normalises the images that it was handed."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.sub_(0.1))


class Clips(Wrapped):
    """Writes what is there already."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.clamp_(0, 1))


@pytest.mark.parametrize("kind", [InPlace, Clips])
def test_a_model_that_writes_into_its_input_is_told_so(kind: type[Wrapped], model: SmallCNN, images: Images) -> None:
    """By whichever way it comes."""
    odd = kind(model).eval()
    with pytest.raises(UserError, match="the model changes its input in place"):
        wc.audit(odd, (images.x, images.y), EPS, attacks="natural")
    with pytest.raises(UserError, match=r"model 'odd.py:make' changes its input in place"):
        check_classifier(odd, Images(to_float(images.x), images.y), 3, "odd.py:make")


@pytest.mark.parametrize("wrap", [lambda logits: {"logits": logits}, lambda logits: (logits, None)])
def test_outputs_around_the_logits_are_told_with_what_to_do(
    wrap: Callable[[Tensor], Any], model: SmallCNN, images: Images
) -> None:
    class Around(Wrapped):
        def forward(self, x: Tensor) -> Any:
            return wrap(self.logits(x))

    with pytest.raises(UserError, match=r"not (dict|tuple): wrap it in a module that returns those\."):
        wc.audit(Around(model).eval(), (images.x, images.y), EPS, attacks="natural")


# --- preflight ---


def lines(model: nn.Module, images: Images, **options: Any) -> dict[str, tuple[str, bool]]:
    found = preflight(model.eval(), images, num_classes=3, eps=EPS, **options)
    return {line.name: (line.text, line.error) for line in found}


class LogProbabilities(Probabilities):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log()


class Expects(Wrapped):
    """Expects images normalised by a mean and std; given those, it is the model."""

    def __init__(self, model: nn.Module, mean: float, std: float) -> None:
        super().__init__(model)
        self.mean, self.std = mean, std

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x * self.std + self.mean)


class Constant(nn.Module):
    """One answer to everything."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([1.0, 0, 0]).expand(len(x), 3) + 0 * x.flatten(1)[:, :3]


def test_a_sound_model_passes_without_a_word(model: SmallCNN, images: Images) -> None:
    with unchanged(model):
        assert lines(model, images) == {}


@pytest.mark.parametrize(
    ("wrap", "name", "text", "error"),
    [
        (Probabilities, "logits", "outputs are probabilities", True),
        (LogProbabilities, "logits", "outputs are log-probabilities", False),
        (Detached, "gradients", "no gradient leads from the logits to the images", True),
        (Discrete, "gradients", "no gradient leads", True),
        (Random, "deterministic", "autoattack-rand averages gradients", False),
        (Mixing, "one-by-one", "depend on the others in its batch", False),
        (lambda model: Constant(), "accuracy", "clean accuracy is 33.3%", True),
    ],
)
def test_each_line_of_the_preflight(
    wrap: Any, name: str, text: str, error: bool, model: SmallCNN, images: Images
) -> None:
    found = lines(wrap(model), images)
    assert text in found[name][0]
    assert found[name][1] is error
    assert "\n" not in found[name][0]


@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0), (0, 1, 2)])
def test_classes_in_another_order(order: tuple[int, int, int], model: SmallCNN, images: Images) -> None:
    """A renaming of the outputs that makes many more images right is told, and how to rename them."""

    class Reordered(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return self.logits(x)[:, list(order)]

    found = lines(Reordered(model), images)
    if order == (0, 1, 2):
        assert "order" not in found
        return
    text, error = found["order"]
    assert not error
    assert all(f"{k} to {name}" in text for k, name in enumerate(order) if k != name)
    renamed = float((model(to_float(images.x)).argmax(1) == images.y)[1::2].double().mean())
    assert f"and {100 * renamed:.1f}% if outputs are renamed" in text
    if order == (1, 2, 0):  # at chance or below, which is an error: what explains it is in the same line
        with pytest.raises(
            UserError, match=r"clean accuracy is .*and std\. Clean accuracy is .* if outputs are renamed"
        ):
            wc.audit(Reordered(model).eval(), (images.x, images.y), EPS, attacks="natural")


def test_black_box_attacks_need_no_gradients(model: SmallCNN, images: Images) -> None:
    assert lines(Detached(model), images, attacks=["square"])["gradients"][1] is False
    assert lines(Detached(model), images, attacks=["square", "pgd-20"])["gradients"][1] is True


def test_normalisation_twice_or_not_at_all_is_suspected(model: SmallCNN, images: Images) -> None:
    """A model that standardises images and one that expects it of others are one function, given what each needs."""
    x = to_float(images.x)
    std, mean = torch.std_mean(x.double())
    expects = Expects(model, float(mean), float(std))
    given = Normalized(expects, [float(mean)], [float(std)])
    assert torch.allclose(given.eval()(x), model(x), atol=1e-3)
    assert "normalisation" not in {name.removeprefix("double-") for name in lines(given, images)}
    assert "does the model expect them? Give their mean and std." in lines(expects, images)["normalisation"][0]
    twice = Normalized(given, [float(mean)], [float(std)])
    assert "does the model normalise images itself" in lines(twice, images)["double-normalisation"][0]


@pytest.mark.parametrize(
    ("mean", "std", "name", "text"),
    [
        (0.0, 1 / 255, "scale", "on images in 0..255: does the model expect them? Give mean 0 and std 1/255."),
        (0.5, 0.5, "scale", "on images in -1..1: does the model expect them? Give mean 0.5 and std 0.5."),
        (None, None, "normalisation", "on normalised images instead: does the model expect them?"),
    ],
)
def test_what_a_model_expects_of_its_images_is_found(
    mean: float | None, std: float | None, name: str, text: str, model: SmallCNN, images: Images
) -> None:
    """Of the ways to scale images the one that suits it best is named, and given that nothing is."""
    x = to_float(images.x).double()
    if mean is None or std is None:  # those of the images, but it was given others
        mean, std = float(x.mean()), float(x.std())
        odd: nn.Module = Normalized(Expects(model, mean, std), [mean + 0.5], [std])
    else:
        odd = Expects(model, mean, std)
    found = lines(odd, images)
    assert text in found[name][0]
    assert not found[name][1]
    assert not {"scale", "normalisation"} & set(lines(Normalized(Expects(model, mean, std), [mean], [std]), images))


def test_outputs_behind_a_sigmoid_are_told(model: SmallCNN, images: Images) -> None:
    """They may be meant, so the audit goes on, but it is not trusted."""

    class Sigmoid(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(self.logits(x))

    assert lines(Sigmoid(model), images)["logits"][1] is False
    with pytest.warns(UserWarning, match=r"all outputs lie in 0\.\.1"):
        result = wc.audit(Sigmoid(model).eval(), (images.x, images.y), EPS, attacks="autoattack", limit=30)
    assert "Trustworthy" not in str(result)
    assert [each["passed"] for each in result.card["findings"] if each["name"] == "logits"] == [False]


def test_a_radius_may_be_a_text(model: SmallCNN, images: Images) -> None:
    number, text = (
        wc.audit(model, (images.x, images.y), eps, attacks="pgd-2", checks=False) for eps in (13 / 255, "13/255")
    )
    assert text.average == number.average
    assert text.card["about"]["eps"] == 13 / 255
    with pytest.raises(UserError, match="eps: '8/x' is not a number"):
        wc.audit(model, (images.x, images.y), "8/x")


def test_mean_and_std_attack_in_the_range_of_images(model: SmallCNN, images: Images) -> None:
    expects = Expects(model, 0.4, 0.5).eval()
    plain = wc.audit(model, (images.x, images.y), EPS, attacks="pgd-5", checks=False)
    given = wc.audit(expects, (images.x, images.y), EPS, attacks="pgd-5", mean=0.4, std=[0.5], checks=False)
    assert given.under("natural")[0].value == plain.under("natural")[0].value
    assert abs(given.average.value - plain.average.value) <= 2 / len(images)  # the same function, but for rounding
    assert given.card["about"]["mean"] == pytest.approx([0.4])


def test_normalisation_leaves_the_precision_of_a_model(model: SmallCNN, images: Images) -> None:
    model.register_buffer("steps", torch.zeros(1, dtype=torch.float64))
    with unchanged(model):
        wc.audit(model, (images.x, images.y), EPS, attacks="natural", mean=0.0, std=1.0)
    assert model.get_buffer("steps").dtype == torch.float64
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_other_lines_of_the_preflight(model: SmallCNN, images: Images) -> None:
    dark = Images(to_float(images.x) / 255, images.y)
    assert "divided by 255 twice" in lines(model, dark)["range"][0]
    two = images.select((images.y < 2).nonzero().squeeze(1))
    assert lines(model, two)["classes"][0].startswith("1 of 3 classes have no images")
    few = images.select(torch.tensor([0, 1]))
    assert "not clearly above chance" in lines(model, few)["accuracy"][0]
    assert "0.5 is customary" in lines(model, images, norm="l2")["radius"][0]
    large = preflight(model.eval(), images, num_classes=3, eps=0.5)
    assert [line.name for line in large if "no model holds there" in line.text] == ["radius"]
    twice = images.select(torch.cat([torch.arange(60), torch.arange(20)]))
    assert lines(model, twice)["duplicates"][0].startswith("20 of 80 images repeat another")

    class Infinite(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :3] / 0

    text, error = lines(Infinite(), images)["finite"]
    assert error
    assert "not finite on clean images: 100.0% are" in text
    assert "of outputs 0, 1, 2" in text


def test_an_error_stops_before_the_first_attack_and_a_warning_is_heard(model: SmallCNN, images: Images) -> None:
    events: list[Event] = []
    pair = (images.x, images.y)
    with pytest.raises(UserError, match=r"outputs are probabilities\..*Without checks the audit goes on"):
        wc.audit(Probabilities(model).eval(), pair, EPS, attacks="pgd-2", notify=events.append)
    assert events == []
    heard: list[str] = []
    model.train()
    model.conv1.eval()
    with unchanged(model):  # each layer keeps its mode
        result = wc.audit(model, pair, EPS, attacks="natural", checks=False, on_note=heard.append)
    assert heard == [TRAINING] == list(result.notes)
    assert TRAINING in str(result)
    with pytest.warns(UserWarning, match="training mode"):
        wc.audit(model, pair, EPS, attacks="natural", checks=False)
    assert result.card["columns"]["natural"]["average"]["value"] == float(
        (model.eval()(to_float(images.x)).argmax(1) == images.y).double().mean()
    )
