"""A training that is asked to stop: once, it may save; twice, it stops at once."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from worstclass.cli.guard import guarded
from worstclass.cli.stopping import SAVING, Stop
from worstclass.cli.watched import lost_note
from worstclass.errors import Terminated
from worstclass.runs.saver import LAST, LOG
from worstclass.training.checkpoint import save_tensors

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with guarded():
        yield
    signal.signal(signal.SIGINT, before)


def test_the_first_is_heard_the_next_ctrl_c_raises(capsys: pytest.CaptureFixture[str]) -> None:
    with Stop() as stop:
        stop.waits = True
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # of a parent that heard the first too
        assert stop.heard == [signal.SIGINT, signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().out == f"{SAVING}\n"
    with pytest.raises(KeyboardInterrupt):  # as before
        signal.raise_signal(signal.SIGINT)


def test_sigterm_twice() -> None:
    with Stop() as stop:
        stop.waits = True
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)


def test_where_nothing_waits_it_raises_at_once() -> None:
    with Stop() as stop, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    stop = Stop(here=False)
    stop.waits = True
    with stop, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert not stop()


def test_what_is_ignored_stays_so_and_threads_take_none() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Stop() as stop:
        stop.waits = True
        signal.raise_signal(signal.SIGINT)
        assert not stop()
    thread = threading.Thread(target=lambda: Stop().__enter__().__exit__())
    thread.start()
    thread.join()


def test_epochs_that_are_made_again(tmp_path: Path) -> None:
    assert lost_note(tmp_path) == ""
    (tmp_path / LOG).write_text("{}\n" * 3)
    assert lost_note(tmp_path) == " Epochs since the last checkpoint, which will be made again: 3."
    save_tensors(tmp_path / LAST, {}, {"epoch": 3})
    assert lost_note(tmp_path) == ""
