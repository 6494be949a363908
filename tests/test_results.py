"""What results/ publishes follows from the outcomes that lie beside it."""

import re
from pathlib import Path
from typing import Any

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
    "trades-seed1": "TRADES",
    "wat-seed1": "WAT (paper variant)",
    "wat-reference-seed1": "WAT (reference variant)",
    "frl-rw-seed1": "FRL-RW",
    "frl-rwrm-seed1": "FRL-RWRM",
    "csl-seed1": "CSL",
    "wat-reference-seed2": "WAT (reference variant), seed 2",
    "frl-rwrm-rate-0.05-seed1": "FRL-RWRM, rate 0.05",
}
CHANGED: dict[str, dict[str, Any]] = {
    "wat-reference-seed2": {"seed": 2},
    "frl-rwrm-rate-0.05-seed1": {"frl_margin_rate": 0.05},
}  # of the recipe
HEADINGS = {"results": "# Results", "further-runs": "## Further runs", "rounded-pixels": "## With rounded pixels"}
COLUMNS = ("natural", "pgd-100", "cw", "autoattack")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_published_run(folder: Path) -> None:
    """Recipe, log, card and outcomes fit together, and the table shows the card."""
    run, card, outcomes = open_run(folder), load_card(folder), Outcomes.load(folder / OUTCOMES)
    name = folder.name.removeprefix("cifar10-resnet18-")
    recipe = folder.name.removesuffix(f"-seed{run.config.seed}").removesuffix("-rate-0.05")
    assert run.config == make_config(read_recipe(recipe) | CHANGED.get(name, {}))
    assert len(run.log) == run.config.epochs
    kept = [line for line in run.log if line["selected"]][-1]
    assert card["about"]["epoch"] == kept["epoch"]
    assert card["about"]["part"] == "test"
    assert np.bincount(outcomes.labels).tolist() == [1000] * 10
    cells = [ROWS[name]]
    for column in COLUMNS:
        fresh = measure(outcomes.labels, outcomes.predictions[column], card["class_names"])
        cells += [percent(fresh["average"]), f"{percent(fresh['worst'])} {fresh['worst']['class']}"]
    text = "\n" + (ROOT / "README.md").read_text()
    section = text.split(f"\n{HEADINGS[folder.parent.name]}\n")[1].split("\n## ")[0]
    assert f"| {' | '.join(cells)} |" in section.splitlines()
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
        ("wat-reference-seed1", "frl-rwrm-seed1", "autoattack"),
        ("wat-seed1", "frl-rwrm-seed1", "autoattack"),
        ("wat-reference-seed1", "frl-rwrm-seed1", "natural"),
        ("frl-rwrm-seed1", "frl-rw-seed1", "autoattack"),
        ("wat-reference-seed1", "frl-rw-seed1", "autoattack"),
        ("wat-seed1", "frl-rw-seed1", "autoattack"),
        ("wat-reference-seed1", "frl-rw-seed1", "natural"),
        ("wat-reference-seed2", "wat-reference-seed1", "autoattack"),
        ("wat-reference-seed2", "wat-reference-seed1", "natural"),
        ("wat-reference-seed2", "trades-seed1", "autoattack"),
        ("wat-reference-seed1", "trades-seed1", "autoattack"),
        ("wat-reference-seed2", "frl-rw-seed1", "autoattack"),
        ("wat-reference-seed2", "frl-rw-seed1", "natural"),
        ("wat-reference-seed2", "frl-rwrm-seed1", "autoattack"),
        ("wat-reference-seed2", "frl-rwrm-seed1", "natural"),
        ("frl-rwrm-rate-0.05-seed1", "frl-rwrm-seed1", "autoattack"),
        ("frl-rwrm-rate-0.05-seed1", "frl-rwrm-seed1", "pgd-100"),
        ("frl-rwrm-rate-0.05-seed1", "frl-rwrm-seed1", "cw"),
        ("frl-rwrm-rate-0.05-seed1", "frl-rwrm-seed1", "natural"),
        ("wat-reference-seed1", "frl-rwrm-rate-0.05-seed1", "autoattack"),
        ("wat-reference-seed1", "frl-rwrm-rate-0.05-seed1", "natural"),
    ],
)
def test_published_differences_are_those_of_the_outcomes(name: str, other: str, attack: str) -> None:
    """The average's and the worst class's, side by side."""
    paths = {folder.name: folder / OUTCOMES for folder in FOLDERS if folder.parent.name != "rounded-pixels"}
    ours, theirs = (Outcomes.load(paths[f"cifar10-resnet18-{each}"]) for each in (name, other))
    found = compare(ours.labels, ours.predictions[attack], theirs.predictions[attack], 10)
    rounded = [
        [round(100 * end, 1) + 0.0 for end in (gap.value, gap.low, gap.high)]  # no -0.0
        for gap in (found.avg_difference, found.worst_difference)
    ]
    text = " ".join((ROOT / "README.md").read_text().split())
    patterns = [rf"{value} \[{low}, {high}\]".replace(".", r"\.") for value, low, high in rounded]
    assert re.search(rf" {patterns[0]}(?: points)?(?: on average)? and {patterns[1]}", text), patterns
