"""What a run is made of: its plan, and the state that a checkpoint holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worstclass.attacks import PGD
from worstclass.data import Augment, Augmentation
from worstclass.errors import UserError
from worstclass.stats import ClassStats
from worstclass.training.averaging import Average, AverageRule
from worstclass.training.awp import AWPRule
from worstclass.training.distillation import ADR
from worstclass.training.optimizers import SGD, Optimizer, OptimizerRule
from worstclass.training.schedules import AttackSteps, Piecewise, Progress, Schedule
from worstclass.types import Classifier, ClassStrategy, Stateful

VALID_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how fast and by which means to train.

    `schedule` gives the factor on `lr` at any point of the run. `average` is what is shipped in the place of the raw
    weights; `recalibrate` measures its BatchNorm statistics anew after each epoch; with `adr` it softens the labels.
    `augment` changes the images of a batch: an `Augment`, or a function of your own. `radius_warmup` epochs bring the
    attack radius up in a straight line from zero; `attack_steps` changes the number of its steps. Gradients of a norm
    above `clip_grad_norm` are scaled down to it. After the first epoch, every `valid_every` and the last one there is
    a validation; in between strategies are given its last table.
    """

    epochs: int
    batch_size: int
    lr: float
    valid_attack: PGD
    schedule: Schedule = field(default_factory=Piecewise)
    optimizer: OptimizerRule = field(default_factory=SGD)
    clip_grad_norm: float | None = None
    average: AverageRule | None = None
    recalibrate: bool = True
    awp: AWPRule | None = None
    adr: ADR | None = None
    radius_warmup: float = 0.0
    attack_steps: AttackSteps | None = None
    valid_every: int = 1
    augment: Augmentation = field(default_factory=Augment)
    seed: int = 1

    def __post_init__(self) -> None:
        if self.adr is not None and self.average is None:
            raise UserError("adr needs an average of the weights, whose predictions soften the labels.")

    def at(self, epoch: int, share: float = 0.0) -> Progress:
        """A point of the run: a 1-based epoch, of which a share is done."""
        return Progress(epoch, self.epochs, share)

    def lr_at(self, epoch: int, share: float = 0.0) -> float:
        """The learning rate there."""
        return self.lr * self.schedule(self.at(epoch, share))

    def batch_size_for(self, size: int) -> int:
        """The batch size on a data set that may be smaller than a batch."""
        return min(self.batch_size, size)

    @property
    def valid_batch_size(self) -> int:
        """Images of validation at a time: where memory is short, a smaller batch makes this one smaller too."""
        return min(4 * self.batch_size, VALID_BATCH)


class LastValidation:
    """The last validation of a run that has none after some epochs: its class table and its epoch, 0 before any."""

    def __init__(self, num_classes: int, extra: Sequence[str]) -> None:
        self.stats, self.epoch = ClassStats(num_classes, extra=extra), 0

    def state_dict(self) -> dict[str, Any]:
        return self.stats.state_dict() | {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stats.load_state_dict(state)
        self.epoch = int(state["epoch"])


@dataclass
class State:
    """A run as it stands: its parts, the epochs done, and within the next one the steps done and their seconds."""

    model: Classifier
    optimizer: Optimizer
    strategy: ClassStrategy
    table: ClassStats  # of the steps done
    average: Average | None = None
    valid: LastValidation | None = None
    epoch: int = 0
    step: int = 0
    seconds: float = 0.0

    def parts(self) -> dict[str, Stateful]:
        """All that a checkpoint holds and processes share, by name: the only list of it."""
        parts: dict[str, Stateful | None] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "strategy": self.strategy,
            "average": self.average,
            "epoch": self.table,
            "valid": self.valid,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def shipped(self) -> Classifier:
        """The weights that are validated, selected and shipped: the average where there is one."""
        return self.model if self.average is None else self.average.model

    def touched(self) -> list[Tensor]:
        """All that a step may write."""
        tensors = [*self.strategy.weights.tensors().values()]
        for part in self.parts().values():
            if isinstance(part, torch.nn.Module):  # buffers that no checkpoint holds too
                tensors += [*(parameter.detach() for parameter in part.parameters()), *part.buffers()]
            else:
                tensors += [value for value in part.state_dict().values() if isinstance(value, Tensor)]
        return tensors


def new_state(model: Classifier, strategy: ClassStrategy, plan: Plan, device: torch.device | str = "cpu") -> State:
    """Everything on the device and nothing trained. The learning rate is a tensor, so that it can change in a graph."""
    for part in (model, strategy):
        as_tensors(part.state_dict(), type(part).__name__)  # what no checkpoint can hold is told now
    model, device = model.to(device), torch.device(device)
    strategy.weights = strategy.weights.to(device)
    if hasattr(strategy, "to"):  # one that moves within the step has its state on the device too
        strategy.to(device)
    num_classes, extra = len(strategy.weights.natural), getattr(strategy, "tables", ())
    return State(
        model,
        Optimizer(model, plan.optimizer, plan.lr, plan.clip_grad_norm),
        strategy,
        ClassStats(num_classes, device, extra=extra),
        plan.average.make(model) if plan.average else None,
        LastValidation(num_classes, extra) if plan.valid_every > 1 else None,
    )


NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def as_tensors(state: Mapping[str, Any], whose: str) -> dict[str, Tensor]:
    """What a `state_dict` holds, as a checkpoint does: tensors, and a number as one. Anything else is an error."""
    tensors = {}
    for name, value in state.items():
        dtype = NUMBERS.get(type(value))
        if not isinstance(value, Tensor) and (dtype is None or (type(value) is int and not -(2**63) <= value < 2**63)):
            kind = "too large a number" if dtype else f"of type {type(value).__name__}"
            raise UserError(f"{whose}.state_dict()['{name}'] is {kind}: a checkpoint holds tensors and plain numbers.")
        tensors[name] = value if dtype is None else torch.tensor(value, dtype=dtype)
    return tensors


def as_given(tensors: Mapping[str, Tensor], own: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a checkpoint as the `state_dict` of one's own has them: a number where that has one."""
    return {
        name: type(own[name])(tensor.item()) if type(own.get(name)) in NUMBERS else tensor
        for name, tensor in tensors.items()
    }
