"""Tables 1 to 5: the same rows and columns, with ours and the paper's in each cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worstclass.config.recipe import make_config, read_recipe
from worstclass.errors import choose
from worstclass.evaluation.seeds import seed_groups, standard_deviation
from worstclass.report import paper
from worstclass.report.groups import Group, group_results
from worstclass.report.results import Result
from worstclass.report.tables import notes as comparison_notes
from worstclass.report.titles import distinguish
from worstclass.reproduce.rows import Row, collect, no_row, rows_of
from worstclass.reproduce.specs import TABLES, Measure, TableSpec


@dataclass(frozen=True)
class Cell:
    """One measure: ours with its interval, and the paper's; accuracies in percent. None: not there, or not bounded.

    Of several seeds ours is their mean, and `std` their standard deviation.
    """

    attack: str
    measure: Measure
    ours: float | None
    low: float | None
    high: float | None
    paper: float | None
    std: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Line:
    """One run of a row, several that differ in the seed alone, or the row without one; `part`: one of several seeds."""

    title: str
    run: Path | None
    cells: tuple[Cell, ...]
    seeds: int = 1
    part: bool = False


@dataclass(frozen=True)
class Block:
    """The lines of one data set and network."""

    data: str
    model: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, made again; `missing` are commands, `notes` what to know about the runs."""

    number: int
    title: str
    attacks: tuple[str, ...]
    measures: tuple[Measure, ...]
    blocks: tuple[Block, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def make_table(name: str, folders: Sequence[Path]) -> PaperTable:
    """Fill a table of the paper (`table1` to `table5`) from evaluated runs."""
    spec = TABLES[choose("table", name, list(TABLES))]
    blocks, missing = [], []
    groups, notes = collect(folders, spec.settings)
    for setting, results in groups.items():
        rows = rows_of(results, spec.recipes, setting)
        grouped = {attack: _grouped(results, attack) for attack in spec.attacks}
        lines = [line for row in rows for line in _lines(row, spec, grouped)]
        blocks.append(Block(*setting, tuple(lines)))
        missing += [line for row in rows for line in row.missing(spec.attacks)]
        notes += [line for row in rows for line in row.differences()]
        used = {id(result) for row in rows for result in row.results}
        notes += [f"{r.folder}: {no_row(r.config, spec.recipes, setting)}" for r in results if id(r) not in used]
        notes += comparison_notes(results)
        if not any(result.is_base for result in results):
            notes.append(f"{'-'.join(setting)}: no TRADES run was given, so there is no rho")
    return PaperTable(spec.number, spec.title, spec.attacks, spec.measures, tuple(blocks), tuple(missing), tuple(notes))


def _grouped(results: Sequence[Result], attack: str) -> list[Group]:
    """The methods of which a run was evaluated under an attack; none where no method has two seeds of it."""
    having = [result for result in results if attack in result.columns]
    groups = seed_groups([result.recipe for result in having], [result.kind for result in having])
    return group_results(having, [attack]) if any(len(group) > 1 for group in groups) else []


def _lines(row: Row, spec: TableSpec, grouped: Mapping[str, Sequence[Group]]) -> list[Line]:
    """For several seeds of one recipe their mean, then each of them."""
    runs = row.results
    if not runs:
        return [Line(row.title, None, _cells(row, spec, {}))]
    configs = [run.config for run in runs]
    places = seed_groups(configs, [run.kind for run in runs])
    firsts = [place[0] for place in places]
    names = distinguish(
        [row.title] * len(places),
        [runs[first].folder for first in firsts],
        [configs[first].model_copy(update={"seed": 0}) for first in firsts],
    )
    titles = distinguish([row.title] * len(runs), [run.folder for run in runs], configs)
    lines = []
    for name, place in zip(names, places, strict=True):
        several = len(place) > 1
        if several:
            members = {id(runs[i]) for i in place}
            found = {
                attack: _of_group(group)
                for attack, groups in grouped.items()
                for group in groups
                if id(group.results[0]) in members and len(group.results) == len(place)  # a mean of fewer is not theirs
            }
            lines.append(Line(f"{name}, {len(place)} seeds", None, _cells(row, spec, found), len(place)))
        for i in place:
            own = {attack: _of_run(runs[i], attack) for attack in runs[i].columns}
            lines.append(Line(titles[i], runs[i].folder, _cells(row, spec, own), part=several))
    return lines


def _of_run(run: Result, attack: str) -> dict[str, Any]:
    column = run.columns[attack]
    rho = {"value": 0.0} if run.is_base else column.get("against_base", {}).get("rho", {})
    return {**column, "rho": rho}


def _of_group(group: Group) -> dict[str, Any]:
    """Under its one attack; the interval of a mean of class variances, or of rho, is not known."""
    ((attack, column),) = group.columns.items()
    variances = [run.columns[attack]["class_variance"]["value"] for run in group.results]
    variance = {"value": float(np.mean(variances)), "std": standard_deviation(variances)}
    rho = {"value": 0.0} if group.is_base else column["rho"] or {}
    return {**column, "class_variance": variance, "rho": rho}


def _cells(row: Row, spec: TableSpec, found: Mapping[str, Mapping[str, Any]]) -> tuple[Cell, ...]:
    """Those of each attack and measure, from what was found under each attack."""
    recipe = make_config(read_recipe(row.recipe)) if row.recipe else None
    cells = []
    for attack in spec.attacks:
        printed = paper.printed(recipe, attack, spec.number) if recipe else None
        for measure in spec.measures:
            scale = 100 if measure in ("average", "worst") else 1
            ours = found.get(attack, {}).get(measure, {})
            value, low, high, std = (
                None if ours.get(key) is None else scale * ours[key] for key in ("value", "low", "high", "std")
            )
            theirs = None if printed is None else getattr(printed, measure)
            cells.append(Cell(attack, measure, value, low, high, theirs, std))
    return tuple(cells)
