"""An additive per-class table: what training, validation and strategies exchange."""

import torch
from torch import Tensor

from worstclass.distributed import ALONE, Team

COLUMNS = ("natural_loss", "robust_loss", "natural_correct", "robust_correct")


class ClassStats:
    """Counts and sums for each class, (K, 1 + columns) in float64 on one device.

    Tables add up: over batches, and over the processes of a `team`, each of which holds the sum over all.
    """

    def __init__(self, num_classes: int, device: torch.device | str = "cpu", team: Team = ALONE) -> None:
        self.table = torch.zeros(num_classes, 1 + len(COLUMNS), dtype=torch.float64, device=device)
        self._classes, self._team = torch.arange(num_classes, device=device), team

    def add(self, y: Tensor, **columns: Tensor) -> None:
        """Add per-sample values (B,), one for each column; no host sync, and in a fixed order of summation."""
        values = torch.stack([torch.ones_like(y), *(columns[name] for name in COLUMNS)], dim=1).double()
        one_hot = (y[:, None] == self._classes).double()
        self.table += self._team.all_reduce(one_hot.T @ values)

    def reset(self) -> None:
        """Back to zero, in place."""
        self.table.zero_()

    def copy(self) -> "ClassStats":
        """A snapshot on the CPU."""
        copy = ClassStats(len(self.table))
        copy.table.copy_(self.table)
        return copy

    @property
    def counts(self) -> Tensor:
        """Samples seen of each class (K,)."""
        return self.table[:, 0]

    def sums(self, column: str) -> Tensor:
        """The sum of a column over each class (K,)."""
        return self.table[:, 1 + COLUMNS.index(column)]

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
