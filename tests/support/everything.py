"""A strategy that uses every seam: all tables, pair weights, a sampler, aimed attacks, and notes within the step."""

from typing import Any

import torch
from torch import Tensor

from worstclass.config.methods import Method
from worstclass.execution.distributed import Team
from worstclass.stats import ClassStats
from worstclass.types import ClassWeights, Losses


class Everything:
    """Each epoch, from the soft table under attack of training: radii and weights by how often a class is missed, pair
    weights and targets by what it is taken for. Each step, in the step: the errors under attack are counted by class,
    and classes are drawn in proportion to those, plus one."""

    tables = ("robust_probabilities", "robust_predictions", "natural_probabilities", "robust_margin")

    def __init__(self, num_classes: int) -> None:
        self.weights = ClassWeights.uniform(num_classes, pair=True, sampling=True, targets=True)
        self.confusion = torch.eye(num_classes, dtype=torch.float64)
        self.errors = torch.zeros(num_classes, dtype=torch.float64)
        self._write()  # as `load_state_dict` does: its weights are those of its state from the start

    def to(self, device: torch.device) -> None:
        self.errors = self.errors.to(device)

    def observe(self, losses: Losses, y: Tensor, team: Team) -> None:
        wrong = (losses.robust_logits.argmax(1) != y).double()
        self.errors += team.all_reduce(torch.zeros_like(self.errors).index_add(0, y, wrong))
        self._draw()

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.confusion.copy_((train.matrix("robust_probabilities") + valid.matrix("robust_predictions")) / 2)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"confusion": self.confusion, "errors": self.errors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.confusion.copy_(state["confusion"])
        self.errors.copy_(state["errors"])
        self._write()
        self._draw()

    def _draw(self) -> None:
        assert self.weights.sampling is not None
        self.weights.sampling.copy_((self.errors + 1) / (self.errors + 1).sum())

    def _write(self) -> None:
        others = self.confusion * (1 - torch.eye(len(self.confusion), dtype=torch.float64))
        targets = others.clone()
        targets[0] = 0  # the first class is attacked without an aim
        missed = others.sum(1)
        self.weights.set(natural=1 + missed, radius_scale=1 + missed / 4, pair=1 + self.confusion.T, targets=targets)


METHOD = Method("Everything", lambda config, class_counts: Everything(len(class_counts)))
"""As an entry of `METHODS`."""
