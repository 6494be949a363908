"""Evaluated runs, read back from their folders and set beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worstclass.card import compare_with_base, measure
from worstclass.errors import UserError
from worstclass.outcomes import ANY, Outcomes
from worstclass.runs import Run, open_run
from worstclass.subjects import check_comparable, load_card, load_outcomes

NAMES = {"natural": "Natural", "trades": "TRADES", "wat": "WAT", "pgd-at": "PGD-AT", "csl": "CSL"}
NAMES |= {"frl-rw": "FRL-RW", "frl-rwrm": "FRL-RWRM", "fixed": "Fixed weights"}


@dataclass(frozen=True)
class Result:
    """A run with its outcomes and, for each attack, its measures; with rho unless it is the base."""

    title: str
    run: Run
    outcomes: Outcomes
    card: dict[str, Any]
    columns: dict[str, dict[str, Any]]
    is_base: bool


def load_results(folders: Sequence[Path], base: Path | None = None) -> list[Result]:
    """Read evaluated runs; rho compares with `base`, or else with the first TRADES (or PGD-AT) run among them."""
    if not folders:
        raise UserError("no run folder was given.")
    runs = [open_run(folder) for folder in folders]
    outcomes = [load_outcomes(run.folder) for run in runs]
    cards = [load_card(run.folder) for run in runs]
    if base is None:
        by_method = {run.config.method: run.folder for run in reversed(runs)}
        base = by_method.get("trades", by_method.get("pgd-at"))
    base_outcomes = load_outcomes(base) if base else None
    if base:
        for run, card in zip(runs, cards, strict=True):
            check_comparable(card["about"], load_card(base)["about"], str(run.folder))
    titles = _titles(runs)
    results = []
    for index, (run, own) in enumerate(zip(runs, outcomes, strict=True)):
        is_base = base is not None and run.folder.samefile(base)
        columns = {}
        for name, predicted in own.predictions.items():
            if name.endswith(ANY):
                continue
            columns[name] = measure(own.labels, predicted, run.class_names)
            if base_outcomes and not is_base and name in base_outcomes.predictions:
                columns[name]["against_base"] = compare_with_base(own, base_outcomes, name, len(run.class_names))
        results.append(Result(titles[index], run, own, cards[index], columns, is_base))
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
