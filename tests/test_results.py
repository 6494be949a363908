"""What results/ publishes follows from the outcomes that lie beside it."""

from pathlib import Path

import numpy as np
import pytest

from worstclass.card import measure
from worstclass.config import make_config, read_recipe
from worstclass.metrics import compare
from worstclass.outcomes import ANY, Outcomes
from worstclass.report.tables import percent
from worstclass.runs import open_run
from worstclass.subjects import CARD, OUTCOMES, load_card

ROOT = Path(__file__).parents[1] / "results"
FOLDERS = sorted(path.parent for path in ROOT.rglob(CARD))
ROWS = {
    "trades": "TRADES",
    "wat": "WAT (paper variant)",
    "wat-reference": "WAT (reference variant)",
    "frl-rw": "FRL-RW",
    "frl-rwrm": "FRL-RWRM",
    "csl": "CSL",
}
COLUMNS = ("natural", "pgd-100", "cw", "autoattack")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_published_run(folder: Path) -> None:
    """Recipe, log, card and outcomes fit together, and the table shows the card."""
    run, card, outcomes = open_run(folder), load_card(folder), Outcomes.load(folder / OUTCOMES)
    assert run.config == make_config(read_recipe(folder.name.removesuffix(f"-seed{run.config.seed}")))
    assert len(run.log) == run.config.epochs
    kept = [line for line in run.log if line["selected"]][-1]
    assert card["about"]["epoch"] == kept["epoch"]
    assert card["about"]["part"] == "test"
    assert np.bincount(outcomes.labels).tolist() == [1000] * 10
    cells = [ROWS[folder.name.removeprefix("cifar10-resnet18-").removesuffix("-seed1")]]
    for name in COLUMNS:
        fresh = measure(outcomes.labels, outcomes.predictions[name], card["class_names"])
        cells += [percent(fresh["average"]), f"{percent(fresh['worst'])} {fresh['worst']['class']}"]
    tables = (ROOT / "README.md").read_text().split("\n## With rounded pixels\n")
    assert f"| {' | '.join(cells)} |" in tables[folder.parent != ROOT].splitlines()
    for name, predicted in outcomes.predictions.items():
        if name.endswith(ANY):
            continue
        fresh = measure(outcomes.labels, predicted, card["class_names"])
        for key in ("average", "worst"):
            for end in ("value", "low", "high"):
                assert card["columns"][name][key][end] == pytest.approx(fresh[key][end], abs=1e-9)
    held = outcomes.broken_by["autoattack"] == ""
    assert np.array_equal(held, outcomes.predictions["autoattack"] == outcomes.labels)
    for name, predicted in outcomes.predictions.items():  # AutoAttack is the strongest there is here
        assert held.mean() <= (predicted == outcomes.labels).mean(), name


@pytest.mark.parametrize(
    ("name", "other", "attack"),
    [
        ("wat-reference", "frl-rwrm", "autoattack"),
        ("wat", "frl-rwrm", "autoattack"),
        ("wat-reference", "frl-rwrm", "natural"),
        ("frl-rwrm", "frl-rw", "autoattack"),
        ("wat-reference", "frl-rw", "autoattack"),
        ("wat", "frl-rw", "autoattack"),
        ("wat-reference", "frl-rw", "natural"),
    ],
)
def test_published_differences_are_those_of_the_outcomes(name: str, other: str, attack: str) -> None:
    ours, theirs = (Outcomes.load(ROOT / f"cifar10-resnet18-{each}-seed1" / OUTCOMES) for each in (name, other))
    found = compare(ours.labels, ours.predictions[attack], theirs.predictions[attack], 10)
    text = (ROOT / "README.md").read_text()
    for gap in (found.avg_difference, found.worst_difference):
        value, low, high = (round(100 * end, 1) + 0.0 for end in (gap.value, gap.low, gap.high))  # no -0.0
        assert f" {value} [{low}, {high}]" in text
