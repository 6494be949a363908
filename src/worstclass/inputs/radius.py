"""A radius: how it is checked, and how it is written, as the field does: n/255 where it is one. No torch."""

import math
import re
from numbers import Real
from typing import Any

from worstclass.errors import UserError, shown

LARGE_LINF, SMALL_L2 = 0.5, 0.1


def trades_step(eps: float) -> float:
    """The step of the attack in training: TRADES's 0.007 at eps = 8/255, exactly, and in proportion elsewhere."""
    return 0.007 * (eps / (8 / 255))


def show_radius(eps: float) -> str:
    """`8/255` for a whole number of grey levels; otherwise up to four digits, such as `0.1`."""
    levels = 255 * eps
    if float(f"{eps:.3g}") != eps and round(levels) >= 1 and abs(levels - round(levels)) < 1e-5:
        return f"{round(levels)}/255"
    return f"{eps:.4g}"


def same_radius(one: float, other: float) -> bool:
    """Whether two radii differ by no more than rounding: 8/255 and 0.031372549 are one."""
    return math.isclose(one, other, rel_tol=1e-6)


def show_radii(text: str) -> str:
    """A text such as an attack's `repr`, with the radius of every `eps=...` in it written by `show_radius`."""
    return re.sub(r"\beps=([0-9.]+(?:e-?[0-9]+)?)", lambda found: f"eps={show_radius(float(found[1]))}", text)


def radius_notes(eps: float, norm: str) -> list[str]:
    """What to know of a radius that is allowed, but seldom meant."""
    if norm == "linf" and eps >= LARGE_LINF:
        return [
            f"within an L-inf radius of {show_radius(eps)} every image can become one grey: no model holds there. "
            "Did you mean norm='l2', or a radius such as 8/255?"
        ]
    if norm == "l2" and eps < SMALL_L2:
        return [f"an L2 radius of {show_radius(eps)} is small; 0.5 is customary for 32x32 images."]
    return []


def check_radius(eps: Any, norm: str = "linf") -> float:
    """The radius, if it is a finite number, not negative, and for L-inf not wider than the image range."""
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise UserError(f"eps must be a number such as 8 / 255, not {shown(eps)}.")
    radius = float(eps)
    if not 0 <= radius < math.inf:
        raise UserError(f"eps = {radius:g} must be a finite number, and not negative.")
    if norm == "linf" and radius > 1:
        raise too_wide(radius, "pixels lie in [0, 1], so an L-inf radius is at most 1")
    return radius


def too_wide(eps: float, reason: str) -> UserError:
    """The error for a radius that was most likely meant in steps of 255."""
    question = f"did you mean {eps:g}/255? {reason[0].upper()}{reason[1:]}" if eps <= 255 else reason
    return UserError(f"eps = {eps:g}: {question}.")
