"""CSR (ICLR 2025), confusional spectral regularisation: adversarial cross-entropy, weighed by the confused pair."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.execution.distributed import Team
from worstclass.stats import ClassStats
from worstclass.types import ClassWeights, Losses


class CSR:
    """(1 - alpha) CE(f(x), y) + beta KL + alpha P[prediction under attack, y] CE(f(x'), y).

    P is u v^T of the largest singular value of the table of errors C[prediction, label] under attack, stretched to
    [0.01, 2.01]. Ours: the table is that of the epoch before, of training or validation (`part`), where the public code
    attacks the training set once more; until there is one, P is 1. With `diagonal` False, samples that are right under
    attack get the least weight, as the empty diagonal of C would have it.

    The paper's term is sum_k t_k log(t_k / p'_k) with t = P onehot(y): the second cross-entropy is of hard labels.
    """

    tables = ("robust_predictions",)

    def __init__(
        self,
        num_classes: int,
        *,
        alpha: float = 0.3,
        part: Literal["train", "valid"] = "train",
        diagonal: bool = True,
    ) -> None:
        self.alpha, self.part, self.diagonal = alpha, part, diagonal
        self.pair = torch.ones(num_classes, num_classes, dtype=torch.float64)
        self.weights = ClassWeights.uniform(num_classes)

    def to(self, device: torch.device) -> None:
        self.pair = self.pair.to(device)

    def reduce(self, losses: Losses, y: Tensor, batch: Tensor, team: Team) -> Tensor:
        weight = self.pair[losses.robust_logits.detach().argmax(1), y]
        paired = weight * F.cross_entropy(losses.robust_logits, y, reduction="none")
        return ((1 - self.alpha) * losses.natural + losses.robust + self.alpha * paired).sum() / len(batch)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        stats = train if self.part == "train" else valid
        errors = stats.matrix("robust_predictions").cpu() * stats.counts.cpu()[:, None]
        self.pair.copy_(pair_weights(errors.T, diagonal=self.diagonal))

    def state_dict(self) -> dict[str, Any]:
        return {"pair": self.pair}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pair.copy_(state["pair"])


def pair_weights(counts: Tensor, *, diagonal: bool = True) -> Tensor:
    """P from how often each class (row) is predicted for each label (column)."""
    errors = counts.double() - counts.double().diag().diag()
    if not errors.any():
        return torch.ones_like(errors)
    left, _, right = torch.linalg.svd(errors)
    outer = torch.outer(left[:, 0].abs(), right[0].abs())  # both of one sign, as errors are not negative
    if not diagonal:
        outer.fill_diagonal_(float(outer.min()))
    low, high = outer.min(), outer.max()
    if high - low < 1e-9:  # all pairs alike: what is left is rounding
        return torch.ones_like(errors)
    return 0.01 + 2 * (outer - low) / (high - low)
