"""FAIR-TAT (WACV 2025) and TRIX (2025): attacks in training that aim at a class, by the class they start from."""

from typing import Any

import torch
from torch import Tensor

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights


class FairTAT:
    """Every attack in training aims at a class, drawn by how often errors land there.

    Class j is the target with probability softmax(sharpness * f)_j among the classes other than the label, with f_j the
    share of last epoch's errors under attack in training that landed on it. The radius of class k is
    (radius + t_k) * eps with t_k its robust accuracy in training, as CFA's.
    """

    tables = ("robust_predictions",)

    def __init__(self, num_classes: int, *, sharpness: float = 2.0, radius: float = 0.5) -> None:
        self.sharpness, self.radius = sharpness, radius
        self.landed = torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
        self.radius_scale = torch.ones(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes, targets=True)
        self._write()

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        errors = (train.matrix("robust_predictions") * train.counts[:, None]).cpu()
        errors = errors - errors.diag().diag()
        self.landed.copy_(errors.sum(0) / errors.sum() if errors.sum() > 0 else torch.full_like(self.landed, 1))
        self.radius_scale.copy_(self.radius + train.mean("robust_correct"))
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"landed": self.landed, "radius_scale": self.radius_scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.landed.copy_(state["landed"])
        self.radius_scale.copy_(state["radius_scale"])
        self._write()

    def _write(self) -> None:
        aims = off_diagonal(torch.softmax(self.sharpness * self.landed, 0).expand(len(self.landed), -1))
        self.weights.set(targets=aims, radius_scale=self.radius_scale)


class TRIX:
    """Strong classes get attacks that aim at a class drawn uniformly, which are weaker; weak classes untargeted ones.

    Our interpretation: the paper's code is not public. A class is strong where its robust accuracy on validation is
    above the mean over classes. Losses are weighed and radii scaled by 1 + strength * (mean - a_k), of the same
    accuracies a_k: the paper takes "class loss weights and class radii of earlier work".
    """

    def __init__(self, num_classes: int, *, strength: float = 1.0) -> None:
        self.strength = strength
        self.accuracy = torch.zeros(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes, targets=True)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.accuracy.copy_(valid.mean("robust_correct"))
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.accuracy.copy_(state["accuracy"])
        self._write()

    def _write(self) -> None:
        gap = self.accuracy.mean() - self.accuracy
        aims = off_diagonal(torch.ones(len(gap), len(gap), dtype=torch.float64))
        by_class = (1 + self.strength * gap).clamp_min(0.1)
        strong = (gap < 0).double()[:, None]
        self.weights.set(targets=strong * aims, natural=by_class, robust=by_class, radius_scale=by_class)


def off_diagonal(rows: Tensor) -> Tensor:
    """Rows (K, K) without their diagonal, each summing to 1: a label is never its own target."""
    others = rows - rows.diag().diag()
    return others / others.sum(1, keepdim=True)
