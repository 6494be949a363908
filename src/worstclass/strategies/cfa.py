"""CFA (Wei et al., CVPR 2023), class-wise calibrated fair adversarial training."""

from typing import Any

import torch

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights


class CFA:
    """A class that is robust in training gets a larger radius and a larger beta.

    With t_k the robust accuracy of class k in training during the last epoch, its radius is (radius + t_k) * eps, and
    beta_k = (share + t_k) * beta weighs its losses as (CE + beta_k KL) / (1 + beta_k). Until epoch `start` both are the
    plain ones. Without a KL term (`beta` 0, as for PGD-AT) only the radius moves. Its third part, FAWA, is `average =
    "fawa"`.
    """

    def __init__(
        self, num_classes: int, *, beta: float, radius: float = 0.3, share: float = 0.5, start: int = 10
    ) -> None:
        self.beta, self.radius, self.share, self.start = beta, radius, share, start
        self.epoch = 0
        self.accuracy = torch.zeros(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes)
        self._write()

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.epoch += 1
        self.accuracy.copy_(train.mean("robust_correct"))
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "accuracy": self.accuracy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.accuracy.copy_(state["accuracy"])
        self._write()

    def _write(self) -> None:
        begun = self.epoch >= self.start
        scale = self.share + self.accuracy if begun and self.beta else torch.ones_like(self.accuracy)
        natural = 1 / (1 + scale * self.beta)
        radius = self.radius + self.accuracy if begun else torch.ones_like(self.accuracy)
        self.weights.set(natural=natural, robust=scale * natural, radius_scale=radius)  # beta is in the robust loss
