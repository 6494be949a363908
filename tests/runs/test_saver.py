"""Checkpoints are written while training goes on: of the moment they were asked for, one at a time, no failure lost."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from worstclass.attacks import PGD
from worstclass.models import make_model
from worstclass.runs import saver as module
from worstclass.runs.saver import LAST, PREVIOUS, SELECTED, Saver
from worstclass.strategies import uniform
from worstclass.training import Plan, State, new_state
from worstclass.training.checkpoint import load_tensors, save_tensors

pytestmark = pytest.mark.fast

WEIGHT = "linear.weight"


@pytest.fixture
def state() -> State:
    plan = Plan(epochs=3, batch_size=4, lr=0.1, valid_attack=PGD(eps=0.1, steps=1, step_size=0.1))
    return new_state(make_model("small-cnn", num_classes=3, in_channels=1), uniform(3), plan)


class Slow:
    """A disk that waits to be told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.files = threading.Event(), list[str]()
        monkeypatch.setattr(module, "save_tensors", self)

    def __call__(self, path: Path, *content: Any) -> None:
        assert self.go.wait(30)
        save_tensors(path, *content)
        self.files.append(path.name)


def fill(state: State, value: float) -> None:
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.fill_(value)


def value(path: Path, part: str) -> float:
    tensors, _ = load_tensors(path)
    return tensors[f"{part}.{WEIGHT}"].flatten()[0].item()


def test_a_checkpoint_is_of_its_moment(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What training does to the weights, and to the choice of an epoch, while it is written is not in it."""
    disk = Slow(monkeypatch)
    with Saver(tmp_path, state, 0.0) as saver:
        fill(state, 1.0)
        saver.select(1, [0.1])
        fill(state, 2.0)
        saver.save_if_due()
        fill(state, 3.0)
        saver.select(2, [0.2])
        assert not list(tmp_path.glob("*.safetensors"))
        disk.go.set()
    assert disk.files == [SELECTED, LAST]  # a run whose state is there has its selected weights
    assert value(tmp_path / LAST, "model") == 2.0
    assert value(tmp_path / LAST, "selected") == 1.0
    assert value(tmp_path / SELECTED, "model") == 1.0
    assert load_tensors(tmp_path / SELECTED)[1]["epoch"] == load_tensors(tmp_path / LAST)[1]["best"]["epoch"] == 1


def test_one_at_a_time(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one waits for it, and it is kept as the previous one."""
    disk = Slow(monkeypatch)
    with Saver(tmp_path, state, 0.0) as saver:
        fill(state, 1.0)
        saver.save_if_due()
        second = threading.Thread(target=saver.save_if_due)
        second.start()
        time.sleep(0.2)
        assert second.is_alive()
        disk.go.set()
        second.join(30)
        assert not second.is_alive()
        fill(state, 2.0)
        saver.save_if_due(at_once=True)
        assert value(tmp_path / LAST, "model") == 2.0  # it does not return before
    assert value(tmp_path / PREVIOUS, "model") == 1.0


def test_a_failure_is_raised_as_soon_as_it_is_known(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "last.safetensors")

    monkeypatch.setattr(module, "save_tensors", full)
    with Saver(tmp_path, state, 0.0) as saver:
        saver.save_if_due()
        saver._interval = 3600.0  # from here on nothing is due: it is raised all the same
        assert saver._writing is not None
        wait([saver._writing])
        with pytest.raises(OSError, match="No space left"):
            saver.save_if_due()
    with pytest.raises(OSError, match="No space left"), Saver(tmp_path, state, 0.0) as saver:
        saver.save_if_due()
    with pytest.raises(OSError, match="No space left"), Saver(tmp_path, state, 0.0) as saver:
        saver.save_if_due(at_once=True)


def test_leaving_by_an_error_waits_for_the_disk(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is unlocked afterwards, and nobody may be writing to it then."""
    disk = Slow(monkeypatch)
    threading.Timer(0.2, disk.go.set).start()
    with suppress(KeyboardInterrupt), Saver(tmp_path, state, 0.0) as saver:
        saver.save_if_due()
        raise KeyboardInterrupt
    assert disk.files == [LAST]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: what a shell starts in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_again_it_still_waits(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second interrupt is a real one, and comes while it waits for the disk."""
    disk, waits = Slow(monkeypatch), list[object]()

    def interrupted(futures: Any) -> None:
        waits.append(futures)
        if len(waits) == 1:
            threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        else:
            disk.go.set()
        wait(futures)

    monkeypatch.setattr(module, "wait", interrupted)
    with suppress(KeyboardInterrupt), Saver(tmp_path, state, 0.0) as saver:
        saver.save_if_due()
        raise KeyboardInterrupt
    assert len(waits) > 1
    assert disk.files == [LAST]


def test_a_failure_beside_another_error_is_told(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_tensors", full)
    lines: list[str] = []
    with suppress(ZeroDivisionError), Saver(tmp_path, state, 0.0, lines.append) as saver:
        saver.save_if_due()
        raise ZeroDivisionError
    assert lines == ["the last checkpoint was not written: [Errno 28] No space left on device."]
