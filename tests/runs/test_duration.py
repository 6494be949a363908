"""How long a training will take is said before it begins, on a CPU."""

import re
from pathlib import Path
from typing import Any

import pytest

from tiny import tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.recipe import make_config, merge, to_toml
from worstclass.evaluation import run_notes
from worstclass.evaluation.run_notes import duration, step_note, time_note
from worstclass.runs import duration as estimate
from worstclass.runs.duration import expected_seconds
from worstclass.runs.run import Run

pytestmark = pytest.mark.fast

ABOUT = {"num_classes": 3, "in_channels": 3, "image_size": [32, 32], "train_images": 1000, "valid_images": 100}


def run_of(folder: Path, **settings: Any) -> Run:
    values = {"epochs": 10, "model": "resnet18"} | settings
    return Run(folder, make_config(values), ABOUT)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that takes a second for an image, a hundredth for one of the small network."""
    monkeypatch.setattr(estimate, "_seconds_a_pass", lambda config, about: 0.01 if config.model == "small-cnn" else 1.0)


@pytest.mark.usefixtures("slow")
def test_it_counts_forward_passes(tmp_path: Path) -> None:
    """An image: clean, ten steps forward and back, both batches of TRADES with their backward: 27; 42 to validate."""
    assert expected_seconds(run_of(tmp_path)) == 10 * (27 * 1000 + 42 * 100)
    assert expected_seconds(run_of(tmp_path), done=4) == 6 * (27 * 1000 + 42 * 100)
    assert expected_seconds(run_of(tmp_path, valid_every=2)) == 10 * (27 * 1000 + 42 * 50)
    assert expected_seconds(run_of(tmp_path, method="natural")) == 10 * (3 * 1000 + 42 * 100)
    assert expected_seconds(run_of(tmp_path, method="guarded", base_start=0.7)) == 13 * (27 * 1000 + 42 * 100)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epochs": 100}, ""),  # 7 steps an epoch; 104 of 1000 images left out
        ({"epochs": 40}, "280 steps of 128 images in all, and leaves 104 of 1000 images out .*try --set batch_size=64"),
        ({"epochs": 100, "batch_size": 600}, "100 steps of 600 images .* leaves 400 of 1000 .*batch_size=64"),
        ({"epochs": 400, "batch_size": 600}, "400 steps of 600 images .* leaves 400 of 1000 .*batch_size=64"),
        ({"epochs": 1, "batch_size": 8}, "125 steps of 8 images in all: try more epochs"),
    ],
)
def test_few_steps_are_told(settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    found = step_note(run_of(tmp_path, **settings))
    assert len(found) == bool(told)
    assert re.search(told, "".join(found))


@pytest.mark.usefixtures("slow")
def test_only_a_long_training_is_told(tmp_path: Path) -> None:
    (line,) = time_note(run_of(tmp_path))
    assert line.startswith("on this CPU the training takes about 4 days, with --set model=small-cnn about 52 minutes;")
    assert time_note(run_of(tmp_path, model="small-cnn")) == []
    (line,) = time_note(run_of(tmp_path, model="small-cnn", epochs=100))
    assert "about 9 hours; a GPU" in line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 minute"), (3600, "60 minutes"), (5300, "88 minutes"), (7200, "2 hours"), (2e5, "2 days")],
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_train_says_it_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that passes really take here."""
    monkeypatch.setattr(run_notes, "LONG", 0.0)
    data = write_tiny_npz(tmp_path / "tiny.npz")
    (tmp_path / "a.toml").write_text(to_toml(make_config(merge(tiny_config(data).recipe(), {"epochs": 1}))))
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    cli.app(["train", str(tmp_path / "a.toml"), *out], standalone_mode=False)
    assert capsys.readouterr().out.startswith("Note: on this CPU the training takes about 1 minute")
