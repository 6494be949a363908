"""Auto-PGD: projected gradient ascent with momentum and a step that halves itself."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.attacks.active_set import ActiveSet, Search, claim, target_ranks
from worstclass.attacks.ball import column, direction, project, random_direction
from worstclass.attacks.first_success import FirstSuccess
from worstclass.attacks.losses import dlr_loss, targeted_dlr_loss
from worstclass.errors import UserError, choose
from worstclass.inputs.radius import check_radius
from worstclass.types import Classifier, Norm

APGDLoss = Literal["ce", "dlr", "targeted-dlr"]
MOMENTUM = 0.75
ENOUGH_INCREASES = 0.75  # share of the steps of a period that must have raised the loss


def checkpoints(steps: int) -> dict[int, int]:
    """Steps (counted from 0) after which the step size is reviewed, each with the length of the period it ends.

    For 100 steps: 21, 40, 56, 69, 79, 86, 92, 98.
    """
    period, shortest, shrink = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    at, found = period - 1, {}
    while at < steps:
        found[at] = period
        period = max(period - shrink, shortest)
        at += period
    return found


@dataclass(frozen=True, kw_only=True)
class APGD(FirstSuccess):
    """Auto-PGD (Croce and Hein, 2020) inside the `norm` ball of radius `eps`.

    `loss` is `ce`, `dlr`, or `targeted-dlr`, which tries the `targets` likeliest wrong classes one by one. Each restart
    begins at a random point of the ball's surface. `eot` gradients are averaged, for models that draw at random.
    """

    eps: float
    steps: int = 100
    norm: Norm = "linf"
    loss: APGDLoss = "ce"
    targets: int = 9
    restarts: int = 1
    eot: int = 1

    def __post_init__(self) -> None:
        for name, kind in (("norm", Norm), ("loss", APGDLoss)):
            choose(name, getattr(self, name), get_args(kind))
        check_radius(self.eps, self.norm)
        if min(self.steps, self.targets, self.restarts, self.eot) < 1:
            raise UserError(f"{self}: every count must be at least 1.")

    def search(self, model: Classifier, search: Search) -> None:
        targets = target_ranks(search.logits, search.y, self.targets) if self.loss == "targeted-dlr" else None
        for active, turns, share in search.attempts(targets, self.restarts):
            start = search.draw(active, [partial(random_direction, norm=self.norm)] * len(turns))
            active["point"] = (active["x"] + active["radius"] * start).clamp(0, 1)
            self._climb(model, search, active, share)

    def work(self, num_classes: int) -> int:
        targets = min(self.targets, num_classes - 1) if self.loss == "targeted-dlr" else 1
        return targets * self.restarts * self.eot * 2 * (self.steps + 1)

    def _climb(self, model: Classifier, search: Search, active: ActiveSet, share: tuple[float, float]) -> None:
        """Run the attempts from their `point` to the end; `steps` moves are `steps` + 1 evaluations."""
        zeros = torch.zeros_like(active["radius"].flatten())
        active |= {
            "old": active["point"],
            "step": 2 * active["radius"],
            "last_loss": zeros,  # as the public code, whose first comparison is with zero
            "increases": zeros,
            "halved": torch.ones_like(active["found"]),
        }
        review = checkpoints(self.steps)

        def step(active: ActiveSet, number: int) -> None:
            grad, loss = self._look(model, active)
            if number == 0:
                active |= {"best": active["point"], "best_grad": grad, "best_loss": loss, "reviewed_loss": loss}
            else:
                self._remember(active, grad, loss)
            if number - 1 in review:
                grad = self._review(active, grad, review[number - 1])
            if number < self.steps:
                self._move(active, grad, MOMENTUM if number else 1.0)

        search.run(active, step, self.steps + 1, share)

    def _look(self, model: Classifier, active: ActiveSet) -> tuple[Tensor, Tensor]:
        """Gradient and loss at the attempts' points; successes are claimed on the way."""
        total = torch.zeros(())
        for draw in range(self.eot):
            point = active["point"].detach().requires_grad_()
            with torch.enable_grad():
                logits = model(point)
                loss = self._loss(logits, active)
                (grad,) = torch.autograd.grad(loss.sum(), point)
            grad = grad.nan_to_num()  # no direction is better than one that loses the image
            total = grad if draw == 0 else total + grad
        logits, loss = logits.detach(), loss.detach()
        claim(active, active["point"], logits.argmax(1) != active["y"])
        return total / self.eot if self.eot > 1 else total, loss

    def _loss(self, logits: Tensor, active: ActiveSet) -> Tensor:
        if self.loss == "ce":
            return F.cross_entropy(logits, active["y"], reduction="none")
        if self.loss == "dlr":
            return dlr_loss(logits, active["y"])
        return targeted_dlr_loss(logits, active["y"], active["target"])

    def _remember(self, active: ActiveSet, grad: Tensor, loss: Tensor) -> None:
        better = loss > active["best_loss"]
        wide = column(better, grad)
        active["best"] = torch.where(wide, active["point"], active["best"])
        active["best_grad"] = torch.where(wide, grad, active["best_grad"])
        active["best_loss"] = torch.where(better, loss, active["best_loss"])
        active["increases"] = active["increases"] + (loss > active["last_loss"])
        active["last_loss"] = loss

    def _review(self, active: ActiveSet, grad: Tensor, period: int) -> Tensor:
        """Halve the step of attempts that climb too rarely or have stopped, and send them back to their best point."""
        stuck = ~active["halved"] & (active["reviewed_loss"] >= active["best_loss"])
        halve = (active["increases"] <= ENOUGH_INCREASES * period) | stuck
        wide = column(halve, grad)
        active["halved"], active["reviewed_loss"] = halve, active["best_loss"]
        active["increases"] = torch.zeros_like(active["increases"])
        active["step"] = torch.where(wide, active["step"] / 2, active["step"])
        active["point"] = torch.where(wide, active["best"], active["point"])
        return torch.where(wide, active["best_grad"], grad)

    def _move(self, active: ActiveSet, grad: Tensor, weight: float) -> None:
        """A step along the gradient, mixed with the step before it; both inside the ball."""
        x, point, radius = active["x"], active["point"], active["radius"]
        moved = project(x, point + active["step"] * direction(grad, self.norm), radius, self.norm)
        if weight != 1:
            moved = project(
                x, point + weight * (moved - point) + (1 - weight) * (point - active["old"]), radius, self.norm
            )
        active["old"], active["point"] = point, moved
