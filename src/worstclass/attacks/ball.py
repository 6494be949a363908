"""Balls around images: distances, directions and projections, for every attack."""

import torch
from torch import Tensor

from worstclass import rng
from worstclass.rng import Source
from worstclass.types import Norm


def column(values: Tensor, like: Tensor) -> Tensor:
    """Per-sample values (B,) shaped to multiply images: (B, 1, 1, 1)."""
    return values.view(-1, *[1] * (like.dim() - 1))


def l2(x: Tensor) -> Tensor:
    """The L2 norm of each sample, (B, 1, 1, 1), never zero."""
    return column(torch.linalg.vector_norm(x.flatten(1), dim=1).clamp_min(1e-12), x)


def distance(delta: Tensor, norm: Norm) -> Tensor:
    """The length of each perturbation, (B,)."""
    flat = delta.flatten(1)
    return flat.abs().amax(1) if norm == "linf" else torch.linalg.vector_norm(flat, dim=1)


def direction(grad: Tensor, norm: Norm) -> Tensor:
    """Steepest ascent of length one."""
    return grad.sign() if norm == "linf" else grad / l2(grad)


def project(x: Tensor, x_adv: Tensor, radius: Tensor | float, norm: Norm) -> Tensor:
    """The nearest point of the ball, then of [0, 1]."""
    if norm == "linf":
        return torch.clamp(x_adv, x - radius, x + radius).clamp(0, 1)
    delta = x_adv - x
    return (x + delta * (radius / l2(delta)).clamp_max(1)).clamp(0, 1)


def radius_of(eps: float, radius_scale: Tensor | None, x: Tensor) -> Tensor | float:
    """eps, or with a `radius_scale` (B,) the radius of each sample."""
    return eps if radius_scale is None else eps * column(radius_scale, x).to(x.dtype)


def random_direction(like: Tensor, source: Source, norm: Norm) -> Tensor:
    """A random direction of length one for each sample."""
    if norm == "l2":
        noise = rng.normal(like, source)
        return noise / l2(noise)
    noise = 2 * rng.uniform(like, source) - 1
    return noise / column(noise.flatten(1).abs().amax(1), noise)


NEWTON_STEPS = 12


def shortest_step(t: Tensor, w: Tensor, gap: Tensor, norm: Norm) -> Tensor:
    """The shortest d with w . (t + d) = b inside the box 0 <= t + d <= 1, for flat rows (B, D); `gap` is w . t - b.

    Each coordinate moves against w by lam * s until it meets the box, with s = 1 (L-inf) or |w| (L2), so the distance
    covered, sum |w| min(lam * s, room), is concave and piecewise linear in lam: Newton from 0 climbs to the
    root without passing it, in a few rounds and without the sort of the usual method. Where the box does not reach the
    plane, d ends in the corner nearest to it.
    """
    w = torch.where(gap[:, None] >= 0, w, -w)
    room = torch.where(w > 0, t, 1 - t)
    weight, need = w.abs(), gap.abs()
    reach: Tensor | float = 1.0 if norm == "linf" else weight
    rate = weight * reach
    lam = torch.zeros_like(need)
    for _ in range(NEWTON_STEPS):
        moved = torch.minimum(lam[:, None] * reach, room)
        slope = (rate * (moved < room)).sum(1)
        missing = need - (weight * moved).sum(1)
        further = torch.where((missing > 0) & (slope > 0), lam + missing / slope, lam)
        if further.device.type == "cpu" and torch.equal(further, lam):
            break
        lam = further
    corner = (weight * room).sum(1) <= need
    moved = torch.where(corner[:, None], room, torch.minimum(lam[:, None] * reach, room))
    return -w.sign() * moved
