"""Tables 1 to 5: the same rows and columns, with ours and the paper's in each cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worstclass.errors import choose
from worstclass.report.results import Result
from worstclass.report.tables import notes as comparison_notes
from worstclass.report.titles import distinguish
from worstclass.reproduce.paper import Reported, reported
from worstclass.reproduce.rows import Row, collect, rows_of
from worstclass.reproduce.specs import TABLES, Measure, TableSpec


@dataclass(frozen=True)
class Cell:
    """One measure: ours with its interval, and the paper's; accuracies in percent. None: not there, or not bounded."""

    attack: str
    measure: Measure
    ours: float | None
    low: float | None
    high: float | None
    paper: float | None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Line:
    """One run of a row, or the row without one."""

    title: str
    run: Path | None
    cells: tuple[Cell, ...]


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
        lines = [line for row in rows for line in _lines(row, spec, setting)]
        blocks.append(Block(*setting, tuple(lines)))
        missing += [line for row in rows for line in row.missing(spec.attacks)]
        notes += [line for row in rows for line in row.differences()]
        used = {id(result) for row in rows for result in row.results}
        notes += [f"{r.folder}: has no row in this table" for r in results if id(r) not in used]
        notes += comparison_notes(results)
        if not any(result.is_base for result in results):
            notes.append(f"{'-'.join(setting)}: no TRADES run was given, so there is no rho")
    return PaperTable(spec.number, spec.title, spec.attacks, spec.measures, tuple(blocks), tuple(missing), tuple(notes))


def _lines(row: Row, spec: TableSpec, setting: tuple[str, str]) -> list[Line]:
    results: Sequence[Result | None] = row.results or (None,)
    runs = row.results
    titles = distinguish([row.title] * len(runs), [r.folder for r in runs], [r.config for r in runs]) or [row.title]
    lines = []
    for title, result in zip(titles, results, strict=True):
        cells = [
            _cell(row, result, spec, setting, attack, measure) for attack in spec.attacks for measure in spec.measures
        ]
        lines.append(Line(title, result.folder if result else None, tuple(cells)))
    return lines


def _cell(
    row: Row, result: Result | None, spec: TableSpec, setting: tuple[str, str], attack: str, measure: Measure
) -> Cell:
    scale = 100 if measure in ("average", "worst") else 1
    ours: dict[str, Any] = {}
    if result is not None and attack in result.columns:
        column = result.columns[attack]
        if measure != "rho":
            ours = column[measure]
        elif result.is_base:
            ours = {"value": 0.0}
        else:
            ours = column.get("against_base", {}).get("rho", {})
    value, low, high = (None if ours.get(key) is None else scale * ours[key] for key in ("value", "low", "high"))
    printed = _printed(row, spec.number, setting, attack)
    return Cell(attack, measure, value, low, high, None if printed is None else getattr(printed, measure))


def _printed(row: Row, table: int, setting: tuple[str, str], attack: str) -> Reported | None:
    """The paper's own numbers; those of WAT are from its public code, and stand beside both variants."""
    if row.recipe is None:
        return None
    name = row.recipe.removeprefix("-".join(setting) + "-").removesuffix("-reference")
    method, _, eta = name.partition("-eta")
    for cell in reported():
        same_place = (cell.table, cell.data, cell.model, cell.attack) == (table, *setting, attack)
        if same_place and cell.method == method and (method != "wat" or cell.eta == float(eta or 0.1)):
            return cell
    return None
