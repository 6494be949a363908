"""What the console says of many classes: no more lines than of few, and none that a narrow terminal would cut."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from many_classes import EPOCHS, class_names, made_up
from worstclass.cli import console as console_module
from worstclass.cli import progress
from worstclass.cli.board import Board, Row
from worstclass.cli.console import fold, short
from worstclass.cli.watched import epoch_line
from worstclass.config.recipe import make_config
from worstclass.metrics.tail import worst_tenth
from worstclass.runs.run import open_run
from worstclass.sweep import Job

pytestmark = pytest.mark.fast


def last_line(folder: Path) -> dict[str, Any]:
    """The last of its log, as training hands it out."""
    line = open_run(folder).log[-1]
    line["valid"]["worst_tenth_robust_accuracy"] = worst_tenth(line["class_robust_accuracy"])
    return line


@pytest.mark.parametrize(("num_classes", "shown"), [(19, False), (20, True), (200, True)])
def test_an_epoch_has_the_worst_tenth(num_classes: int, shown: bool, tmp_path: Path) -> None:
    folder = made_up(tmp_path / "run", num_classes)
    line = last_line(folder)
    text = epoch_line(line, open_run(folder).config, class_names(num_classes))
    tenth = 100 * worst_tenth(line["class_robust_accuracy"])
    assert (f", worst tenth {tenth:.1f}" in text) == shown
    assert len(text) < 170


@pytest.mark.parametrize(
    ("select", "score", "words"),
    [
        ("worst-tenth", [0.271, 0.5], "smoothed worst tenth 27.1"),
        ("worst-accuracy", [0.1, 0.5], "smoothed worst 10.0"),
        ("average", [0.5], "smoothed average 50.0"),
        ("worst-loss", [-1.25], "smoothed worst loss 1.250"),
    ],
)
def test_an_epoch_has_the_smoothed_score(select: str, score: list[float], words: str, tmp_path: Path) -> None:
    line = last_line(made_up(tmp_path / "run", 43)) | {"selection_score": score}
    config = make_config({"select": select, "select_smoothing": 3, "epochs": EPOCHS})
    assert f"  {words}  " in epoch_line(line, config, class_names(43))


def test_a_narrow_terminal_breaks_between_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made_up(tmp_path / "run", 200, method="wat")
    names = [f"n{k:08d} a class with a name that is far too long for a line" for k in range(200)]
    line = epoch_line(last_line(folder), open_run(folder).config, names)
    narrow = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    for module in (console_module, progress):
        monkeypatch.setattr(module, "console", narrow)
    progress.Bars().epoch(line)
    assert isinstance(narrow.file, io.StringIO)
    lines = narrow.file.getvalue().splitlines()
    assert 1 < len(lines) <= 3
    assert all(len(each) <= 80 for each in lines)
    assert "  ".join(each.strip() for each in lines) == line.strip()


def test_folding_keeps_what_fits() -> None:
    line = "  3/40  loss 1.234  natural 93.8  kept"
    assert fold(line, 80) == line
    assert fold(line, 20) == "  3/40  loss 1.234\n    natural 93.8\n    kept"
    assert fold("x" * 30, 20) == "x" * 30  # nothing to break at
    assert short("ship") == "ship"
    assert short("n02124075 Egyptian cat, a") == "n02124075 …an cat, a"


@pytest.mark.parametrize(("num_classes", "numbers"), [(10, 2), (200, 3)])
def test_the_board_of_a_sweep_has_the_worst_tenth(num_classes: int, numbers: int, tmp_path: Path) -> None:
    folder = made_up(tmp_path / "run", num_classes)
    job = Job("run", folder, open_run(folder).config)
    row = Row(job, done=True)
    line = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    values = [line["valid"]["robust_accuracy"], line["valid"]["worst_robust_accuracy"]]
    values = [*values, worst_tenth(line["class_robust_accuracy"])][:numbers]
    assert row.valid == " / ".join(f"{100 * value:.1f}" for value in values)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    with Board([job], {job.name}, terminal):
        pass
    assert isinstance(terminal.file, io.StringIO)
    printed = terminal.file.getvalue()
    assert ("worst tenth" in printed.replace("\n", " ")) == (numbers == 3)
    assert all(len(each) <= 80 for each in printed.splitlines() if "│" in each)
