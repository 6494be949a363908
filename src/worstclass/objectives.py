"""Base objectives: per-sample losses without reduction, and the perturbation each is computed on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.errors import UserError
from worstclass.execution.backend import compiled
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


class Ascent(Protocol):
    """An attack whose iterates can be watched, as those of `PGD`."""

    def ascend(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        watch: Callable[[Tensor, Tensor], None],
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class BAT:
    """Balance adversarial training (Sun et al., AAAI 2023): images on both sides of the boundary.

    CE(f(x_r), y) + beta KL(f(x) || f(x_w)) + KL(f(x_r) || u) + KL(f(x_w) || u), u uniform. Along one ascent, x_r is the
    last iterate before the first that is wrong, and x_w the one after it that is wrong again; the last iterate where
    there is none. Ours: one ascent for both; the public code makes two, from two starts.
    """

    beta: float
    attack: Ascent
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
        """Both images of each sample, (B, 2, C, H, W)."""
        _refuse_target(target, "bat")
        failed = torch.zeros_like(y, dtype=torch.bool)
        again = torch.zeros_like(failed)
        right = wrong = None

        def watch(x_adv: Tensor, logits: Tensor) -> None:
            nonlocal right, wrong, failed, again
            fails = logits.argmax(1) != y
            shape = (-1, *[1] * (x.dim() - 1))
            right = x_adv if right is None else torch.where((failed | fails).view(shape), right, x_adv)
            second = fails & failed & ~again
            wrong = x_adv if wrong is None else torch.where(second.view(shape), x_adv, wrong)
            failed, again = failed | fails, again | second

        last = self.attack.ascend(model, x, y, watch=watch, radius_scale=radius_scale, generator=generator)
        assert right is not None
        assert wrong is not None
        shape = (-1, *[1] * (x.dim() - 1))
        pair = torch.where(failed.view(shape), right, last), torch.where(again.view(shape), wrong, last)
        return torch.stack(pair, dim=1)

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        clean, right, wrong = model(x), model(x_adv[:, 0]), model(x_adv[:, 1])
        natural = F.cross_entropy(right, y, reduction="none", label_smoothing=self.label_smoothing)
        robust = self.beta * kl_divergence(clean, wrong)
        return Losses(natural, robust + _from_uniform(right) + _from_uniform(wrong), right, wrong)


def _from_uniform(logits: Tensor) -> Tensor:
    """KL(p || u) for each sample, (B,)."""
    return kl_divergence(logits, torch.zeros_like(logits))


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
        _refuse_target(target, "natural")
        return x

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        logits = model(x)
        natural = F.cross_entropy(logits, y, reduction="none", label_smoothing=self.label_smoothing)
        return Losses(natural, torch.zeros_like(natural), logits, logits)


def _refuse_target(target: Tensor | None, name: str) -> None:
    """An aim that would be ignored is an error."""
    if target is not None:
        raise UserError(f"objective '{name}' cannot aim its images at a class, as this method asks.")


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
