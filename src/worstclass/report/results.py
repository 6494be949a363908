"""Evaluated runs, read back from their folders and set beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worstclass.card import compare_with_base, measure
from worstclass.errors import UserError
from worstclass.evaluate import ANY, Outcomes
from worstclass.runs import Run, open_run
from worstclass.subjects import load_card, load_outcomes

NAMES = {"natural": "Natural", "trades": "TRADES", "wat": "WAT", "pgd-at": "PGD-AT", "csl": "CSL"}
NAMES |= {"frl-rw": "FRL-RW", "frl-rwrm": "FRL-RWRM", "fixed": "Fixed weights"}


@dataclass(frozen=True)
class Result:
    """A run with its outcomes and, for each attack, its measures; rho is there unless it is the base."""

    title: str
    run: Run
    outcomes: Outcomes
    card: dict[str, Any]
    columns: dict[str, dict[str, Any]]

    @property
    def is_base(self) -> bool:
        return not any("against_base" in column for column in self.columns.values())


def load_results(folders: Sequence[Path], base: Path | None = None) -> list[Result]:
    """Read evaluated runs; rho compares with `base`, or else with the first vanilla run among them."""
    if not folders:
        raise UserError("no run folder was given.")
    runs = [open_run(folder) for folder in folders]
    outcomes = [load_outcomes(run.folder) for run in runs]
    vanilla = [i for i, run in enumerate(runs) if run.config.method in ("trades", "pgd-at", "natural")]
    base_index = vanilla[0] if vanilla else 0
    base_outcomes = load_outcomes(base) if base else outcomes[base_index]
    titles = _titles(runs)
    results = []
    for index, (run, own) in enumerate(zip(runs, outcomes, strict=True)):
        columns = {}
        for name, predicted in own.predictions.items():
            if name.endswith(ANY):
                continue
            columns[name] = measure(own.labels, predicted, run.class_names)
            compared = (base is not None or index != base_index) and name in base_outcomes.predictions
            if compared:
                columns[name]["against_base"] = compare_with_base(own, base_outcomes, name, len(run.class_names))
        results.append(Result(titles[index], run, own, load_card(run.folder), columns))
    return results


def attack_title(name: str) -> str:
    """How an attack is called in tables."""
    return "Natural" if name == "natural" else name.upper()


def _titles(runs: Sequence[Run]) -> list[str]:
    """The method's name, with the folder's where two runs share it."""
    titles = []
    for run in runs:
        title = NAMES[run.config.method]
        if run.config.method == "wat" and run.config.variant == "reference":
            title += " (reference)"
        titles.append(title)
    return [t if titles.count(t) == 1 else f"{t} ({run.folder.name})" for t, run in zip(titles, runs, strict=True)]
