"""A sweep file, and the jobs it comes to: recipes x every combination of values in its grid, a run folder for each."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from worstclass.config.fields import Whole, validate
from worstclass.config.keys import DEFAULTS, Config
from worstclass.config.owners import describe_owners, is_used
from worstclass.config.recipe import MAX_RECIPE, make_config, merge, parse_toml, parse_value, read_recipe
from worstclass.errors import UserError, shown, unknown
from worstclass.files import read_text
from worstclass.inputs.names import parse_attacks
from worstclass.inputs.radius import show_radius

RESULTS = "sweep.json"
LONGEST = 40  # characters of a value in the name of a folder
MAX_JOBS = 10_000  # combinations; more are a slip of the pen


class Sweep(BaseModel):
    """A sweep file: what to train, with every combination of which values, what to attack the results with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipes: tuple[str, ...] = Field((), description="names of shipped recipes, or paths; left out, the defaults")
    attacks: str = Field("", description="attacks to evaluate with, comma-separated; empty: train only")
    retries: Whole = Field(2, ge=0, description="how often a job whose worker was lost is started again (Ray)")
    grid: dict[str, tuple[Any, ...]] = Field({}, description="recipe keys, each with a list of values")
    set: dict[str, Any] = Field({}, description="recipe keys, each with one value")

    @field_validator("attacks", mode="before")
    @classmethod
    def _attack_list(cls, value: object) -> object:
        """A list of names, as other doors take it, or the names with commas."""
        return ",".join(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else value

    @field_validator("grid", "set", mode="before")
    @classmethod
    def _recipe_keys(cls, table: object, info: ValidationInfo) -> object:
        """Keys of a recipe; each value as a recipe has it, so that 0.5 and "1/2" are one."""
        if not isinstance(table, dict):
            return table
        for key, value in table.items():
            if key not in DEFAULTS:
                raise unknown(f"key in [{info.field_name}]", key, DEFAULTS)
            if info.field_name == "grid" and not (isinstance(value, list | tuple) and value):
                raise ValueError(f"{key} = {shown(value)} is not a list of values")
        if info.field_name == "set":
            return {key: parse_value(key, value) for key, value in table.items()}
        return {key: tuple(parse_value(key, value) for value in values) for key, values in table.items()}

    @model_validator(mode="after")
    def _consistent(self) -> "Sweep":
        for name, given in {"recipes": self.recipes, **self.grid}.items():
            twice = next((value for i, value in enumerate(given) if value in given[:i]), None)
            if twice is not None:
                raise ValueError(f"{name} has {twice} twice")
            if name in self.set:
                raise ValueError(f"{name} in [set] contradicts [grid]")
        if self.recipes and "method" in self.set:
            raise ValueError("method in [set] contradicts recipes")
        if not (self.recipes or "method" in self.grid or "method" in self.set):
            raise ValueError("a sweep has recipes, or a method in [grid] or [set]")
        return self

    @property
    def attack_names(self) -> tuple[str, ...]:
        return tuple(parse_attacks(self.attacks))


@dataclass(frozen=True)
class Job:
    """One run of a sweep. `group` is its name without the seed."""

    group: str
    folder: Path
    config: Config

    @property
    def name(self) -> str:
        return self.folder.name


def read_sweep(path: Path) -> Sweep:
    """The sweep in a TOML file, or one line that says what is wrong with it."""
    if not path.exists():
        raise UserError(f"there is no sweep file {path}; docs/sweep.md says what one holds.")
    values = parse_toml(read_text(path, MAX_RECIPE), path)
    for key in values:
        for meant in (key, key.removesuffix("s")):
            if meant in DEFAULTS:
                raise UserError(f"{path}: unknown key '{key}'. Write {meant} = [...] under [grid], or one under [set].")
    return validate(Sweep, values, str(path))


def expand(sweep: Sweep, out: Path) -> list[Job]:
    """Its jobs, a folder in `out` for each: every recipe with every combination of the values in the grid.

    A key of the grid, or of [set], is for the runs that use it; the others are not repeated for it.
    """
    count = max(len(sweep.recipes), 1) * math.prod(map(len, sweep.grid.values()))
    if count > MAX_JOBS:
        raise UserError(f"the grid has {count} combinations; a sweep has at most {MAX_JOBS}.")
    jobs: dict[tuple[object, ...], Job] = {}
    for recipe in sweep.recipes or (None,):
        name = "" if recipe is None else Path(recipe).name.removesuffix(".toml")
        values = {} if recipe is None else read_recipe(recipe)
        for point in _points(sweep.grid):
            here = merge(values, {**sweep.set, **point})
            swept = {key: value for key, value in point.items() if is_used(key, here, DEFAULTS)}
            same = (recipe, *swept.items())
            if same in jobs:
                continue
            method = [here["method"]] if recipe is None or "method" in swept else []
            parts = [name, *method] if name else method
            parts += [_part(key, value) for key, value in swept.items() if key not in ("method", "seed")]
            group = "-".join(parts)
            fixed = {key: value for key, value in sweep.set.items() if is_used(key, here, DEFAULTS)}
            where = group if recipe is None else f"{recipe} as {group}"
            config = make_config(merge(values, fixed | swept), where)
            jobs[same] = Job(group, out / f"{group}-seed{config.seed}", config)
    _check(sweep, list(jobs.values()))
    return list(jobs.values())


def _points(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination: methods first, and seeds beside each other."""
    keys = sorted(grid, key=lambda key: {"method": -1, "seed": 1}.get(key, 0))
    for values in product(*(grid[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


def _part(key: str, value: object) -> str:
    """A setting in the name of a folder: `eta0.1` for a number, `select-last` for a word; what is long is cut."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = _text(key, value)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}-{sha256(text.encode()).hexdigest()[:8]}"
    return f"{key}{'' if number else '-'}{text}"


def _text(key: str, value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(_text(key, each) for each in value) or "none"
    if isinstance(value, float):
        radius = show_radius(value) if key == "eps" else ""
        return radius.replace("/", "-") if "/" in radius else repr(value).removesuffix(".0")
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return re.sub(r"[^\w.+-]+", "-", str(value).rsplit("/", 1)[-1])  # of a path, its end


def _check(sweep: Sweep, jobs: Sequence[Job]) -> None:
    """Each key is somebody's, and each folder is one job's."""
    used = {key for job in jobs for key in job.config.used_keys}
    for key in (*sweep.grid, *sweep.set):
        if key not in used:
            raise UserError(f"{key} belongs to {describe_owners(key)}, and no run of the sweep is of that.")
    folders: set[Path] = set()
    for job in jobs:
        if job.folder in folders:
            raise UserError(f"two runs of the sweep would share {job.folder}: rename a recipe, or a file in [grid].")
        folders.add(job.folder)
