"""Fast Adaptive Boundary attack: walk along the decision boundary towards the image."""

from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from worstclass.attacks.active_set import ActiveSet, Search, claim, predict, target_ranks
from worstclass.attacks.ball import column, distance, random_direction, shortest_step
from worstclass.attacks.first_success import FirstSuccess
from worstclass.attacks.losses import logit_of
from worstclass.errors import UserError, choose
from worstclass.inputs.radius import check_radius
from worstclass.rng import PerSample
from worstclass.types import Classifier, Norm

ALPHA_MAX, OVERSHOOT, BACK = 0.1, 1.05, 0.9  # alpha_max, eta and beta of the paper


@dataclass(frozen=True, kw_only=True)
class FAB(FirstSuccess):
    """FAB (Croce and Hein, 2020): looks for the nearest fooling image, which counts if it is within `eps`.

    With `targets` it walks the boundary to each of that many likeliest wrong classes (FAB-T); with 0, the boundary that
    is nearest at each step, which takes K - 1 gradients. The first restart begins at x, later ones at random.
    """

    eps: float
    steps: int = 100
    norm: Norm = "linf"
    targets: int = 9
    restarts: int = 1

    def __post_init__(self) -> None:
        choose("norm", self.norm, get_args(Norm))
        check_radius(self.eps, self.norm)
        if self.targets < 0 or min(self.steps, self.restarts) < 1:
            raise UserError(f"{self}: targets must not be negative, steps and restarts at least 1.")

    def search(self, model: Classifier, search: Search) -> None:
        anywhere = partial(random_direction, norm=self.norm)
        targets = target_ranks(search.logits, search.y, self.targets) if self.targets else None
        for active, turns, share in search.attempts(targets, self.restarts):
            start = search.draw(active, [anywhere if turn % self.restarts else _stay for turn in turns])
            active["point"] = (active["x"] + active["radius"] / 2 * start).clamp(0, 1)
            search.run(active, lambda active, _: self._step(model, active), self.steps, share)

    def work(self, num_classes: int) -> int:
        ways, each = (min(self.targets, num_classes - 1), 3) if self.targets else (1, num_classes + 1)
        return ways * self.restarts * each * self.steps

    def _step(self, model: Classifier, active: ActiveSet) -> None:
        """Towards the linearised boundary from the point and from x, a little past it; back a little once past it."""
        x, point = active["x"], active["point"]
        gap, slope = self._boundary(model, active)
        slope = slope.flatten(1)
        flat_x, flat = x.flatten(1), point.flatten(1)
        gap_at_x = gap + (slope * (flat_x - flat)).sum(1)
        both = shortest_step(
            torch.cat((flat, flat_x)), torch.cat((slope, slope)), torch.cat((gap, gap_at_x)), self.norm
        )
        from_point, from_x = (step.view_as(x) for step in both.chunk(2))
        near, far = (distance(step, self.norm).clamp_min(1e-8) for step in (from_point, from_x))
        alpha = column((near / (near + far)).clamp_max(ALPHA_MAX), x)
        moved = (point + OVERSHOOT * from_point) * (1 - alpha) + (x + OVERSHOOT * from_x) * alpha
        moved = moved.clamp(0, 1)
        fools = predict(model, moved).argmax(1) != active["y"]
        claim(active, moved, fools & (distance(moved - x, self.norm) <= active["radius"].flatten()))
        active["point"] = torch.where(column(fools, x), x + BACK * (moved - x), moved)

    def _boundary(self, model: Classifier, active: ActiveSet) -> tuple[Tensor, Tensor]:
        """z_t - z_y (B,) and its gradient: for the attempt's target, or for the class whose boundary is nearest."""
        point = active["point"].detach().requires_grad_()
        y = active["y"]
        with torch.enable_grad():
            logits = model(point)
            true = logit_of(logits, y)
            if "target" in active:
                gap = logit_of(logits, active["target"]) - true
                (slope,) = torch.autograd.grad(gap.sum(), point)
                return gap.detach(), slope.nan_to_num()
            num_classes = logits.shape[1]
            nearest = torch.full_like(true, torch.inf)
            for j in range(1, num_classes):
                gap = logit_of(logits, (y + j) % num_classes) - true
                (slope,) = torch.autograd.grad(gap.sum(), point, retain_graph=j + 1 < num_classes)
                gap, slope = gap.detach(), slope.nan_to_num()
                away = gap.abs() / self._dual(slope)
                closer = away < nearest
                if j == 1:
                    best_gap, best_slope = gap, slope
                nearest = torch.where(closer, away, nearest)
                best_gap = torch.where(closer, gap, best_gap)
                best_slope = torch.where(column(closer, point), slope, best_slope)
        return best_gap, best_slope

    def _dual(self, slope: Tensor) -> Tensor:
        flat = slope.flatten(1)
        return 1e-12 + (flat.abs().sum(1) if self.norm == "linf" else torch.linalg.vector_norm(flat, dim=1))


def _stay(x: Tensor, source: PerSample) -> Tensor:
    """The start of a first attempt: x itself."""
    return torch.zeros_like(x)
