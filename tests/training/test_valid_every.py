"""Validation after some epochs only: what is kept, what strategies are given, and what the log says."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tiny import tiny_config, write_tiny_npz
from worstclass.cli.watched import epoch_line
from worstclass.integrations.trackers import epoch_scalars
from worstclass.runs.notes import training_notes
from worstclass.runs.saver import LAST, SELECTED
from worstclass.runs.selection import is_validated
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork
from worstclass.stats import ClassStats
from worstclass.strategies import WAT
from worstclass.training.checkpoint import load_tensors, section

NUMBERS = ("valid", "class_costs", "class_natural_accuracy", "class_robust_accuracy")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("seldom") / "tiny.npz")


@pytest.mark.parametrize("select", ["worst-accuracy", "last"])
def test_the_epochs_between_repeat_the_last_validation_and_are_never_kept(
    select: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Tensor] = []
    update = WAT.update

    def watched(self: WAT, train: ClassStats, valid: ClassStats) -> None:
        given.append(valid.table.clone())
        update(self, train, valid)

    monkeypatch.setattr(WAT, "update", watched)
    run = train_run(tiny_config(data, epochs=7, valid_every=3, select=select), tmp_path / "run")
    log = run.log
    assert [line.get("valid_epoch", line["epoch"]) for line in log] == [1, 1, 3, 3, 3, 6, 7]
    for line in log:
        its = log[line.get("valid_epoch", line["epoch"]) - 1]
        assert all(line[key] == its[key] for key in NUMBERS)
        assert given[line["epoch"] - 1].equal(given[its["epoch"] - 1])
    assert len({str(line["strategy"]) for line in log}) == 7  # Hedge plays after every epoch
    kept = [line["epoch"] for line in log if line["selected"]]
    assert set(kept) <= {1, 3, 6, 7}
    assert run.load_model("selected")[1] == kept[-1]
    assert select != "last" or kept[-1] == 7


def test_validation_changes_nothing_in_training(data: Path, tmp_path: Path) -> None:
    """Of a method that does not look at it: the same weights in the end, bit for bit."""
    plain = {"method": "trades", "average": "ema", "ema_decay": 0.9, "epochs": 4, "select": "last"}
    runs = [train_run(tiny_config(data, **plain, valid_every=n), tmp_path / str(n)) for n in (1, 4)]
    assert len({(run.folder / SELECTED).read_bytes() for run in runs}) == 1
    assert not section(load_tensors(runs[0].folder / LAST)[0], "valid")  # every epoch: a checkpoint as ever
    assert runs[0].log[-1]["valid"] == runs[1].log[-1]["valid"]


def test_a_fork_goes_on_with_the_last_validation_or_makes_one(data: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 6, "valid_every": 4}
    whole = train_run(tiny_config(data, **settings), tmp_path / "whole", keep=[2])
    fork = parse_fork(f"{whole.folder}@2")
    same = train_run(tiny_config(data, **settings), tmp_path / "same", fork=fork)
    own = {"seconds": 0, "selected": None}  # a fork selects among its own epochs
    assert [line | own for line in same.log[:4]] == [line | own for line in whole.log[:4]]
    for change in ({"method": "trades"}, {"valid_attack": "cw"}, {"eps": 0.04}, {"beta": 3}, {"average": "ema"}):
        other = train_run(tiny_config(data, **settings | change), tmp_path / "-".join(change), fork=fork)
        assert [line.get("valid_epoch", line["epoch"]) for line in other.log] == [1, 1, 3, 4, 4, 6]


def test_what_is_said_of_an_epoch_without_validation(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=3, valid_every=3)
    run = train_run(config, tmp_path / "run")
    second, third = run.log[1:]
    assert not is_validated(second)
    assert "no validation" in epoch_line(second, config, run.class_names)
    assert "PGD" not in epoch_line(second, config, run.class_names)
    numbers = epoch_scalars(second, run.class_names)
    assert "train/loss" in numbers
    assert any(name.startswith("class_weight/") for name in numbers)
    assert {name.split("/")[0] for name in numbers if "accuracy" in name} == {"train", "class_train_accuracy"}
    assert epoch_scalars(third, run.class_names).keys() > numbers.keys()


def test_epochs_without_validation_do_not_count_as_choices(data: Path, tmp_path: Path) -> None:
    """Ten epochs or more are needed for a word on chance, and copies of one are not among them."""
    run = train_run(tiny_config(data, epochs=3, lr=1e-6), tmp_path / "run")
    line, about = run.log[0], run.about
    many = [{**line, "epoch": epoch, "selected": epoch == 1} for epoch in range(1, 13)]
    assert "selection" in training_notes(many, about, "worst-accuracy")
    copies = [many[0], *({**each, "valid_epoch": 1} for each in many[1:])]
    assert "selection" not in training_notes(copies, about, "worst-accuracy")
