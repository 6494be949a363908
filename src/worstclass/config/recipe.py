"""Recipes, TOML files and `key=value` settings of the command line, and the configurations that they make."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from worstclass.config.fields import explain, validate
from worstclass.config.keys import DEFAULTS, Config, can_have_base
from worstclass.config.owners import is_used
from worstclass.errors import UserError, unknown
from worstclass.files import clean_errors, read_text
from worstclass.inputs.names import RECIPE

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


REPLACED: dict[str, Any] = {"validation": "held-out", "valid_min": 0, "recalibrate": False}
"""What held before a key was there, where that is not its default."""


def stored_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as a run stored it, with every key that it used: what it lacks is younger than the run, and has the
    value that it replaced."""
    return {key: value for key, value in REPLACED.items() if is_used(key, values, DEFAULTS)} | dict(values)


def read_stored(folder: Path) -> dict[str, Any]:
    """The keys of the recipe in a run folder."""
    return stored_recipe(read_recipe(str(folder / RECIPE)))


def make_config(values: Mapping[str, Any], where: str = "") -> Config:
    """Validate; what is wrong is one line that names the key, the value and what is allowed."""
    return validate(Config, values, where)


def parse_value(key: str, value: object) -> Any:
    """A value of one key, validated as in a recipe."""
    if _is_none(key, value):
        return None
    field = Config.model_fields[key]
    kind: Any = Annotated[field.annotation, field]
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UserError(explain(key, error.errors()[0])) from None


def merge(recipe: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's keys under settings. What belonged to a value that they replace, the old method say, is left out; so
    is a base that they leave no room for, and a key that is set to `none`."""
    merged = {key: value for key, value in {**recipe, **settings}.items() if not _is_none(key, value)}
    if settings.keys() & {"method", "epochs"} and "base_start" not in settings and not can_have_base(merged):
        merged.pop("base_start", None)
    lost = {key for key in recipe if is_used(key, recipe, DEFAULTS) and not is_used(key, merged, DEFAULTS)}
    return {key: value for key, value in merged.items() if key in settings or key not in lost}


def load_config(recipe: str, /, **settings: Any) -> Config:
    """A recipe, by its name or its path, with settings of your own: `load_config("cifar10-resnet18-wat", seed=2)`."""
    return make_config(merge(read_recipe(recipe), settings), "" if settings else recipe)


def _is_none(key: str, value: object) -> bool:
    """Whether a value is the word for a key that is left out, of those that have no value by default."""
    return value in (None, "none") and DEFAULTS.get(key, key) is None


def to_toml(config: Config) -> str:
    """The keys that a configuration uses, as a flat recipe that reads back to an equal configuration."""
    lines = []
    for key, value in config.recipe().items():
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, str):
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's escapes are JSON's
        else:
            text = repr(value)
        lines.append(f"{key} = {text}")
    return "\n".join(lines) + "\n"
