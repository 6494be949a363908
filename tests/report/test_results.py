"""What results/ publishes follows from the outcomes that lie beside it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worstclass.config import make_config, read_recipe
from worstclass.evaluation.card import measure
from worstclass.evaluation.metrics import compare
from worstclass.evaluation.outcomes import ANY, Outcomes
from worstclass.evaluation.targets import CARD, OUTCOMES, load_card
from worstclass.report.paper import Reported, reported
from worstclass.report.tables import percent
from worstclass.runs.run import open_run

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in ROOT.rglob(CARD))
ROWS = {
    "trades-seed1": "TRADES",
    "wat-seed1": "WAT (paper variant)",
    "wat-reference-seed1": "WAT (reference variant)",
    "frl-rw-seed1": "FRL-RW",
    "frl-rwrm-seed1": "FRL-RWRM",
    "csl-seed1": "CSL",
    "trades-seed2": "TRADES (seed 2)",
    "wat-seed2": "WAT (paper variant, seed 2)",
    "wat-reference-seed2": "WAT (reference variant, seed 2)",
    "wat-reference-seed3": "WAT (reference variant, seed 3)",
    "frl-rwrm-rate-0.05-seed1": "FRL-RWRM (`frl_margin_rate = 0.05`)",
}
ETAS = {f"wat-eta{eta}-seed1": f"WAT (`eta = {eta}`)" for eta in (0.05, 0.5)}
CHANGED: dict[str, dict[str, Any]] = {
    "trades-seed2": {"seed": 2},
    "wat-seed2": {"seed": 2},
    "wat-reference-seed2": {"seed": 2},
    "wat-reference-seed3": {"seed": 3},
    "frl-rwrm-rate-0.05-seed1": {"frl_margin_rate": 0.05},
}  # of the recipe
HEADINGS = {
    "results": "# Results",
    "further-runs": "## Further runs",
    "table3": "## Table 3: another eta",
    "rounded-pixels": "## With rounded pixels",
}
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
    cells = [(ROWS | ETAS)[name]]
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


def test_every_method_is_there() -> None:
    published = [folder for folder in FOLDERS if folder.parent.name != "rounded-pixels"]
    assert {folder.name.removeprefix("cifar10-resnet18-") for folder in published} == {*ROWS, *ETAS}


@pytest.mark.parametrize("eta", [0.05, 0.5])
def test_table_3_shows_the_paper(eta: float) -> None:
    cells = [f"the paper's {ETAS[f'wat-eta{eta}-seed1']}"]
    for column in COLUMNS:
        (one,) = [each for each in reported() if (each.table, each.eta, each.attack) == (3, eta, column)]
        cells += [f"{one.average:.2f}", f"{one.worst:.1f}"]
    assert f"| {' | '.join(cells)} |" in (ROOT / "README.md").read_text().splitlines()


def difference(name: str, other: str) -> str:
    """A row of the table: average and worst class in each column, with intervals."""
    paths = {folder.name: folder / OUTCOMES for folder in FOLDERS if folder.parent.name != "rounded-pixels"}
    ours, theirs = (Outcomes.load(paths[f"cifar10-resnet18-{each}"]) for each in (name, other))
    cells = [f"{ROWS[name]} minus {ROWS[other]}"]
    for column in COLUMNS:
        found = compare(ours.labels, ours.predictions[column], theirs.predictions[column], 10)
        for gap in (found.avg_difference, found.worst_difference):
            value, low, high = (round(100 * end, 1) + 0.0 for end in (gap.value, gap.low, gap.high))  # no -0.0
            cells.append(f"{value} [{low}, {high}]")
    return f"| {' | '.join(cells)} |"


def in_the_paper() -> dict[tuple[str, str], Reported]:
    found = [one for one in reported() if (one.table, one.data, one.model) == (1, "cifar10", "resnet18")]
    return {(one.method, one.attack): one for one in found}


def test_the_rows_of_the_paper() -> None:
    published = (ROOT / "README.md").read_text().splitlines()
    for method in ("trades", "frl-rw", "frl-rwrm", "csl", "wat"):
        cells = [f"the paper's {ROWS[f'{method}-seed1'].split(' (')[0]}"]
        for column in COLUMNS:
            one = in_the_paper()[method, column]
            cells += [f"{one.average:.2f}", f"{one.worst:.1f}"]
        assert f"| {' | '.join(cells)} |" in published


def difference_in_the_paper(method: str, other: str) -> str:
    cell = in_the_paper()
    cells = [f"the paper's {ROWS[f'{method}-seed1'].split(' (')[0]} minus {ROWS[f'{other}-seed1']}"]
    for column in COLUMNS:
        ours, theirs = cell[method, column], cell[other, column]
        gaps = (ours.average - theirs.average, ours.worst - theirs.worst)
        cells += [str(round(gap, 1) + 0.0) for gap in gaps]
    return f"| {' | '.join(cells)} |"


def test_the_table_of_differences() -> None:
    """In every column: each run of WAT minus each of the other methods, those minus TRADES's, FRL-RWRM minus FRL-RW,
    and the runs of one method."""
    paper, reference = (
        [name for name in ROWS if name.startswith(f"{start}-seed")] for start in ("wat", "wat-reference")
    )
    runs = {
        "wat": (*paper, *reference),
        "trades": ("trades-seed1", "trades-seed2"),
        "csl": ("csl-seed1",),
        "frl-rw": ("frl-rw-seed1",),
        "frl-rwrm": ("frl-rwrm-seed1", "frl-rwrm-rate-0.05-seed1"),
    }
    assert {name for names in runs.values() for name in names} == set(ROWS)
    pairs = [("wat", other) for other in ("trades", "csl", "frl-rw", "frl-rwrm")]
    pairs += [(method, "trades") for method in ("csl", "frl-rw", "frl-rwrm")] + [("frl-rwrm", "frl-rw")]
    lines: list[str] = []
    for method, other in pairs:
        lines += [difference(name, base) for base in runs[other] for name in runs[method]]
        lines += [difference_in_the_paper(method, other)]
    for first, *others in (runs["trades"], paper, reference, runs["frl-rwrm"]):
        lines += [difference(other, first) for other in others]
    published = [line for line in (ROOT / "README.md").read_text().splitlines() if " minus " in line and line[0] == "|"]
    assert published == lines
