"""`worstclass audit`: a file with a factory is enough; a gate exits with 1 and names the class, wrong use with 2."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from robust_cnn import WEIGHTS, load_cnn
from tiny import tiny_run, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.evaluation.saved import CARD, OUTCOMES

FACTORIES = f"""
import torch
from safetensors.torch import load_file
from worstclass.models import SmallCNN

def loaded():
    model = SmallCNN(3, 1)
    model.load_state_dict(load_file({str(WEIGHTS / "tiny_cnn.safetensors")!r}))
    return model

def build(num_classes, in_channels):
    return SmallCNN(num_classes, in_channels)

def soft():
    return torch.nn.Sequential(loaded(), torch.nn.Softmax(1))

def small():
    return SmallCNN(2, 1)
"""
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    write_tiny_npz(folder / "tiny.npz")
    (folder / "nets").mkdir()
    (folder / "nets" / "theirs.py").write_text(FACTORIES)
    save_file(dict(load_cnn("tiny_cnn", 3).state_dict()), folder / "w.safetensors")
    return folder


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`worstclass audit` in this process, in a folder with a file of factories and data."""
    monkeypatch.chdir(folder)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["worstclass", "audit", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, printed.out, printed.err

    return run


DATA = ("--data", "npz:tiny.npz", "--eps", "0.05", "--attacks", "pgd-5")


def card(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / CARD).read_text())
    return read


def test_a_factory_in_a_file_with_weights_of_its_own_or_given(command: Command, tmp_path: Path) -> None:
    code, out, err = command("nets/theirs.py:loaded", *DATA, "--out", tmp_path / "own", "--limit", 30)
    assert (code, err) == (0, "")
    assert "nets/theirs.py:loaded on npz:tiny.npz: L-inf radius 0.05, 30 images, 3 classes" in out
    assert "Weakest class under PGD-5: row " in out
    assert {CARD, OUTCOMES} <= {path.name for path in (tmp_path / "own").iterdir()}
    words = ("--weights", "w.safetensors", "--out", tmp_path / "given", "--limit", 30)
    assert command("nets/theirs.py:build", *DATA, *words)[0] == 0
    assert card(tmp_path / "own")["columns"] == card(tmp_path / "given")["columns"]
    assert card(tmp_path / "own")["about"]["weights"] == card(tmp_path / "given")["about"]["weights"]


def test_what_the_preflight_refuses_is_not_attacked(command: Command, tmp_path: Path) -> None:
    code, out, err = command("nets/theirs.py:soft", *DATA, "--out", tmp_path / "soft")
    assert (code, out) == (2, "")
    assert err.startswith("error: outputs are probabilities. Return logits:")
    assert not (tmp_path / "soft").exists()
    code, _, err = command("nets/theirs.py:small", *DATA)
    assert code == 2
    assert "model 'nets/theirs.py:small' must return logits (B, 3), not (2, 2)" in err


def test_a_model_in_place_of_its_factory_is_told(command: Command, folder: Path) -> None:
    (folder / "nets" / "made.py").write_text("import torch\nmodel = torch.nn.Linear(2, 3)\n")
    code, _, err = command("nets/made.py:model", *DATA)
    assert code == 2
    assert "'nets/made.py:model' is a model, not a function that returns one" in err


def test_data_of_a_test_part_alone(command: Command, folder: Path) -> None:
    """Whose labels count from 0, or from 1: that is said."""
    with np.load(folder / "tiny.npz") as archive:
        x, y = archive["x_test"], archive["y_test"]
    for first in (0, 1):
        np.savez(folder / f"test{first}.npz", x_test=x, y_test=y + first)
    given = ("nets/theirs.py:loaded", "--eps", "0.05", "--attacks", "natural", "--data")
    code, out, _ = command(*given, "npz:test0.npz")
    assert (code, "60 images, 3 classes" in out) == (0, True)
    code, _, err = command(*given, "npz:test1.npz")
    assert (code, err.strip()) == (2, "error: labels lie in 1..3, expected 0..2: the model has 3 logits.")


def test_a_gate_fails_with_1_and_names_the_class(command: Command, tmp_path: Path) -> None:
    words = ("nets/theirs.py:loaded", *DATA, "--no-checks", "--out", tmp_path / "out")
    code, out, err = command(*words, "--fail-if", "worst < 100%", "--fail-if", "natural-average > 0")
    worst = card(tmp_path / "out")["columns"]["pgd-5"]["worst"]
    assert code == 1
    assert "Weakest class" in out
    assert [line.startswith("failed: ") for line in err.splitlines()] == [True, True]
    assert f"worst < 100%: the weakest class is {worst['class']}, {100 * worst['value']:.1f}% [" in err
    assert "natural-average > 0: average is " in err
    code, out, err = command(*words, "--fail-if", "worst < 0", "--fail-if", "average.low > 1")
    assert (code, err) == (0, "")
    assert "Passed: worst < 0; average.low > 1 is not true under pgd-5." in out
    assert command(*words, "--fail-if", "wurst < 0.3")[0] == 2


def test_mean_std_and_a_page(command: Command, tmp_path: Path) -> None:
    words = ("--mean", "0.0", "--std", "1.0", "--no-checks", "--report", tmp_path / "page" / "index.html")
    code, out, _ = command("nets/theirs.py:loaded", *DATA, *words)
    assert code == 0
    assert f"Report: {tmp_path / 'page' / 'index.html'}" in out
    assert (tmp_path / "page" / "classwise-pgd-5.svg").is_file()


def test_a_run_is_audited_with_its_own_data(command: Command, tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    code, out, err = command(run.folder, "--attacks", "fgsm", "--limit", 12, "--no-checks", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "12 images" in out
    assert card(tmp_path / "out")["about"]["recipe"]["method"] == "trades"
    code, _, err = command(run.folder, "--attacks", "fgsm", "--eps", "8/255")
    assert code == 2
    assert "--eps is for a model of your own" in err
