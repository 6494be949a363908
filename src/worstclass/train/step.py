"""One training step: its only definition. It runs as it is on a CPU and can be captured on a GPU.

Nothing here waits for the device: no `.item()`, no branch on a tensor.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass.data import Augment, Images, to_float
from worstclass.stats import ClassStats
from worstclass.types import Classifier, ClassWeights, Losses, Objective


@dataclass(frozen=True)
class TrainStep:
    """What a step reads and writes; calling it with the indices (B,) of a batch takes the step.

    `forward` and `attacked` are the model as the losses and as the attack see it: itself, or compiled.
    """

    model: Classifier
    forward: Classifier
    attacked: Classifier
    autocast: Callable[[torch.device], AbstractContextManager[object]]
    memory_format: torch.memory_format
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
        x = to_float(self.augment(self.data.x[index], self.generator)).contiguous(memory_format=self.memory_format)
        with self.autocast(x.device):
            self.model.eval()  # the attack sees fixed BatchNorm statistics, and leaves them alone
            margin = self.weights.margin[y]
            x_adv = self.objective.perturb(self.attacked, x, y, margin=margin, generator=self.generator)
            self.model.train()
            losses = self.objective.losses(self.forward, x, x_adv, y)
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
    """Remembers, on the device, the first step of an epoch whose loss was not finite, and the weights before it."""

    def __init__(self, model: Classifier, device: torch.device) -> None:
        self._parameters = list(model.parameters())
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._first_bad = torch.zeros((), dtype=torch.int64, device=device)
        self._norm, self._start_norm, self._bad_norm = torch.zeros(3, device=device).unbind()

    def reset(self) -> None:
        """Start an epoch."""
        self._steps.zero_()
        self._first_bad.fill_(-1)
        self._norm.copy_(self._weight_norm())
        self._start_norm.copy_(self._norm)

    def watch(self, loss: Tensor) -> None:
        """Note a step that has been taken."""
        self._steps += 1
        bad = ~loss.detach().isfinite() & (self._first_bad < 0)
        self._first_bad.copy_(torch.where(bad, self._steps, self._first_bad))
        self._bad_norm.copy_(torch.where(bad, self._norm, self._bad_norm))
        self._norm.copy_(self._weight_norm())

    def complaint(self) -> str | None:
        """What went wrong in this epoch, and why most likely; None if nothing did. Waits for the device."""
        step = int(self._first_bad)
        if step < 0:
            return None
        if float(self._bad_norm) < 10 * float(self._start_norm):
            cause = "the weights were still sound, so look at the model (does it overflow?) and at the data"
        else:
            cause = "the weights had blown up before it, so the learning rate is likely too high"
        return f"step {step}: the loss is not finite; {cause}"

    def _weight_norm(self) -> Tensor:
        return torch.nn.utils.get_total_norm([parameter.detach() for parameter in self._parameters])
