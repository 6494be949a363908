"""What a run is made of: its plan, and the state that a checkpoint holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from worstclass.attacks import PGD
from worstclass.data import Augment
from worstclass.errors import UserError
from worstclass.types import Classifier, ClassStrategy

VALID_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how fast to train.

    `lr_milestones` are shares of the epochs, in (0, 1]: of 100 epochs, 0.75 multiplies the rate by `lr_decay` from the
    75th on. The first epoch has the full rate, however few there are.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 2e-4
    lr_milestones: tuple[float, ...] = ()
    lr_decay: float = 0.1
    augment: Augment = field(default_factory=Augment)
    valid_attack: PGD
    seed: int = 1

    def __post_init__(self) -> None:
        for share in self.lr_milestones:
            if not 0 < share <= 1:
                raise UserError(f"lr_milestones are shares of the epochs, in (0, 1], not {share:g}.")

    def lr_at(self, epoch: int) -> float:
        """The learning rate of a 1-based epoch."""
        done = epoch / self.epochs * (1 + 1e-9) if epoch > 1 else 0.0  # 7 / 10 is not quite 0.7
        return self.lr * self.lr_decay ** sum(done >= share for share in self.lr_milestones)

    def batch_size_for(self, size: int) -> int:
        """The batch size on a data set that may be smaller than a batch."""
        return min(self.batch_size, size)

    @property
    def valid_batch_size(self) -> int:
        """Images of validation at a time: where memory is short, a smaller batch makes this one smaller too."""
        return min(4 * self.batch_size, VALID_BATCH)


@dataclass
class State:
    """What a checkpoint holds: a model, its optimizer, the strategy, the epochs done, and within the next one the
    steps done, their class table and their seconds."""

    model: Classifier
    optimizer: torch.optim.SGD
    strategy: ClassStrategy
    epoch: int = 0
    step: int = 0
    table: Tensor | None = None
    seconds: float = 0.0


def new_state(model: Classifier, strategy: ClassStrategy, plan: Plan, device: torch.device | str = "cpu") -> State:
    """Everything on the device and nothing trained. The learning rate is a tensor, so that it can change in a graph."""
    for part in (model, strategy):
        as_tensors(part.state_dict(), type(part).__name__)  # what no checkpoint can hold is told now
    model = model.to(device)
    strategy.weights = strategy.weights.to(torch.device(device))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=torch.tensor(plan.lr, device=device),
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        fused=True,
    )
    return State(model, optimizer, strategy)


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
