"""Runs and audits on folders of photos."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from photos import GOLD, PHOTOS, RED, colours, noise, one_line, share, write
from tiny import tiny_config
from worstclass.auditing.audit import audit
from worstclass.auditing.data import read_data
from worstclass.cli import main as cli
from worstclass.config.differences import differing_keys
from worstclass.config.keys import Config
from worstclass.config.recipe import load_config, make_config, merge, read_recipe, to_toml
from worstclass.data import open_source
from worstclass.errors import UserError
from worstclass.evaluation import run_notes
from worstclass.evaluation.targets import evaluate_target, model_target, run_target
from worstclass.export import export_run
from worstclass.integrations.epoch_audit import EpochAudit
from worstclass.runs.adjust import adjust_run
from worstclass.runs.run import Run, open_run, valid_images
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast


def photo_config(photos: Path, **settings: Any) -> Config:
    values = {"image_size": 8, "test_fraction": 0.25, "epochs": 1, "method": "trades"} | settings
    return make_config(merge(tiny_config(photos).recipe(), {"data": f"folder:{photos}"} | values))


@pytest.fixture
def run(photos: Path, tmp_path: Path) -> Run:
    return train_run(photo_config(photos), tmp_path / "run")


def test_a_run_reads_the_same_images_again(run: Run, photos: Path, tmp_path: Path) -> None:
    """Training, evaluation, adjustment and resuming; of the test part training sees nothing."""
    stored = read_recipe(str(run.folder / "recipe.toml"))
    assert (stored["image_size"], stored["test_fraction"]) == (8, 0.25)
    again = open_run(run.folder)
    source = open_source(f"folder:{photos}", image_size=8, test_fraction=0.25)
    target, trained = run_target(again), source.read("train")
    assert torch.equal(target.images.x, source.read("test").x)
    assert run.about["train_images"] + run.about["valid_images"] == len(trained) == 60 - len(target.images)
    assert not {*colours(target.images.x.numpy())} & {*colours(trained.x.numpy())}
    assert len(valid_images(again, source)) == run.about["valid_images"]
    card = evaluate_target(target, ["pgd-1"], run.folder)
    assert card["about"]["recipe"]["image_size"] == 8
    assert adjust_run(again, tmp_path / "adjusted").config.test_fraction == 0.25
    train_run(again.config, run.folder, resume=True)
    write(photos, {"bee/more.png": GOLD})
    with pytest.raises(UserError, match="was trained on other data than this; nothing was changed"):
        train_run(again.config, run.folder, resume=True)


def test_runs_that_read_differently_are_told_apart(run: Run, photos: Path, tmp_path: Path) -> None:
    other = photo_config(photos, image_size=12, test_fraction=0.4)
    assert differing_keys(run.config, other) == ["image_size", "test_fraction"]
    text = one_line(lambda: train_run(photo_config(photos, test_fraction=0.1, init=str(run.folder)), tmp_path / "a"))
    assert text.endswith("test_fraction = 0.25, this run has 0.1: it would be tested on images that were trained on.")
    changed = photo_config(photos, image_size=12, valid_fraction=0.1, init=str(run.folder))
    text = one_line(lambda: train_run(changed, tmp_path / "b"))
    assert text.endswith("it would be validated on images that were trained on.")
    larger = train_run(photo_config(photos, image_size=12, init=str(run.folder)), tmp_path / "c")
    assert larger.about["image_size"] == [12, 12]


def test_the_keys_belong_to_data_that_have_such_images() -> None:
    for values, line in (
        (
            {"image_size": 32},
            "image_size belongs to data 'folder:PATH', 'hf:NAME' or 'torchvision:NAME'; the data here is 'cifar10'.",
        ),
        (
            {"data": "hf:mnist", "test_fraction": 0.2},
            "test_fraction belongs to data 'folder:PATH'; the data here is 'hf:mnist'.",
        ),
        (
            {"data": "mine.py:images", "image_size": 32},
            "image_size belongs to data 'folder:PATH', 'hf:NAME' or 'torchvision:NAME'; "
            "the data here is 'mine.py:images'.",
        ),
    ):
        assert one_line(lambda given=values: make_config(given)) == line  # type: ignore[misc]
    for data in ("folder:photos", "hf:mnist", "torchvision:MNIST"):
        assert make_config({"data": data, "image_size": 32}).image_size == 32
    config = load_config("my-images", image_size=64, test_fraction="1/5")
    assert (config.image_size, config.test_fraction) == (64, 0.2)
    assert load_config("my-images", image_size="none").image_size is None
    assert one_line(lambda: open_source("fashion-mini", image_size=32)) == (
        "image_size is for folder:PATH, hf:NAME, torchvision:NAME, not for data 'fashion-mini'."
    )


def test_a_setting_of_other_data_leaves_them_out(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('data = "folder:photos"\nimage_size = 64\ntest_fraction = 0.2')
    config = load_config(str(tmp_path / "mine.toml"), data="hf:mnist")
    assert (config.image_size, config.test_fraction) == (64, None)
    assert load_config(str(tmp_path / "mine.toml"), data="cifar10").image_size is None


@pytest.mark.parametrize(("size", "times"), [(64, None), (65, 4), (224, 49)])
def test_train_says_what_large_images_cost(size: int, times: int | None, tmp_path: Path) -> None:
    for data in ("folder:photos", "npz:photos.npz"):
        lines = run_notes.cost_note(Run(tmp_path, make_config({"data": data}), {"image_size": [size, size]}))
        assert len(lines) == (times is not None)
        for line in lines:
            assert line.startswith(f"images of {size} x {size} pixels: a step takes about {times} times as long")
            assert ("image_size = 64" in line) == data.startswith("folder")


def test_train_prints_it(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_notes, "LARGE", 7)
    (tmp_path / "a.toml").write_text(to_toml(photo_config(photos, method="natural")))
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    cli.app(["train", str(tmp_path / "a.toml"), *out], standalone_mode=False)
    printed = capsys.readouterr().out
    assert printed.count("Note: images of 8 x 8 pixels") == printed.count("images of 8 x 8 pixels") == 1


def test_an_evaluation_says_that_images_may_have_changed_their_part(run: Run, photos: Path) -> None:
    """By name alone: the run was trained on the image, and would be tested on it."""
    assert run_target(run).notes == ()
    trained = next(name for name in PHOTOS if name.startswith("bee/") and share(name) >= 0.25)
    renamed = next(name for i in range(99) if share(name := f"bee/new{i}.png") < 0.25)
    (photos / trained).rename(photos / renamed)
    target = run_target(run)
    assert PHOTOS[trained] in colours(target.images.x.numpy())
    (line,) = target.notes
    assert line.endswith("a training image that was renamed since may be a test image now.")
    unreadable = next(name for name in PHOTOS if name.startswith("cat/") and share(name) >= 0.25)
    (photos / unreadable).write_bytes(b"")
    assert run_target(run).notes == (line,)  # the test images are still there


def test_a_model_card_says_how_photos_became_images(run: Run, tmp_path: Path) -> None:
    """Who uses the network elsewhere has to do the same."""
    export_run(run, tmp_path / "out", to="safetensors")
    text = (tmp_path / "out" / "README.md").read_text()
    assert (
        "Trained on images of 3 x 8 x 8 (C x H x W), made of images of any size: turned as EXIF says, cropped" in text
    )


def test_train_says_what_is_left_out_and_what_is_enlarged(photos: Path, tmp_path: Path) -> None:
    """Not `worstclass data` alone: who skips it would lose a nested folder without a word."""
    write(photos, {"ant/nested/1.png": RED})
    (photos / "bee" / "1.heic").write_bytes(b"")
    run = train_run(photo_config(photos), tmp_path / "run")
    left_out = run_notes.start_notes(open_run(run.folder))[0]
    assert left_out.startswith(f"2 files or folders in the class folders of {photos} are no images of a known kind")
    assert left_out.endswith("and are left out: ant/nested/, bee/1.heic.")
    run = train_run(photo_config(photos, image_size=16), tmp_path / "large")
    enlarged = run_notes.start_notes(run)[1]
    assert re.match(r"(\d+) of \1 train images are enlarged more than 2 times, to 16 pixels", enlarged)


# --- a model of one's own on them ---


def test_an_audit_takes_a_size(photos: Path) -> None:
    data = f"folder:{photos}"
    found = read_data(data, image_size=6)
    assert found.images.x.shape == (60, 3, 6, 6)
    assert [note.partition(": ")[2][:18] for note in found.notes] == ["all of its images "]
    assert "resize the images of a Dataset" in one_line(lambda: read_data(found.images, image_size=6))
    target = model_target("small-cnn", weights=None, data=data, eps=0.1, image_size=6)
    assert target.about["image_size"] == 6
    assert target.images.x.shape == (60, 3, 6, 6)


def test_an_audit_takes_the_test_images_of_a_run(run: Run, photos: Path) -> None:
    """Elsewhere a network knows nothing of the run that trained it: by the same keys no training image is tested on."""
    data = f"folder:{photos}"
    keys: dict[str, Any] = {"image_size": 8, "test_fraction": 0.25}
    model, tested = run.load_model()[0], run_target(run)
    found = read_data(data, **keys)
    assert torch.equal(found.images.x, tested.images.x)
    assert not found.notes
    target = model_target("small-cnn", weights=None, data=data, eps=0.1, **keys)
    assert target.about.items() >= {**keys, "images": tested.about["images"]}.items()
    result = audit(model, data, attacks="natural", checks=False, on_note=lambda line: None, **keys)
    assert result.card["about"].items() >= {**keys, "images": tested.about["images"]}.items()
    look = EpochAudit(data, attacks="natural", **keys)(model, 1)
    assert look is not None
    assert look.card["about"]["images"] == tested.about["images"]
    assert "test_fraction is for data by name" in one_line(lambda: read_data(found.images, test_fraction=0.25))


def test_the_commands_take_a_size(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 36, 3))\n"
    )
    write(photos, {"ant/wide.png": noise(4, 30, 3)})
    words = [f"{tmp_path / 'net.py'}:make", "--data", f"folder:{photos}", "--device", "cpu", "--attacks", "natural"]
    text = one_line(lambda: cli.app(["audit", *words, "--no-checks"], standalone_mode=False))
    assert text.endswith("give --image-size 64.")
    size = ["--image-size", "6"]
    cli.app(["audit", *words, "--no-checks", *size], standalone_mode=False)
    assert "61 images" in capsys.readouterr().out
    assert "belongs to" not in one_line(lambda: cli.app(["audit", str(photos), *size], standalone_mode=False))
    tested = len(open_source(f"folder:{photos}", image_size=6, test_fraction=0.25).read("test"))
    parts = [*size, "--test-fraction", "0.25"]
    cli.app(["audit", *words, "--no-checks", *parts], standalone_mode=False)
    assert f"{tested} images" in capsys.readouterr().out
    save_file({"1.weight": torch.zeros(3, 108), "1.bias": torch.zeros(3)}, tmp_path / "net.safetensors")
    own = ["--weights", str(tmp_path / "net.safetensors"), "--eps", "8/255", "--out", str(tmp_path / "own")]
    cli.app(["evaluate", *words, *own, *parts], standalone_mode=False)
    assert '"test_fraction": 0.25' in (tmp_path / "own" / "card.json").read_text()
    cli.app(["data", f"folder:{photos}", *size, "--test-fraction", "0.2"], standalone_mode=False)
    assert "Validation" in capsys.readouterr().out
