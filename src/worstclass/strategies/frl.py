"""FRL (Xu et al. 2021), fair robust learning: re-weight, and re-weight with re-margin."""

import math
from typing import Any

import torch
from torch import Tensor

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights

MARGIN_RANGE = (0.98, 3.0)
MULTIPLIER_RANGE = (math.log(MARGIN_RANGE[0]) / 2, math.log(MARGIN_RANGE[1]) / 2)


class FRL:
    """Lagrange multipliers on the gap of each class to the mean, in clean error and in boundary error.

    With e_k the clean error and b_k = clean accuracy - robust accuracy on validation:
    g0_k = e_k - mean(e) - tau, g1_k = b_k - mean(b) - tau; l0 <- P(l0 + rate * g0),
    l1 <- P(l1 + 2 * rate * g1); the weights are 1/K + l_k - mean(l). With `margin_rate` (re-margin),
    l2 <- l2 + margin_rate * g1 and the radius of class k is eps * exp(2 * l2_k). l2 is clamped so that this factor is
    in [0.98, 3]: left to run on, it would need as many epochs to come back as it took to get there.
    """

    def __init__(self, num_classes: int, *, tau: float, rate: float, margin_rate: float = 0.0) -> None:
        self.tau, self.rate, self.margin_rate = tau, rate, margin_rate
        self.multipliers = torch.zeros(3, num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes, normalized=True)
        self._write()

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        natural = valid.mean("natural_correct").cpu()
        boundary = natural - valid.mean("robust_correct").cpu()
        natural_gap = natural.mean() - natural - self.tau  # (1 - a_k) - mean(1 - a), and the means cancel to this
        boundary_gap = boundary - boundary.mean() - self.tau
        self.multipliers[0] = project(self.multipliers[0] + self.rate * natural_gap)
        self.multipliers[1] = project(self.multipliers[1] + 2 * self.rate * boundary_gap)
        self.multipliers[2] = (self.multipliers[2] + self.margin_rate * boundary_gap).clamp(*MULTIPLIER_RANGE)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"multipliers": self.multipliers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.multipliers.copy_(state["multipliers"])
        self._write()

    def _write(self) -> None:
        natural, robust, margin = self.multipliers
        self.weights.set(
            natural=1 / len(natural) + natural - natural.mean(),
            robust=1 / len(robust) + robust - robust.mean(),
            radius_scale=(2 * margin).exp().clamp(*MARGIN_RANGE),  # again: exp(log(3)) is not quite 3
        )


def project(multiplier: Tensor) -> Tensor:
    """Multipliers are not negative and sum to 0.5 at most."""
    positive = multiplier.clamp_min(0)
    return positive / (2 * positive.sum()).clamp_min(1)
