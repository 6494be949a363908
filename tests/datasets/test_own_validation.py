"""Data that bring validation images of their own: these are validated on, and none are taken out of training."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photos import PHOTOS, RED, colours, one_line, write
from tiny import tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.differences import differing_keys
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, merge
from worstclass.data import Source, open_source
from worstclass.evaluation.run_notes import start_notes
from worstclass.inputs.names import RECIPE
from worstclass.runs.run import learned_images, open_run, valid_images
from worstclass.runs.saver import ABOUT, recipe_digest
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast


@pytest.fixture(params=["validation", "valid", "val", "Val"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Twelve images a class in train/, five in val/, three in test/, each of another colour."""
    folders = [*["train"] * 12, *[request.param] * 5, *["test"] * 3]
    files = sorted(PHOTOS)
    write(tmp_path / "data", {f"{folders[i % 20]}/{name}": PHOTOS[name] for i, name in enumerate(files)})
    return tmp_path / "data"


def config_of(data: str, **settings: Any) -> Config:
    values = {"data": data, "epochs": 1, "method": "guarded"} | settings
    return make_config(merge(tiny_config(Path("tiny.npz")).recipe(), values))


def split_of(source: Source) -> list[list[tuple[int, ...]]]:
    learned = learned_images(config_of(source.name), source)
    return [colours(part.x.numpy()) for part in (learned.train, learned.valid)]


def test_a_folder_of_validation_images_is_the_validation_part(parts: Path, tmp_path: Path) -> None:
    source = open_source(f"folder:{parts}")
    train, valid = split_of(source)
    assert train == [PHOTOS[name] for i, name in enumerate(sorted(PHOTOS)) if i % 20 < 12]
    assert valid == [PHOTOS[name] for i, name in enumerate(sorted(PHOTOS)) if 12 <= i % 20 < 17]
    assert source.notes() == []
    run = train_run(config_of(f"folder:{parts}", valid_fraction=0.5), tmp_path / "run")
    assert run.about["class_counts"] == {"train": [12] * 3, "valid": [5] * 3}
    assert colours(valid_images(open_run(run.folder), source).x.numpy()) == valid
    told = start_notes(run)
    assert told[0] == "the 15 validation images are the data's own: none are taken out of training."
    assert not any("valid_min" in line for line in told)


def test_the_command_counts_them(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["data", f"folder:{parts}"], standalone_mode=False)
    printed = " ".join(capsys.readouterr().out.split())
    assert "the 15 validation images are the data's own" in printed
    assert "│ ant │ 12 │ 5 │" in printed


@pytest.mark.parametrize("name", ["valid", "val", "validation"])
def test_the_same_images_in_a_file(parts: Path, name: str, tmp_path: Path) -> None:
    source = open_source(f"folder:{parts}")
    arrays: dict[str, Any] = {"layout": np.array("NCHW")}
    for called, part in (("train", source.read("train")), (name, source.read("validation"))):
        arrays |= {f"x_{called}": part.x.numpy(), f"y_{called}": part.y.numpy()}
    np.savez(tmp_path / "own.npz", **arrays)
    own = f"npz:{tmp_path / 'own.npz'}"
    assert split_of(open_source(own)) == split_of(source)
    before = learned_images(config_of(own), open_source(own))
    for letter in "xy":  # the same images in the same order: another border is another data set
        whole = np.concatenate((arrays[f"{letter}_train"], arrays[f"{letter}_{name}"]))
        arrays[f"{letter}_train"], arrays[f"{letter}_{name}"] = whole[:33], whole[33:]
    np.savez(tmp_path / "own.npz", **arrays)
    after = learned_images(config_of(own), open_source(own))
    assert torch.equal(after.images.x, before.images.x)
    assert after.digest != before.digest
    np.savez(tmp_path / "own.npz", **(arrays | {f"x_{name}": arrays[f"x_{name}"][..., :3]}))
    told = one_line(lambda: learned_images(config_of(own), open_source(own)))
    assert "training images are (3, 4, 5), validation images (3, 4, 3)" in told
    np.savez(tmp_path / "own.npz", **(arrays | {f"x_{name}": np.uint8(3)}))
    assert one_line(lambda: learned_images(config_of(own), open_source(own)))


def splits_of(datasets: Any, called: str) -> dict[str, Any]:
    """Nine images of three classes in each of three splits, of another colour in each."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    found = {}
    for number, part in enumerate(("train", called, "test")):
        pictures = [Image.new("RGB", (8, 8), (20 * number, i, 0)) for i in range(9)]
        rows = {"image": pictures, "label": [i % 3 for i in range(9)]}
        found[part] = datasets.Dataset.from_dict(rows, features=features)
    return found


def check_splits(name: str, called: str) -> None:
    train, valid = split_of(open_source(name))
    assert (train, valid) == ([(0, i, 0) for i in range(9)], [(20, i, 0) for i in range(9)])
    tested = open_source(f"{name}@{called}")  # then it is not there to validate on
    assert not tested.has_validation
    assert len(tested.read("train")) == 9
    assert tested.notes("train") == [f"data '{name}@{called}' also has test, not read."]


def test_a_split_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("datasets.features")  # the folder of these tests is called datasets too
    datasets = importlib.import_module("datasets")
    datasets.DatasetDict(splits_of(datasets, "validation")).save_to_disk(str(tmp_path / "saved"))
    check_splits(f"hf:{tmp_path / 'saved'}", "validation")


class Rows:
    """A table as the library has it, of columns in memory."""

    def __init__(self, columns: Mapping[str, list[Any]], features: Any) -> None:
        self.columns, self.features = columns, features

    @classmethod
    def from_dict(cls, columns: Mapping[str, list[Any]], features: Any) -> "Rows":
        return cls(columns, features)

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, key: Any) -> Any:
        return self.columns[key] if isinstance(key, str) else {name: its[key] for name, its in self.columns.items()}

    def select_columns(self, names: list[str]) -> "Rows":
        return Rows({name: self.columns[name] for name in names}, self.features)


@pytest.mark.parametrize("called", ["validation", "valid", "val"])
def test_a_split_of_a_stand_in(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is no part of the tests' environment; this is what is asked of it."""
    image, label = type("Image", (), {}), type("ClassLabel", (SimpleNamespace,), {})
    library = SimpleNamespace(__version__="4.0.0", Features=dict, Image=image, ClassLabel=label, Dataset=Rows)
    saved = splits_of(library, called)
    library.load_dataset = lambda path, configuration: saved
    monkeypatch.setattr("worstclass.data.libraries.need", lambda *names: library)
    check_splits("hf:their/images", called)
    saved[called].columns["label"][:] = [0] * 9
    assert "'b' has no validation image" in one_line(lambda: split_of(open_source("hf:their/images")))
    saved[called].columns["label"][:] = [-1] * 9
    told = one_line(lambda: split_of(open_source("hf:their/images")))
    assert told.startswith("the validation images of data 'hf:their/images': labels lie in -1..-1")


def test_a_class_without_validation_images_is_named_and_can_be_left_to_training(parts: Path, tmp_path: Path) -> None:
    for file in parts.glob("[vV]*/bee/*"):
        file.unlink()
    data = f"folder:{parts}"
    told = one_line(lambda: split_of(open_source(data)))
    assert "'bee' has no validation image" in told
    assert 'give validation = "held-out"' in told
    run = train_run(config_of(data, validation="held-out"), tmp_path / "run")
    assert sum(map(sum, run.about["class_counts"].values())) == 36
    assert not run.about["own_validation"]


def test_classes_that_training_does_not_have_are_refused(parts: Path) -> None:
    (folder,) = parts.glob("[vV]*")
    write(folder, {"dog/1.png": RED})
    told = one_line(lambda: split_of(open_source(f"folder:{parts}")))
    assert f"{folder} has classes that train/ has not: dog." in told


def test_two_folders_of_validation_images_are_refused_in_training(tmp_path: Path) -> None:
    data = write(tmp_path, {f"{part}/{name}": RED for part in ("train", "val", "valid", "test") for name in PHOTOS})
    assert len(open_source(data).read("test")) == 60
    assert "which are the validation images?" in one_line(lambda: split_of(open_source(data)))


def test_a_long_tail_is_not_made_of_them(parts: Path) -> None:
    source = open_source(f"folder:{parts}")
    config = config_of(f"folder:{parts}", imbalance=2)
    assert one_line(lambda: learned_images(config, source)).startswith(
        "imbalance is for validation images that are held"
    )


def test_other_data_have_none(tmp_path: Path) -> None:
    file = write_tiny_npz(tmp_path / "tiny.npz")
    for name in ("fashion-mini", f"npz:{file}"):
        assert not open_source(name).has_validation
    own, held_out = (config_of(f"npz:{file}", validation=each) for each in ("own", "held-out"))
    assert differing_keys(own, held_out) == []  # the same images: a run from before says "held-out"


def test_a_run_from_before_goes_on_as_it_began(parts: Path, tmp_path: Path) -> None:
    """Its recipe has no word of it: validation images were held out, and val/ was not read."""
    run = train_run(config_of(f"folder:{parts}", validation="held-out"), tmp_path / "run")
    recipe = (run.folder / RECIPE).read_text()
    (run.folder / RECIPE).write_text("".join(line for line in recipe.splitlines(True) if "validation =" not in line))
    about = json.loads((run.folder / ABOUT).read_text())
    about["recipe_digest"] = recipe_digest((run.folder / RECIPE).read_bytes())
    (run.folder / ABOUT).write_text(json.dumps(about))
    old = open_run(run.folder)
    assert old.config == run.config
    assert len(valid_images(old, open_source(f"folder:{parts}"))) == run.about["valid_images"]
    train_run(old.config, run.folder, resume=True)


def test_a_start_that_was_trained_on_validation_images_is_refused(tmp_path: Path) -> None:
    """Images are moved out of train/ to make a val/, and a run from before starts the next one."""
    write(tmp_path / "data", {f"{part}/{name}": PHOTOS[name] for part in ("train", "test") for name in PHOTOS})
    data = f"folder:{tmp_path / 'data'}"
    first = train_run(config_of(data), tmp_path / "first")
    for file in (tmp_path / "data/train").glob("*/0[0-4].png"):
        moved = tmp_path / "data/val" / file.relative_to(tmp_path / "data/train")
        moved.parent.mkdir(parents=True, exist_ok=True)
        file.rename(moved)
    config = config_of(data, init=str(first.folder))
    told = one_line(lambda: train_run(config, tmp_path / "second"))
    assert told == f"{first.folder} was trained on 15 of the 15 validation images: start anew, or from another run."
    clean = train_run(config_of(data), tmp_path / "clean")
    train_run(config_of(data, init=str(clean.folder), valid_fraction=0.4), tmp_path / "third")
