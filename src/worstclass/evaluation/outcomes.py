"""What an evaluation leaves: the outcome of every sample, and the part of it that is done so far."""

import hashlib
import time
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worstclass.errors import UserError, shown
from worstclass.files import Npz, write_npz
from worstclass.inputs.names import NATURAL as NATURAL

ANY = "/any"  # suffix of an attack's name for its any-iterate convention
STANDS = ""  # in `Outcomes.broken_by`: nothing broke this sample
SAVE_EVERY = 2.0  # seconds

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Outcomes:
    """Labels (N,) and, for `natural` and each attack, predictions (N,): all that any measure needs.

    For attacks that take samples out one after another, `broken_by` names what broke each: an attack, `natural` where
    the model is wrong without one, and nothing where it holds.
    """

    labels: Ints
    predictions: dict[str, Ints]
    broken_by: dict[str, NDArray[np.str_]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """One compressed .npz, written atomically."""
        largest = max(int(values.max(initial=0)) for values in (self.labels, *self.predictions.values()))
        kind = np.int16 if largest < 2**15 else np.int32
        arrays: dict[str, NDArray[Any]] = {"labels": self.labels.astype(kind)}
        arrays |= {f"predictions/{name}": values.astype(kind) for name, values in self.predictions.items()}
        write_npz(path, arrays | {f"broken_by/{name}": values for name, values in self.broken_by.items()})

    @classmethod
    def load(cls, path: Path) -> "Outcomes":
        arrays = _read_all(path)
        if "labels" not in arrays:
            raise UserError(f"{path} holds no outcomes: it has no labels.")
        size = arrays["labels"].size
        read = cls(
            _column(path, "labels", arrays["labels"], "iu", size).astype(np.int64),
            {n: _column(path, n, values, "iu", size).astype(np.int64) for n, values in _under("predictions/", arrays)},
            {n: _column(path, n, values, "U", size) for n, values in _under("broken_by/", arrays)},
        )
        if NATURAL not in read.predictions or size == 0:
            raise UserError(f"{path} holds no outcomes: it has no predictions on clean images.")
        return read

    def without(self, names: Collection[str]) -> "Outcomes":
        """The same less some columns."""
        dropped = {*names, *(name + ANY for name in names)}
        kept = {name: values for name, values in self.predictions.items() if name not in dropped}
        return Outcomes(self.labels, kept, {name: by for name, by in self.broken_by.items() if name in kept})

    def helping(self) -> dict[str, str]:
        """The attacks after which the model is right more often, each with the line that it is refused with."""
        right = {name: float(np.mean(predicted == self.labels)) for name, predicted in self.predictions.items()}
        clean = right[NATURAL]
        return {
            name: f"attack '{name}' helps the model: accuracy {attacked:.4f} under attack, {clean:.4f} without."
            for name, attacked in right.items()
            if attacked > clean
        }

    def check_range(self, num_classes: int, where: object) -> None:
        """Raise unless every label and prediction is one of so many classes."""
        for name, values in {"labels": self.labels, **self.predictions}.items():
            if values.min() < 0 or values.max() >= num_classes:
                raise UserError(f"{where}: {shown(name)} is outside 0..{num_classes - 1}.")


class Progress:
    """Arrays of an evaluation under way. With a path they are kept on disk, and a later start goes on from them.

    `key` says what is being evaluated: weights, images, seed, versions. A file with another key is not continued.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        if path is not None and not key:
            raise UserError("progress on disk needs a key that says whose it is.")
        self._path, self._key, self._saved = path, key, 0.0
        self._arrays: dict[str, Ints] = {}
        self._used: set[str] = set()
        if path is not None and path.is_file():
            arrays = _read_all(path)
            if str(arrays.pop("key", "")) == key:
                self._arrays = {n: _column(path, n, values, "iu", values.size) for n, values in arrays.items()}

    def array(self, what: str, start: Ints) -> Ints:
        """The array called `what`, to be written into: as it was left, or a copy of `start`."""
        name = hashlib.sha256(what.encode()).hexdigest()[:16]
        if name not in self._arrays or self._arrays[name].shape != start.shape:
            self._arrays[name] = start.copy()
        self._used.add(name)
        return self._arrays[name]

    def save(self) -> None:
        """Write to disk, atomically; not more often than every two seconds."""
        if time.monotonic() - self._saved >= SAVE_EVERY:
            self._write()

    def clear(self) -> None:
        """What was used has ended, and its outcomes are elsewhere now; what other attacks left is kept."""
        self._arrays = {name: values for name, values in self._arrays.items() if name not in self._used}
        if self._arrays:
            self._write()
        elif self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_npz(self._path, {"key": np.array(self._key)} | self._arrays)
            self._saved = time.monotonic()


def check_attack_name(name: str) -> str:
    """The name, if it can stand in a table and in the name of a file."""
    bare = name.removesuffix(ANY)
    if not 1 <= len(bare) <= 100 or any(c in "/\\" or unicodedata.category(c) in ("Cc", "Cs") for c in bare):
        raise UserError(f"{shown(name)} is not the name of an attack.")
    return name


def _read_all(path: Path) -> dict[str, NDArray[Any]]:
    with Npz(path) as archive:
        return {name: archive.read(name) for name in archive.names}


def _column(path: Path, name: str, values: NDArray[Any], kinds: str, size: int) -> NDArray[Any]:
    """One value for each sample, of a kind."""
    check_attack_name(name)
    if values.shape != (size,) or values.dtype.kind not in kinds:
        raise UserError(f"{path}: {shown(name)} is {values.dtype} {values.shape}, not one value for each sample.")
    return values


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    return ((name.removeprefix(prefix), values) for name, values in arrays.items() if name.startswith(prefix))
