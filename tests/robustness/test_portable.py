"""Systems and file systems that lack what Unix has: simulated, Windows itself was never run."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny import tiny_config, write_tiny_npz
from worstclass import files
from worstclass.errors import UserError
from worstclass.files import Npz, keep_previous, locked, write_npz
from worstclass.runs.saver import LAST, PREVIOUS
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import load_tensors

LOCKS_ELSEWHERE = """
import errno, fcntl as unix, os, pathlib, sys, types, warnings
sys.modules["fcntl"] = sys.modules["msvcrt"] = None
import worstclass
from worstclass.errors import UserError
from worstclass.files import locked

def lock_twice():
    folder = pathlib.Path(sys.argv[1])
    try:
        with locked(folder, "train"), locked(folder, "evaluate"), locked(folder, "train"):
            print("twice")
    except UserError as error:
        print(error)
    with locked(folder, "train"):
        print("again")

def locking(fd, mode, count):
    assert (mode, count, os.lseek(fd, 0, os.SEEK_CUR)) == ("no waiting", 1, 0)
    try:
        unix.flock(fd, unix.LOCK_EX | unix.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lock_twice()
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK="no waiting")
lock_twice()
"""


def test_locks_of_other_systems(tmp_path: Path) -> None:
    """Without any, nobody is refused. Windows locks bytes from the file's position on, and says EACCES: a stand-in."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", LOCKS_ELSEWHERE, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    refused = f"{tmp_path} is in use: another process is at it (train)."
    assert done.stdout.splitlines() == ["twice", "again", refused, "again"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "_lock", refuse)
    said = r"cannot be locked .*No locks available.*start no second"
    with pytest.warns(UserWarning, match=said), locked(tmp_path, "train"):
        pass


def no_links(source: object, target: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_a_run_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    data = write_tiny_npz(tmp_path / "tiny.npz", per_class=8)
    train_run(tiny_config(data, epochs=2), tmp_path / "run", checkpoint_minutes=0)
    assert load_tensors(tmp_path / "run" / LAST)[1]["epoch"] == 2
    assert load_tensors(tmp_path / "run" / PREVIOUS)[1]["epoch"] == 1


@pytest.mark.parametrize("system", ["without links", "without os.link"])
def test_keep_previous_by_copying(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "without links":
        monkeypatch.setattr(os, "link", no_links)
    else:
        monkeypatch.delattr(os, "link")
    (tmp_path / "last").write_bytes(b"one")
    keep_previous(tmp_path / "last", tmp_path / "previous")
    (tmp_path / "last").write_bytes(b"two")
    assert (tmp_path / "previous").read_bytes() == b"one"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["last", "previous"]


def test_a_machine_that_does_not_tell_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "a.npz", {"x": np.arange(3)})
    monkeypatch.setattr(files, "memory", lambda: 1)
    with Npz(tmp_path / "a.npz") as archive, pytest.raises(UserError, match="more than the memory"):
        archive.read("x")
    monkeypatch.undo()
    monkeypatch.delattr(os, "sysconf")
    with Npz(tmp_path / "a.npz") as archive:
        assert archive.read("x").tolist() == [0, 1, 2]


def test_a_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows does not open folders."""
    opened = os.open

    def refuse(path: str | Path, *arguments: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    files.write_atomic(tmp_path / "a", b"whole")
    assert (tmp_path / "a").read_bytes() == b"whole"
