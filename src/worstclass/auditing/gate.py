"""An audit as a gate: `worst < 0.3`, over the measures of a card. Parsed, never evaluated; no torch."""

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worstclass.errors import UserError, shown, unknown
from worstclass.inputs.names import NATURAL
from worstclass.metrics.percentages import percent

MEASURES = {"average": "average", "worst": "worst", "worst-tenth": "worst_tenth"}
"""What a gate may name, and its key in a card; `natural-` before it takes clean images, `.low` or `.high` after it an
end of its 95% interval."""
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
ALLOWED = [*MEASURES, *(f"{NATURAL}-{name}" for name in MEASURES)]


@dataclass(frozen=True)
class Gate:
    """One comparison: a measure, on clean images or under the strongest attack, or an end of its interval."""

    text: str
    natural: bool
    measure: str
    end: str
    sign: str
    bound: float

    def failure(self, card: Mapping[str, Any], attack: str) -> str | None:
        """A line that names the class, where the comparison holds, which is to fail; None where it does not."""
        name = NATURAL if self.natural else attack
        column = card["columns"][name]
        measure, worst = column[MEASURES[self.measure]], column["worst"]
        if not SIGNS[self.sign](measure[self.end], self.bound):
            return None
        where = "on clean images" if self.natural else f"under {attack}"
        more = f" (and {worst['ties'] - 1} more)" if worst["ties"] > 1 else ""
        itself = "" if self.measure == "worst" else f"{self.measure} is {_percent(measure)}; "
        return f"{self.text}: {itself}the weakest class is {worst['class']}{more}, {_percent(worst)}, {where}."


def parse_gate(text: str) -> Gate:
    """`worst < 0.3`, `natural-average <= 90%`, `worst.high < 0.3`; anything else is an error that says what may be."""
    parts = re.fullmatch(r"\s*([^<>=\s]+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    if parts is None:
        raise UserError(f"--fail-if {shown(text)}: write a measure, a sign and a number, such as 'worst < 0.3'.")
    name, dot, end = parts[1].partition(".")
    if name not in ALLOWED or (dot and end not in ("low", "high")):
        raise unknown("measure of --fail-if", parts[1], [*ALLOWED, "worst.low", "worst.high"])
    bound = float(parts[3]) / (100 if parts[4] else 1)
    if bound > 1:
        raise UserError(f"--fail-if {shown(text)}: accuracies are at most 1; did you mean {parts[3]}%?")
    natural = name.startswith(f"{NATURAL}-")
    return Gate(text.strip(), natural, name.removeprefix(f"{NATURAL}-"), end or "value", parts[2], bound)


def _percent(measure: Mapping[str, Any]) -> str:
    return f"{percent(measure['value'])}% [{percent(measure['low'])}, {percent(measure['high'])}]"
