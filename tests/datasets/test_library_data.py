"""Data of other libraries and of a factory: the same images, labels and names as in the npz they were made from."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tiny import tiny_config, write_tiny_npz
from worstclass.config.recipe import make_config, merge
from worstclass.data import Images, open_source
from worstclass.data.collect import read_whole
from worstclass.errors import UserError
from worstclass.evaluation.targets import run_target
from worstclass.runs.adjust import adjust_run
from worstclass.runs.train import train_run
from worstclass.sweep.jobs import Setup, check_jobs
from worstclass.sweep.plan import Job

FACTORY = """
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

Path("ran").touch()

def arrays(part):
    file = np.load("tiny.npz", allow_pickle=False)
    return file[f"x_{part}"], file[f"y_{part}"]

def loader(part):
    x, y = arrays(part)
    data = TensorDataset(torch.from_numpy(x)[:, None].float() / 255, torch.from_numpy(y))
    data.classes = ["row 0", "row 1", "row 2"]
    return DataLoader(data, batch_size=7, shuffle=True)

def test_images():
    return arrays("test")

def fewer(part):
    x, y = arrays(part)
    keep = (y < 2) | (part == "train")
    return x[keep], y[keep]

def misnamed(part):
    data = loader(part).dataset
    data.classes = ["row 0", "row 1"]
    return data

def number():
    return 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tiny_npz(tmp_path / "tiny.npz")
    (tmp_path / "their_images.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def same(one: Images, other: Images) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def items(part: str) -> tuple[Any, Any]:
    """Of the npz."""
    with np.load("tiny.npz", allow_pickle=False) as file:
        return file[f"x_{part}"], file[f"y_{part}"]


@pytest.mark.parametrize("name", ["their_images.py:arrays", "their_images.py:loader", "their_images:arrays"])
def test_a_factory_gives_both_parts(name: str, here: Path) -> None:
    """A shuffled DataLoader is read in the order of its data; names are the data's, or numbers."""
    expected, found = open_source("npz:tiny.npz"), open_source(name)
    for part in ("train", "test"):
        assert same(found.read(part), expected.read(part))
    assert found.class_names == (expected.class_names if name.endswith("loader") else ("0", "1", "2"))


def test_a_factory_without_parts_is_not_trained_on(here: Path) -> None:
    """It gives the test images, and would give them for training too."""
    source = open_source("their_images.py:test_images")
    assert same(source.read("test"), open_source("npz:tiny.npz").read("test"))
    with pytest.raises(UserError, match="must take part"):
        source.read("train")
    with pytest.raises(UserError, match="must be a Dataset, a DataLoader or a pair"):
        open_source("their_images.py:number")


@pytest.mark.parametrize(("factory", "where"), [("fewer", "test labels end"), ("misnamed", "its `classes` end")])
def test_a_class_that_is_not_counted_is_told_of(factory: str, where: str, here: Path) -> None:
    """Classes are counted in the test part, or named: a label beyond them is not just out of range."""
    source = open_source(f"their_images.py:{factory}")
    assert source.num_classes == 2
    with pytest.raises(UserError, match=f"train labels go up to 2, but {where} at 1. Give all classes"):
        source.read("train")


def test_a_recipe_needs_consent_for_data_that_run_code(here: Path) -> None:
    recipe = tiny_config(here / "tiny.npz", epochs=1).recipe()
    config = make_config(merge(recipe, {"data": "their_images.py:arrays"}))
    refused = r"data 'their_images\.py:arrays' runs code of your own; pass --allow-code"
    with pytest.raises(UserError, match=refused):
        train_run(config, here / "run")
    assert not (here / "run").exists()
    assert not (here / "ran").exists()
    run = train_run(config, here / "run", allow_code=True)
    assert run.class_names == ["0", "1", "2"]
    (here / "ran").unlink()
    for again in (
        lambda: train_run(config, here / "run", resume=True),
        lambda: adjust_run(run, here / "adjusted"),
        lambda: run_target(run),
        lambda: check_jobs([Job("run", here / "run", config)], Setup()),
    ):
        with pytest.raises(UserError, match=refused):
            again()
        assert not (here / "ran").exists()


def test_pictures_with_a_palette_are_read_in_colour() -> None:
    """The pixels of such a PIL image are places in its palette: as grey levels they would be another image."""
    palette = Image.new("RGB", (8, 8), (255, 0, 0)).quantize(4)
    assert palette.mode == "P"
    images = read_whole([(palette, 0), (palette.convert("RGB"), 1)], "pictures")
    assert torch.equal(images.x[0], images.x[1])


@pytest.fixture
def saved(here: Path) -> Path:
    """A folder by `save_to_disk` of the real library."""
    pytest.importorskip("datasets.features")  # the folder of these tests is called datasets too
    datasets = importlib.import_module("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "id": datasets.Value("int64"), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    parts = {}
    for part, split in (("train", "train"), ("test", "validation")):
        x, y = items(part)
        rows = {"image": [Image.fromarray(each) for each in x], "id": list(range(len(y))), "label": y.tolist()}
        parts[split] = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(parts).save_to_disk(str(here / "saved"))
    parts["validation"].save_to_disk(str(here / "one"))
    return here


def test_hugging_face_data_from_disk(saved: Path) -> None:
    """The real library: splits by name, columns by type; a part that is not there is named with what there is."""
    expected, found = open_source("npz:tiny.npz"), open_source("hf:saved@validation")
    assert found.class_names == ("a", "b", "c")
    for part in ("train", "test"):
        assert same(found.read(part), expected.read(part))
    with pytest.raises(UserError, match=r"no split 'test' \(it has train, validation\): write hf:saved@SPLIT"):
        open_source("hf:saved")
    alone = open_source("hf:one")
    assert same(alone.read("test"), expected.read("test"))
    with pytest.raises(UserError, match="not trained on"):
        alone.read("train")


def test_torchvision_data(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for torchvision with the two signatures that its data sets have: `train=` and `split=`."""

    class Bars:
        classes = ("a", "b", "c")

        def __init__(self, root: str, train: bool = True, download: bool = False) -> None:
            assert (root, download) == ("elsewhere", True)
            self.x, self.targets = items("train" if train else "test")

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, place: int) -> tuple[Any, int]:
            return Image.fromarray(self.x[place]), int(self.targets[place])

    class Split(Bars):
        def __init__(self, root: str, split: str = "train") -> None:
            super().__init__(root, split == "train", True)

    top, module = ModuleType("torchvision"), ModuleType("torchvision.datasets")
    vars(module).update(Bars=Bars, Split=Split, __all__=("Bars", "Split"))
    monkeypatch.setitem(sys.modules, "torchvision", top)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)
    for name in ("torchvision:Bars", "torchvision:Split"):
        source = open_source(name, data_dir=Path("elsewhere"))
        assert source.class_names == ("a", "b", "c")
        for part in ("train", "test"):
            assert same(source.read(part), open_source("npz:tiny.npz").read(part))
    with pytest.raises(UserError, match="Did you mean 'Bars'"):
        open_source("torchvision:Barz")


def test_pictures_of_a_library_are_made_of_one_size(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By stand-ins for torchvision and datasets: as a folder of the same pictures; without a size a line says how."""
    kinds = [("RGB", (30, 10)), ("L", (9, 20)), ("RGBA", (4, 5)), ("P", (12, 12))] * 2
    shades = [Image.new(mode, size, 20 * k if mode == "L" else None) for k, (mode, size) in enumerate(kinds)]
    for k, image in enumerate(shades):
        file = here / "photos" / "test" / "ab"[k % 2] / f"{k}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
    rows: list[tuple[Any, int]] = [(shades[k], k % 2) for k in (0, 2, 4, 6, 1, 3, 5, 7)]  # in the order of the folder

    class Bars(list[tuple[Any, int]]):
        classes = ("a", "b")

        def __init__(self, root: str, train: bool = False) -> None:
            super().__init__(rows)

    class Column:
        names = ("a", "b")

    class Rows:
        def __init__(self) -> None:
            self.features = {"image": type("Image", (), {})(), "label": type("ClassLabel", (Column,), {})()}

        def select_columns(self, columns: list[str]) -> "Rows":
            assert columns == ["image", "label"]
            return self

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, place: int) -> dict[str, Any]:
            return dict(zip(("image", "label"), rows[place], strict=True))

    top, module, datasets = (ModuleType(name) for name in ("torchvision", "torchvision.datasets", "datasets"))
    vars(module).update(Bars=Bars, __all__=("Bars",))
    vars(datasets).update(__version__="4.1", load_dataset=lambda path, name: {"train": Rows(), "test": Rows()})
    for each in (top, module, datasets):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    expected = open_source("folder:photos", image_size=8).read("test")
    for name in ("torchvision:Bars", "hf:bars"):
        source = open_source(name, image_size=8)
        assert source.class_names == ("a", "b")
        assert same(source.read("test"), expected)
        assert source.notes() == []
        larger = open_source(name, image_size=9)
        larger.read("train")
        assert ["2 of 8 train images are enlarged" in line for line in larger.notes()] == [True]
        assert larger.notes("test") == []
        with pytest.raises(
            UserError, match=r"images must be of one size; .*: give image_size, as in --set image_size=64"
        ):
            open_source(name).read("test")
    rows[3] = (torch.zeros(3, 8, 8), 0)
    with pytest.raises(UserError, match=r"data 'torchvision:Bars': image_size is for PIL images, not Tensor\."):
        open_source("torchvision:Bars", image_size=8).read("test")


def test_real_torchvision_data() -> None:
    """Where it is installed: made-up images, which need no download."""
    pytest.importorskip("torchvision.datasets", exc_type=ImportError)
    source = open_source("torchvision:FakeData")
    assert source.num_classes == 10


def test_a_folder_that_is_called_as_a_library_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports a folder `torchvision/` of the user as a package without a file."""
    (tmp_path / "torchvision" / "datasets").mkdir(parents=True)
    for module in ("torchvision", "torchvision.datasets"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match=r"is a folder\): pip install 'worstclass\[torchvision\]'"):
        open_source("torchvision:MNIST")


@pytest.mark.parametrize(("name", "extra"), [("hf:mnist", "hf"), ("torchvision:MNIST", "torchvision")])
def test_a_library_that_is_missing_is_one_line(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("datasets", "torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'worstclass\[{extra}\]'"):
        open_source(name)
