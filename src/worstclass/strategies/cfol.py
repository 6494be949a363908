"""CFOL (Pethick et al., TMLR 2023), class focused online learning: a bandit that draws the classes."""

from typing import Any, Literal

import torch
from torch import Tensor

from worstclass.execution.distributed import Team
from worstclass.stats import ClassStats
from worstclass.types import ClassWeights, Losses


class CFOL:
    """EXP3 over the classes, step by step: a class that fails under attack is drawn more often.

    q = softmax(w), p = gamma u + (1 - gamma) q with u uniform. For every sample that is wrong under attack,
    w_y grows by eta / p_y. With `mode` "sample" classes are drawn by p, with replacement; with "weight" images are
    drawn as ever and a sample weighs K p_y.
    """

    def __init__(
        self, num_classes: int, *, eta: float = 5e-6, gamma: float = 0.5, mode: Literal["sample", "weight"] = "sample"
    ) -> None:
        self.eta, self.gamma, self.mode, self.num_classes = eta, gamma, mode, num_classes
        self.log_weights = torch.zeros(num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes, sampling=mode == "sample")
        self._write()

    def to(self, device: torch.device) -> None:
        self.log_weights = self.log_weights.to(device)

    @property
    def probabilities(self) -> Tensor:
        """p (K,)."""
        return self.gamma / self.num_classes + (1 - self.gamma) * self.log_weights.softmax(0)

    def observe(self, losses: Losses, y: Tensor, team: Team) -> None:
        wrong = (losses.robust_logits.argmax(1) != y).double()
        classes = torch.arange(self.num_classes, device=y.device)
        errors = team.all_reduce((y[:, None] == classes).double().T @ wrong)
        self.log_weights += self.eta * errors / self.probabilities
        self._write()

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        return {"log_weights": self.log_weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log_weights.copy_(state["log_weights"])
        self._write()

    def _write(self) -> None:
        probabilities = self.probabilities
        if self.mode == "sample":
            self.weights.set(sampling=probabilities)
        else:
            by_class = self.num_classes * probabilities
            self.weights.set(natural=by_class, robust=by_class)
