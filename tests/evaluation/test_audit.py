"""One call: the same numbers whatever holds the images, exact ones where they are known, and every word before it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import worstclass as wc
from oracles import Linear, interior_batch, smallest_margin, unchanged
from robust_cnn import load_cnn
from tiny import write_tiny_npz
from worstclass.auditing.audit import OTHERS, attack_names, audit_target, sampled
from worstclass.auditing.data import read_data, stratified_rows
from worstclass.auditing.result import AuditResult
from worstclass.data import Images, open_source, to_float
from worstclass.errors import UserError
from worstclass.evaluation import outcomes as outcomes_module
from worstclass.evaluation.evaluate import Event
from worstclass.evaluation.targets import PROGRESS, Target
from worstclass.models import SmallCNN
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


class Dicts(Items):
    """Items as Hugging Face's data sets have them."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return {"idx": index, "image": x, "label": y}


class Batches(Items):
    """Each item is a batch: a DataLoader makes none of its own."""

    def __len__(self) -> int:
        return len(self.images) // 10

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        rows = slice(10 * index, 10 * index + 10)
        return to_float(self.images.x[rows]), self.images.y[rows]


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
    "Dataset of dicts": lambda images: Dicts(images, lambda x: Image.fromarray(x[0].numpy())),
    "DataLoader of dicts": lambda images: DataLoader(Dicts(images, to_float), batch_size=7, shuffle=True),
    "list of pairs": lambda images: [(x, int(y)) for x, y in zip(images.x, images.y, strict=True)],
    "DataLoader": lambda images: DataLoader(Items(images, to_float), batch_size=7),
    "shuffled DataLoader": lambda images: DataLoader(
        Items(images, to_float), batch_size=7, shuffle=True, drop_last=True
    ),
    "DataLoader of a stream": lambda images: DataLoader(Stream(images), batch_size=7),
    "DataLoader of batches": lambda images: DataLoader(Batches(images, None), batch_size=None),
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


class Flipping(Dataset[tuple[Tensor, int]]):
    """The training transform was left on."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        x = self.images.x[row]
        return (x.flip(2) if bool(torch.rand(()) < 0.5) else x), int(self.images.y[row])


@pytest.mark.parametrize("sampler", [False, True])
def test_random_test_images_are_refused(sampler: bool, images: Images, model: SmallCNN) -> None:
    data = Flipping(images)
    drawn = WeightedRandomSampler([1.0] * len(images), 30)
    with pytest.raises(UserError, match="Flipping returns another image each time"):
        wc.audit(model, DataLoader(data, 8, sampler=drawn) if sampler else data, 0.05, attacks="natural")


def test_a_sampler_of_some_images_is_used_as_it_is(images: Images) -> None:
    """Those of torch draw each image once only where they are left as they are."""
    data = TensorDataset(images.x, images.y)
    some = RandomSampler(data, num_samples=20), SequentialSampler(images.y[:20]), RandomSampler(data, replacement=True)
    for sampler, size in zip(some, (20, 20, len(images)), strict=True):
        read = read_data(DataLoader(data, 8, sampler=sampler)).images
        assert len(read) == size
        assert torch.equal(read.x, images.x[:20]) == isinstance(sampler, SequentialSampler)
        assert not torch.equal(read.y, images.y)


def test_an_empty_batch_is_refused(data: str, model: SmallCNN) -> None:
    for size in (0, 7.5):
        with pytest.raises(UserError, match=f"batch_size must be a whole number, at least 1, not {size}"):
            wc.audit(model, data, 0.05, batch_size=size)  # type: ignore[arg-type]


def test_labels_are_the_second_tensor(images: Images) -> None:
    data = TensorDataset(images.x, images.y, torch.arange(len(images)))
    assert torch.equal(read_data(data, limit=6).images.y.bincount(), torch.tensor([2, 2, 2]))


def test_arrays_in_any_order(images: Images) -> None:
    x, y = images.x.numpy()[::-1], images.y.numpy().astype(">i8")[::-1]
    read = read_data((x, y)).images
    assert torch.equal(read.x, images.x.flip(0))
    assert torch.equal(read.y, images.y.flip(0))


def test_a_limit_reads_only_what_it_takes(images: Images) -> None:
    known = Items(images, to_float)
    read_data(known, limit=9)
    assert known.read == 9 + 2 * 9  # and twice to see that they stay as they are
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


class Named(Items):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.images.x[index], "cat"


class Renamed(Items):
    classes = ("crane", "cat", "crane")


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
    "names of classes": (lambda i: [(x, "cat") for x in i.x], "must be whole numbers, not 'cat'"),
    "a batch of names": (lambda i: DataLoader(Named(i, to_float), 2), r"must be whole numbers, not \('cat', 'cat'"),
    "one name twice": (lambda i: Renamed(i, to_float), "Renamed: two classes have the same name"),
    "no images": (lambda i: (i.x[:0], i.y[:0]), "there are no images"),
    "empty": (lambda i: [], "the data set is empty"),
    "dictionaries": (lambda i: [{"image": 1}], r"a dict of image: it must have one of image, .* and one of label,"),
    "two images": (lambda i: [{"image": i.x[0], "x": i.x[0], "label": 0}], "a dict of image, x, label: it must have"),
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
        ({"class_names": [0, 1, 2]}, "class_names: 0 is not a class name"),
        ({"seed": -1}, "seed must be a whole number from 0 on, not -1"),
        ({"seed": np.int64(1)}, "seed must be a whole number"),
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


class Buffers(nn.Module):
    """Weights that are buffers, behind a whole number for a parameter."""

    def __init__(self, model: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(3), requires_grad=False)
        self.register_buffer("weight", next(model.parameters()).detach().to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.get_buffer("weight")
        return x.flatten(1) @ weight.T


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_is_that_of_any_floats_of_a_model(dtype: torch.dtype) -> None:
    linear, x, y = known_batch(30, 3)
    model = Buffers(linear, dtype).eval()
    y = model(x.to(dtype)).argmax(1)
    for mean, std in ((None, None), (0.0, 1.0)):
        found = wc.audit(model, (x, y), EPS, attacks="pgd-2", checks=False, mean=mean, std=std)
        assert found.under("natural")[0].value == 1


def test_what_a_folder_of_images_leaves_out_is_noted(tmp_path: Path, model: SmallCNN, images: Images) -> None:
    for place in range(6):
        own = tmp_path / "test" / str(place % 3)
        own.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.x[place, 0].numpy()).save(own / f"{place}.png")
    (own / "more.tif").touch()
    found = wc.audit(model, f"folder:{tmp_path}", EPS, attacks="natural", checks=False, on_note=lambda line: None)
    assert len(found.outcomes.labels) == 6
    assert "are left out: 2/more.tif" in found.notes[0]


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


def test_a_cache_whose_files_disagree_is_repaired(model: SmallCNN, images: Images, tmp_path: Path) -> None:
    """What card and outcomes do not agree in is measured again where it is asked for, and else dropped."""
    options: dict[str, Any] = {"checks": False, "cache": tmp_path}
    found = wc.audit(model, (images.x, images.y), EPS, attacks=["pgd-5", "fgsm"], **options)
    for attacks, left in (("pgd-5", {"natural", "fgsm", "pgd-5"}), ("natural", {"natural", "fgsm"})):
        card = json.loads((tmp_path / "card.json").read_text())
        card["columns"]["pgd-5"]["worst"]["value"] = 0.99
        (tmp_path / "card.json").write_text(json.dumps(card))
        again = wc.audit(model, (images.x, images.y), EPS, attacks=attacks, **options)
        assert {*again.card["columns"]} == left
        assert all(again.under(name) == found.under(name) for name in left)


def test_corrected_class_names_are_those_of_the_card(
    model: SmallCNN, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is attacked again, and nothing else changes."""
    pair = (images.x, images.y)
    options: dict[str, Any] = {"attacks": "pgd-5", "checks": False, "cache": tmp_path}
    old = wc.audit(model, pair, EPS, class_names=["one", "two", "three"], **options).card
    monkeypatch.setattr(sys.modules[wc.audit.__module__], "evaluate_target", None)
    new = wc.audit(model, pair, EPS, class_names=["un", "deux", "trois"], **options).card
    assert new == AuditResult.load(tmp_path).card
    text = json.dumps(old)
    for before, after in {"one": "un", "two": "deux", "three": "trois"}.items():
        text = text.replace(f'"{before}"', f'"{after}"')
    assert new == json.loads(text)


def test_a_folder_of_something_else_is_refused(model: SmallCNN, images: Images, tmp_path: Path) -> None:
    pair = (images.x, images.y)
    wc.audit(model, pair, EPS, attacks="natural", checks=False, cache=tmp_path)
    same: dict[str, Any] = {"eps": EPS, "attacks": "natural", "checks": False, "cache": tmp_path}
    for other in ({"eps": 0.1}, {"seed": 1}, {"limit": 30}):
        with pytest.raises(UserError, match=r"something else .*; choose another folder\.$"):
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


def test_a_run_is_audited_on_a_part_of_its_images(images: Images, model: SmallCNN) -> None:
    about = {"model": "m", "data": "d", "part": "test", "images": fingerprint(images), "weights": "w"}
    target = Target(model, images, ["a", "b", "c"], EPS, "linf", about)
    assert sampled(target, None, 0) is target
    part = sampled(target, 9, 0)
    assert part.about["limit"] == len(part.images) == 9
    assert part.about["images"] != about["images"]
    assert audit_target(part, "natural", checks=False).card["images"] == 9
