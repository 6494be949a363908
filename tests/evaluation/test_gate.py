"""Conditions on an audit, for continuous integration."""

from typing import Any

import pytest

from worstclass.auditing.gate import parse_gate
from worstclass.errors import UserError

# --- the gate ---


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("worst < 0.3", True),
        ("worst<0.2", False),
        ("worst <= 20%", True),
        ("worst.low < 0.1", True),
        ("worst.high > .35", False),
        ("average >= 0.5", True),
        ("average < 50%", False),
        ("worst-tenth < 0.25", True),
        ("natural-worst < 0.8", True),
        ("natural-average < 0.8", False),
        ("natural-worst-tenth > 0.9", False),
    ],
)
def test_a_gate(text: str, fails: bool) -> None:
    def column(average: float, worst: float) -> dict[str, Any]:
        def measure(value: float) -> dict[str, Any]:
            return {"value": value, "low": value - 0.15, "high": value + 0.1}

        lowest = measure(worst) | {"class": "shirt", "ties": 1}
        return {"average": measure(average), "worst": lowest, "worst_tenth": measure(worst)}

    card = {"columns": {"natural": column(0.9, 0.7), "pgd-20": column(0.5, 0.2)}}
    line = parse_gate(text).failure(card, "pgd-20")
    assert (line is not None) is fails
    if line is not None:
        assert "the weakest class is shirt" in line
        assert line.startswith(f"{text}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worst", "such as 'worst < 0.3'"),
        ("worst == 0.3", "such as 'worst < 0.3'"),
        ("worst < 0.3 or average < 0.5", "such as"),
        ("__import__('os') < 1", "unknown measure"),
        ("wurst < 0.3", "Did you mean 'worst'"),
        ("worst.middle < 0.3", "unknown measure"),
        ("worst < 30", "did you mean 30%"),
        ("worst < -1", "such as"),
        ("", "such as"),
    ],
)
def test_a_gate_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_gate(text)
