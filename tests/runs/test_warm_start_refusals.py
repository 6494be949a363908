"""Forks and starts that cannot be are refused in a line."""

from pathlib import Path
from typing import Any

import pytest

import everything
from tiny import tiny_config, write_tiny_npz
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config, merge
from worstclass.errors import UserError
from worstclass.inputs.names import RECIPE
from worstclass.runs.run import Run
from worstclass.runs.saver import KEPT
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork
from worstclass.training.checkpoint import load_tensors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="module")
def parent(data: Path) -> Run:
    """WAT, three epochs, all of them kept."""
    return train_run(tiny_config(data, select="last"), data.parent / "parent", keep=(1, 2, 3))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "everything", everything.METHOD)


def refused(match: str, config: Any, out: Path, **arguments: Any) -> None:
    """One line, and nothing is left behind."""
    with pytest.raises(UserError, match=match) as error:
        train_run(config, out, **arguments)
    assert "\n" not in str(error.value)
    assert not (out / RECIPE).exists()
    train_run(make_config(merge(config.recipe(), {"epochs": 1, "init": None})), out)  # the folder can be used


def test_forks_that_cannot_be(parent: Run, data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, epochs=3), tmp_path / "run", keep=(1,))
    config = tiny_config(data, epochs=4)
    refused(
        r"no checkpoint of epoch 2 \(it has: 1, 3\); `.* --keep 2`",
        config,
        tmp_path / "a",
        fork=parse_fork(f"{run.folder}@2"),
    )
    refused(
        r"no checkpoint of epoch 9", tiny_config(data, epochs=20), tmp_path / "b", fork=parse_fork(f"{run.folder}@9")
    )
    refused("epoch 3 of 3: nothing is left", run.config, tmp_path / "c", fork=parse_fork(f"{run.folder}@3"))
    other = tiny_config(write_tiny_npz(tmp_path / "other.npz", seed=1), epochs=4)
    refused("trained on other data", other, tmp_path / "d", fork=parse_fork(f"{run.folder}@1"))
    split = tiny_config(data, epochs=4, valid_fraction=0.4)
    refused("validated on images that were trained on", split, tmp_path / "e", fork=parse_fork(f"{run.folder}@1"))
    few = train_run(tiny_config(data, epochs=1, valid_fraction=0.1, valid_min=0), tmp_path / "few")
    split = tiny_config(data, epochs=4, valid_fraction=0.1)  # 8 of 40, not 4
    refused(r"valid_min = 0, .* and 20: it would be", split, tmp_path / "g", fork=parse_fork(f"{few.folder}@1"))
    wide = tiny_config(data, epochs=4, model="wrn10-1")
    refused("another architecture", wide, tmp_path / "f", fork=parse_fork(f"{run.folder}@1"))


def test_a_checkpoint_within_an_epoch_is_no_epoch_to_fork_from(data: Path, tmp_path: Path) -> None:
    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 3):
            raise KeyboardInterrupt

    config = tiny_config(data, epochs=3)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "run", on_step=stop, checkpoint_minutes=0)
    for epoch in (1, 2):
        refused(
            rf"no checkpoint of epoch {epoch} \(it has: none\)",
            config,
            tmp_path / f"fork{epoch}",
            fork=parse_fork(f"{tmp_path / 'run'}@{epoch}"),
        )


def test_a_kept_epoch_under_another_name(parent: Run, tmp_path: Path) -> None:
    run = train_run(parent.config, tmp_path / "run", keep=(1,))
    (run.folder / KEPT.format(1)).rename(run.folder / KEPT.format(2))
    refused("no longer that of epoch 2", parent.config, tmp_path / "fork", fork=parse_fork(f"{run.folder}@2"))


def test_starts_that_cannot_be(parent: Run, data: Path, tmp_path: Path) -> None:
    def start(where: Path, **more: Any) -> Any:
        return tiny_config(data, init=str(where), **more)

    refused("not a run", start(tmp_path / "nowhere"), tmp_path / "a")
    refused("another architecture", start(parent.folder, model="wrn10-1"), tmp_path / "b")
    refused("validated on images that were trained on", start(parent.folder, valid_fraction=0.4), tmp_path / "c")
    tail = r"trained with imbalance = none, this run has 2: it would be validated on images that were trained on"
    refused(tail, start(parent.folder, imbalance=2), tmp_path / "e")
    thin = train_run(tiny_config(data, epochs=1, imbalance=2), tmp_path / "thin")
    train_run(start(thin.folder, epochs=1), tmp_path / "whole")  # of more images, the last ones are new
    refused("imbalance = 2, this run has none", start(thin.folder, valid_fraction=0.6), tmp_path / "f")


def test_one_file_is_one_data_set_however_it_is_written(
    parent: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start on a thinner part of it is refused by a relative path too."""
    monkeypatch.chdir(data.parent)
    start = tiny_config(Path(data.name), init=str(parent.folder), imbalance=2)
    assert start.data != parent.config.data
    refused("trained with imbalance = none, this run has 2", start, tmp_path / "a")


def test_epochs_that_cannot_be_kept(data: Path, tmp_path: Path) -> None:
    """Those that are past are no file any more, and are not left out without a word."""
    refused("epoch 9 cannot be kept: the run has 3", tiny_config(data), tmp_path / "late", keep=(1, 9))
    run = train_run(tiny_config(data, epochs=2), tmp_path / "run")
    config, fork = tiny_config(data, epochs=3), parse_fork(f"{run.folder}@2")
    refused("epoch 1 cannot be kept: the run goes on from epoch 2", config, tmp_path / "fork", fork=fork, keep=(1, 3))
    with pytest.raises(UserError, match="epoch 1 cannot be kept: the run goes on from epoch 2"):
        train_run(run.config, run.folder, resume=True, keep=(1,))
    train_run(run.config, run.folder, resume=True, keep=(2,))
    assert load_tensors(run.folder / KEPT.format(2))[1]["epoch"] == 2


@pytest.mark.parametrize("text", ["run", "run@", "run@0", "run@-1", "run@last", "@3"])
def test_what_is_no_run_and_epoch(text: str) -> None:
    with pytest.raises(UserError, match=r"is not a run folder and an epoch, such as .*@70|not a run"):
        parse_fork(text)
