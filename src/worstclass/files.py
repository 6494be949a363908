"""Files that are whole or absent, whatever happens while they are written; and readers that trust no file."""

import contextlib
import errno
import importlib
import io
import json
import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from worstclass.errors import UserError, reason

MAX_TEXT = 32 * 2**20  # bytes; as Python's objects it may become thirty times as much
MAX_RATIO, SMALL_ARCHIVE = 100, 64 * 2**20  # images pack 1:2 to 1:20; a bomb packs 1:1000
TAKEN = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)  # a lock that another process holds; the last two: Windows
PLAIN = "biufUS"  # kinds of arrays: booleans, numbers and text


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
        try:
            os.link(path, partial)
        except (OSError, AttributeError):  # no hard links: exFAT, many network shares
            write_atomic(previous, path.read_bytes())
        else:
            os.replace(partial, previous)


@contextlib.contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder for one purpose; a second process that wants it is refused. A kill lets go of it.

    Where the file system has no locks a warning says so, and nobody is refused.
    """
    with (folder / f".{what}.lock").open("ab") as file:
        try:
            _lock(file)
        except OSError as error:
            if error.errno in TAKEN:
                raise UserError(f"{folder} is in use: another process is at it ({what}).") from None
            warnings.warn(f"{folder} cannot be locked ({reason(error)}): start no second process there.", stacklevel=3)
        yield


def _lock(file: IO[bytes]) -> None:
    """Lock an open file until it is closed, or raise OSError: as Unix does it, or else as Windows does."""
    if fcntl := _system_module("fcntl"):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt := _system_module("msvcrt"):
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def _system_module(name: str) -> Any | None:
    """A module that only some systems have."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, the whole file or nothing."""
    write_atomic(path, (json.dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return parse_json(read_text(path), path)


def parse_json(text: str, where: object) -> Any:
    """JSON as Python values; deep nesting, endless digits and half a surrogate pair are errors like any other."""
    with clean_errors(f"cannot read {where}"):
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # half a pair reads well, and cannot be written anywhere
    return value


def read_text(path: Path, limit: int = MAX_TEXT) -> str:
    """The text of a file, which must be UTF-8, a file (a pipe would wait for ever) and no larger than `limit` bytes."""
    with clean_errors(f"cannot read {path}"):
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file.")
        if (size := path.stat().st_size) > limit:
            raise UserError(f"{path} has {size} bytes; at most {limit} are read.")
        return path.read_bytes().decode()


@contextlib.contextmanager
def clean_errors(what: str) -> Iterator[None]:
    """Around a parser, which may raise anything on broken bytes: it becomes one line that starts with `what`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason(error)}.") from error


class Npz:
    """An open .npz file of plain arrays, each read when it is asked for. No objects (pickle), no bombs.

    A file may not be much smaller than what it unpacks to, each array must be as large as its header says, and none
    larger than the machine's memory: all that is known before anything is unpacked.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"no data file at {path}.")
        self.path = path
        with clean_errors(f"{path} is not a readable .npz file"):
            self._archive = zipfile.ZipFile(path)
        entries = self._archive.infolist()
        self.names = list(dict.fromkeys(entry.filename.removesuffix(".npy") for entry in entries))
        total = sum(entry.file_size for entry in entries)
        if total > max(SMALL_ARCHIVE, MAX_RATIO * path.stat().st_size):
            self._archive.close()
            raise UserError(f"{path} would unpack to {total} bytes, over {MAX_RATIO} times its size: it is not opened.")

    def __enter__(self) -> "Npz":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()

    def read(self, name: str) -> np.ndarray[Any, Any]:
        self.shape(name)
        with (
            clean_errors(f"{self.path}: array '{name}' cannot be read"),
            self._archive.open(f"{name}.npy") as stream,
        ):
            array: np.ndarray[Any, Any] = np.lib.format.read_array(stream, allow_pickle=False)
        return array

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an array, by its header alone."""
        if name not in self.names:
            raise UserError(f"{self.path} has no array '{name}' (it has {', '.join(sorted(self.names)) or 'none'}).")
        with clean_errors(f"{self.path}: array '{name}' cannot be read"):
            entry = self._archive.getinfo(f"{name}.npy")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError("it is packed in a way that is not read")
            with self._archive.open(entry) as stream:
                return _check_header(stream, entry.file_size)


def _check_header(stream: Any, size: int) -> tuple[int, ...]:
    """The shape of an array of `size` bytes in all, header included, if it is what its header says."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = readers[np.lib.format.read_magic(stream)](stream)
    if dtype.kind not in PLAIN:
        raise ValueError("Objects and records are refused" if dtype.hasobject else f"{dtype} is refused")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != size - stream.tell() or not dtype.itemsize:
        raise ValueError(f"{size} bytes are not an array of {shape} {dtype}")
    if size > memory():
        raise ValueError(f"{size} bytes are more than the memory of this machine")
    return tuple(shape)


def memory() -> float:
    """The bytes of this machine's memory; without bound where the system does not say, as on Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


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
