"""What ships of a run where its base or an adjustment had a say: in numbers for a card, in words for readers."""

from collections.abc import Mapping
from typing import Any

from worstclass.config.keys import Config
from worstclass.config.methods import METHODS

TOO_LITTLE = "class weights gained too little for what they cost"


def shipped(about: Mapping[str, Any], which: str) -> dict[str, float]:
    """From run.json: the share of the run in its `mix` with the base, and of the bias that `adjusted` the logits.

    Nothing of the last epoch, which neither has changed.
    """
    found = {}
    if which == "selected" and "base" in about:
        found["mix"] = about["base"]["shipped"]
    if which == "selected" and "adjustment" in about:
        found["adjusted"] = about["adjustment"]["scale"]
    return found


def shipped_note(config: Config, kept: Mapping[str, Any]) -> str:
    """In what the weights are not those of the method: `kept` is of `shipped`; empty where they are."""
    base, mix, lines = METHODS[config.base_objective].title, kept.get("mix", 1.0), []
    if mix == 0:
        lines.append(f"these weights are those of the base ({base}): {TOO_LITTLE}")
    elif mix < 1:
        lines.append(f"weights {100 * mix:.0f}% of the way from its base ({base})")
    if kept.get("adjusted") == 0:
        lines.append("the logits are not adjusted: no bias raised the weakest classes enough for its price")
    return "; ".join(lines)


def shipped_title(config: Config, kept: Mapping[str, Any]) -> str:
    """The method's title where it stands alone, with what its weights are if not those of the method."""
    mix, marks = kept.get("mix", 1.0), []
    if mix < 1:
        marks.append(f"{100 * mix:.0f}% of the way from its base" if mix else "weights of its base")
    if kept.get("adjusted") == 0:
        marks.append("no adjustment kept")
    return config.title + (f" ({', '.join(marks)})" if marks else "")
