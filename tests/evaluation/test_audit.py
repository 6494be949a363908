"""One call: the same numbers whatever holds the images, exact ones where they are known, and every word before it."""

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import worstclass as wc
from odd_models import Detached, Discrete, Mixing, Probabilities, Random, Wrapped
from oracles import Linear, interior_batch, smallest_margin, unchanged
from robust_cnn import load_cnn
from tiny import write_tiny_npz
from worstclass.auditing.audit import OTHERS, TRAINING, attack_names, audit_target, sampled
from worstclass.auditing.data import read_data, stratified_rows
from worstclass.auditing.gate import parse_gate
from worstclass.auditing.preflight import preflight
from worstclass.auditing.result import AuditResult
from worstclass.data import Images, open_source, to_float
from worstclass.errors import UserError
from worstclass.evaluation import outcomes as outcomes_module
from worstclass.evaluation.evaluate import Event
from worstclass.evaluation.targets import CARD, OUTCOMES, PROGRESS, Target
from worstclass.files import read_json
from worstclass.metrics import compare
from worstclass.models import Normalized, SmallCNN
from worstclass.report import load_results
from worstclass.runs.run import fingerprint

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


def known_batch(size: int, num_classes: int) -> tuple[Linear, Tensor, Tensor]:
    """A linear model and images that it has mostly right, none of which is broken or saved by rounding."""
    model = Linear(num_classes)
    model.eval()
    x, y = interior_batch(6 * size, num_classes, EPS)
    y = torch.where(torch.arange(len(y)) % 7 == 0, y, model(x).argmax(1))
    clear = smallest_margin(model, x, y, EPS, "linf").abs() > 0.01
    return model, x[clear][:size], y[clear][:size]


@pytest.mark.parametrize("num_classes", [2, 4])
def test_a_linear_model_is_audited_exactly(num_classes: int) -> None:
    """Robust accuracy in L-inf has a closed form: the margin less eps times the L1 norm of a difference of weights."""
    model, x, y = known_batch(60, num_classes)
    holds = smallest_margin(model, x, y, EPS, "linf") > 0
    assert 0 < int(holds.sum()) < len(y)
    names = [f"class {k}" for k in range(num_classes)]
    with unchanged(model):
        result = wc.audit(model, (x, y), EPS, attacks="apgd-t", class_names=names, checks=False)
    by_class = [float(holds[y == k].double().mean()) for k in range(num_classes)]
    assert result.attack == "apgd-t"
    assert result.average.value == pytest.approx(float(holds.double().mean()))
    assert [row["apgd-t"] for row in records(result)] == pytest.approx(by_class)
    assert result.worst.name == names[int(np.argmin(by_class))]
    assert result.worst.value == pytest.approx(min(by_class))
    assert result.average.low < result.average.value < result.average.high
    natural, _ = result.under("natural")
    assert natural.value == pytest.approx(float((model(x).argmax(1) == y).double().mean()))


def test_what_quick_breaks_autoattack_breaks() -> None:
    """Seconds of it are the 5000 queries of Square on what stands."""
    model, x, y = known_batch(20, 3)
    quick = wc.audit(model, (x, y), EPS, attacks="quick", checks=False)
    whole = wc.audit(model, (x, y), EPS, checks=False)
    assert list(quick.card["columns"]) == ["natural", "pgd-20", "apgd-t"] == attack_names("quick")
    assert list(whole.card["columns"]) == ["natural", "autoattack"]
    broken, all_broken = (each.outcomes.predictions[each.attack] != y.numpy() for each in (quick, whole))
    assert not (broken & ~all_broken).any()
    assert whole.average.value == pytest.approx(float((smallest_margin(model, x, y, EPS, "linf") > 0).double().mean()))


def records(result: AuditResult) -> list[dict[str, Any]]:
    return list(result.per_class)


# --- data of every kind ---


class Items(Dataset[Any]):
    """Items as somebody's Dataset has them, each made by `convert`; `read` counts them."""

    classes = ("row 0", "row 1", "row 2")

    def __init__(self, images: Images, convert: Any) -> None:
        self.images, self.convert, self.read = images, convert, 0
        self.targets = images.y.tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.read += 1
        return self.convert(self.images.x[index]), int(self.images.y[index])


class Stream(IterableDataset[Any]):
    def __init__(self, images: Images) -> None:
        self.images = images

    def __iter__(self) -> Any:
        return iter(zip(to_float(self.images.x), self.images.y, strict=True))


KINDS: dict[str, Any] = {
    "images": lambda images: images,
    "uint8 tensors": lambda images: (images.x, images.y),
    "float tensors": lambda images: (to_float(images.x), images.y.int()),
    "list of tensors": lambda images: [images.x, images.y],
    "arrays": lambda images: (images.x.permute(0, 2, 3, 1).numpy(), images.y.numpy()),
    "grey arrays": lambda images: (images.x[:, 0].numpy(), images.y.numpy()),
    "float arrays": lambda images: (to_float(images.x).numpy(), images.y.numpy()),
    "TensorDataset": lambda images: TensorDataset(to_float(images.x), images.y),
    "Dataset": lambda images: Items(images, to_float),
    "Dataset of arrays": lambda images: Items(images, lambda x: x.permute(1, 2, 0).numpy()),
    "Dataset of PIL images": lambda images: Items(images, lambda x: Image.fromarray(x[0].numpy())),
    "list of pairs": lambda images: [(x, int(y)) for x, y in zip(images.x, images.y, strict=True)],
    "DataLoader": lambda images: DataLoader(Items(images, to_float), batch_size=7),
    "shuffled DataLoader": lambda images: DataLoader(
        Items(images, to_float), batch_size=7, shuffle=True, drop_last=True
    ),
    "DataLoader of a stream": lambda images: DataLoader(Stream(images), batch_size=7),
    "Subset": lambda images: Subset(Items(images, to_float), range(len(images))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [None, 20])
def test_the_same_images_whatever_holds_them(kind: str, limit: int | None, data: str, images: Images) -> None:
    """Bit by bit, in one order, as the data set of that name has them: so every number is the same too."""
    by_name = read_data(data, limit=limit, seed=3)
    read = read_data(KINDS[kind](images), limit=limit, seed=3)
    assert fingerprint(read.images) == fingerprint(by_name.images)
    assert len(read.images) == (limit or len(images))
    if read.class_names is not None:
        assert read.class_names == by_name.class_names == Items.classes


def test_the_same_numbers_by_name_and_by_loader(data: str, images: Images, model: SmallCNN) -> None:
    by_name = wc.audit(model, data, EPS, attacks="pgd-5", limit=30, checks=False)
    loader = DataLoader(Items(images, to_float), batch_size=11, shuffle=True)
    by_loader = wc.audit(model, loader, EPS, attacks=["pgd-5"], limit=30, checks=False, batch_size=4)
    for key in ("classes", "average", "worst"):
        assert by_name.card["columns"]["pgd-5"][key] == by_loader.card["columns"]["pgd-5"][key]
    assert by_name.card["about"]["images"] == by_loader.card["about"]["images"]
    assert by_loader.card["class_names"] == list(Items.classes)


def test_a_limit_reads_only_what_it_takes(images: Images) -> None:
    known = Items(images, to_float)
    read_data(known, limit=9)
    assert known.read == 9
    del known.targets
    assert len(read_data(known, limit=9).images) == 9


def test_a_sample_is_drawn_by_class() -> None:
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 97 + [5] * 3)
    rows = stratified_rows(labels, 100, 0)
    assert rows is not None
    assert torch.equal(rows, rows.sort().values)
    assert len(set(rows.tolist())) == 100
    assert torch.bincount(labels[rows]).tolist() == [60, 30, 9, 0, 0, 1]
    again, other = stratified_rows(labels, 100, 0), stratified_rows(labels, 100, 1)
    assert again is not None
    assert other is not None
    assert torch.equal(again, rows)
    assert not torch.equal(other, rows)
    assert stratified_rows(labels, 4, 0) is not None
    assert stratified_rows(labels, 1000, 0) is None
    for limit, message in ((3, "less than an image for each of the 4 classes"), (0, "whole number"), (True, "whole")):
        with pytest.raises(UserError, match=message):
            stratified_rows(labels, limit, 0)


REFUSED: dict[str, tuple[Any, str]] = {
    "normalised": (lambda i: (4 * to_float(i.x) - 2, i.y), r"lie in \[0, 1\], these lie in -.*mean= and std= of audit"),
    "normalised loader": (
        lambda i: DataLoader(TensorDataset(4 * to_float(i.x) - 2, i.y), batch_size=8),
        "mean= and std= of audit",
    ),
    "0..255": (lambda i: (i.x.float(), i.y), "divide by 255, or pass uint8"),
    "labels": (lambda i: (i.x, i.y + 1), r"labels lie in 1..3, expected 0..2: the model has 3 logits"),
    "negative labels": (lambda i: (i.x, i.y - 1), r"labels lie in -1..1"),
    "one-hot": (lambda i: (i.x, nn.functional.one_hot(i.y)), "one-hot labels are y.argmax"),
    "no images": (lambda i: (i.x[:0], i.y[:0]), "there are no images"),
    "empty": (lambda i: [], "the data set is empty"),
    "dictionaries": (lambda i: [{"image": 1}], r"must be \(image, label\), not dict"),
    "a dictionary": (lambda i: {"x": i.x}, "audit takes a name such as 'cifar10'"),
    "images alone": (lambda i: DataLoader(TensorDataset(i.x), batch_size=8), r"\(images, labels\), not 1 parts"),
    "a number": (lambda i: 3, "not int"),
    "a name": (lambda i: "cifar11", "Did you mean 'cifar10'"),
    "sizes": (lambda i: [(i.x[0], 0), (i.x[0][:, :4], 0)], "images must be of one size"),
    "another size": (lambda i: (i.x.repeat(1, 3, 1, 1), i.y), r"cannot take images of \(3, 8, 8\)"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_wrong_data_are_refused_in_a_line(wrong: str, images: Images, model: SmallCNN) -> None:
    make, message = REFUSED[wrong]
    with pytest.raises(UserError, match=message):
        wc.audit(model, make(images), EPS, attacks="natural")


def test_wrong_arguments_are_refused_in_a_line(images: Images, model: SmallCNN, data: str) -> None:
    pair = (images.x, images.y)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"eps": 8}, "did you mean 8/255"),
        ({"eps": 0.0}, "eps must be above 0"),
        ({"norm": "l1"}, "unknown norm 'l1'"),
        ({"attacks": "pdg-20"}, "Did you mean 'pgd-20'"),
        ({"attacks": [3]}, "attacks are names"),
        ({"class_names": ["a", "b"]}, "the model has 3 classes, class_names has 2"),
        ({"class_names": ["a", "b", "b"]}, "two classes have the same name"),
        ({"mean": 0.5}, "std is missing"),
        ({"mean": [0.5, 0.5], "std": 0.5}, "mean has 2 numbers, images have 1 channels"),
        ({"mean": 0.5, "std": 0.0}, "std must be above 0"),
        ({"mean": 120.0, "std": 60.0}, "divide them by 255"),
        ({"mean": "half", "std": 0.5}, "mean must be a number for each channel"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
    ]
    for options, message in wrong:
        with pytest.raises(UserError, match=message):
            wc.audit(model, pair, **{"attacks": "natural", **options})
    with pytest.raises(UserError, match=r"audit takes a torch.nn.Module, not function"):
        wc.audit(lambda x: x, pair)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the model has 10 classes, npz:.* has 3"):
        wc.audit(load_cnn("robust_cnn", 10), data, attacks="natural")


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
        (Random, "deterministic", "use autoattack-rand", False),
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
    assert "does the model expect them? Give mean and std." in lines(expects, images)["normalisation"][0]
    twice = Normalized(given, [float(mean)], [float(std)])
    assert "does the model normalise images itself" in lines(twice, images)["double-normalisation"][0]


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

    class Infinite(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :3] / 0

    assert lines(Infinite(), images)["finite"][1]


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


# --- the folder ---


def test_an_audit_goes_on_where_it_stopped(
    model: SmallCNN, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes_module, "SAVE_EVERY", 0.0)
    pair, folder = (images.x, images.y), tmp_path / "cache"
    options: dict[str, Any] = {"attacks": ["pgd-5", "cw-5"], "checks": False, "batch_size": 10}
    straight = wc.audit(model, pair, EPS, **options)
    seen: list[Event] = []

    def stop(event: Event) -> None:
        if event.attack == "pgd-5" and event.done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wc.audit(model, pair, EPS, cache=folder, notify=stop, **options)
    assert (folder / PROGRESS).is_file()
    assert not model.training
    resumed = wc.audit(model, pair, EPS, cache=folder, notify=seen.append, **options)
    assert next(event.done for event in seen if event.attack == "pgd-5") == 30
    assert resumed.card["columns"] == straight.card["columns"]
    assert not (folder / PROGRESS).exists()
    seen.clear()
    again = wc.audit(model, pair, EPS, cache=str(folder), notify=seen.append, **options)  # nothing is left to do
    assert seen == []
    assert again.card == resumed.card
    more = wc.audit(model, pair, EPS, cache=folder, notify=seen.append, attacks="fgsm", checks=False)
    assert {event.attack for event in seen} == {"fgsm"}
    assert list(more.card["columns"]) == ["natural", "pgd-5", "cw-5", "fgsm"]


def test_a_folder_of_something_else_is_refused(model: SmallCNN, images: Images, tmp_path: Path) -> None:
    pair = (images.x, images.y)
    wc.audit(model, pair, EPS, attacks="natural", checks=False, cache=tmp_path)
    same: dict[str, Any] = {"eps": EPS, "attacks": "natural", "checks": False, "cache": tmp_path}
    for other in ({"eps": 0.1}, {"seed": 1}, {"limit": 30}):
        with pytest.raises(UserError, match="something else"):
            wc.audit(model, pair, **same | other)
    assert OTHERS < 1

    class Turned(SmallCNN):
        """The same weights and the same layers, another function."""

        turned = False

        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return logits.roll(1, 1) if self.turned else logits

    mine = Turned(3, 1)
    mine.load_state_dict(model.state_dict())
    wc.audit(mine, pair, EPS, attacks="natural", checks=False, cache=tmp_path / "turned", on_note=lambda line: None)
    mine.turned = True
    with pytest.raises(UserError, match="another model, with the same weights"):
        wc.audit(mine, pair, EPS, attacks="natural", checks=False, cache=tmp_path / "turned", on_note=lambda line: None)


# --- the result ---


@pytest.fixture(scope="module")
def result(images: Images) -> AuditResult:
    names = ["<b>top</b>", "[red]middle", "bottom"]
    return wc.audit(load_cnn("tiny_cnn", 3), (images.x, images.y), EPS, attacks="pgd-5", class_names=names, limit=45)


def test_a_result_prints_and_shows_itself(result: AuditResult) -> None:
    text = str(result)
    assert text.splitlines()[0] == "SmallCNN on arrays: L-inf radius 0.05, 45 images, 3 classes"
    assert f"Weakest class under PGD-5: {result.worst.name}" in text
    assert all(name in text for name in ("<b>top</b>", "[red]middle", "bottom", "Natural", "PGD-5"))
    assert f"{100 * result.average.value:.1f} [{100 * result.average.low:.1f}" in text
    assert "strong-attack: run: pgd-5." in text
    assert repr(result) == text
    shown = result._repr_html_()
    assert "&lt;b&gt;top&lt;/b&gt;" in shown
    assert "<b>" not in shown
    assert shown.count("<tr>") == 2 + 2 + 3
    with pytest.raises(UserError, match="unknown attack 'pgd-6'"):
        result.under("pgd-6")


def test_the_strongest_of_attacks_without_a_rank_leaves_the_least(images: Images, model: SmallCNN) -> None:
    """In whichever order they were asked for: a gate speaks of it."""
    for attacks in (["pgd-5", "pgd-1"], ["pgd-1", "pgd-5"]):
        found = wc.audit(model, (images.x, images.y), EPS, attacks=attacks, checks=False)
        assert found.average.value == min(found.under(name)[0].value for name in found.card["columns"])


def test_per_class_is_a_frame_where_pandas_is_there(result: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pandas" else find(name, *rest)
    )
    rows = records(result)
    assert [row["class"] for row in rows] == result.card["class_names"]
    assert {row["images"] for row in rows} == {15}
    assert all(row["pgd-5_low"] <= row["pgd-5"] <= row["pgd-5_high"] for row in rows)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: object())
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda given: ("frame", given)))
    assert result.per_class == ("frame", rows)


def test_results_are_compared_image_by_image(result: AuditResult, images: Images, tmp_path: Path) -> None:
    other = load_cnn("tiny_cnn", 3)
    with torch.no_grad():
        list(other.parameters())[-1][0] += 1.0  # the bias of the first class
    names = result.card["class_names"]
    options: dict[str, Any] = {"attacks": ["pgd-5", "fgsm"], "class_names": names, "limit": 45, "checks": False}
    base = wc.audit(other, (images.x, images.y), EPS, **options)
    found = result.compare(base)
    assert list(found.columns) == ["natural", "pgd-5"]
    expected = compare(
        result.outcomes.labels, result.outcomes.predictions["pgd-5"], base.outcomes.predictions["pgd-5"], 3
    )
    assert found.columns["pgd-5"]["worst_difference"]["value"] == expected.worst_difference.value
    assert found.columns["pgd-5"]["p_value"] == expected.p_value
    assert "SmallCNN less SmallCNN" in str(found)
    assert found._repr_html_().count("<tr>") == 3
    base.save(tmp_path / "base")
    assert result.compare(tmp_path / "base").columns == found.columns
    elsewhere = wc.audit(other, (images.x, images.y), 0.1, **options)
    with pytest.raises(UserError, match="with another eps"):
        result.compare(elsewhere)


def test_a_result_plots_saves_and_reports(result: AuditResult, tmp_path: Path) -> None:
    figure = result.plot()
    assert figure.axes[0].get_title(loc="left").startswith("PGD-5: accuracy of each class")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == result.card["class_names"]
    assert result.plot("natural").axes[0].get_title(loc="left").startswith("Natural")
    result.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {CARD, OUTCOMES}
    assert read_json(tmp_path / "saved" / CARD) == json.loads(json.dumps(result.card))
    (read,) = load_results([tmp_path / "saved"])
    assert read.columns["pgd-5"]["worst"]["value"] == result.worst.value
    assert AuditResult.load(tmp_path / "saved").average == result.average
    result.save(tmp_path / "saved")
    written = result.report(tmp_path / "page.html")
    assert written[0] == tmp_path / "page.html"
    page = written[0].read_text()
    assert "PGD-5" in page
    assert "<b>top" not in page


def test_a_run_is_audited_on_a_part_of_its_images(images: Images, model: SmallCNN) -> None:
    about = {"model": "m", "data": "d", "part": "test", "images": fingerprint(images), "weights": "w"}
    target = Target(model, images, ["a", "b", "c"], EPS, "linf", about)
    assert sampled(target, None, 0) is target
    part = sampled(target, 9, 0)
    assert part.about["limit"] == len(part.images) == 9
    assert part.about["images"] != about["images"]
    assert audit_target(part, "natural", checks=False).card["images"] == 9


# --- the gate ---


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("worst < 0.3", True),
        ("worst<0.2", False),
        ("worst <= 20%", True),
        ("worst.low < 0.1", True),
        ("worst.high > .35", False),
        ("average >= 0.5", True),
        ("average < 50%", False),
        ("worst-tenth < 0.25", True),
        ("natural-worst < 0.8", True),
        ("natural-average < 0.8", False),
        ("natural-worst-tenth > 0.9", False),
    ],
)
def test_a_gate(text: str, fails: bool) -> None:
    def column(average: float, worst: float) -> dict[str, Any]:
        def measure(value: float) -> dict[str, Any]:
            return {"value": value, "low": value - 0.15, "high": value + 0.1}

        lowest = measure(worst) | {"class": "shirt", "ties": 1}
        return {"average": measure(average), "worst": lowest, "worst_tenth": measure(worst)}

    card = {"columns": {"natural": column(0.9, 0.7), "pgd-20": column(0.5, 0.2)}}
    line = parse_gate(text).failure(card, "pgd-20")
    assert (line is not None) is fails
    if line is not None:
        assert "the weakest class is shirt" in line
        assert line.startswith(f"{text}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worst", "such as 'worst < 0.3'"),
        ("worst == 0.3", "such as 'worst < 0.3'"),
        ("worst < 0.3 or average < 0.5", "such as"),
        ("__import__('os') < 1", "unknown measure"),
        ("wurst < 0.3", "Did you mean 'worst'"),
        ("worst.middle < 0.3", "unknown measure"),
        ("worst < 30", "did you mean 30%"),
        ("worst < -1", "such as"),
        ("", "such as"),
    ],
)
def test_a_gate_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_gate(text)
