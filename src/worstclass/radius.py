"""How a radius is written: as the field does, n/255 where it is one."""

import re


def show_radius(eps: float) -> str:
    """`8/255` for a whole number of grey levels; otherwise up to four digits, such as `0.1`."""
    levels = 255 * eps
    if float(f"{eps:.3g}") != eps and round(levels) >= 1 and abs(levels - round(levels)) < 1e-5:
        return f"{round(levels)}/255"
    return f"{eps:.4g}"


def show_radii(text: str) -> str:
    """A text such as an attack's `repr`, with the radius of every `eps=...` in it written by `show_radius`."""
    return re.sub(r"\beps=([0-9.]+(?:e-?[0-9]+)?)", lambda found: f"eps={show_radius(float(found[1]))}", text)
