"""Runs that start from other runs: from the selected weights, or from an epoch that was kept."""

import contextlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import everything
from kills import kill_until_done
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config, merge, to_toml
from worstclass.data import open_source, split_validation
from worstclass.errors import UserError
from worstclass.inputs.names import RECIPE
from worstclass.runs import session as module
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import ABOUT, KEPT, LAST, LOG, SELECTED
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork
from worstclass.training import State
from worstclass.training.checkpoint import load_tensors, save_tensors, section


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


def log_of(folder: Path) -> list[dict[str, Any]]:
    """Its lines, but for the seconds."""
    lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def begun(out: Path, **arguments: Any) -> dict[str, Tensor]:
    """The checkpoint that a fork begins with: it is stopped in its first step."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(out=out, on_step=stop, **arguments)
    return load_tensors(out / LAST)[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_dafa_begins_after_a_fork(data: Path, parent: Run, tmp_path: Path) -> None:
    """Its default is a share of all epochs, most of which the parent has trained; what would never begin is refused."""
    config = tiny_config(data, method="dafa", select="last", epochs=5)
    fork = train_run(config, tmp_path / "fork", fork=parse_fork(f"{parent.folder}@3"))
    assert fork.config.dafa_warmup == 1
    assert [len({*line["next_class_weights"]}) > 1 for line in log_of(fork.folder)[3:]] == [True, True]
    late = tiny_config(data, method="dafa", epochs=5, dafa_warmup=2)
    with pytest.raises(UserError, match="dafa_warmup = 2, counted from the fork, and 2 epochs are left"):
        train_run(late, tmp_path / "late", fork=parse_fork(f"{parent.folder}@3"))


PARTS: dict[str, dict[str, Any]] = {
    "wat": {},
    "everything": {
        "method": "everything",
        "average": "ema",
        "optimizer": "adamw",
        "lr": 0.01,
        "schedule": "cosine",
        "awp_gamma": 0.02,
        "awp_warmup": 1,
    },
}


@pytest.mark.parametrize("part", PARTS)
def test_a_fork_with_the_same_settings_is_the_run_itself(part: str, data: Path, tmp_path: Path) -> None:
    """Every line of its log, and every byte of its checkpoints; the epochs before the fork are its own too."""
    config = tiny_config(data, epochs=4, select="last", **PARTS[part])
    run = train_run(config, tmp_path / "run", keep=(2,))
    assert (run.folder / KEPT.format(2)).is_file()
    assert not (run.folder / KEPT.format(1)).exists()
    fork = train_run(config, tmp_path / "fork", fork=parse_fork(f"{run.folder}@2"))
    assert_same_run(run.folder, fork.folder)
    about = open_run(fork.folder).about["fork"]
    assert (about["run"], about["epoch"]) == ("run", 2)


def test_keeping_epochs_changes_nothing(parent: Run, tmp_path: Path) -> None:
    assert_same_run(parent.folder, train_run(parent.config, tmp_path / "run").folder)
    state = load_tensors(parent.folder / LAST)[0]
    last = {name: tensor for name, tensor in state.items() if not name.startswith("selected.")}
    assert same(load_tensors(parent.folder / KEPT.format(3))[0], last)


def test_the_last_epoch_needs_no_keeping(parent: Run, data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    fork = train_run(tiny_config(data, epochs=2), tmp_path / "fork", fork=parse_fork(f"{run.folder}@1"))
    assert log_of(fork.folder)[0] == log_of(run.folder)[0]
    assert [line["epoch"] for line in fork.log] == [1, 2]
    assert fork.load_model("selected")[1] == 2  # of its own epochs


@pytest.mark.parametrize("method", ["csl", "everything", "trades"])
def test_another_method_starts_its_strategy_anew(method: str, parent: Run, data: Path, tmp_path: Path) -> None:
    """Weights and momenta are the parent's."""
    config, fork = tiny_config(data, method=method), parse_fork(f"{parent.folder}@2")
    found, kept = begun(tmp_path / "fork", config=config, fork=fork), load_tensors(parent.folder / KEPT.format(2))[0]
    for part in ("model", "optimizer"):
        assert same(section(found, part), section(kept, part))
    train, _ = split_validation(open_source(config.data).read("train"), 3, config.valid_fraction)
    assert same(section(found, "strategy"), config.make_strategy(train.class_counts(3)).state_dict())
    assert not section(found, "average")


def test_another_optimizer_starts_anew(parent: Run, data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, optimizer="adamw")
    found = begun(tmp_path / "fork", config=config, fork=parse_fork(f"{parent.folder}@2"))
    own = section(found, "optimizer")
    assert {name.rpartition(".")[2] for name in own} == {"exp_avg", "exp_avg_sq", "step"}
    assert not any(bool(tensor.any()) for tensor in own.values())
    assert same(section(found, "strategy"), section(load_tensors(parent.folder / KEPT.format(2))[0], "strategy"))


@pytest.mark.parametrize("before", [{}, {"average": "fawa", "fawa_threshold": 0.0}])
def test_an_average_that_the_parent_lacks_starts_from_its_weights(
    before: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    run = train_run(tiny_config(data, epochs=2, **before), tmp_path / "run", keep=(1,))
    config = tiny_config(data, epochs=2, average="ema")
    found = begun(tmp_path / "fork", config=config, fork=parse_fork(f"{run.folder}@1"))
    assert same(section(found, "average.model"), section(load_tensors(run.folder / KEPT.format(1))[0], "model"))
    assert int(found["average.steps"]) == 0


def test_the_same_average_goes_on(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=2, average="ema")
    run = train_run(config, tmp_path / "run", keep=(1,))
    found = begun(tmp_path / "fork", config=config, fork=parse_fork(f"{run.folder}@1"))
    assert same(section(found, "average"), section(load_tensors(run.folder / KEPT.format(1))[0], "average"))
    assert int(found["average.steps"]) == 5


def test_a_fork_that_was_stopped_at_once_goes_on(parent: Run, tmp_path: Path) -> None:
    begun(tmp_path / "fork", config=parent.config, fork=parse_fork(f"{parent.folder}@2"))
    assert not (tmp_path / "fork" / SELECTED).exists()
    train_run(parent.config, tmp_path / "fork", resume=True)
    assert_same_run(parent.folder, tmp_path / "fork")
    assert open_run(tmp_path / "fork").about["fork"]["epoch"] == 2


def go_on(recipe: str, out: Path, fork: str) -> None:
    """In a process of its own: start the fork, or go on with it."""
    resume = (out / RECIPE).exists()
    origin = None if resume else parse_fork(fork)
    train_run(make_config(tomllib.loads(recipe)), out, resume=resume, fork=origin, checkpoint_minutes=0)


@pytest.mark.slow
def test_a_fork_killed_at_any_moment(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=5, select="last", average="ema", awp_gamma=0.01)
    run = train_run(config, tmp_path / "run", keep=(1,))
    arguments = (to_toml(config), tmp_path / "fork", f"{run.folder}@1")
    assert kill_until_done(go_on, arguments, wait=0.05, growth=1.15) >= 5
    assert_same_run(run.folder, tmp_path / "fork")


@pytest.mark.parametrize("forked", [False, True])
def test_what_a_fork_leaves_that_was_killed_before_it_was_a_run(
    forked: bool, parent: Run, data: Path, tmp_path: Path
) -> None:
    """Another run starts in its folder, and takes nothing from it: not when it is stopped before it saves, either."""
    config, fork = tiny_config(data, method="trades"), parse_fork(f"{parent.folder}@1") if forked else None
    whole, out = train_run(config, tmp_path / "whole", fork=fork), tmp_path / "run"
    begun(out, config=parent.config, fork=parse_fork(f"{parent.folder}@2"))
    for name in (RECIPE, ABOUT):
        (out / name).unlink()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, out, on_step=stop, fork=fork)
    train_run(config, out, resume=True)
    assert_same_run(whole.folder, out)


def test_an_epoch_is_kept_before_the_run_goes_on_from_it(data: Path, tmp_path: Path) -> None:
    """Stopped right after an epoch, resumed without a word of it: it is there, and so are the later ones."""
    config = tiny_config(data, epochs=3)

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "run", keep=(1, 2), checkpoint_minutes=0, on_epoch=stop)
    train_run(config, tmp_path / "run", resume=True)
    assert [load_tensors(tmp_path / "run" / KEPT.format(epoch))[1]["epoch"] for epoch in (1, 2)] == [1, 2]


def test_an_epoch_that_a_resumed_run_is_told_to_keep(data: Path, tmp_path: Path) -> None:
    """Though it is stopped once more before that epoch, and told nothing then."""
    config = tiny_config(data, epochs=3)

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    for resume, keep in ((False, ()), (True, (3,))):
        with pytest.raises(KeyboardInterrupt):
            train_run(config, tmp_path / "run", resume=resume, keep=keep, checkpoint_minutes=0, on_epoch=stop)
    train_run(config, tmp_path / "run", resume=True)
    assert load_tensors(tmp_path / "run" / KEPT.format(3))[1]["epoch"] == 3


def test_the_file_of_a_kept_epoch_is_older_than_its_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[str] = []

    def noted(path: Path, *content: Any) -> None:
        files.append(path.name)
        save_tensors(path, *content)

    monkeypatch.setattr("worstclass.runs.saver.save_tensors", noted)
    train_run(tiny_config(data, epochs=1), tmp_path / "run", keep=(1,))
    assert files == [KEPT.format(1), SELECTED, LAST]


class Seen(Exception):
    """The state that training would have started from."""

    def __init__(self, state: State) -> None:
        self.model = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
        self.shipped = {name: tensor.clone() for name, tensor in state.shipped.state_dict().items()}
        self.rest = [value for part in (state.optimizer, state.strategy) for value in part.state_dict().values()]
        self.epoch = state.epoch


def start_of(config: Any, out: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Seen:
    def look(state: State, *_: object, **__: object) -> Iterator[None]:
        raise Seen(state)
        yield

    monkeypatch.setattr(module, "fit", look)
    with pytest.raises(Seen) as seen:
        train_run(config, out, **arguments)
    return seen.value


@pytest.mark.parametrize("settings", [{}, {"average": "ema"}, {"method": "trades", "normalize": True}])
def test_training_starts_from_the_selected_weights(
    settings: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And from nothing else of that run; of one with an average, from that."""
    normalize = {"normalize": True} if "normalize" in settings else {}
    run = train_run(tiny_config(data, average="ema", epochs=2, **normalize), tmp_path / "run")
    config = tiny_config(data, init=str(run.folder), epochs=1, **settings)
    seen, wanted = (
        start_of(config, tmp_path / "new", monkeypatch),
        section(load_tensors(run.folder / SELECTED)[0], "model"),
    )
    assert same(seen.model, wanted)
    assert same(seen.shipped, wanted)
    assert seen.epoch == 0
    assert not any(bool(tensor.any()) for tensor in seen.rest)
    about = open_run(tmp_path / "new").about["init"]
    assert (about["run"], about["epoch"]) == ("run", load_tensors(run.folder / SELECTED)[1]["epoch"])
    raw = section(load_tensors(run.folder / LAST)[0], "model")
    assert not same(seen.model, raw)


def test_a_warm_start_in_pieces(parent: Run, data: Path, tmp_path: Path) -> None:
    """Stopped before anything was saved, and then within an epoch."""
    config = tiny_config(data, method="trades", init=str(parent.folder), epochs=2)
    whole, pieces = train_run(config, tmp_path / "whole"), tmp_path / "pieces"
    stops = [(1, 2), (2, 3)]

    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == stops[0]:
            stops.pop(0)
            raise KeyboardInterrupt

    for resume, minutes in ((False, 1.0), (True, 0.0)):
        with pytest.raises(KeyboardInterrupt):
            train_run(config, pieces, resume=resume, on_step=stop, checkpoint_minutes=minutes)
    train_run(config, pieces, resume=True)
    assert_same_run(whole.folder, pieces)
    assert open_run(pieces).about["init"] == open_run(whole.folder).about["init"]


def test_a_fork_needs_no_run_that_its_parent_started_from(parent: Run, data: Path, tmp_path: Path) -> None:
    first = train_run(tiny_config(data, epochs=1), tmp_path / "first")
    config = tiny_config(data, epochs=2, init=str(first.folder), select="last")
    run = train_run(config, tmp_path / "run", keep=(1,))
    first.folder.rename(tmp_path / "elsewhere")
    fork = train_run(config, tmp_path / "fork", fork=parse_fork(f"{run.folder}@1"))
    assert_same_run(run.folder, fork.folder)
    assert "init" not in open_run(fork.folder).about


def test_the_command(parent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`--fork RUN@2 --set method=csl` by the parent's recipe, into a folder named after both; then `--keep`."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["worstclass", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert isinstance(caught.value.code, int)
        return caught.value.code, capsys.readouterr().err

    code, errors = command(
        "train", "--fork", f"{parent.folder}@2", "--set", "method=csl", "--set", "epochs=4", "--keep", "3"
    )
    assert code == 0, errors
    run = open_run(tmp_path / "runs" / f"csl-from-parent-epoch2-seed{parent.config.seed}")
    assert run.config == make_config(merge(parent.config.recipe(), {"method": "csl", "epochs": 4}))
    assert log_of(run.folder)[:2] == log_of(parent.folder)[:2]
    assert [line["epoch"] for line in run.log] == [1, 2, 3, 4]
    assert (run.folder / KEPT.format(3)).is_file()
    for words, line in (
        (["--fork", f"{tmp_path}@2"], "not a run"),
        (["--fork", f"{parent.folder}@x"], "is not a run folder and an epoch"),
        (["--fork", f"{parent.folder}@3", "--out", "x"], "nothing is left to train"),
        (["--fork", f"{parent.folder}@3", "--resume", str(parent.folder)], "one of the three"),
    ):
        code, errors = command("train", *words)
        assert code == 2
        assert line in errors
        assert errors.count("\n") == 1


def test_a_fork_smooths_over_its_own_epochs(data: Path, tmp_path: Path) -> None:
    """The lines of the other run are in its log, and not in its scores; stopped and resumed, they are the same."""
    smoothed = {"select": "worst-tenth", "select_smoothing": 3}
    train_run(tiny_config(data, method="trades", epochs=2), tmp_path / "trades", keep=[1])
    config = tiny_config(data, method="wat", epochs=4, **smoothed)
    fork = parse_fork(f"{tmp_path / 'trades'}@1")
    whole = train_run(config, tmp_path / "whole", fork=fork)
    assert "selection_score" not in whole.log[0]
    for last in (2, 3, 4):
        lines = whole.log[1:last]
        means = [sum(each) / len(lines) for each in zip(*(x["class_robust_accuracy"] for x in lines), strict=True)]
        assert whole.log[last - 1]["selection_score"][0] == pytest.approx(min(means))

    class Stop(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        raise Stop

    with pytest.raises(Stop):
        train_run(config, tmp_path / "pieces", fork=fork, on_epoch=stop, checkpoint_minutes=0)
    for _ in range(2):
        with contextlib.suppress(Stop):
            train_run(config, tmp_path / "pieces", resume=True, on_epoch=stop, checkpoint_minutes=0)
    train_run(config, tmp_path / "pieces", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")
