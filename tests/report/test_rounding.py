"""One number is shown as the same digits wherever it stands: it is rounded once, by one rule."""

import re
from pathlib import Path

import numpy as np
import pytest

import worstclass
from worstclass.evaluation.card import measure
from worstclass.evaluation.outcomes import Outcomes
from worstclass.metrics.percentages import percent, percent_interval
from worstclass.report import Result
from worstclass.report.page import page_data

pytestmark = pytest.mark.fast


def test_the_rule() -> None:
    assert (percent(0.26449759), percent(0.5), percent(0.0625)) == ("26.4", "50.0", "6.2")
    assert percent(-0.031, sign=True) == "-3.1"
    assert percent_interval({"value": 0.1, "low": -0.02, "high": 0.2}, sign=True) == "+10.0 [-2.0, +20.0]"


def test_the_page_and_the_table_show_the_same_digits() -> None:
    """58 of 300: the interval ends at 26.4498, and 0.2645 would be shown as 26.5."""
    labels = np.repeat(np.arange(10), 300)
    right = np.arange(3000) % 300 < np.repeat([58, *[200] * 9], 300)
    predicted = np.where(right, labels, (labels + 1) % 10)
    names = [str(k) for k in range(10)]
    columns = {"natural": measure(labels, predicted, names)}
    outcomes = Outcomes(labels, {"natural": predicted})
    result = Result("net", Path("net"), None, outcomes, {"about": {}, "class_names": names}, columns, False)
    shown = page_data([result])["runs"][0]["columns"]["natural"]
    assert percent_interval(shown["worst"]) == percent_interval(columns["natural"]["worst"]) == "19.3 [15.0, 26.4]"
    for mine, theirs in zip(columns["natural"]["classes"], shown["classes"], strict=True):
        assert [mine[end] for end in ("value", "low", "high")] == [theirs[end] for end in ("value", "low", "high")]


def test_no_other_code_rounds_a_percentage_to_a_digit() -> None:
    source = Path(worstclass.__file__).parent
    files = [path for path in source.rglob("*.py") if path.name != "percentages.py"]
    own = re.compile(r"\{100 \* [^{}]*:\+?\.1f\}")
    assert [path.name for path in files if own.search(path.read_text())] == []
