"""Which epoch is kept: the rules, and that the run keeps the epoch that they name."""

from pathlib import Path
from typing import Any

import pytest

from tiny import tiny_config, write_tiny_npz
from worstclass.config.differences import differing_keys
from worstclass.runs.run import open_run
from worstclass.runs.selection import selection_score
from worstclass.runs.train import train_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


def log_line(epoch: int, accuracy: list[float], costs: list[float]) -> dict[str, Any]:
    valid = {"robust_accuracy": sum(accuracy) / len(accuracy)}
    return {"epoch": epoch, "class_robust_accuracy": accuracy, "class_costs": costs, "valid": valid}


def test_selection_rules() -> None:
    line = log_line(5, [1.0, 0.5], [9.0, 1.0, 3.0])
    assert selection_score("worst-accuracy", [line]) == [0.5, 0.75]
    assert selection_score("worst-tenth", [line]) == [0.5, 0.75]
    assert selection_score("worst-loss", [line]) == [-3.0]
    assert selection_score("average", [line]) == [0.75]
    assert selection_score("average-and-worst", [line]) == [0.625]
    assert selection_score("last", [line]) == [5.0]
    many = log_line(5, [k / 32 for k in range(20)], [0.0] * 21)
    assert selection_score("worst-tenth", [many])[0] == 1 / 64  # the mean of 0 and 1/32


@pytest.mark.parametrize(("num_classes", "select"), [(3, "worst-accuracy"), (20, "worst-tenth")])
def test_the_worst_is_the_worst_tenth_of_many(num_classes: int, select: str, tmp_path: Path) -> None:
    """A run has in its recipe what the default meant for its data, and goes on with it."""
    data = write_tiny_npz(tmp_path / "tiny.npz", num_classes=num_classes)
    config = tiny_config(data, epochs=1)
    assert config.select == "worst"
    run = train_run(config, tmp_path / "run")
    assert open_run(run.folder).config.select == run.config.select == select
    assert differing_keys(run.config, config) == []
    assert differing_keys(run.config, config.model_copy(update={"select": "last"})) == ["select"]


def test_a_smoothed_score_is_that_of_the_mean() -> None:
    """The two classes take turns in being worst: on average neither is at nothing."""
    lines = [log_line(1, [1.0, 0.0], [0.0, 4.0, 0.0]), log_line(2, [0.0, 0.5], [0.0, 1.0, 3.0])]
    assert selection_score("worst-accuracy", lines) == [0.25, 0.375]
    assert selection_score("worst-loss", lines) == [-2.5]
    assert selection_score("average", lines) == [0.375]
    assert selection_score("average-and-worst", lines) == [0.3125]
    assert selection_score("last", lines) == [2.0]


@pytest.mark.parametrize(
    "select", ["worst-accuracy", "worst-tenth", "worst-loss", "average", "average-and-worst", "last"]
)
def test_the_selected_epoch_is_the_best_one(select: str, data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, select=select, epochs=4), tmp_path / "run")
    key = {"worst-accuracy": lambda line: (line["valid"]["worst_robust_accuracy"], line["valid"]["robust_accuracy"])}
    key["worst-tenth"] = key["worst-accuracy"]  # of three classes
    key["worst-loss"] = lambda line: -max(line["class_costs"][1:])
    key["average"] = lambda line: line["valid"]["robust_accuracy"]
    key["average-and-worst"] = lambda line: line["valid"]["robust_accuracy"] + line["valid"]["worst_robust_accuracy"]
    key["last"] = lambda line: line["epoch"]
    best = max(run.log, key=lambda line: key[select](line))["epoch"]
    _, epoch = run.load_model("selected")
    assert epoch == best


def test_the_selected_epoch_is_the_best_of_a_moving_average(data: Path, tmp_path: Path) -> None:
    """Of the epoch and the one before it; the log and the checkpoint have the score."""
    run = train_run(tiny_config(data, select="worst-tenth", select_smoothing=2, epochs=5), tmp_path / "run")
    scores = []
    for before, line in zip([None, *run.log], run.log, strict=False):
        lines = [each for each in (before, line) if each]
        classes = [each["class_robust_accuracy"] for each in lines]
        means = [sum(values) / len(lines) for values in zip(*classes, strict=True)]
        average = sum(each["valid"]["robust_accuracy"] for each in lines) / len(lines)
        scores.append((min(means), average))
        assert line["selection_score"] == pytest.approx(scores[-1])
    _, epoch = run.load_model("selected")
    assert scores[epoch - 1] == pytest.approx(max(scores))
    assert "selection_score" not in train_run(tiny_config(data, epochs=1), tmp_path / "plain").log[0]
