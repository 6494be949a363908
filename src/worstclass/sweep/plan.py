"""A sweep file, and the jobs it comes to: recipes or methods x eta x seeds, a run folder for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from worstclass.config import (
    MAX_RECIPE,
    Config,
    MethodName,
    Positive,
    Whole,
    make_config,
    parse_toml,
    read_recipe,
    validate,
)
from worstclass.errors import UserError
from worstclass.files import read_text

RESULTS = "sweep.json"


class Sweep(BaseModel):
    """A sweep file: what to train, with which seeds and eta, what to attack the results with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipes: tuple[str, ...] = Field((), description="names of shipped recipes, or paths")
    methods: tuple[MethodName, ...] = Field((), description="methods, over the keys in [set], in place of recipes")
    seeds: tuple[Annotated[Whole, Field(ge=0)], ...] = Field((1,), min_length=1, description="seeds of each")
    eta: tuple[Positive, ...] = Field((), description="values of eta, for runs whose method is wat")
    attacks: str = Field("", description="attacks to evaluate with, comma-separated; empty: train only")
    retries: Whole = Field(2, ge=0, description="how often a job whose worker was lost is started again (Ray)")
    set: dict[str, Any] = Field({}, description="recipe keys, over every recipe")

    @model_validator(mode="after")
    def _consistent(self) -> "Sweep":
        if bool(self.recipes) == bool(self.methods):
            raise ValueError("a sweep has either recipes or methods")
        lists: dict[str, Sequence[object]] = {"recipes": self.recipes, "methods": self.methods}
        for name, given in (lists | {"seeds": self.seeds, "eta": self.eta}).items():
            twice = next((value for i, value in enumerate(given) if value in given[:i]), None)
            if twice is not None:
                raise ValueError(f"{name} has {twice} twice")
        swept = {"seed": "seeds", "method": "recipes or methods"} | ({"eta": "eta"} if self.eta else {})
        for key, place in swept.items():
            if key in self.set:
                raise ValueError(f"{key} in [set] contradicts {place}")
        return self

    @property
    def attack_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.attacks.split(",") if name.strip())


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
    return validate(Sweep, parse_toml(read_text(path, MAX_RECIPE), path), str(path))


def expand(sweep: Sweep, out: Path) -> list[Job]:
    """Its jobs: each recipe or method, with each eta where it is WAT, with each seed; a folder in `out` for each."""
    bases = [(Path(recipe).name.removesuffix(".toml"), recipe, read_recipe(recipe)) for recipe in sweep.recipes]
    bases += [(method, f"method {method}", {"method": method}) for method in sweep.methods]
    groups: list[tuple[str, Config]] = []
    for name, where, values in bases:
        config = make_config(values | sweep.set, f"{where} with [set]" if sweep.set else where)
        if sweep.eta and config.method == "wat":
            # as the shipped recipes are named: wat-eta0.05
            etas = [(f"{name}-eta{repr(eta).removesuffix('.0')}", eta) for eta in sweep.eta]
            groups += [(group, config.model_copy(update={"eta": eta})) for group, eta in etas]
        else:
            groups.append((name, config))
    methods = dict.fromkeys(config.method for _, config in groups)
    if sweep.eta and "wat" not in methods:
        raise UserError(f"eta is swept, but it belongs to method wat, and here is {', '.join(methods)} alone.")
    jobs = [
        Job(group, out / f"{group}-seed{seed}", config.model_copy(update={"seed": seed}))
        for group, config in groups
        for seed in sweep.seeds
    ]
    folders = [job.folder for job in jobs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"two runs of the sweep would share {folder}: rename one of the recipes.")
    return jobs
