"""Evaluations on disk: a card and the outcomes that it was made from; which of them can be compared, and added to."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worstclass.config.differences import compared_settings
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, stored_recipe
from worstclass.errors import UserError
from worstclass.evaluation.card import Base
from worstclass.evaluation.outcomes import ANY, Outcomes
from worstclass.evaluation.schema import CardRecord
from worstclass.files import read_json, write_json
from worstclass.inputs.names import NATURAL, RECIPE
from worstclass.inputs.radius import same_radius, show_radius
from worstclass.metrics import class_counts
from worstclass.records import check_record
from worstclass.runs.saver import ABOUT, read_about

CARD, OUTCOMES = "card.json", "outcomes.npz"
SAME = 1e-9  # accuracies no further apart are the same
GONE_ON = {"epoch", "mix", "adjusted"}  # what changes, with the weights, in a run that goes on


def load_card(folder: Path) -> dict[str, Any]:
    """The card of an evaluated run."""
    return check_record(CardRecord, read_json(folder / CARD), folder / CARD)


def load_evaluation(folder: Path) -> tuple[dict[str, Any], Outcomes]:
    """The card and the outcomes of an evaluated run, if they are of one evaluation, and no attack helps its model."""
    card, outcomes = _read(folder)
    if contradicted(card, outcomes):
        both = f"{CARD} and {OUTCOMES} of {folder}"
        raise UserError(f"{both} are not of one evaluation: evaluate it again.")
    if helping := outcomes.helping():
        raise UserError(f"{folder / OUTCOMES}: {next(iter(helping.values()))} Evaluate it again.")
    return card, outcomes


def _read(folder: Path) -> tuple[dict[str, Any], Outcomes]:
    if not (folder / OUTCOMES).is_file():
        raise UserError(f"{folder} has not been evaluated: run `worstclass evaluate {folder}` first.")
    outcomes, card = Outcomes.load(folder / OUTCOMES), load_card(folder)
    outcomes.check_range(len(card["class_names"]), folder / OUTCOMES)
    return card, outcomes


def contradicted(card: Mapping[str, Any], outcomes: Outcomes) -> list[str]:
    """The columns of a card whose accuracies (average, worst, each class) are not those of the outcomes. Outcomes may
    have more columns: they are written first."""
    names = card["columns"]
    return [name for name in names if not _follows(names[name], outcomes, name, len(card["class_names"]))]


def _follows(column: Mapping[str, Any], outcomes: Outcomes, name: str, num_classes: int) -> bool:
    if name not in outcomes.predictions:
        return False
    correct, counts = class_counts(outcomes.labels, outcomes.predictions[name], num_classes)
    present = counts > 0
    accuracy = np.where(present, correct / np.maximum(counts, 1), np.nan)
    measured = [correct.sum() / counts.sum(), accuracy[present].min(), *accuracy]
    try:
        told = [column[key]["value"] for key in ("average", "worst")] + [each["value"] for each in column["classes"]]
        return len(told) == len(measured) and np.allclose(
            np.array(told, dtype=float), measured, rtol=0, atol=SAME, equal_nan=True
        )
    except (KeyError, TypeError, ValueError, OverflowError):  # it has no such numbers
        return False


def save_evaluation(out: Path, card: Mapping[str, Any], outcomes: Outcomes) -> None:
    """Write a card and its outcomes into a folder; one that holds anything else is refused."""
    earlier_outcomes(out, card["about"], None, instead="folder")
    out.mkdir(parents=True, exist_ok=True)
    outcomes.save(out / OUTCOMES)
    write_json(out / CARD, card)


def load_base(folder: Path, about: Mapping[str, Any], attacks: Collection[str] = ()) -> Base:
    """An evaluated vanilla run, if rho may compare with it: the same images, in the same ball, and one of the
    `attacks`, if there are any."""
    card, outcomes = load_evaluation(folder)
    base = Base(folder, outcomes, card["about"])
    check_comparable(about, base.about, str(folder))
    if attacks and base.lacks(attacks) == list(attacks):
        raise UserError(f"the base run {folder} has not been evaluated under {', '.join(attacks)}.")
    return base


def check_comparable(about: Mapping[str, Any], other: Mapping[str, Any], name: str) -> None:
    """Raise unless two evaluations are of the same images under the same attacks."""
    for key, what in (("images", "on other images"), ("eps", "with another eps"), ("norm", "in another norm")):
        if about.get(key) != other.get(key) and not (key == "eps" and same_radius(about["eps"], other["eps"])):
            shown = {"eps": lambda each: show_radius(each["eps"]), "norm": lambda each: str(each["norm"])}.get(key)
            values = f" ({shown(other)}, not {shown(about)})" if shown else ""
            raise UserError(f"{name} was evaluated {what}{values} and cannot be compared.")


@dataclass(frozen=True)
class Origin:
    """What an evaluation is of: what its card says of itself, the recipe of the run, and the digest of the images that
    it was trained on, where they are known."""

    about: Mapping[str, Any]
    recipe: Config | None
    data_digest: str | None = None

    @classmethod
    def read(cls, about: Mapping[str, Any], home: Path | None = None) -> "Origin":
        """From a card, and from the folder of the run, if there is one."""
        known = home is not None and (home / ABOUT).is_file()
        return cls(about, card_recipe(about), read_about(home)["data_digest"] if home and known else None)


def card_recipe(about: Mapping[str, Any], where: str = "a card") -> Config | None:
    """The recipe that a card names; a model of others has none."""
    return make_config(stored_recipe(about["recipe"]), where) if "recipe" in about else None


def other_settings(own: Origin, base: Origin) -> str:
    """In what two evaluations differ beside method and training seed: recipe, epoch, seed of the attacks, and training
    images, where those should be the same."""
    ours, theirs = own.recipe, base.recipe
    parts = [compared_settings(ours, theirs)] if ours and theirs else []
    for key, name in (("checkpoint", "epoch"), ("seed", "seed of the attacks")):
        values = own.about.get(key), base.about.get(key)
        if values[0] != values[1] and None not in values:
            parts.append(f"{name} ({values[0]}, not {values[1]})")
    if ours and theirs and (ours.data, ours.imbalance) == (theirs.data, theirs.imbalance):
        digests = {own.data_digest, base.data_digest} - {None}
        parts += ["training images (others of that name)"] if len(digests) > 1 else []
    return ", ".join(filter(None, parts))


def identity(about: Mapping[str, Any]) -> dict[str, Any]:
    """What tells one evaluated target from another. Not the recipe: a card that is older than one of its keys lacks it,
    and the weights are the same. Nor what others publish."""
    return {key: value for key, value in about.items() if key not in ("recipe", "robustbench")}


def earlier_outcomes(
    out: Path, about: Mapping[str, Any], home: Path | None, *, instead: str = "--out"
) -> Outcomes | None:
    """The outcomes in a folder, if they are of the same target; none of a run that has gone on since; an error if they
    are of another: then another `instead` is to be chosen. What `load_evaluation` would refuse is not among them."""
    if (out / RECIPE).is_file() and (home is None or not out.samefile(home)):
        raise UserError(f"{out} holds another run; choose another {instead}.")
    if not (out / CARD).is_file():
        return None
    known, now = identity(load_card(out)["about"]), identity(about)
    changed = sorted(key for key in {*known, *now} if known.get(key) != now.get(key))
    if home is not None and {*changed} & GONE_ON and {*changed} <= GONE_ON | {"weights"}:
        return None  # the run has gone on: what the card says of it is past
    if changed:
        what = f"other {', '.join(changed)}; see its {CARD}"
        raise UserError(f"{out} holds the evaluation of something else ({what}); choose another {instead}.")
    card, outcomes = _read(out)
    lost = {*contradicted(card, outcomes), *(name.removesuffix(ANY) for name in outcomes.helping())}
    return None if NATURAL in lost else outcomes.without(lost)


def same_outcomes(one: Outcomes, other: Outcomes, name: str) -> bool:
    """Whether a model predicted the same under an attack."""
    return np.array_equal(one.predictions[name], other.predictions[name])


def merge_cards(before: Mapping[str, Any], card: dict[str, Any], unchanged: Sequence[str]) -> dict[str, Any]:
    """A new card of the same weights on the same images: what was known of a column stays known. So does rho, where the
    outcomes are `unchanged`, the old card says against which base, and the new one has none."""
    keep_rho = "base" in before and "base" not in card
    for name, column in card["columns"].items():
        old = dict(before["columns"].get(name, {}))
        if not (keep_rho and name in unchanged):
            old.pop("against_base", None)
        card["columns"][name] = old | column
    return card | ({"base": before["base"]} if keep_rho else {})
