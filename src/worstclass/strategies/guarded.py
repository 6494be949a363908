"""Guarded: class shares that raise weak classes inside a ball, and pay for nothing that training cannot mend."""

from typing import Any

import torch
from torch import Tensor

from worstclass.errors import UserError
from worstclass.stats import ClassStats
from worstclass.types import ClassWeights

HALVINGS = 60
PRIOR, SLACK = 15.0, 0.15
FAR_BELOW = 0.5  # of the other classes' accuracy


class Guarded:
    """Tilt the class distribution towards classes of high robust error, as far as a KL ball around it allows.

    Cost of a class, in [0, 1]: its robust error on validation, read with what it is worth. A first guess is its error
    on training images plus the usual gap between the two, which shrinks as the root of the class's training images.
    The guess counts as `prior` images, and those of the class in validation are added to it. The cost is at most the
    guess plus `slack`: what fails on validation and not in training cannot be mended by more of it. Costs are averaged
    over epochs with decay `memory`, from zero, so that the tilt comes in slowly: a tilt that follows each epoch's
    errors swings. A class that training does not fit is `heard` less: one that has no accuracy under attack on its
    training images, as where its labels are noise, has the mean cost of those that are fitted.

    Distribution: p_k in proportion to b_k exp(s c_k), b the base, uniform or the data's own. s is at most `tilt` and
    such that KL(p || b) <= `radius`: p maximises <p, c> - KL(p || b) / tilt over the ball. With `sample`, class k has
    the share p_k of an epoch's images; without, a sample of class k weighs p_k n / n_k.

    So no class has more than `max_share(K, radius)` over a uniform base, whatever its cost, one that training never
    fits has no more than its base, and costs that are equal leave the base as it is. Nothing adds up over the epochs,
    and no learning rate is to be tuned.
    """

    def __init__(
        self,
        class_counts: Tensor,
        *,
        radius: float = 0.15,
        tilt: float = 5.0,
        prior: float = PRIOR,
        slack: float = SLACK,
        memory: float = 0.8,
        balanced: bool = True,
        sample: bool = False,
    ) -> None:
        if not 0 <= memory < 1:
            raise UserError(f"memory must be at least 0 and less than 1, not {memory:g}: at 1 nothing is learned.")
        self.radius, self.tilt, self.prior, self.slack, self.memory = radius, tilt, prior, slack, memory
        self.counts = class_counts.double().cpu()
        self.class_share = self.counts / self.counts.sum()
        self.base = torch.full_like(self.counts, 1 / len(self.counts)) if balanced else self.class_share
        self.cost = torch.zeros_like(self.counts)
        self.weights = ClassWeights.uniform(len(self.counts), quota=sample)
        self._write()

    @property
    def distribution(self) -> Tensor:
        """p (K,), on the simplex."""
        return tilted(self.base, self.cost, self.tilt, self.radius)

    def update(self, train: ClassStats | None, valid: ClassStats) -> None:
        """After an epoch; without a table of training images every class is heard, and validation stands in."""
        valid = valid.copy()
        fitted = stand_in(valid) if train is None else train.copy()
        cost = class_cost(fitted, valid, self.counts, prior=self.prior, slack=self.slack)
        if train is not None:
            cost = heard(cost, fitted.sums("robust_correct") / fitted.counts.clamp_min(1), self.base)
        self.cost.lerp_(cost, 1 - self.memory)
        self._write()

    def state_dict(self) -> dict[str, Any]:
        return {"cost": self.cost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cost.copy_(state["cost"])
        self._write()

    def _write(self) -> None:
        if self.weights.quota is not None:
            self.weights.set(quota=self.distribution)
        else:
            by_class = self.distribution / self.class_share
            self.weights.set(natural=by_class, robust=by_class)


def class_cost(train: ClassStats, valid: ClassStats, counts: Tensor, *, prior: float, slack: float) -> Tensor:
    """The robust error of each class (K,) as `Guarded` reads it; `counts` (K,) are its training images."""
    trained, held_out = (1 - stats.mean("robust_correct") for stats in (train, valid))
    images = valid.counts
    seen = images > 0
    scale = (counts.mean() / counts).sqrt()
    gap = ((held_out - trained) / scale)[seen].median() if bool(seen.any()) else held_out.new_zeros(())
    guess = trained + gap * scale
    read = (images * held_out + prior * guess) / (images + prior)
    return torch.where(seen, torch.minimum(read, guess + slack), guess).clamp(0, 1)


def stand_in(valid: ClassStats) -> ClassStats:
    """A table in the place of training's: the held-out one with `PRIOR` samples more at the mean over classes."""
    table = valid.copy()
    for column in ("natural_correct", "robust_correct"):
        mean = (valid.sums(column) / valid.counts)[valid.counts > 0].mean()
        table.sums(column).add_(PRIOR * mean)
    table.counts.add_(PRIOR)
    return table


def heard(cost: Tensor, trained: Tensor, base: Tensor) -> Tensor:
    """Costs (K,) drawn towards their mean where training does not fit a class: weight buys little there.

    A class keeps its distance from the mean in proportion to its accuracy on training images (K,), all of it from
    `FAR_BELOW` of the average on; the mean is over classes as far as they keep theirs. Where training fits nothing, all
    costs are alike.
    """
    enough = FAR_BELOW * (base * trained).sum()
    if not enough > 0:
        return torch.zeros_like(cost)
    kept = (trained / enough).clamp_max(1)
    mean = (base * kept * cost).sum() / (base * kept).sum()
    return mean.lerp(cost, kept)


def tilted(base: Tensor, cost: Tensor, tilt: float, radius: float) -> Tensor:
    """p in proportion to base * exp(s * cost), with the largest s up to `tilt` for which KL(p || base) <= radius.

    The divergence grows with s, so the largest is found by halving an interval.
    """
    low, high = 0.0, tilt
    if divergence(_tilt(base, cost, high), base) <= radius:
        return _tilt(base, cost, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(_tilt(base, cost, middle), base) <= radius else (low, middle)
    return _tilt(base, cost, low)


def divergence(p: Tensor, base: Tensor) -> float:
    """KL(p || base)."""
    return float((p * (p / base).log()).sum())


def max_share(num_classes: int, radius: float) -> float:
    """The largest share of the weight that one class can have in the ball around the uniform distribution."""
    low, high = 1 / num_classes, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p = torch.full((num_classes,), (1 - middle) / (num_classes - 1), dtype=torch.float64)
        p[0] = middle
        inside = divergence(p, torch.full_like(p, 1 / num_classes)) <= radius
        low, high = (middle, high) if inside else (low, middle)
    return low


def _tilt(base: Tensor, cost: Tensor, strength: float) -> Tensor:
    return torch.softmax(base.log() + strength * cost, 0)
