"""What a run keeps on disk while it trains, and gets back: its state, the epoch selected so far, its log."""

import contextlib
import hashlib
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from torch import Tensor

from worstclass.errors import TrainingError, UserError
from worstclass.files import keep_previous, read_json, read_text, write_atomic
from worstclass.inputs.names import RECIPE
from worstclass.records import check_record
from worstclass.runs.schema import RunRecord
from worstclass.training import State
from worstclass.training.checkpoint import (
    SELECTED_PART,
    load_state,
    load_tensors,
    save_tensors,
    section,
    take_state,
    weights_of,
)

ABOUT, LOG = "run.json", "log.jsonl"
MAX_LOG = 2**28  # bytes: a thousand classes for a thousand epochs
LAST, PREVIOUS, SELECTED = "last.safetensors", "previous.safetensors", "selected.safetensors"
KEPT = "epoch-{}.safetensors"


def read_about(folder: Path) -> dict[str, Any]:
    """What a run says of itself."""
    about = check_record(RunRecord, read_json(folder / ABOUT), folder / ABOUT)
    if about["num_classes"] != len(about["class_names"]):
        raise UserError(f"{folder / ABOUT} is damaged: {about['num_classes']} classes have other names than that.")
    for known in (*about.get("class_counts", {}).values(), about.get("valid_shift") or about["class_names"]):
        if len(known) != about["num_classes"]:
            raise UserError(f"{folder / ABOUT} is damaged: {len(known)} numbers for {about['num_classes']} classes.")
    return about


def recipe_digest(recipe: bytes) -> str:
    """What run.json remembers of the file that holds its recipe."""
    return hashlib.sha256(recipe).hexdigest()


def check_recipe(folder: Path, about: Mapping[str, Any]) -> None:
    """Raise where the recipe in a run's folder is no longer the one that it began with: its epochs so far are of
    another, and its numbers too. A run of an older version does not remember."""
    known = about.get("recipe_digest")
    if known is not None and recipe_digest((folder / RECIPE).read_bytes()) != known:
        raise UserError(
            f"{folder / RECIPE} was changed since the run began: put it back; for other settings, train a run of its "
            "own, by --fork."
        )


class Saver:
    """Keeps a run on disk: its state, with the weights of the epoch selected so far in the same file.

    Training goes on while a checkpoint is written, one at a time. As a context it ends when the last one is written,
    however often it is interrupted; where another error ends it, `tell` hears of a checkpoint that was not written.
    """

    def __init__(self, out: Path, state: State, interval: float, tell: Callable[[str], None] = warnings.warn) -> None:
        self._out, self._state, self._interval, self._tell = out, state, interval, tell
        self._best: dict[str, Any] | None = None
        self._weights: dict[str, Tensor] = {}
        self._written: dict[str, Any] | None = None  # the selected epoch on disk
        self._saved = time.monotonic()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        while self._writing is not None and not self._writing.done():
            with contextlib.suppress(KeyboardInterrupt):  # who holds the folder must not let go of it meanwhile
                wait([self._writing])
        self._writer.shutdown()
        try:
            self._wait()
        except Exception as failure:
            if kind is None:
                raise
            self._tell(f"the last checkpoint was not written: {failure}.")

    def select(self, epoch: int, score: list[float]) -> bool:
        """Remember the weights of now if no epoch was better."""
        if self._best is not None and score <= self._best["score"]:
            return False
        self._best = {"epoch": epoch, "score": score}
        self._weights = weights_of(self._state.shipped)
        return True

    def save_if_due(self, *, at_once: bool = False) -> None:
        """Begin a checkpoint, and `at_once` end it too. Weights that are not finite are not kept.

        What went wrong with the one before is raised as soon as it is known.
        """
        if self._writing is not None and self._writing.done():
            self._wait()
        if time.monotonic() - self._saved < self._interval and not at_once:
            return
        self._wait()
        trained = [parameter for parameter in self._state.model.parameters() if parameter.requires_grad]
        if not all(bool(parameter.isfinite().all()) for parameter in trained):
            if at_once:
                raise TrainingError("the weights are not finite at the end of the run: its last checkpoint is kept.")
            return
        tensors, header = take_state(self._state)
        tensors |= {f"{SELECTED_PART}.{name}": tensor for name, tensor in self._weights.items()}
        self._writing = self._writer.submit(self._write, tensors, header | {"best": self._best}, self._weights)
        self._saved = time.monotonic()
        if at_once:
            self._wait()

    def keep(self) -> None:
        """Begin to write the state of now to a file of its own, which stays: another run may go on from it."""
        self._wait()
        tensors, header = take_state(self._state)
        self._writing = self._writer.submit(save_tensors, self._out / KEPT.format(header["epoch"]), tensors, header)

    def restore(self, about: dict[str, Any]) -> dict[str, Any]:
        """Load the last checkpoint, if there is one, and cut the log to it; returns what the run says of itself.

        Where the last one is damaged, the one before it is taken, and `tell` hears of it.
        """
        out, state = self._out, self._state
        before = read_about(out)
        if before["data_digest"] != about["data_digest"]:
            raise UserError(f"{out} was trained on other data than this; nothing was changed.")
        checkpoints = [out / name for name in (LAST, PREVIOUS) if (out / name).is_file()]
        if checkpoints:
            try:
                tensors, header = load_state(checkpoints[0], state)
            except UserError as error:
                if len(checkpoints) == 1:
                    raise
                tensors, header = load_state(checkpoints[1], state)
                self._tell(f"{error} Going on from the checkpoint before it.")
            self._best, self._weights = header.get("best"), section(tensors, SELECTED_PART)
            with contextlib.suppress(UserError):  # absent or damaged, it is written anew
                self._written = load_tensors(out / SELECTED)[1]
            self._write_selected(self._best, self._weights)
        if (out / LOG).is_file() or state.epoch:
            lines = read_text(out / LOG, MAX_LOG).splitlines()[: state.epoch] if (out / LOG).is_file() else []
            if len(lines) < state.epoch:
                raise UserError(
                    f"{out / LOG} has {len(lines)} lines, the checkpoint is of epoch {state.epoch}: the log is damaged."
                )
            write_atomic(out / LOG, "".join(line + "\n" for line in lines).encode())
        return before

    def _wait(self) -> None:
        """Wait for the checkpoint that is being written, if one is."""
        if self._writing is not None:
            wait([self._writing])
            done, self._writing = self._writing, None
            done.result()

    def _write(self, tensors: dict[str, Tensor], header: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """The selected weights first: a run whose state is final has them."""
        self._write_selected(header["best"], weights)
        keep_previous(self._out / LAST, self._out / PREVIOUS)
        save_tensors(self._out / LAST, tensors, header)

    def _write_selected(self, best: dict[str, Any] | None, weights: dict[str, Tensor]) -> None:
        if best is not None and best != self._written and weights:
            save_tensors(self._out / SELECTED, {f"model.{name}": tensor for name, tensor in weights.items()}, best)
            self._written = best
