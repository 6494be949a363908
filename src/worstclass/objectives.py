"""Base objectives: per-sample losses without reduction, and the perturbation each is computed on."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.execution import compiled
from worstclass.rng import Randomness
from worstclass.types import Attack, Classifier, Losses


@compiled
def kl_divergence(clean_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(p(x) || p(x')) for each sample, (B,).

    In log space: with a softmax target the gradient is NaN as soon as a probability underflows.
    """
    target = F.log_softmax(clean_logits, dim=1)
    return F.kl_div(F.log_softmax(logits, dim=1), target, reduction="none", log_target=True).sum(1)


@dataclass(frozen=True, kw_only=True)
class Trades:
    """TRADES: CE(f(x), y) + beta * KL(f(x) || f(x')), with gradient through both branches.

    The clean and the adversarial images are two batches: one concatenated batch would change the
    BatchNorm statistics, which is another algorithm.
    """

    beta: float
    attack: Attack
    label_smoothing: float = 0.0

    def perturb(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        target: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        return _attack(self.attack, model, x, y, radius_scale, target, generator)

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        clean, adversarial = model(x), model(x_adv)
        robust = self.beta * kl_divergence(clean, adversarial)
        natural = F.cross_entropy(clean, y, reduction="none", label_smoothing=self.label_smoothing)
        return Losses(natural, robust, clean, adversarial)


@dataclass(frozen=True, kw_only=True)
class Madry:
    """Adversarial training of Madry et al. (PGD-AT): CE(f(x'), y) alone."""

    attack: Attack
    label_smoothing: float = 0.0

    def perturb(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        target: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        return _attack(self.attack, model, x, y, radius_scale, target, generator)

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        logits = model(x_adv)
        robust = F.cross_entropy(logits, y, reduction="none", label_smoothing=self.label_smoothing)
        return Losses(torch.zeros_like(robust), robust, logits, logits)


@dataclass(frozen=True, kw_only=True)
class Natural:
    """Training on clean images: CE(f(x), y)."""

    label_smoothing: float = 0.0

    def perturb(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        target: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        return x

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        logits = model(x)
        natural = F.cross_entropy(logits, y, reduction="none", label_smoothing=self.label_smoothing)
        return Losses(natural, torch.zeros_like(natural), logits, logits)


def _attack(
    attack: Attack,
    model: Classifier,
    x: Tensor,
    y: Tensor,
    radius_scale: Tensor | None,
    target: Tensor | None,
    generator: Randomness,
) -> Tensor:
    """The attack; where it is to be aimed, it must be one that can."""
    aimed = {} if target is None else {"target": target}
    return attack(model, x, y, radius_scale=radius_scale, generator=generator, **aimed)
