"""Class weights that do not move: plain training, and the sweep of the paper's Figure 3."""

from typing import Any

import torch
from torch import Tensor

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights


class Fixed:
    """Minimise sum_k w_k L_k for given w on the simplex: a sample of class k weighs w_k * n / n_k, or with `sample`
    class k has the share w_k of an epoch's images."""

    def __init__(self, class_counts: Tensor, class_weights: Tensor, *, sample: bool = False) -> None:
        self.weights = ClassWeights.uniform(len(class_counts), quota=sample)
        if sample:
            self.weights.set(quota=class_weights.double())
            return
        share = class_counts.double() / class_counts.double().sum()
        by_class = class_weights.double() / share
        self.weights.set(natural=by_class, robust=by_class)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def uniform(num_classes: int) -> Fixed:
    """Plain training: every sample weighs 1, whatever the balance of the data."""
    ones = torch.ones(num_classes)
    return Fixed(ones, ones / num_classes)


def focus(num_classes: int, focus_class: int, focus_weight: float) -> Tensor:
    """Figure 3's weights: w_c for one class, (1 - w_c) / (K - 1) for each other."""
    weights = torch.full((num_classes,), (1 - focus_weight) / (num_classes - 1), dtype=torch.float64)
    weights[focus_class] = focus_weight
    return weights
