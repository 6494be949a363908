"""An additive per-class table: what training, validation and strategies exchange."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worstclass.errors import choose
from worstclass.execution.distributed import ALONE, Team

COLUMNS = ("natural_loss", "robust_loss", "natural_correct", "robust_correct")
"""Columns of every table, a number a sample."""

EXTRA_COLUMNS = ("robust_margin",)
"""Columns that a strategy may ask for: max_{j != y} p'_j - p'_y of the probabilities p' under attack."""

MATRICES = ("natural_predictions", "robust_predictions", "natural_probabilities", "robust_probabilities")
"""K x K tables that a strategy may ask for: how often samples of a class (row) are taken for each class (column), hard
or as probabilities, clean or under attack."""


class ClassStats:
    """Counts and sums for each class, (K, 1 + columns) in float64 on one device; `extra` names further columns.

    Tables add up: over batches, and over the processes of a `team`, each of which holds the sum over all.
    """

    def __init__(
        self,
        num_classes: int,
        device: torch.device | str = "cpu",
        team: Team = ALONE,
        extra: Sequence[str] = (),
    ) -> None:
        self._place: dict[str, slice] = {}
        end = 1
        for name in dict.fromkeys((*COLUMNS, *extra)):
            choose("table", name, (*COLUMNS, *EXTRA_COLUMNS, *MATRICES))
            self._place[name] = slice(end, end := end + (num_classes if name in MATRICES else 1))
        self.table = torch.zeros(num_classes, end, dtype=torch.float64, device=device)
        self.team = team
        self._classes = torch.arange(num_classes, device=device)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._place)

    def add(self, y: Tensor, **columns: Tensor) -> None:
        """Add per-sample values, (B,) or for a matrix (B, K), one for each column; no host sync, and in a fixed order
        of summation."""
        if len(y) == 0:  # of nothing no width is known
            parts = [y.new_zeros(0, self.table.shape[1])]
        else:
            parts = [torch.ones_like(y)[:, None], *(columns[name].reshape(len(y), -1) for name in self._place)]
        one_hot = (y[:, None] == self._classes).double()
        self.table += self.team.all_reduce(one_hot.T @ torch.cat(parts, dim=1).double())

    def reset(self) -> None:
        """Back to zero, in place."""
        self.table.zero_()

    def copy(self) -> "ClassStats":
        """A snapshot on the CPU."""
        copy = ClassStats(len(self.table), extra=self.columns[len(COLUMNS) :])
        copy.table.copy_(self.table)
        return copy

    @property
    def counts(self) -> Tensor:
        """Samples seen of each class (K,)."""
        return self.table[:, 0]

    def sums(self, column: str) -> Tensor:
        """The sum of a column over each class (K,)."""
        return self.table[:, self._place[column]].squeeze(1)

    def overall(self, *columns: str) -> Tensor:
        """The mean over all samples of the sum of the given columns."""
        total = sum((self.sums(name).sum() for name in columns), torch.zeros((), dtype=torch.float64))
        return total / self.counts.sum().clamp_min(1)

    def mean(self, *columns: str) -> Tensor:
        """Class means (K,) of the sum of the given columns; an absent class gets the overall mean.

        The overall mean is the neutral value: a class nobody has seen is treated as average, not as perfect.
        """
        total = torch.stack([self.sums(name) for name in columns]).sum(0)
        means = total / self.counts.clamp_min(1)
        return torch.where(self.counts > 0, means, self.overall(*columns).to(means.device))

    def matrix(self, name: str) -> Tensor:
        """Class means (K, K) of a matrix: row k is what samples of class k are taken for, and sums to 1.

        An absent class is treated as average: the mean of the others on the diagonal, the rest spread evenly.
        """
        num_classes = len(self.table)
        means = self.table[:, self._place[name]] / self.counts.clamp_min(1)[:, None]
        present = (self.counts > 0).double()
        right = (means.diagonal() * present).sum() / present.sum().clamp_min(1)
        neutral = torch.full_like(means, 1) * (1 - right) / (num_classes - 1)
        neutral = neutral + torch.eye(num_classes, dtype=means.dtype, device=means.device) * (right - neutral)
        return torch.where(self.counts[:, None] > 0, means, neutral)

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table.copy_(state["table"])
