"""A run that does not start from nothing: from the selected weights of another, or from an epoch of it."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from worstclass.errors import UserError
from worstclass.files import read_text
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import KEPT, LAST, LOG, MAX_LOG, SELECTED
from worstclass.training import State
from worstclass.training.checkpoint import digest, load_part, load_tensors, load_weights, section, weights_of


class Fork(NamedTuple):
    """An epoch of a run that another run goes on from."""

    run: Run
    epoch: int

    @property
    def path(self) -> Path:
        """The checkpoint of that epoch's end."""
        folder = self.run.folder
        kept = folder / KEPT.format(self.epoch)
        if kept.is_file():
            return kept
        last = folder / LAST
        header = load_tensors(last)[1] if last.is_file() else {}
        if header.get("epoch") == self.epoch and not header.get("step"):
            return last
        found = sorted(int(path.stem.partition("-")[2]) for path in folder.glob(KEPT.format("*")))
        there = ", ".join(map(str, [*found, *([header["epoch"]] if header and not header.get("step") else [])]))
        raise UserError(
            f"{folder} has no checkpoint of epoch {self.epoch} (it has: {there or 'none'}); "
            f"`worstclass train --keep {self.epoch}` keeps one."
        )


def parse_fork(text: str) -> Fork:
    """`RUN@70`: a run folder and an epoch of it."""
    folder, at, number = text.rpartition("@")
    if not at or not number.isdecimal() or int(number) < 1:
        raise UserError(f"'{text}' is not a run folder and an epoch, such as runs/trades-seed1@70.")
    return Fork(open_run(Path(folder)), int(number))


def start_from(folder: str, model: nn.Module, *, allow_code: bool) -> dict[str, Any]:
    """Put the selected weights of a run into a model; returns what to say of them."""
    run = open_run(Path(folder))
    other, epoch = run.load_model("selected", allow_code=allow_code)
    weights = weights_of(other)
    load_weights(model, weights, run.folder / SELECTED)
    return {"run": run.folder.name, "epoch": epoch, "weights": digest(weights)}


def check_fork(fork: Fork, epochs: int, data_digest: str) -> None:
    """Raise unless a run of so many epochs on that data can go on from there."""
    if fork.epoch >= epochs:
        raise UserError(f"epoch {fork.epoch} of {epochs}: nothing is left to train after the fork.")
    if fork.run.about["data_digest"] != data_digest:
        raise UserError(f"{fork.run.folder} was trained on other data than this.")


def fork_state(fork: Fork, state: State, *, same_method: bool) -> dict[str, Any]:
    """Put an epoch of a run into a state: weights, optimizer, and the average where both have one. The strategy goes
    on where the method is the same, and starts anew where it is another; so does an optimizer of another kind. Returns
    what to say of it."""
    tensors, header = load_tensors(fork.path)
    weights = section(tensors, "model")
    load_weights(state.model, weights, fork.path)
    load_part(state.optimizer, section(tensors, "optimizer"))
    if same_method:
        load_part(state.strategy, section(tensors, "strategy"))
    if state.average is not None and not load_part(state.average, section(tensors, "average")):
        load_weights(state.average.model, weights, fork.path)
    state.epoch = header["epoch"]
    return {"run": fork.run.folder.name, "epoch": fork.epoch, "weights": digest(weights)}


def log_until(fork: Fork) -> bytes:
    """The log of the run until the fork: those epochs are the new run's too."""
    lines = read_text(fork.run.folder / LOG, MAX_LOG).splitlines()[: fork.epoch]
    if len(lines) < fork.epoch:
        raise UserError(f"{fork.run.folder / LOG} has {len(lines)} lines, fewer than epoch {fork.epoch}.")
    return "".join(line + "\n" for line in lines).encode()
