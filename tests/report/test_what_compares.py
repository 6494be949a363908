"""What may be set beside what: seeds of one recipe, a base, an evaluation and its run; and what the notes say of it.

From the published runs, copied and changed.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copied_runs import set_outcomes
from worstclass.auditing.result import AuditResult
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.files import read_json, write_json
from worstclass.report import Group, group_results, load_results
from worstclass.report.leaderboard import leaderboard_notes, leaderboard_rows
from worstclass.report.tables import notes as table_notes
from worstclass.runs.saver import ABOUT
from worstclass.theory.certify import certify_outcomes

ROOT = Path(__file__).parents[2] / "results"
AA = "autoattack"
TRADES, TRADES_2, WAT, WAT_2 = (
    ROOT / f"cifar10-resnet18-{name}" for name in ("trades-seed1", "trades-seed2", "wat-seed1", "wat-seed2")
)
Edit = Callable[[dict[str, Any]], None]


def copied(folder: Path, to: Path, *, about: Edit | None = None, card: Edit | None = None) -> Path:
    """A published run with what it and its card say of it changed."""
    shutil.copytree(folder, to)
    for name, edit in ((ABOUT, about), (CARD, card)):
        if edit:
            content = read_json(to / name)
            edit(content)
            write_json(to / name, content)
    return to


def groups_of(*folders: Path, attacks: tuple[str, ...] = (AA,), base: Path | None = None) -> list[Group]:
    return group_results(load_results(list(folders), base), attacks)


def fork_of(seed: int) -> Edit:
    def edit(about: dict[str, Any]) -> None:
        recipe = {"method": "trades", "seed": seed, "beta": 6.0}
        about["fork"] = {"run": f"base{seed}", "epoch": 70, "weights": "a" * 64, "recipe": recipe}

    return edit


def of_another_parent(about: dict[str, Any]) -> None:
    fork_of(2)(about)
    about["fork"]["recipe"]["beta"] = 3.0


@pytest.mark.parametrize(
    ("about", "card"),
    [
        (lambda about: about.update(data_digest="0" * 64), None),
        (None, lambda card: card["about"].update(seed=7)),
        (of_another_parent, None),
    ],
    ids=["trained on other images", "attacked with another seed", "forked from another recipe"],
)
def test_runs_that_differ_in_more_than_their_seed_are_no_seeds_of_one_method(
    about: Edit | None, card: Edit | None, tmp_path: Path
) -> None:
    first = copied(WAT, tmp_path / "wat-seed1", about=fork_of(1) if about is of_another_parent else None)
    assert len(groups_of(first, copied(WAT_2, tmp_path / "other", about=about, card=card))) == 2
    second = copied(WAT_2, tmp_path / "wat-seed2", about=fork_of(2) if about is of_another_parent else None)
    assert len(groups_of(first, second)) == 1


def test_what_differs_beside_the_recipe_is_said(tmp_path: Path) -> None:
    """The seed of the attacks, and training images of the same name."""

    def edit(about: dict[str, Any]) -> None:
        about["data_digest"] = "0" * 64

    other = copied(WAT, tmp_path / "wat", about=edit, card=lambda card: card["about"].update(seed=7))
    (note,) = load_results([TRADES, other])[1].notes
    assert "seed of the attacks (7, not 0)" in note
    assert "training images (others of that name)" in note
    assert not load_results([TRADES, WAT])[1].notes


def test_a_base_that_is_not_shown_is_compared_with_all_seeds_of_a_group() -> None:
    shown = groups_of(TRADES, TRADES_2, WAT, WAT_2)[1]
    alone = groups_of(WAT, WAT_2, base=TRADES)[0]
    for key in ("average_difference", "worst_difference"):
        value = alone.columns[AA]["against_base"][key]["value"]
        runs, base = ([Outcomes.load(folder / OUTCOMES) for folder in folders] for folders in ((WAT, WAT_2), (TRADES,)))

        def measured(found: Outcomes, key: str = key) -> float:
            right = found.predictions[AA] == found.labels
            accuracies = [right[found.labels == k].mean() for k in range(10)]
            return float(np.mean(accuracies) if "average" in key else min(accuracies))

        expected = np.mean([measured(run) for run in runs]) - measured(base[0])
        assert value == pytest.approx(expected, abs=1e-9)
        assert value != shown.columns[AA]["against_base"][key]["value"]  # which has two seeds of the base


@pytest.mark.parametrize("changed", ["epoch", "base", "adjustment"])
def test_a_card_of_before_the_run_went_on_is_refused(changed: str, tmp_path: Path) -> None:
    def edit(about: dict[str, Any]) -> None:
        if changed == "base":
            about["base"] = {"shipped": 0.85, "verdict": "Better."}
        if changed == "adjustment":
            about["adjustment"] = {"scale": 0.5, "bias": [0.0] * 10, "verdict": "Better."}

    run = copied(WAT, tmp_path / "wat", about=edit)
    if changed == "epoch":
        lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
        lines[-1]["selected"] = True
        (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=r"was evaluated before it (went on|was compared with its base).*makes it anew"):
        load_results([run])
    load_results([WAT])


def without_class(folder: Path, to: Path, label: int) -> Path:
    """A copy whose images of one class are all broken by AutoAttack."""
    shutil.copytree(folder, to)
    found = Outcomes.load(to / OUTCOMES)
    none_stands = np.where(found.labels == label, (label + 1) % 10, found.predictions[AA])
    set_outcomes(to, Outcomes(found.labels, {"natural": found.predictions["natural"], AA: none_stands}))
    return to


def test_where_there_is_no_rho_the_notes_say_why(tmp_path: Path) -> None:
    groups = groups_of(without_class(TRADES, tmp_path / "trades", 3), WAT)
    assert f"rho of WAT under {AA} is undefined: the worst class of its base is at 0." in leaderboard_notes(groups)
    assert not any("undefined" in line for line in leaderboard_notes(groups_of(TRADES, WAT)))


def nearly_without_class(folder: Path, to: Path, label: int, held: int) -> Path:
    """A copy of which so many images of one class hold under AutoAttack."""
    shutil.copytree(folder, to)
    found = Outcomes.load(to / OUTCOMES)
    of_class = np.flatnonzero((found.labels == label) & (found.predictions["natural"] == label))
    predicted = np.where(found.labels == label, (label + 1) % 10, found.predictions[AA])
    predicted[of_class[:held]] = label
    set_outcomes(to, Outcomes(found.labels, {"natural": found.predictions["natural"], AA: predicted}))
    return to


def test_a_rho_against_a_base_near_nothing_is_said_to_say_little(tmp_path: Path) -> None:
    """Of 1,000 images 3 hold; of 30 that hold the interval is well above 1%."""
    few, more = (nearly_without_class(TRADES, tmp_path / f"trades{n}", 3, n) for n in (3, 30))
    csl = ROOT / "cifar10-resnet18-csl-seed1"
    line = "rho of {} under AutoAttack says little: the worst class of {} base is at 0.3%."
    assert line.format("WAT; CSL", "their") in leaderboard_notes(groups_of(few, WAT, csl))
    assert line.format("WAT", "its") in table_notes(load_results([few, WAT]))
    two = nearly_without_class(TRADES_2, tmp_path / "seed2", 3, 4)
    assert line.format("WAT", "its") in leaderboard_notes(groups_of(few, two, WAT, WAT_2))
    for fine in (more, TRADES):
        said = leaderboard_notes(groups_of(fine, WAT)) + table_notes(load_results([fine, WAT]))
        assert not any("says little" in each for each in said)


def test_one_degree_of_freedom_is_one(tmp_path: Path) -> None:
    one, five = (leaderboard_notes(groups_of(*runs)) for runs in ((TRADES, WAT, WAT_2), (TRADES, TRADES_2, WAT, WAT_2)))
    assert any(", 1 degree of freedom: a small sample" in line for line in one)
    assert any(", 2 degrees of freedom: a small sample" in line for line in five)


def spoilt_card(to: Path, key: str) -> Path:
    def edit(card: dict[str, Any]) -> None:
        column = card["columns"]["pgd-20"]
        (column["classes"][4] if key == "class" else column[key])["value"] = 0.6

    return copied(WAT, to, card=edit)


@pytest.mark.parametrize("key", ["average", "worst", "class"])
def test_a_card_that_its_outcomes_contradict_is_refused(key: str, tmp_path: Path) -> None:
    folder = spoilt_card(tmp_path / "wat", key)
    readers: list[Callable[[], object]] = [
        lambda: load_results([TRADES, folder]),
        lambda: load_results([TRADES], folder),
        lambda: AuditResult.load(folder),
        lambda: AuditResult.load(WAT).compare(folder),
        lambda: certify_outcomes(folder, AuditResult.load(WAT).card["class_names"]),
    ]
    for read in readers:
        with pytest.raises(
            UserError, match=r"card\.json and outcomes\.npz of .*wat are not of one evaluation: evaluate it"
        ):
            read()


def test_columns_without_outcomes_or_numbers_are_refused(tmp_path: Path) -> None:
    copied(WAT, tmp_path / "more", card=lambda card: card["columns"].update({"pgd-7": card["columns"]["cw"]}))
    copied(WAT, tmp_path / "none", card=lambda card: card["columns"].update({"cw": {}}))
    for name in ("more", "none"):
        with pytest.raises(UserError, match="not of one evaluation"):
            load_results([tmp_path / name])
    copied(WAT, tmp_path / "fewer", card=lambda card: card["columns"].pop("cw"))  # outcomes are written first
    assert "cw" in load_results([tmp_path / "fewer"])[0].columns


def test_outcomes_of_an_attack_that_helps_are_refused(tmp_path: Path) -> None:
    """As `evaluate` does, also where the card says the same."""
    for agreeing, seen in ((False, "not of one evaluation"), (True, r"outcomes\.npz: attack 'pgd-20' helps the model")):
        shutil.copytree(WAT, to := tmp_path / str(agreeing))
        found = Outcomes.load(to / OUTCOMES)
        better = Outcomes(found.labels, found.predictions | {"pgd-20": found.labels})
        if agreeing:
            set_outcomes(to, better)
        else:
            better.save(to / OUTCOMES)
        with pytest.raises(UserError, match=seen):
            load_results([to])


def test_a_method_without_a_row_is_named(tmp_path: Path) -> None:
    """One seed lacks the attack; and a run that has not been evaluated under it at all."""
    lacking = without_class(WAT_2, tmp_path / "wat-seed2", 3)  # with natural and AutoAttack alone
    notes = leaderboard_notes(groups_of(TRADES, TRADES_2, WAT, lacking, attacks=("cw", AA)))
    assert "WAT has no row under cw: 1 of its 2 seeds have not been evaluated under it." in notes
    notes = leaderboard_notes(groups_of(TRADES, TRADES_2, lacking, attacks=("cw", AA)))
    assert "WAT has not been evaluated under cw." in notes
    assert not any("evaluated under" in line for line in leaderboard_notes(groups_of(TRADES, TRADES_2, WAT)))


def test_an_attack_without_two_seeds_of_a_method_has_intervals_for_images_alone(tmp_path: Path) -> None:
    lacking = [without_class(folder, tmp_path / folder.name, 3) for folder in (TRADES_2, WAT_2)]
    groups = groups_of(TRADES, WAT, *lacking, ROOT / "cifar10-resnet18-frl-rw-seed1", attacks=("cw", AA))
    line = "Under CW no method has two seeds: intervals there are for images alone."
    assert line in leaderboard_notes(groups)


def test_seeds_of_one_checkpoint_are_said_to_vary_less(tmp_path: Path) -> None:
    forks = [copied(folder, tmp_path / folder.name, about=fork_of(1)) for folder in (WAT, WAT_2)]
    line = "WAT, fork at 70: seeds that went on from one checkpoint vary less than whole runs would."
    assert line in leaderboard_notes(groups_of(TRADES, *forks))


def test_a_single_seed_has_its_own_rho_and_interval_beside_others_with_deviations() -> None:
    groups = groups_of(TRADES, TRADES_2, WAT, WAT_2, ROOT / "cifar10-resnet18-frl-rw-seed1")
    cells = {row[1]: row[-1] for row in leaderboard_rows(groups, [AA])}
    assert "±" in cells["WAT"]
    assert "[" in cells["FRL-RW"]
