"""Projected gradient descent, one attack with parameters; FGSM, PGD-20, CW and the TRADES attack are values of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass import rng
from worstclass.attacks.ball import column, direction, l2, project, radius_of
from worstclass.attacks.losses import cw_loss
from worstclass.errors import UserError, choose
from worstclass.execution.backend import compiled
from worstclass.inputs.images import check_answer, check_batch
from worstclass.inputs.radius import check_radius
from worstclass.objectives import kl_divergence
from worstclass.rng import Randomness
from worstclass.types import Classifier, Norm

Loss = Literal["ce", "cw", "kl"]
Start = Literal["uniform", "gaussian", "none"]
Keep = Literal["last", "any"]


class Found(NamedTuple):
    """What a search returns: the last iterate, and for each sample the first iterate that fooled the model.

    Where no iterate did, `any` is the last one.
    """

    last: Tensor
    any: Tensor


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Ascend `loss` inside the `norm` ball of radius `eps` around x and inside [0, 1].

    `start` is `uniform` in the ball, `gaussian` (x + `start_scale` * N(0, 1), as TRADES) or `none`.
    With several `restarts` the last iterates compete: a fooling one wins, then the higher loss.
    `keep="last"` returns the last iterate, which is the convention of published tables; `"any"` returns
    the first iterate that fooled the model, which is never weaker. A per-sample `radius_scale` in the call
    scales radius and step alike. A `target` (B,) in the call leads each sample to a class, by the cross-entropy to it,
    instead of away from its label; -1 is untargeted.
    """

    eps: float
    steps: int
    step_size: float
    norm: Norm = "linf"
    loss: Loss = "ce"
    start: Start = "uniform"
    start_scale: float = 0.001
    restarts: int = 1
    keep: Keep = "last"

    def __post_init__(self) -> None:
        for name, kind in (("norm", Norm), ("loss", Loss), ("start", Start), ("keep", Keep)):
            choose(name, getattr(self, name), get_args(kind))
        check_radius(self.eps, self.norm)
        if not (self.steps >= 0 and self.step_size >= 0 and self.start_scale >= 0 and self.restarts >= 1):
            raise UserError(f"{self}: steps, step_size and start_scale must not be negative, restarts at least 1.")

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        target: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        if self.keep == "any":
            return self.search(model, x, y, radius_scale=radius_scale, target=target, generator=generator).any
        if self.restarts == 1:
            y = check_batch(x, y, radius_scale, self.eps, self.norm)
            loss = self._loss(model, x, y, target)
            return self._ascend(model, x, y, loss, radius_of(1.0, radius_scale, x), rng.or_default(generator, x.device))
        return self.search(model, x, y, radius_scale=radius_scale, target=target, generator=generator).last

    def search(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        target: Tensor | None = None,
        generator: Randomness = None,
    ) -> Found:
        """Run all restarts and return both conventions; one forward a restart more than a plain call."""
        y = check_batch(x, y, radius_scale, self.eps, self.norm)
        source = rng.or_default(generator, x.device)
        scale = radius_of(1.0, radius_scale, x)
        loss = self._loss(model, x, y, target)
        last = fooling = x
        best = torch.full_like(x[:, 0, 0, 0], -torch.inf)
        last_fools = torch.zeros_like(y, dtype=torch.bool)
        found = torch.zeros_like(last_fools)

        def watch(x_adv: Tensor, logits: Tensor) -> None:
            nonlocal fooling, found
            new = (logits.argmax(1) != y) & ~found
            fooling = torch.where(column(new, x), x_adv, fooling)
            found = found | new

        for _ in range(self.restarts):
            x_adv = self._ascend(model, x, y, loss, scale, source, watch)
            with torch.no_grad():
                logits = model(x_adv)
                value = loss(logits)
            watch(x_adv, logits)
            fools = logits.argmax(1) != y
            better = (fools & ~last_fools) | ((fools == last_fools) & (value > best))
            last = torch.where(column(better, x), x_adv, last)
            best = torch.where(better, value, best)
            last_fools = last_fools | fools
        return Found(last, torch.where(column(found, x), fooling, last))

    def ascend(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        watch: Callable[[Tensor, Tensor], None],
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        """The last iterate of one restart; `watch(x_adv, logits)` sees every one before it, the start first."""
        y = check_batch(x, y, radius_scale, self.eps, self.norm)
        source = rng.or_default(generator, x.device)
        loss = self._loss(model, x, y, None)
        return self._ascend(model, x, y, loss, radius_of(1.0, radius_scale, x), source, watch)

    def _loss(self, model: Classifier, x: Tensor, y: Tensor, target: Tensor | None) -> Callable[[Tensor], Tensor]:
        """The per-sample loss to ascend, as a function of the logits."""
        away = self._away(model, x, y)
        if target is None:
            return away
        if target.shape != y.shape:
            raise UserError(f"target must be one class for each image, ({len(y)},), not {tuple(target.shape)}.")
        aimed, towards = target >= 0, target.clamp_min(0).long()
        return lambda logits: torch.where(aimed, -F.cross_entropy(logits, towards, reduction="none"), away(logits))

    def _away(self, model: Classifier, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        if self.loss == "ce":
            return lambda logits: F.cross_entropy(logits, y, reduction="none")
        if self.loss == "cw":
            return lambda logits: cw_loss(logits, y)
        with torch.no_grad():
            clean = model(x)
        return lambda logits: kl_divergence(clean, logits)

    def _ascend(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        loss: Callable[[Tensor], Tensor],
        scale: Tensor | float,
        source: rng.Source,
        watch: Callable[[Tensor, Tensor], None] | None = None,
    ) -> Tensor:
        """One restart; `watch` sees every iterate but the last with its logits."""
        x_adv = self._begin(x, scale, source)
        for number in range(self.steps):
            x_adv = x_adv.detach().requires_grad_()
            with torch.enable_grad():
                logits = model(x_adv)
                if number == 0:
                    check_answer(logits, y)
                (grad,) = torch.autograd.grad(loss(logits).sum(), x_adv)
            x_adv = x_adv.detach()
            if watch is not None:
                watch(x_adv, logits.detach())
            x_adv = _move(x, x_adv, grad, self.step_size * scale, self.eps * scale, self.norm)
        return x_adv.detach()

    def _begin(self, x: Tensor, scale: Tensor | float, source: rng.Source) -> Tensor:
        if self.start == "none":
            return x.clone()
        radius = self.eps * scale
        if self.start == "gaussian":
            return project(x, x + self.start_scale * rng.normal(x, source), radius, self.norm)
        if self.norm == "linf":
            return project(x, x + radius * (2 * rng.uniform(x, source) - 1), radius, self.norm)
        # uniform in an L2 ball: a uniform direction, and a share r of the radius with density proportional to r^(d-1)
        towards = rng.normal(x, source)
        share = rng.uniform(x[:, :1, :1, :1], source) ** (1 / x[0].numel())
        return project(x, x + radius * share * towards / l2(towards), radius, self.norm)


@compiled
def _move(x: Tensor, x_adv: Tensor, grad: Tensor, step: Tensor | float, radius: Tensor | float, norm: Norm) -> Tensor:
    """A step of ascent, and back into the ball."""
    return project(x, x_adv + step * direction(grad, norm), radius, norm)
