"""Evaluated runs, read back from their folders and set beside each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worstclass.card import compare_with_base, measure
from worstclass.config import Config, Method, differing_keys
from worstclass.errors import UserError
from worstclass.outcomes import ANY, Outcomes
from worstclass.runs import RECIPE, Run, open_run
from worstclass.subjects import CARD, OUTCOMES, check_comparable, load_card, load_outcomes

NAMES = {"natural": "Natural", "trades": "TRADES", "wat": "WAT", "pgd-at": "PGD-AT", "csl": "CSL"}
NAMES |= {"frl-rw": "FRL-RW", "frl-rwrm": "FRL-RWRM", "fixed": "Fixed weights"}
LONGEST_SETTINGS = 40  # characters of a title


@dataclass(frozen=True)
class Result:
    """An evaluation with its outcomes and, for each attack, its measures; with rho unless it is the base.

    `run` is the run whose model was evaluated, and None for a model of somebody else.
    """

    title: str
    folder: Path
    run: Run | None
    outcomes: Outcomes
    card: dict[str, Any]
    columns: dict[str, dict[str, Any]]
    is_base: bool

    @property
    def class_names(self) -> list[str]:
        return list(self.card["class_names"])

    @property
    def config(self) -> Config:
        """The recipe, of a run."""
        assert self.run is not None
        return self.run.config


def load_results(
    folders: Sequence[Path], base: Path | None = None, *, vanilla: Sequence[Method] = ("trades", "pgd-at")
) -> list[Result]:
    """Read evaluated runs, and evaluations of other models, all on the same images and in the same ball; rho compares
    with `base`, or else with the first run among them whose method is `vanilla`."""
    if not folders:
        raise UserError("no run folder was given.")
    runs = [open_run(folder) if (folder / RECIPE).is_file() or not _evaluated(folder) else None for folder in folders]
    outcomes = [load_outcomes(folder) for folder in folders]
    cards = [load_card(folder) for folder in folders]
    if base is None:
        by_method = {run.config.method: run.folder for run in reversed(runs) if run is not None}
        base = next((by_method[method] for method in vanilla if method in by_method), None)
    base_outcomes = load_outcomes(base) if base else None
    first = load_card(base) if base else cards[0]
    for folder, card in zip(folders, cards, strict=True):
        check_comparable(card["about"], first["about"], str(folder))
        if card["class_names"] != first["class_names"]:
            raise UserError(f"{folder} was evaluated on other classes: it cannot be compared with.")
    for run, card in zip(runs, cards, strict=True):
        if run is not None and not (
            run.log and run.class_names == card["class_names"] and card["about"].get("checkpoint")
        ):
            raise UserError(f"{run.folder} holds a card that is not of its run, or a run without an epoch.")
    titles = _titles(folders, runs)
    results = []
    for index, (folder, own) in enumerate(zip(folders, outcomes, strict=True)):
        is_base = base is not None and folder.samefile(base)
        names = cards[index]["class_names"]
        columns = {}
        for name, predicted in own.predictions.items():
            if name.endswith(ANY):
                continue
            columns[name] = measure(own.labels, predicted, names)
            if base_outcomes and not is_base and name in base_outcomes.predictions:
                columns[name]["against_base"] = compare_with_base(own, base_outcomes, name, len(names))
        results.append(Result(titles[index], folder, runs[index], own, cards[index], columns, is_base))
    return results


def attack_title(name: str) -> str:
    """How an attack is called in tables."""
    return {"natural": "Natural", "autoattack": "AutoAttack"}.get(name, name.upper())


def method_title(config: Config) -> str:
    """How a method is called in tables."""
    if config.method == "fixed" and config.focus_weight is not None:
        return f"Fixed weights, {config.focus_weight:g} on class {config.focus_class}"
    return NAMES[config.method] + (" (reference)" if (config.method, config.variant) == ("wat", "reference") else "")


def _evaluated(folder: Path) -> bool:
    return (folder / CARD).is_file() and (folder / OUTCOMES).is_file()


def _own_settings(runs: Sequence[Run | None]) -> list[str]:
    """Of each run, where their recipes differ; nothing where one has none, or where that is too long for a title."""
    configs = [run.config for run in runs if run]
    keys = differing_keys(*configs)
    settings = ["".join(f", {key} {_plain(getattr(config, key))}" for key in keys) for config in configs]
    fits = len(configs) == len(runs) and max(map(len, settings)) <= LONGEST_SETTINGS
    return settings if fits else [""] * len(runs)


def _plain(value: object) -> str:
    """A setting in a title, where a comma would look like the next."""
    if isinstance(value, tuple):
        return "/".join(map(_plain, value)) or "none"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _titles(folders: Sequence[Path], runs: Sequence[Run | None]) -> list[str]:
    """The method's name, where runs share it with what tells them apart: their recipes, else the folder's name, else a
    number; of somebody else's model, the folder's name."""
    titles = [
        folder.name if run is None else method_title(run.config) for folder, run in zip(folders, runs, strict=True)
    ]
    for title in [title for title in dict.fromkeys(titles) if titles.count(title) > 1]:
        same = [index for index, other in enumerate(titles) if other == title]
        for index, settings in zip(same, _own_settings([runs[index] for index in same]), strict=True):
            titles[index] += settings
    titles = [t if titles.count(t) == 1 else f"{t} ({f.name})" for t, f in zip(titles, folders, strict=True)]
    return [t if titles.count(t) == 1 else f"{t} {titles[: i + 1].count(t)}" for i, t in enumerate(titles)]
