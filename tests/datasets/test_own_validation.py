"""Data that bring validation images of their own: these are validated on, and none are taken out of training."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photos import PHOTOS, RED, colours, one_line, write
from tiny import tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, merge
from worstclass.data import Source, open_source
from worstclass.evaluation.run_notes import start_notes
from worstclass.runs.run import open_run, split, training_images, valid_images
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
    images = training_images(config_of(source.name), source)
    return [colours(part.x.numpy()) for part in split(config_of(source.name), source, images)]


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


def test_the_same_images_in_a_file(parts: Path, tmp_path: Path) -> None:
    source = open_source(f"folder:{parts}")
    images, own = source.read("train"), source.validation()
    assert own is not None
    x, y = images.x.numpy(), images.y.numpy()
    arrays = {"x_train": x[~own], "y_train": y[~own], "x_valid": x[own], "y_valid": y[own], "layout": np.array("NCHW")}
    np.savez(tmp_path / "own.npz", **arrays)
    assert split_of(open_source(f"npz:{tmp_path / 'own.npz'}")) == split_of(source)
    np.savez(tmp_path / "wide.npz", **(arrays | {"x_valid": x[own][..., :3]}))
    wide = open_source(f"npz:{tmp_path / 'wide.npz'}")
    assert "training images are (3, 4, 5), validation images (3, 4, 3)" in one_line(lambda: wide.read("train"))
    np.savez(tmp_path / "flat.npz", **(arrays | {"x_valid": np.uint8(3)}))
    flat = open_source(f"npz:{tmp_path / 'flat.npz'}")
    assert "must be images" in one_line(flat.validation)


def test_a_split_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("datasets.features")  # the folder of these tests is called datasets too
    datasets = importlib.import_module("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    saved = {}
    for number, part in enumerate(("train", "validation", "test")):
        pictures = [Image.new("RGB", (8, 8), (20 * number, i, 0)) for i in range(9)]
        rows = {"image": pictures, "label": [i % 3 for i in range(9)]}
        saved[part] = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(saved).save_to_disk(str(tmp_path / "saved"))
    train, valid = split_of(open_source(f"hf:{tmp_path / 'saved'}"))
    assert (train, valid) == ([(0, i, 0) for i in range(9)], [(20, i, 0) for i in range(9)])
    tested = open_source(f"hf:{tmp_path / 'saved'}@validation")  # then it is not there to validate on
    assert tested.validation() is None
    assert len(tested.read("train")) == 9


def test_a_class_without_validation_images_is_named(parts: Path) -> None:
    for file in parts.glob("[vV]*/bee/*"):
        file.unlink()
    source = open_source(f"folder:{parts}")
    assert "'bee' has no validation image" in one_line(lambda: split_of(source))


def test_classes_that_training_does_not_have_are_refused(parts: Path) -> None:
    (folder,) = parts.glob("[vV]*")
    write(folder, {"dog/1.png": RED})
    source = open_source(f"folder:{parts}")
    assert one_line(lambda: source.read("train")) == f"{folder} has classes that train/ has not: dog."


def test_two_folders_of_validation_images_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path, {f"{part}/{name}": RED for part in ("train", "val", "valid") for name in PHOTOS})
    assert "valid/" in one_line(lambda: open_source(data))


def test_a_long_tail_is_not_made_of_them(parts: Path) -> None:
    source = open_source(f"folder:{parts}")
    config = config_of(f"folder:{parts}", imbalance=2)
    assert one_line(lambda: training_images(config, source)).startswith("imbalance is for data without validation")


def test_other_data_have_none(tmp_path: Path) -> None:
    for name in ("fashion-mini", f"npz:{write_tiny_npz(tmp_path / 'tiny.npz')}"):
        assert open_source(name).validation() is None


def test_the_mask_is_that_of_the_images(parts: Path) -> None:
    source = open_source(f"folder:{parts}")
    own = source.validation()
    assert own is not None
    assert (own.shape, own.dtype, int(own.sum())) == ((51,), torch.bool, 15)
