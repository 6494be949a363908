"""Hedge, the no-regret learner behind WAT, and its form for anybody's training loop."""

import math
from typing import Any

import torch
from torch import Tensor

from worstclass.inputs import check_labels
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


class ClassHedge:
    """Worst-class training in your own loop, in three lines.

        hedge = worstclass.ClassHedge(num_classes=10, eta=0.1)
        loss = hedge.weigh(losses, y).mean()          # was losses.mean(); losses is (B,)
        hedge.update(valid_losses, valid_labels)      # once an epoch

    `class_counts` (K,) are the training images of each class; leave it out where they are equal.
    """

    def __init__(self, num_classes: int, eta: float = 0.1, class_counts: Tensor | None = None) -> None:
        if num_classes < 2:
            raise ValueError(f"num_classes must be at least 2, not {num_classes}")
        if not (math.isfinite(eta) and eta > 0):
            raise ValueError(f"eta must be a positive number, not {eta}")
        counts = torch.ones(num_classes) if class_counts is None else torch.as_tensor(class_counts)
        if counts.shape != (num_classes,) or bool((counts <= 0).any()):
            raise ValueError("class_counts must hold one positive number for each class")
        self.num_classes = num_classes
        self._hedge = Hedge(num_classes + 1, eta)
        self._class_share = counts.double() / counts.double().sum()
        self._by_class = sample_weights(self.weights, self._class_share)

    @property
    def eta(self) -> float:
        """The learning rate of Hedge."""
        return self._hedge.eta

    @property
    def weights(self) -> Tensor:
        """The simplex vector (K + 1,): index 0 is the average, index k + 1 is class k."""
        return self._hedge.weights

    def weigh(self, losses: Tensor, y: Tensor) -> Tensor:
        """Per-sample losses (B,) times the weight of each sample's class; take the mean of the result."""
        if losses.shape != y.shape or losses.dim() != 1:
            raise ValueError(
                f"losses and y must both be (B,), not {tuple(losses.shape)} and {tuple(y.shape)}: "
                "compute the loss with reduction='none'"
            )
        check_labels(y, len(losses), values=False)
        if self._by_class.device != y.device:
            self._by_class = self._by_class.to(y.device)
        by_sample = self._by_class.index_select(0, y.long())  # an index would take -1 for the last class
        return losses * by_sample.to(losses.dtype)

    def update(self, losses: Tensor, y: Tensor) -> None:
        """Play one round with per-sample validation losses (N,); a class without samples counts as average."""
        losses, y = losses.detach().double().cpu(), y.detach().cpu()
        if losses.shape != y.shape or losses.dim() != 1 or len(y) == 0:
            raise ValueError("losses and y must both be (N,), with at least one sample")
        check_labels(y, len(losses), self.num_classes)
        if not bool(losses.isfinite().all()):
            raise ValueError("a validation loss is not finite: the weights were left as they are")
        stats = ClassStats(self.num_classes)
        zeros = torch.zeros_like(losses)
        stats.add(y, natural_loss=losses, robust_loss=zeros, natural_correct=zeros, robust_correct=zeros)
        self._hedge.update(class_costs(stats))
        self._by_class.copy_(sample_weights(self.weights, self._class_share))

    def state_dict(self) -> dict[str, Any]:
        """The cumulative costs, from which everything else follows."""
        return {"cumulative_cost": self._hedge.cumulative_cost.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._hedge.cumulative_cost.copy_(state["cumulative_cost"])
        self._by_class.copy_(sample_weights(self.weights, self._class_share))
