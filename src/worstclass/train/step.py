"""One training step: its only definition. It runs as it is on a CPU and can be captured on a GPU.

Nothing here waits for the device: no `.item()`, no branch on a tensor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass.data import Augment, Images, to_float
from worstclass.stats import ClassStats
from worstclass.types import Classifier, ClassWeights, Losses, Objective


@dataclass(frozen=True)
class TrainStep:
    """What a step reads and writes; calling it with the indices (B,) of a batch takes the step."""

    model: Classifier
    optimizer: torch.optim.Optimizer
    objective: Objective
    weights: ClassWeights
    data: Images
    augment: Augment
    stats: ClassStats
    health: "Health"
    generator: torch.Generator

    def __call__(self, index: Tensor) -> None:
        y = self.data.y[index]
        x = to_float(self.augment(self.data.x[index], self.generator))
        self.model.eval()  # the attack sees fixed BatchNorm statistics, and leaves them alone
        x_adv = self.objective.perturb(self.model, x, y, margin=self.weights.margin[y], generator=self.generator)
        self.model.train()
        losses = self.objective.losses(self.model, x, x_adv, y)
        loss = self.weights.reduce(losses, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        tally(self.stats, losses, y)
        self.health.watch(loss)


def tally(stats: ClassStats, losses: Losses, y: Tensor) -> None:
    """Add a batch to the class table."""
    stats.add(
        y,
        natural_loss=losses.natural.detach(),
        robust_loss=losses.robust.detach(),
        natural_correct=losses.natural_logits.argmax(1) == y,
        robust_correct=losses.robust_logits.argmax(1) == y,
    )


class Health:
    """Remembers, on the device, the first step of an epoch whose loss was not finite."""

    def __init__(self, device: torch.device) -> None:
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=device)

    def reset(self) -> None:
        self._steps.zero_()
        self._first_bad.fill_(-1)

    def watch(self, loss: Tensor) -> None:
        self._steps += 1
        bad = ~loss.detach().isfinite() & (self._first_bad < 0)
        self._first_bad.copy_(torch.where(bad, self._steps, self._first_bad))

    def first_bad_step(self) -> int | None:
        """The number of the step (from 1), or None; waits for the device."""
        step = int(self._first_bad)
        return None if step < 0 else step
