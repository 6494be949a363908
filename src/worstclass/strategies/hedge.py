"""Hedge, the no-regret learner behind WAT."""

import torch
from torch import Tensor

from worstclass.stats import ClassStats
from worstclass.types import ClassStrategy


class Hedge:
    """Exponential weights over experts: w^{t+1}_k proportional to exp(eta * sum_{s<=t} c^s_k).

    The learner plays against its experts, so a high cost earns a high weight. The weights are a softmax of
    the cumulative cost: raw exponentials would overflow at eta = 0.5 within a run.
    """

    def __init__(self, num_experts: int, eta: float) -> None:
        self.eta = eta
        self.cumulative_cost = torch.zeros(num_experts, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        """The simplex vector (num_experts,), float64."""
        return torch.softmax(self.eta * self.cumulative_cost, 0)

    def update(self, costs: Tensor) -> None:
        """Play one round: add the costs (num_experts,) of the experts."""
        self.cumulative_cost += costs.detach().to(self.cumulative_cost)


def class_costs(stats: ClassStats) -> Tensor:
    """WAT's cost vector (K + 1,): the mean loss over all, then of each class."""
    columns = ("natural_loss", "robust_loss")
    return torch.cat([stats.overall(*columns)[None], stats.mean(*columns)])


def sample_weights(expert_weights: Tensor, class_share: Tensor) -> Tensor:
    """The weight of a sample of each class (K,) under uniform sampling: w_0 + w_k * n / n_k.

    With it the mean over a batch is an unbiased estimate of sum_k w_k L_k: a class that the batch lacks
    costs nothing, and unbalanced data stays right.
    """
    return expert_weights[0] + expert_weights[1:] / class_share


def expert_weights(strategy: ClassStrategy, class_share: Tensor) -> Tensor:
    """What a strategy plays, (K + 1,) and summing to 1: the weight of the average loss, then of each class's.

    A strategy that weighs the average beside the classes says so by an `expert_weights` of its own. For any other they
    follow from its sample weights, the mean of both losses': w_k is in proportion to that weight times the share of the
    class in what is drawn; where that is the share in the data, it is the average alone.
    """
    own = getattr(strategy, "expert_weights", None)
    if own is not None:
        return torch.as_tensor(own).detach().double().cpu()
    drawn = next((share for share in (strategy.weights.quota, strategy.weights.sampling) if share is not None), None)
    share = (class_share if drawn is None else drawn).detach().double().cpu()
    natural, robust = (
        vector.detach().double().cpu() * share for vector in (strategy.weights.natural, strategy.weights.robust)
    )
    by_class = (natural / natural.sum() + robust / robust.sum()) / 2
    if torch.allclose(by_class, class_share.double().cpu(), rtol=1e-6, atol=0):
        return torch.eye(1, len(share) + 1, dtype=torch.float64)[0]
    return torch.cat([torch.zeros(1, dtype=torch.float64), by_class])
