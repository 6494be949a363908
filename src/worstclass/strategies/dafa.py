"""DAFA (Lee et al., ICLR 2024), distance-aware fair adversarial training."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from worstclass.stats import ClassStats
from worstclass.types import ClassWeights

BOUNDS = (0.5, 2.0)  # of levelled weights
MOST_LEVEL = 1.0
HALVINGS = 60


class DAFA:
    """Weight and radius move from each class to the harder ones that it is confused with.

    With S_ij the mean probability under attack of class j for samples of class i,
    W_i = 1 + strength * sum_{j != i} (S_ij S_jj where S_ii < S_jj, else -S_ji S_ii), so that the W_i sum to K.
    W weighs the natural loss of TRADES, or with `weigh_robust` the adversarial one of PGD-AT, and scales the radius. As
    published S is that of training in epoch `warmup`, and W stays;
    with `refresh` it is read anew each epoch from then on, as a moving average of that decay, from the table of `part`.
    Ours: W is at least 0.1 (a large strength makes the published one negative).

    `level`, ours too, raises what is lowest among the weak: after each epoch from `warmup` on, a class's multiplier
    u_k grows by level * (target - r_k), with r_k its robust accuracy in `part` and target the mean r of the worst third
    of the classes, and stays in [0, `MOST_LEVEL`]. W + u is then projected on the weights in `BOUNDS` that sum to K.

    `given` are weights W of mean 1, found in an earlier run say, in place of those of a table.
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
        level: float = 0.0,
        given: Sequence[float] | None = None,
        weigh_robust: bool = False,
    ) -> None:
        self.strength, self.warmup, self.refresh, self.part = strength, warmup, refresh, part
        self.level, self.weigh_robust, self.epoch = level, weigh_robust, 0
        self.given = None if given is None else torch.tensor(given, dtype=torch.float64)
        self.multiplier = torch.zeros(num_classes, dtype=torch.float64)
        self.taken_for = torch.eye(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.epoch += 1
        stats = (train if self.part == "train" else valid).copy()
        table = stats.matrix("robust_probabilities")
        if self.epoch == self.warmup:
            self.taken_for.copy_(table)
        elif self.epoch > self.warmup and self.refresh:
            self.taken_for.lerp_(table, 1 - self.refresh)
        if self.epoch >= self.warmup:
            accuracy = stats.mean("robust_correct")
            gap = accuracy.sort().values[: math.ceil(len(accuracy) / 3)].mean() - accuracy
            self.multiplier.add_(self.level * gap).clamp_(0, MOST_LEVEL)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken_for": self.taken_for, "multiplier": self.multiplier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.taken_for.copy_(state["taken_for"])
        self.multiplier.copy_(state["multiplier"])
        self._write()

    def _write(self) -> None:
        if self.epoch >= self.warmup:
            by_class = 1 + self.strength * transfer(self.taken_for) if self.given is None else self.given
            by_class = project(by_class + self.multiplier, *BOUNDS) if self.level else by_class.clamp_min(0.1)
            self.weights.set(natural=by_class, radius_scale=by_class)
            if self.weigh_robust:
                self.weights.set(robust=by_class)


def transfer(taken_for: Tensor) -> Tensor:
    """What each class (K,) is given by the others, less what it gives them: antisymmetric, so it sums to zero."""
    right = taken_for.diagonal()
    given = torch.where(right[:, None] < right, taken_for * right, -taken_for.T * right[:, None])
    return (given - given.diag().diag()).sum(1)


def project(weights: Tensor, low: float, high: float) -> Tensor:
    """The nearest weights (K,) in [low, high] that sum to K: all are lowered by one number, found by halving."""
    least, most = weights.min() - high, weights.max() - low
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        if (weights - middle).clamp(low, high).sum() > len(weights):
            least = middle
        else:
            most = middle
    return (weights - most).clamp(low, high)
