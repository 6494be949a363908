"""A run that does not start from nothing: from the selected weights of another, or from an epoch of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from worstclass.config.keys import STARTS, Config
from worstclass.errors import UserError
from worstclass.files import read_text
from worstclass.inputs.names import same_data, split_fork
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
    folder, epoch = split_fork(text)
    return Fork(open_run(folder), epoch)


def start_from(config: Config, model: nn.Module, about: Mapping[str, Any], *, allow_code: bool) -> dict[str, Any]:
    """Put the selected weights of the run `config.init` into a model; returns what to say of them. `about` is what the
    new run says of its data."""
    assert config.init is not None
    run = open_run(Path(config.init))
    if run.about["data_digest"] == about["data_digest"]:
        _check_split(run, config, about)
    elif same_data(run.config.data, config.data):
        _check_test_part(run, config)
        _check_tail(run, config)
        if run.config.imbalance == config.imbalance and run.config.image_size != config.image_size:
            _check_split(run, config, about)  # the same images at another size
    other, epoch = run.load_model("selected", allow_code=allow_code)
    weights = weights_of(other)
    load_weights(model, weights, run.folder / SELECTED)
    return {"run": run.folder.name, "epoch": epoch, "weights": digest(weights)}


def check_fork(fork: Fork, config: Config, about: Mapping[str, Any]) -> None:
    """Raise unless a run of this configuration, on the data that `about` tells of, can go on from there."""
    if fork.epoch >= config.epochs:
        raise UserError(f"epoch {fork.epoch} of {config.epochs}: nothing is left to train after the fork.")
    if fork.run.about["data_digest"] != about["data_digest"]:
        raise UserError(f"{fork.run.folder} was trained on other data than this.")
    _check_split(fork.run, config, about)
    left = config.epochs - fork.epoch
    for key in STARTS:
        if fork.run.config.method != config.method and key in config.used_keys and getattr(config, key) >= left:
            raise UserError(
                f"{key} = {getattr(config, key)}, counted from the fork, and {left} epochs are left: "
                "what begins after it never would. Set it lower, or train for more epochs."
            )


def _check_split(run: Run, config: Config, about: Mapping[str, Any]) -> None:
    """Raise where a run was trained on images that are held out now. Of the same data and `valid_fraction`, no class
    holds out fewer images for a larger `valid_min`: where the sums are equal, the images are."""
    before, now = run.config, config
    if about.get("own_validation"):  # of the same digest, and so the same border
        return
    if before.valid_fraction != now.valid_fraction or run.about["valid_images"] != about["valid_images"]:
        raise UserError(
            f"{run.folder} was trained with valid_fraction = {before.valid_fraction:g} and valid_min = "
            f"{before.valid_min}, this run has {now.valid_fraction:g} and {now.valid_min}: "
            "it would be validated on images that were trained on."
        )


def _check_test_part(run: Run, config: Config) -> None:
    """Raise where a run was trained on images that are test images now."""
    before, now = run.config.test_fraction, config.test_fraction
    if before != now:
        shown = ["none" if each is None else f"{each:g}" for each in (before, now)]
        raise UserError(
            f"{run.folder} was trained with test_fraction = {shown[0]}, this run has {shown[1]}: "
            "it would be tested on images that were trained on."
        )


def _check_tail(run: Run, config: Config) -> None:
    """Raise where a run on more images of the same data was trained on those that are held out of fewer now. Of more
    images than before, the last ones are new where as large a part is held out."""
    before, now = run.config, config
    alike = before.valid_fraction == now.valid_fraction and before.valid_min == now.valid_min
    if before.imbalance != now.imbalance and not (alike and (now.imbalance or 0) < (before.imbalance or 0)):
        shown = ["none" if each.imbalance is None else f"{each.imbalance:g}" for each in (before, now)]
        raise UserError(
            f"{run.folder} was trained with imbalance = {shown[0]}, this run has {shown[1]}: "
            "it would be validated on images that were trained on."
        )


def fork_state(fork: Fork, state: State, config: Config) -> dict[str, Any]:
    """Put an epoch of a run into a state: weights, optimizer, and the average where both have the same. The strategy
    goes on where the method is the same, and starts anew where it is another; so does an optimizer of another kind.
    Returns what to say of it."""
    before, path = fork.run.config, fork.path
    tensors, header = load_tensors(path)
    if header["epoch"] != fork.epoch or header.get("step"):  # a run that goes on has replaced it meanwhile
        raise UserError(f"{path} is no longer that of epoch {fork.epoch}.")
    weights = section(tensors, "model")
    load_weights(state.model, weights, path)
    load_part(state.optimizer, section(tensors, "optimizer"))
    if before.method == config.method:
        load_part(state.strategy, section(tensors, "strategy"))
        if state.valid is not None and _validate_alike(before, config):  # without a table, the next epoch is validated
            load_part(state.valid, section(tensors, "valid"))
    if state.average is not None:
        average = section(tensors, "average") if before.average == config.average else {}
        if not load_part(state.average, average):
            load_weights(state.average.model, weights, path)
    state.epoch = fork.epoch
    return {"run": fork.run.folder.name, "epoch": fork.epoch, "weights": digest(weights), "recipe": before.recipe()}


def _validate_alike(one: Config, other: Config) -> bool:
    """Whether validation measures the same in two runs: under the same attacks, of raw or of averaged weights."""
    return (
        one.make_plan().valid_attack == other.make_plan().valid_attack
        and one.make_objective() == other.make_objective()
        and one.average == other.average
    )


def log_until(fork: Fork) -> bytes:
    """The log of the run until the fork: those epochs are the new run's too."""
    lines = read_text(fork.run.folder / LOG, MAX_LOG).splitlines()[: fork.epoch]
    if len(lines) < fork.epoch:
        raise UserError(f"{fork.run.folder / LOG} has {len(lines)} lines, fewer than epoch {fork.epoch}.")
    return "".join(line + "\n" for line in lines).encode()
