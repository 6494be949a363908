"""Accuracies as people read them: one rule for terminal, tables, figures and page."""

from collections.abc import Mapping
from typing import Any


def percent(share: float, *, sign: bool = False) -> str:
    """A share in percent with one digit: 0.26449 is `26.4`.

    Give the number as it was measured: one that was rounded before, such as 0.2645, ends up as another. `percent` of
    the page's charts.js does the same.
    """
    return f"{100 * share:{'+' if sign else ''}.1f}"


def percent_interval(measure: Mapping[str, Any], *, sign: bool = False) -> str:
    """`61.2 [59.4, 63.0]`."""
    value, low, high = (percent(measure[key], sign=sign) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
