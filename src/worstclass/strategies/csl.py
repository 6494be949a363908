"""CSL, cost-sensitive learning (Benz et al. 2020): our interpretation, an integral controller of class costs."""

from typing import Any

import torch

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights


class CSL:
    """A class below the mean robust accuracy gets dearer, one above it cheaper.

    Only "cost-sensitive learning, alpha = 0.05" is known of the original. Here cost_k starts at 1, and after
    each epoch cost_k <- max(0, cost_k + rate * (mean(a) - a_k) / mean(a)) with a_k the robust accuracy on
    validation, rescaled to mean 1; a sample weighs the cost of its class.
    """

    def __init__(self, num_classes: int, *, rate: float) -> None:
        self.rate = rate
        self.cost = torch.ones(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        accuracy = valid.mean("robust_correct").cpu()
        gap = (accuracy.mean() - accuracy) / accuracy.mean().clamp_min(1e-12)
        cost = (self.cost + self.rate * gap).clamp_min(0)
        self.cost.copy_(cost / cost.mean())
        self.weights.set(natural=self.cost, robust=self.cost)

    def state_dict(self) -> dict[str, Any]:
        return {"cost": self.cost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cost.copy_(state["cost"])
        self.weights.set(natural=self.cost, robust=self.cost)
