"""Files that are whole or absent, whatever happens while they are written."""

import contextlib
import fcntl
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worstclass.errors import UserError


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, finds the old one or the new one whole."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)
        with contextlib.suppress(OSError):
            partial.unlink()  # half a file: on a full disk its room is needed
        raise
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def keep_previous(path: Path, previous: Path) -> None:
    """Keep a file under a second name before it is replaced; at every moment both names are whole files."""
    if path.is_file():
        partial = previous.with_name(f".{previous.name}.partial")
        partial.unlink(missing_ok=True)
        os.link(path, partial)
        os.replace(partial, previous)


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder for one purpose; a second process that wants it is refused. A kill lets go of it."""
    with (folder / f".{what}.lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is in use: another process is at it ({what}).") from None
        yield


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}.") from error


def write_npz(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """One compressed .npz of plain arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # no time stamp: equal input, equal bytes
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w") as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    write_atomic(path, buffer.getvalue())
