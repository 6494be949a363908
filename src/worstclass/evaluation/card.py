"""The card of an evaluation: every measure with its interval, and what made the numbers, as plain JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worstclass import metrics
from worstclass.attacks import Ensemble
from worstclass.evaluation.outcomes import ANY, NATURAL, STANDS, Ints, Outcomes
from worstclass.execution.versions import versions
from worstclass.types import BallAttack

NEAR_ZERO = 0.01  # of a base's worst class: below it, one point more or less moves rho by 1 and more


@dataclass(frozen=True)
class Base:
    """The evaluated vanilla run that rho compares with: its outcomes, and which one it is."""

    folder: Path
    outcomes: Outcomes
    about: Mapping[str, Any]

    def lacks(self, columns: Iterable[str]) -> list[str]:
        """Those of the columns that it was not evaluated under, and rho cannot be had for."""
        return [name for name in columns if name not in self.outcomes.predictions and not name.endswith(ANY)]

    def as_dict(self) -> dict[str, Any]:
        """Which run it is, as plain JSON: folder, recipe (or model) and seed, epoch, and the digest of its weights."""
        named = ("model", "checkpoint", "epoch", "mix", "adjusted", "weights")
        known = {key: self.about[key] for key in named if key in self.about}
        recipe = self.about.get("recipe")
        return (
            {"folder": self.folder.resolve().name}
            | known
            | ({"recipe": recipe, "seed": recipe["seed"]} if recipe else {})
        )


def measure(labels: Ints, predicted: Ints, class_names: Sequence[str]) -> dict[str, Any]:
    """Every measure of one column of predictions, with its 95% interval; `ties` counts the classes that are worst."""
    num_classes = len(class_names)
    correct, counts = metrics.class_counts(labels, predicted, num_classes)
    accuracy = metrics.per_class_accuracy(labels, predicted, num_classes)
    index, worst = metrics.worst_class(accuracy)
    low, high = metrics.binomial_interval(correct, counts)
    average_low, average_high = metrics.binomial_interval(correct.sum(), counts.sum())
    variance = metrics.class_variance(accuracy)
    return {
        "average": _with_interval(correct.sum() / counts.sum(), average_low, average_high),
        "worst": _with_interval(worst, *metrics.worst_interval(correct, counts))
        | {"class": class_names[index], "ties": metrics.worst_ties(accuracy)},
        "worst_tenth": _with_interval(metrics.worst_tenth(accuracy), *metrics.worst_tenth_interval(correct, counts)),
        "class_variance": _with_interval(variance, *metrics.variance_interval(correct, counts)),
        "classes": [
            {"class": name, "images": int(n)} | _with_interval(a, lo, hi)
            for name, n, a, lo, hi in zip(class_names, counts, accuracy, low, high, strict=True)
        ],
    }


def make_card(
    outcomes: Outcomes,
    class_names: Sequence[str],
    attacks: Mapping[str, BallAttack],
    *,
    about: Mapping[str, Any],
    base: Base | None = None,
) -> dict[str, Any]:
    """Every measure of an evaluation as plain JSON; rho compares with `base`, in the columns that both have."""
    columns: dict[str, Any] = {}
    for name, predicted in outcomes.predictions.items():
        if name.endswith(ANY):
            continue
        columns[name] = {"attack": repr(attacks[name])} if name in attacks else {}
        columns[name] |= measure(outcomes.labels, predicted, class_names)
        if name + ANY in outcomes.predictions:
            stronger = measure(outcomes.labels, outcomes.predictions[name + ANY], class_names)
            columns[name]["any_iterate"] = {key: stronger[key] for key in ("average", "worst")}
        if name in outcomes.broken_by:
            columns[name]["broken_by"] = count_breaks(outcomes.broken_by[name], attacks[name], name)
        if base is not None and not base.lacks([name]):
            columns[name]["against_base"] = compare_with_base(outcomes, base.outcomes, name, len(class_names))
    return {
        "about": dict(about),
        **({"base": base.as_dict()} if base is not None else {}),
        "versions": versions(),
        "images": len(outcomes.labels),
        "class_names": list(class_names),
        "columns": columns,
    }


def count_breaks(broken_by: NDArray[np.str_], attack: BallAttack, name: str) -> dict[str, int]:
    """How many samples each attack broke, in turn; `natural` are errors without one, `standing` those that hold."""
    parts = list(attack.attacks) if isinstance(attack, Ensemble) else [name]
    counts = {part: int((broken_by == part).sum()) for part in (NATURAL, *parts)}
    return counts | {"standing": int((broken_by == STANDS).sum())}


def compare_with_base(outcomes: Outcomes, base: Outcomes, name: str, num_classes: int) -> dict[str, Any]:
    """Differences and rho of one column against the base run, paired image by image."""
    result = metrics.compare(outcomes.labels, outcomes.predictions[name], base.predictions[name], num_classes)
    return {
        "rho": _with_interval(*result.rho),
        "average_difference": _with_interval(*result.avg_difference),
        "worst_difference": _with_interval(*result.worst_difference),
        "worst_tenth_difference": _with_interval(*result.worst_tenth_difference),
        "p_value": result.p_value,
    }


def near_zero(base: Outcomes, name: str, num_classes: int) -> float | None:
    """The base's worst class, where its interval reaches below `NEAR_ZERO` and rho, which is relative to it, says
    little; None elsewhere, and at 0, where rho is undefined."""
    correct, counts = metrics.class_counts(base.labels, base.predictions[name], num_classes)
    worst = float((correct[counts > 0] / counts[counts > 0]).min())
    return worst if worst > 0 and metrics.worst_interval(correct, counts).low < NEAR_ZERO else None


def _with_interval(value: Any, low: Any, high: Any) -> dict[str, Any]:
    """JSON has no infinity: an unbounded end is null, and so is a value that is not defined, with both ends."""
    if not np.isfinite(value):
        return {"value": None, "low": None, "high": None}
    return {key: float(x) if np.isfinite(x) else None for key, x in (("value", value), ("low", low), ("high", high))}
