"""Rows of the paper: a recipe each, and the runs that were made by it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from worstclass.config.differences import differing_keys, plain
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, read_recipe, recipe_names
from worstclass.errors import UserError
from worstclass.report.results import Result, load_results
from worstclass.runs.run import open_run

SAME = (
    "method",
    "objective",
    "variant",
    "data",
    "model",
    "eta",
    "focus_class",
    "focus_weight",
    "class_weights",
    "eps",
    "adjust_budget",
)


@dataclass(frozen=True)
class Row:
    """A row as the paper has it: its title, the recipe that makes it if one is shipped, and the runs at hand."""

    title: str
    recipe: str | None
    results: tuple[Result, ...] = ()

    def missing(self, attacks: Sequence[str]) -> list[str]:
        """The commands that make what is not there."""
        wanted = ",".join(attacks)
        if not self.results:
            if self.recipe is None:
                return [f"{self.title}: no run was given, and no recipe is shipped for it here"]
            evaluate = f"worstclass evaluate runs/{self.recipe}-seed1 --attacks {wanted}"
            return [f"{self.title}: worstclass train {self.recipe} && {evaluate}"]
        lines = []
        for result in self.results:
            lacking = ",".join(attack for attack in attacks if attack not in result.columns)
            if lacking:
                lines.append(f"{self.title}: worstclass evaluate {result.folder} --attacks {lacking}")
        return lines

    def differences(self) -> list[str]:
        """Where a run was not made by the recipe as it is shipped, seeds apart."""
        if self.recipe is None:
            return []
        recipe = make_config(read_recipe(self.recipe))
        lines = []
        for result in self.results:
            own = result.config
            changed = [f"{key} = {getattr(own, key)}" for key in differing_keys(own, recipe) if key != "seed"]
            if changed:
                lines.append(f"{result.folder}: not the recipe {self.recipe}: {', '.join(changed)}")
        return lines


def collect(
    folders: Sequence[Path], settings: Iterable[tuple[str, str]]
) -> tuple[dict[tuple[str, str], list[Result]], list[str]]:
    """Evaluated runs by data and model: those of the paper's `settings` that were given, or all if none was; and a note
    for each run that is left out. Runs of one setting are compared with the first TRADES run among them, as in the
    paper."""
    if not folders:
        raise UserError("no run folder was given.")
    groups: dict[tuple[str, str], list[Path]] = {}
    for folder in folders:
        config = open_run(folder).config
        groups.setdefault((config.data, config.model), []).append(folder)
    chosen = [key for key in settings if key in groups] or list(groups)
    notes = [
        f"{folder}: {', '.join(key)} is not in it" for key in groups if key not in chosen for folder in groups[key]
    ]
    return {key: load_results(groups[key], vanilla=("trades",)) for key in chosen}, notes


def rows_of(results: Sequence[Result], recipes: Sequence[str], setting: tuple[str, str]) -> list[Row]:
    """For each recipe (without its setting, such as `wat-eta0.5`), the runs that have its method and parameters."""
    rows = []
    several = any("-eta" in name for name in recipes)
    for name in recipes:
        full, template = _template(name, setting)
        matching = tuple(result for result in results if not _unlike(result.config, template, anywhere=full is None))
        eta = f", eta {template.eta:g}" if several and template.method == "wat" else ""
        rows.append(Row(template.title + eta, full, matching))
    return rows


def no_row(config: Config, recipes: Sequence[str], setting: tuple[str, str]) -> str:
    """Why no row is that of a run: in what it differs from the nearest row of its method, if there is one."""
    near: dict[tuple[str, ...], list[Config]] = {}
    for name in recipes:
        full, template = _template(name, setting)
        if template.method == config.method:
            near.setdefault(tuple(_unlike(config, template, anywhere=full is None)), []).append(template)
    if not near:
        return "has no row in this table"
    keys = min(near, key=len)
    parts = []
    for key in keys:
        theirs = dict.fromkeys(plain(getattr(template, key), key) for template in near[keys])
        parts.append(f"{key} = {plain(getattr(config, key), key)}, not {' or '.join(theirs)}")
    return f"is {near[keys][0].title}, but {', '.join(parts)}"


def recipe_of(name: str, setting: tuple[str, str]) -> str | None:
    """The shipped recipe for a method in a setting, if there is one."""
    data, model = setting
    candidates = (f"{data}-{model}-{name}", f"{data}-{name}")
    return next((candidate for candidate in candidates if candidate in recipe_names()), None)


def _template(name: str, setting: tuple[str, str]) -> tuple[str | None, Config]:
    """The recipe shipped for a row in a setting and what it says; without one, the method in the paper's setting."""
    full = recipe_of(name, setting)
    return full, make_config(read_recipe(full or f"cifar10-resnet18-{name}"))


def _unlike(config: Config, template: Config, *, anywhere: bool) -> list[str]:
    """The keys in which a run is not of a row."""
    keys = [key for key in SAME if not (anywhere and key in ("data", "model", "eps"))]
    return [key for key in keys if getattr(config, key) != getattr(template, key)]
