"""Square attack: random search over square patches, without gradients."""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor

from worstclass import rng
from worstclass.attacks.active_set import ActiveSet, Search, claim, predict, replaced
from worstclass.attacks.ball import l2
from worstclass.attacks.first_success import FirstSuccess
from worstclass.attacks.losses import margin as margin_of
from worstclass.errors import UserError, choose
from worstclass.inputs.radius import check_radius
from worstclass.rng import PerSample
from worstclass.types import Classifier, Norm

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries after which patches have half the area


Window = tuple[slice, slice, slice, slice]


class Patch(NamedTuple):
    """Where one query tries something, the same for every sample."""

    window: Window
    twin: Window
    side: int
    turned: bool


@dataclass(frozen=True, kw_only=True)
class Square(FirstSuccess):
    """Square (Andriushchenko et al., 2020): keeps a random patch if it lowers the margin. No gradient is used.

    `area` is the share of the image that the first patches cover. As in the public code the patch of a query is at the
    same place for all samples; in L-inf its signs are shared too, in L2 each sample draws its own. What a sample sees
    does not depend on its batch.
    """

    uses_gradients: ClassVar[bool] = False

    eps: float
    queries: int = 5000
    norm: Norm = "linf"
    area: float = 0.8
    restarts: int = 1

    def __post_init__(self) -> None:
        choose("norm", self.norm, get_args(Norm))
        check_radius(self.eps, self.norm)
        if not 0 < self.area <= 1 or min(self.queries, self.restarts) < 1:
            raise UserError(f"{self}: area must be in (0, 1], queries and restarts at least 1.")

    def search(self, model: Classifier, search: Search) -> None:
        x, shared = search.x, search.source.shared()
        propose = self._linf if self.norm == "linf" else self._l2
        for turn in range(self.restarts):
            standing = search.standing()
            if len(standing) == 0:
                return
            plan = [self._patch(query, x, shared) for query in range(self.queries)]
            active, own = search.activate(standing), search.source.select(standing.tolist())
            active["best"] = self._start(active, own, shared)
            signs = self._signs(x, standing, own, shared)

            def query(active: ActiveSet, number: int, plan: list[Patch] = plan, signs: Tensor = signs) -> None:
                drawn = signs[number] if self.norm == "linf" else signs[number, active["sample"]]
                images = propose(active, plan[number], drawn[..., None, None].to(x.dtype))
                rows = self._changed(active, images, plan[number])
                if rows is None or len(rows):
                    self._try(model, active, images, rows)

            with torch.no_grad():
                active["margin"] = torch.full_like(active["radius"].flatten(), torch.inf)
                self._try(model, active, active["best"])
                search.run(active, query, self.queries, (turn / self.restarts, (turn + 1) / self.restarts))

    def work(self, num_classes: int) -> int:
        return self.restarts * (self.queries + 1)

    def _try(self, model: Classifier, active: ActiveSet, images: Tensor, rows: Tensor | None = None) -> None:
        """One query of each attempt, or of the attempts `rows`: keep what lowers the margin."""
        y, before = active["y"], active["margin"]
        if rows is not None:
            images, y, before = images[rows], y[rows], before[rows]
        logits = predict(model, images)
        margin = margin_of(logits, y)
        better = margin < before
        active["best"] = replaced(active["best"], images, better, rows)
        active["margin"] = replaced(active["margin"], margin, better, rows)
        claim(active, images, logits.argmax(1) != y, rows)

    def _changed(self, active: ActiveSet, images: Tensor, patch: Patch) -> Tensor | None:
        """The attempts whose image the patch changes; the others have it already. None for all: an L2 patch always
        does, and on a GPU finding out would make the host wait."""
        if images.is_cuda or self.norm == "l2":
            return None
        return (images[patch.window] != active["best"][patch.window]).flatten(1).any(1).nonzero().squeeze(1)

    def _patch(self, query: int, x: Tensor, shared: torch.Generator) -> Patch:
        """Where and how large the patch of a query is; an L2 patch has a twin to take its strength from."""
        height, width = x.shape[2:]
        area = self.area / 2 ** sum(query > bound for bound in HALVINGS)
        side = max(round(math.sqrt(area * height * width)), 1 if self.norm == "linf" else 3)
        side = min(side + (self.norm == "l2" and side % 2 == 0), height, width)
        top, left, twin_top, twin_left, turn = torch.rand(5, generator=shared, dtype=torch.float64).tolist()
        rows, columns = height - side + 1, width - side + 1  # public code never draws the last place of a row or column
        return Patch(
            _window(int(top * rows), int(left * columns), side),
            _window(int(twin_top * rows), int(twin_left * columns), side),
            side,
            turn > 0.5,
        )

    def _signs(self, x: Tensor, rows: Tensor, own: PerSample, shared: torch.Generator) -> Tensor:
        """The signs of each query's patch, one a channel: (Q, C) for L-inf; for L2 (Q, B, C), of the samples `rows`."""
        shape = (self.queries, x.shape[1])
        if self.norm == "linf":
            return _signs(shape, shared).to(x.device)
        signs = torch.ones(self.queries, len(x), x.shape[1], dtype=torch.int8)
        for row, generator in zip(rows.tolist(), own.generators, strict=True):
            signs[:, row] = _signs(shape, generator)
        return signs.to(x.device)

    def _start(self, active: ActiveSet, source: PerSample, shared: torch.Generator) -> Tensor:
        """L-inf: vertical stripes at the ball's surface. L2: a grid of bumps with random signs."""
        x, radius = active["x"], active["radius"]
        if self.norm == "linf":
            return (x + radius * _random_signs(x[:, :, :1, :], source)).clamp(0, 1)
        height, width = x.shape[2:]
        side = max(height // 5, 1)
        first = (height - 5 * side) // 2
        delta = torch.zeros_like(x)
        for top in range(first, height - side + 1, side):
            for left in range(first, width - side + 1, side):
                turn = bool(torch.rand((), generator=shared) > 0.5)
                bump = _bump_like(x, side, turn)
                delta[:, :, top : top + side, left : left + side] = bump * _random_signs(x[:, :, :1, :1], source)
        return (x + radius * delta / l2(delta)).clamp(0, 1)

    def _linf(self, active: ActiveSet, patch: Patch, signs: Tensor) -> Tensor:
        """The patch goes to the surface of the ball, one sign a channel."""
        images = active["best"].clone()
        images[patch.window] = (active["x"][patch.window] + active["radius"] * signs).clamp(0, 1)
        return images

    def _l2(self, active: ActiveSet, patch: Patch, signs: Tensor) -> Tensor:
        """The patch gets a bump, paid for by what the budget leaves and by the perturbation in its twin."""
        x, radius = active["x"], active["radius"]
        delta = active["best"] - x
        inside, left_over = delta[patch.window], (radius**2 - l2(delta) ** 2).clamp_min(0)
        both = torch.zeros_like(x[:1, :1])
        both[patch.window], both[patch.twin] = 1, 1
        paid = (delta.square() * both).sum((2, 3), keepdim=True)
        bump = _bump_like(x, patch.side, patch.turned) * signs + inside / (1e-12 + _norm(inside))
        bump = bump / (1e-12 + _norm(bump)) * (left_over / x.shape[1] + paid).sqrt()
        delta[patch.twin] = 0
        delta[patch.window] = bump
        return (x + radius * delta / l2(delta)).clamp(0, 1)


def _window(top: int, left: int, side: int) -> Window:
    return slice(None), slice(None), slice(top, top + side), slice(left, left + side)


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator).mul_(2).sub_(1).to(torch.int8)


def _random_signs(like: Tensor, source: PerSample) -> Tensor:
    return torch.where(rng.uniform(like, source) < 0.5, -1, 1).to(like.dtype)


def _norm(patch: Tensor) -> Tensor:
    """The L2 norm of each channel, (B, C, 1, 1)."""
    return patch.square().sum((2, 3), keepdim=True).sqrt()


@cache
def _bump_on(side: int, turned: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    return _bump(side, turned).to(device, dtype)


def _bump_like(x: Tensor, side: int, turned: bool) -> Tensor:
    """On the device of the images, where it stays."""
    return _bump_on(side, turned, x.device, x.dtype)


def _bump(side: int, turned: bool) -> Tensor:
    """Two opposite pyramids side by side, (side, side), of L2 norm one."""
    halves = torch.cat((_pyramid(side // 2, side), -_pyramid(side - side // 2, side)))
    halves = halves / halves.norm()
    bump: Tensor = halves.T if turned else halves
    return bump


def _pyramid(rows: int, columns: int) -> Tensor:
    """Steps of height 1/k^2 around the centre, of L2 norm one."""
    away = torch.maximum(
        (torch.arange(rows) - rows // 2).abs()[:, None], (torch.arange(columns) - columns // 2).abs()[None]
    )
    heights = 1 / torch.arange(1, max(rows, columns) // 2 + 2, dtype=torch.float64) ** 2
    pyramid: Tensor = heights.flip(0).cumsum(0).flip(0)[away]
    return pyramid.div_(pyramid.norm())
