"""DAFA (Lee et al., ICLR 2024), distance-aware fair adversarial training."""

from typing import Any, Literal

import torch
from torch import Tensor

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights


class DAFA:
    """Weight and radius move from each class to the harder ones that it is confused with.

    With S_ij the mean probability under attack of class j for samples of class i,
    W_i = 1 + strength * sum_{j != i} (S_ij S_jj where S_ii < S_jj, else -S_ji S_ii), so that the W_i sum to K.
    W weighs the natural loss of TRADES, or with `weigh_robust` the adversarial one of PGD-AT, and scales the radius. As
    published S is that of training in epoch `warmup`, and W stays;
    with `refresh` it is read anew each epoch from then on, as a moving average of that decay, from the table of `part`.
    Ours: W is at least 0.1 (a large strength makes the published one negative).
    """

    tables = ("robust_probabilities",)

    def __init__(
        self,
        num_classes: int,
        *,
        strength: float = 1.0,
        warmup: int = 70,
        refresh: float = 0.0,
        part: Literal["train", "valid"] = "train",
        weigh_robust: bool = False,
    ) -> None:
        self.strength, self.warmup, self.refresh, self.part = strength, warmup, refresh, part
        self.weigh_robust, self.epoch = weigh_robust, 0
        self.taken_for = torch.eye(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.epoch += 1
        table = (train if self.part == "train" else valid).matrix("robust_probabilities").cpu()
        if self.epoch == self.warmup:
            self.taken_for.copy_(table)
        elif self.epoch > self.warmup and self.refresh:
            self.taken_for.lerp_(table, 1 - self.refresh)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken_for": self.taken_for}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.taken_for.copy_(state["taken_for"])
        self._write()

    def _write(self) -> None:
        if self.epoch >= self.warmup:
            by_class = (1 + self.strength * transfer(self.taken_for)).clamp_min(0.1)
            self.weights.set(natural=by_class, radius_scale=by_class)
            if self.weigh_robust:
                self.weights.set(robust=by_class)


def transfer(taken_for: Tensor) -> Tensor:
    """What each class (K,) is given by the others, less what it gives them: antisymmetric, so it sums to zero."""
    right = taken_for.diagonal()
    given = torch.where(right[:, None] < right, taken_for * right, -taken_for.T * right[:, None])
    return (given - given.diag().diag()).sum(1)
