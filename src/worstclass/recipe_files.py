"""Recipes as text: TOML files, those that ship with the package, and `key=value` settings of the command line."""

import os
import re
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from worstclass.errors import UserError, unknown
from worstclass.files import clean_errors, read_text

MAX_RECIPE = 2**15  # bytes of a recipe or a sweep
MAX_DOTS = 2**11  # of a line: a key of n dots costs n * n to read


def recipe_names() -> list[str]:
    """The names of the recipes that ship with the package."""
    folder = resources.files("worstclass") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_recipe(recipe: str) -> dict[str, Any]:
    """The keys of a recipe: a path to a TOML file, or the name of a shipped one."""
    if os.path.isfile(recipe):  # False, not an error, for a name longer than a file's may be
        text = read_text(Path(recipe), MAX_RECIPE)
    elif recipe in recipe_names():
        text = (resources.files("worstclass") / "recipes" / f"{recipe}.toml").read_text("utf-8")
    elif recipe.endswith(".toml") or "/" in recipe:
        raise UserError(f"no recipe at {recipe}.")
    else:
        hint = str(unknown("recipe", recipe, recipe_names())).split(" Allowed:")[0]
        raise UserError(f"{hint} `worstclass recipes` lists the shipped ones; a path to a TOML file works too.")
    return parse_toml(text, recipe)


def parse_toml(text: str, where: object) -> dict[str, Any]:
    """TOML as Python values, or one line that says what is wrong with it."""
    if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise UserError(f"{where} is not valid here: a line of it has more than {MAX_DOTS} dots.")
    with clean_errors(f"{where} is not valid TOML"):
        return tomllib.loads(text)


def recipe_comment(name: str) -> str:
    """The first line of a shipped recipe: what it is."""
    text = (resources.files("worstclass") / "recipes" / f"{name}.toml").read_text("utf-8")
    return text.splitlines()[0].removeprefix("# ")


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`key=value` settings of the command line; values are TOML, or plain words."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UserError(f"'{setting}' is not a setting of the form key=value.")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # no TOML; or too many digits, or brackets
            word = text.strip()
            bare = re.fullmatch(r"\[([^][\"']*)\]", word)  # a list of plain words, such as [2/3, 0.9]
            values[key.strip()] = [part.strip() for part in bare[1].split(",")] if bare else word
    return values
