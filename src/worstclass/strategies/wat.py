"""WAT, Algorithm 1 of the paper: Hedge over the K class losses and their average."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from worstclass.errors import unknown
from worstclass.stats import ClassStats
from worstclass.strategies.hedge import Hedge, class_costs, sample_weights
from worstclass.types import ClassWeights

Variant = Literal["paper", "reference"]


class WAT:
    """Weigh each class by Hedge on its validation loss.

    `paper`: a sample of class k weighs w_0 + w_k * n / n_k. `reference` replicates the public code:
    K * (w_0 + w_k), so the average expert is K times too heavy, and 2 during the first epoch.
    """

    def __init__(self, class_counts: Tensor, *, eta: float, variant: Variant = "paper") -> None:
        if variant not in get_args(Variant):
            raise unknown("variant", variant, get_args(Variant))
        self.num_classes = len(class_counts)
        self.variant = variant
        self.hedge = Hedge(self.num_classes + 1, eta)
        self.class_share = class_counts.double().cpu() / class_counts.double().sum().cpu()
        self.weights = ClassWeights.uniform(self.num_classes)
        self._write(first=True)

    @property
    def expert_weights(self) -> Tensor:
        """Hedge's (K + 1,): of the average, then of each class."""
        return self.hedge.weights

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.hedge.update(class_costs(valid))
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"cumulative_cost": self.hedge.cumulative_cost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hedge.cumulative_cost.copy_(state["cumulative_cost"])
        self._write(first=not bool(self.hedge.cumulative_cost.any()))

    def _write(self, *, first: bool = False) -> None:
        weights = self.hedge.weights
        if self.variant == "paper":
            by_class = sample_weights(weights, self.class_share)
        elif first:
            by_class = torch.full_like(self.class_share, 2)
        else:
            by_class = self.num_classes * (weights[0] + weights[1:])
        self.weights.set(natural=by_class, robust=by_class)
