"""Copies of evaluated runs that differ in what a test is about."""

import shutil
from pathlib import Path
from typing import Any

from worstclass.config.recipe import make_config, merge, read_recipe, to_toml
from worstclass.evaluation.card import measure
from worstclass.evaluation.outcomes import ANY, Outcomes
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.files import read_json, write_json
from worstclass.runs.saver import ABOUT


def set_recipe(folder: Path, text: str) -> None:
    """As if the run had begun with this recipe."""
    (folder / "recipe.toml").write_text(text)
    about = read_json(folder / ABOUT)
    about.pop("recipe_digest", None)
    write_json(folder / ABOUT, about)


def copy_run(folder: Path, out: Path, predictions: dict[str, Any] | None = None, **changes: object) -> Path:
    """A run with some keys of its recipe and some of its predictions changed."""
    shutil.copytree(folder, out)
    config = make_config(merge(read_recipe(str(folder / "recipe.toml")), changes))
    set_recipe(out, to_toml(config))
    own = Outcomes.load(out / OUTCOMES)
    set_outcomes(out, Outcomes(own.labels, own.predictions | (predictions or {})))
    return out


def set_outcomes(folder: Path, outcomes: Outcomes) -> None:
    """Other outcomes, and a card that says the same."""
    outcomes.save(folder / OUTCOMES)
    card = read_json(folder / CARD)
    measured = {
        name: measure(outcomes.labels, predicted, card["class_names"])
        for name, predicted in outcomes.predictions.items()
        if not name.endswith(ANY)
    }
    write_json(folder / CARD, card | {"columns": {n: card["columns"].get(n, {}) | c for n, c in measured.items()}})
