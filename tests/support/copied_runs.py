"""Copies of evaluated runs that differ in what a test is about."""

import shutil
from pathlib import Path
from typing import Any

from worstclass.config.recipe import make_config, merge, read_recipe, to_toml
from worstclass.evaluation.outcomes import Outcomes
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
    own = Outcomes.load(out / "outcomes.npz")
    Outcomes(own.labels, own.predictions | (predictions or {})).save(out / "outcomes.npz")
    return out
