"""Evaluated runs, read back from their folders and set beside each other."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worstclass.config.keys import Config
from worstclass.errors import UserError
from worstclass.evaluation.card import compare_with_base, measure
from worstclass.evaluation.checks import is_trusted, load_findings
from worstclass.evaluation.outcomes import ANY, Outcomes
from worstclass.evaluation.saved import (
    CARD,
    OUTCOMES,
    Origin,
    card_recipe,
    check_comparable,
    load_evaluation,
    other_settings,
)
from worstclass.evaluation.seeds import same_but_for_the_seed
from worstclass.inputs.names import NATURAL, RECIPE
from worstclass.report.titles import distinguish
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import SELECTED
from worstclass.runs.shipped import shipped
from worstclass.training.checkpoint import load_header

ENSEMBLES = ("autoattack-plus", "autoattack", "autoattack-rand")
STRONGEST = (*ENSEMBLES, "apgd-t", "pgd-100", "pgd-20")


@dataclass(frozen=True)
class Result:
    """An evaluation with its outcomes and, for each attack, its measures; with rho unless it is a base.

    `run` is the run whose model was evaluated, and None for a model of somebody else. `base` is the title of what its
    rho compares with, and `notes` say what to know about that comparison. `recipe` is that of the run, or the one that
    the card names, and `unlike` says in what more than method and seed it differs from the base, whose outcomes are
    `against`.
    """

    title: str
    folder: Path
    run: Run | None
    outcomes: Outcomes
    card: dict[str, Any]
    columns: dict[str, dict[str, Any]]
    is_base: bool
    base: str = ""
    notes: tuple[str, ...] = ()
    recipe: Config | None = None
    unlike: str = ""
    against: Outcomes | None = None

    @property
    def class_names(self) -> list[str]:
        return list(self.card["class_names"])

    @property
    def kind(self) -> Hashable:
        """What runs of one recipe must share to be seeds of it."""
        return _kind(self.card, self.run)

    @property
    def config(self) -> Config:
        """The recipe, of a run."""
        assert self.run is not None
        return self.run.config


@dataclass(frozen=True)
class _Evaluation:
    """A folder, read. The recipe is that of the run it holds, or that its card names; a model of others has none."""

    folder: Path
    run: Run | None
    outcomes: Outcomes
    card: dict[str, Any]
    config: Config | None

    @property
    def seed(self) -> int | None:
        return self.config.seed if self.config else None

    @property
    def kind(self) -> Hashable:
        return _kind(self.card, self.run)

    @property
    def origin(self) -> Origin:
        return Origin(self.card["about"], self.config, self.run.about["data_digest"] if self.run else None)

    @property
    def title(self) -> str:
        if self.run:
            return self.run.title
        return self.config.title if self.config else self.folder.name

    def is_at(self, other: Path) -> bool:
        return self.folder.samefile(other)


def load_results(
    folders: Sequence[Path | str], base: Path | str | None = None, *, vanilla: Sequence[str] = ("trades", "pgd-at")
) -> list[Result]:
    """Read evaluated runs, and evaluations of other models, all on the same images and in the same ball.

    rho compares with `base`, or else with the first run among them whose method is `vanilla`; where there are runs that
    differ from that one in the seed alone, each run is compared with the one of its own seed.
    """
    if not folders:
        raise UserError("no run folder was given.")
    read = [_read(Path(folder)) for folder in folders]
    bases = _bases(read, None if base is None else Path(base), vanilla)
    first = bases[0] if bases else read[0]
    for each in read:
        check_comparable(each.card["about"], first.card["about"], str(each.folder))
        if each.card["class_names"] != first.card["class_names"]:
            raise UserError(f"{each.folder} was evaluated on other classes and cannot be compared.")
    for each in read:
        run, card = each.run, each.card
        if run and not (run.log and run.class_names == card["class_names"] and card["about"].get("checkpoint")):
            raise UserError(f"{run.folder} holds a card that is not of its run, or a run without an epoch.")
    titles = distinguish(
        [each.title for each in read],
        [each.folder for each in read],
        [each.config for each in read],
        [each.card["about"].get("checkpoint") for each in read],
    )
    base_titles = [
        next((title for title, each in zip(titles, read, strict=True) if each.is_at(one.folder)), _title(one))
        for one in bases
    ]
    results = []
    for title, own in zip(titles, read, strict=True):
        is_base = any(own.is_at(one.folder) for one in bases)
        place = next((i for i, one in enumerate(bases) if one.seed == own.seed), 0)
        against = bases[place] if bases and not is_base else None
        columns = {}
        for name, predicted in own.outcomes.predictions.items():
            if name.endswith(ANY):
                continue
            columns[name] = measure(own.outcomes.labels, predicted, own.card["class_names"])
            if against and name in against.outcomes.predictions:
                columns[name]["against_base"] = compare_with_base(
                    own.outcomes, against.outcomes, name, len(own.card["class_names"])
                )
        base_title = base_titles[place] if against else ""
        unlike = other_settings(own.origin, against.origin) if against else ""
        notes = _notes(title, own, base_title, against, unlike) if against else ()
        results.append(
            Result(
                title,
                own.folder,
                own.run,
                own.outcomes,
                own.card,
                columns,
                is_base,
                base_title,
                notes,
                own.config,
                unlike,
                against.outcomes if against else None,
            )
        )
    return results


def _read(folder: Path) -> _Evaluation:
    evaluated = (folder / CARD).is_file() and (folder / OUTCOMES).is_file()
    run = open_run(folder) if (folder / RECIPE).is_file() or not evaluated else None
    card, outcomes = load_evaluation(folder)
    about = card["about"]
    if run:
        _check_current(run, about)
    config = run.config if run else card_recipe(about, str(folder / CARD))
    return _Evaluation(folder, run, outcomes, card, config)


def _check_current(run: Run, about: Mapping[str, Any]) -> None:
    """Raise where a run has gone on since its card was written; the weights may be gone, as of published runs."""
    chosen = "last" if about.get("checkpoint") == "last" else "selected"
    epochs = [line["epoch"] for line in run.log if chosen == "last" or line["selected"]]
    epoch = epochs[-1] if epochs else None
    kept = shipped(run.about, chosen)
    now: dict[str, Any] = {"epoch": (chosen == "selected" and load_header(run.folder / SELECTED).get("epoch")) or epoch}
    now = kept if "mix" in kept else now | kept  # a mix may be an epoch of the base
    if changed := [key for key, value in now.items() if about.get(key) != value]:
        what = ", ".join(f"{key} {about.get(key)}, not {now[key]}" for key in changed)
        since = "it was compared with its base" if changed == ["mix"] else f"it went on ({what})"
        raise UserError(f"{run.folder} was evaluated before {since}: `worstclass evaluate {run.folder}` makes it anew.")


def _kind(card: Mapping[str, Any], run: Run | None) -> Hashable:
    """What runs of one recipe must share to be seeds of it: which epoch was taken, the seed of the attacks, the images
    that were trained on, and where it was forked, from a run of which recipe."""
    about = card["about"]
    if run is None:
        return about.get("checkpoint"), about.get("seed")
    fork = run.about.get("fork") or {}
    parent = {key: value for key, value in fork.get("recipe", {}).items() if key != "seed"}
    trained_on = run.about["data_digest"]
    return about.get("checkpoint"), about.get("seed"), trained_on, run.fork, json.dumps(parent, sort_keys=True)


def _bases(read: Sequence[_Evaluation], given: Path | None, vanilla: Sequence[str]) -> list[_Evaluation]:
    """What rho compares with: the base itself, and then the runs that differ from it in the seed alone."""
    if given is not None:
        first: _Evaluation | None = next((each for each in read if each.is_at(given)), None) or _read(given)
    else:
        plain = [each for each in read if each.run and each.config and each.config.adjust_budget is None]
        runs = {each.config.method: each for each in reversed(plain) if each.config}
        first = next((runs[method] for method in vanilla if method in runs), None)
    if first is None:
        return []
    found = [first]
    for each in read:
        if _differ_in_seed(first, each) and each.seed not in [one.seed for one in found]:
            found.append(each)
    return found


def _differ_in_seed(one: _Evaluation, other: _Evaluation) -> bool:
    """In that alone: the same recipe otherwise, and of the same kind."""
    return bool(
        one.config and other.config and one.kind == other.kind and same_but_for_the_seed(one.config, other.config)
    )


def _title(base: _Evaluation) -> str:
    """Of a base that is not itself among the results."""
    return f"{base.title} ({base.folder.name})" if base.config else base.folder.name


def _notes(title: str, own: _Evaluation, base_title: str, base: _Evaluation, unlike: str) -> tuple[str, ...]:
    """What one should know who reads this rho: another seed, other settings, attacks that the base lacks."""
    notes = []
    if own.config and base.config and own.seed != base.seed:
        which = "" if f"seed {base.seed}" in base_title else f" (seed {base.seed})"
        missing = f"no run of {base.config.title} with seed {own.seed} is given"
        notes.append(f"{title} is compared with {base_title}{which}: {missing}.")
    if unlike:
        notes.append(f"{title} and {base_title} differ in more than the method: {unlike}.")
    lacking = [name for name in own.outcomes.predictions if name not in base.outcomes.predictions]
    if lacking := [name for name in lacking if not name.endswith(ANY)]:
        notes.append(f"{title} has no rho under {', '.join(lacking)}: {base_title} has not been evaluated under it.")
    return tuple(notes)


def shared_attacks(results: Sequence[Result]) -> list[str]:
    """Attacks that every run was evaluated under."""
    return [name for name in results[0].columns if all(name in result.columns for result in results)]


def all_attacks(results: Sequence[Result]) -> list[str]:
    """Attacks that any run was evaluated under, natural images first."""
    return list(dict.fromkeys(name for result in results for name in result.columns))


def strongest_attack(results: Sequence[Result]) -> str:
    """The strongest attack that every run was evaluated under; reports open with it: AutoAttack, or else the one that
    leaves the lowest average, and of equals the first of `STRONGEST`."""
    shared = shared_attacks(results)[::-1]  # natural is always there, and first

    def left(name: str) -> tuple[float, int]:
        rank = STRONGEST.index(name) if name in STRONGEST else len(STRONGEST)
        return sum(float(result.columns[name]["average"]["value"]) for result in results), rank

    return next((name for name in ENSEMBLES if name in shared), min(shared, key=left))


def attack_title(name: str) -> str:
    """How an attack is called in tables."""
    return {"natural": "Natural", "autoattack": "AutoAttack"}.get(name, name.upper())


def upper_bound(card: Mapping[str, Any]) -> str:
    """Which attacks were run and what accuracy under them is, unless the checks say that it can be trusted."""
    if is_trusted(load_findings(card)):
        return ""
    titles = [attack_title(name) for name in card["columns"] if name != NATURAL]
    return f"Accuracy under {', '.join(titles)} is an upper bound." if titles else "No attack was run."
