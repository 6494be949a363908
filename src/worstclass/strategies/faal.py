"""FAAL (Zhang et al., CVPR 2024), fairness-aware adversarial learning: the weights that each batch fears most."""

from typing import Any

import torch
from torch import Tensor

from worstclass.execution.backend import compiled
from worstclass.execution.distributed import Team
from worstclass.stats import ClassStats
from worstclass.types import ClassWeights, Losses

HALVINGS = 40


class FAAL:
    """Each batch is weighed by the class distribution p that its margins fear most, near the uniform one u.

    p maximises sum_k p_k n_k M_k subject to KL(u || p) <= tau, with n_k the samples of class k in the batch and M_k
    their mean of max_{j != y} p'_j - p'_y under attack. The loss is (K / B) sum_i p_{y_i} loss_i. The public code asks
    a convex solver; the solution is known but for one number, see `worst_weights`.
    """

    def __init__(self, num_classes: int, *, tau: float = 0.5) -> None:
        self.tau, self.num_classes = tau, num_classes
        self.weights = ClassWeights.uniform(num_classes)

    def reduce(self, losses: Losses, y: Tensor, batch: Tensor, team: Team) -> Tensor:
        """The weighted loss of a batch; over several processes, margins are those of the whole batch."""
        margins = _margins(losses.robust_logits.detach(), y, self.num_classes)
        weights = worst_weights(team.all_reduce(margins), self.tau)
        each = losses.natural + losses.robust
        return self.num_classes * (weights[y].to(each.dtype) * each).sum() / len(batch)

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


def _margins(logits: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """The sum over the samples of each class of max_{j != y} p_j - p_y, (K,) in float64."""
    probabilities, label = logits.double().softmax(1), y[:, None]
    other = probabilities.scatter(1, label, -torch.inf).amax(1)
    margin = other - probabilities.gather(1, label).squeeze(1)
    return (y[:, None] == torch.arange(num_classes, device=y.device)).double().T @ margin


@compiled
def worst_weights(gains: Tensor, tau: float) -> Tensor:
    """The p on the simplex that maximises gains . p subject to KL(u || p) <= tau, u uniform.

    By Lagrange's conditions p_k is in proportion to 1 / (mu - gains_k) for some mu above the largest gain, and
    KL(u || p) falls as mu grows. log(mu - max) is found by halving an interval that is wide enough for any gains: near
    its ends p is uniform, or all but on the class of the largest gain.
    """
    spread = gains.max() - gains
    unit = spread.max().clamp_min(1e-12)
    low, high = torch.full_like(unit, -40.0), torch.full_like(unit, 20.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        far = _divergence(spread / unit, middle) > tau
        low, high = torch.where(far, middle, low), torch.where(far, high, middle)
    return torch.softmax(-(spread / unit + high.exp()).log(), 0)


def _divergence(spread: Tensor, log_gap: Tensor) -> Tensor:
    """KL(u || p) of the p for this gap."""
    log_p = torch.log_softmax(-(spread + log_gap.exp()).log(), 0)
    return -torch.log(torch.full_like(log_gap, len(spread))) - log_p.mean()
