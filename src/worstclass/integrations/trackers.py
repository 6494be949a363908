"""The epochs of a run in TensorBoard and in Weights & Biases: averages, and accuracy and weight of every class."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worstclass.inputs.factories import need
from worstclass.runs.selection import is_validated

Record = Callable[[dict[str, Any]], None]
BY_CLASS = {
    "class_weights": "class_weight",
    "class_train_accuracy": "class_train_accuracy",
    "class_natural_accuracy": "class_natural_accuracy",
    "class_robust_accuracy": "class_robust_accuracy",
    "class_sampling": "class_sampling",
}
"""Keys of a line of the log that hold a number for each class, and how the group of numbers is called."""
OF_VALIDATION = ("class_natural_accuracy", "class_robust_accuracy")


def epoch_scalars(line: Mapping[str, Any], class_names: Sequence[str]) -> dict[str, float]:
    """A line of the log, numbers by name: `valid/robust_accuracy`, `class_robust_accuracy/cat`, `class_weight/cat`. Of
    an epoch without validation there are none of validation."""
    groups = ("train", "valid") if is_validated(line) else ("train",)
    numbers = {f"{group}/{name}": value for group in groups for name, value in line[group].items()}
    for key, group in BY_CLASS.items():
        if key in line and (is_validated(line) or key not in OF_VALIDATION):
            numbers |= {f"{group}/{name}": value for name, value in zip(class_names, line[key], strict=True)}
    return numbers


def tensorboard_writer(folder: Path, names: Callable[[], Sequence[str]]) -> Record:
    """A watcher that writes each epoch's numbers to FOLDER/tensorboard; `names` of classes are asked for by then."""
    need("tensorboard", "--tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    def record(line: dict[str, Any]) -> None:
        with SummaryWriter(str(folder / "tensorboard")) as writer:  # a file for each epoch: none is lost to a kill
            for name, value in epoch_scalars(line, names()).items():
                writer.add_scalar(name, value, line["epoch"])

    return record


def wandb_writer(folder: Path, names: Callable[[], Sequence[str]], recipe: Mapping[str, Any]) -> Record:
    """A watcher that logs each epoch's numbers to Weights & Biases; a run that is continued goes on there too.

    Where to, and whether at all (`WANDB_MODE=offline`), is what its environment says.
    """
    wandb = need("wandb", "--wandb", "wandb")
    begun: list[Any] = []

    def record(line: dict[str, Any]) -> None:
        if not begun:  # in the process that records, once there is a folder
            own = f"{folder.resolve().name}-{zlib.crc32(str(folder.resolve()).encode()):08x}"
            begun.append(
                wandb.init(
                    project="worstclass", name=folder.name, id=own, resume="allow", dir=str(folder), config=dict(recipe)
                )
            )
        begun[0].log(epoch_scalars(line, names()), step=line["epoch"])

    return record
