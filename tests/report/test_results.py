"""What results/ publishes follows from the outcomes that lie beside it."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worstclass.cli import main as cli
from worstclass.config.recipe import load_config
from worstclass.evaluation.card import measure
from worstclass.evaluation.outcomes import ANY, Outcomes
from worstclass.evaluation.saved import CARD, OUTCOMES, load_card
from worstclass.runs.run import open_run

ROOT = Path(__file__).parents[2] / "results"
FOLDERS = sorted(path.parent for path in ROOT.rglob(CARD))
EMA = {"average": "ema", "ema_decay": 0.9997}
FORK = EMA | {"epochs": 90, "lr_milestones": [0.93, 0.97], "recalibrate": False}
LATER_FORK = EMA | {"epochs": 95, "lr_milestones": [0.85, 0.95]}
LEVEL = {"dafa_warmup": 1, "dafa_refresh": 0.8, "dafa_part": "valid", "dafa_strength": 1.3, "dafa_level": 0.3}
EARLY_FORK = EMA | {"recalibrate": False, "valid_attack": "cw"}
BY_CW = {"epochs": 84, "lr_milestones": [0.93, 0.97], "adjust_budget": 0.02}
CHANGED: dict[str, tuple[str, dict[str, Any]]] = {
    "frl-rwrm-rate-0.05": ("frl-rwrm", {"frl_margin_rate": 0.05}),
    "dafa-ema-fork": ("dafa", FORK | {"dafa_warmup": 1}),
    "dafa-level-ema-fork": ("dafa", LATER_FORK | LEVEL),
    "dafa-level-cw-ema-fork": (
        "dafa",
        EARLY_FORK | BY_CW | {"dafa_warmup": 1, "dafa_part": "valid", "dafa_level": 0.4},
    ),
    "csr-ema-fork": ("csr", EARLY_FORK | {"epochs": 74, "lr_milestones": [0.9, 0.95]}),
    "wat-ema-fork": ("wat", LATER_FORK),
    "guarded-ema-fork": ("guarded", FORK | {"guarded_slack": 0.1}),
    "guarded-ema": ("guarded", EMA),
}
COLUMNS = ("natural", "pgd-20", "pgd-100", "cw", "autoattack")


@pytest.mark.fast
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_run(folder: Path) -> None:
    """Recipe, log, card and outcomes fit together."""
    run, card, outcomes = open_run(folder), load_card(folder), Outcomes.load(folder / OUTCOMES)
    name = folder.name.removeprefix("cifar10-resnet18-").removesuffix(f"-seed{run.config.seed}")
    recipe, changes = CHANGED.get(name, (name, {}))
    assert run.config == load_config(f"cifar10-resnet18-{recipe}", seed=run.config.seed, **changes).for_classes(
        10
    ).from_epoch(0)
    assert len(run.log) == run.config.epochs
    kept = [line for line in run.log if line["selected"]][-1]
    assert card["about"]["epoch"] == kept["epoch"]
    assert card["about"]["part"] == "test"
    assert np.bincount(outcomes.labels).tolist() == [1000] * 10
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


def leaderboard(out: Path, *options: str) -> str:
    """What the command writes of these runs."""
    runs = [str(folder) for folder in FOLDERS]
    base = ["--base", str(ROOT / "cifar10-resnet18-trades-seed1")]
    cli.app(["leaderboard", *runs, *base, *options, "--out", str(out)], standalone_mode=False)
    return out.read_text()


def test_the_page_shows_the_leaderboard(tmp_path: Path) -> None:
    assert leaderboard(tmp_path / "table.md", "--format", "markdown").strip() in (ROOT / "README.md").read_text()


def test_the_numbers_beside_the_page(tmp_path: Path) -> None:
    """All attacks; as numbers, which another processor may round otherwise in the last digit."""
    fresh = leaderboard(tmp_path / "all.csv", "--format", "csv", "--attack", "all")
    lines, published = (list(csv.reader(text.splitlines())) for text in (fresh, (ROOT / "leaderboard.csv").read_text()))
    assert {line[0] for line in lines[1:]} == {*COLUMNS}
    assert [line[:4] for line in lines] == [line[:4] for line in published]
    assert [line[10] for line in lines] == [line[10] for line in published]
    unlike = {line[1]: line[10] for line in lines[1:]}
    assert unlike["TRADES"] == unlike["WAT (reference)"] == ""
    assert unlike["WAT + EMA"] == "average (ema, not none)"
    for line, other in zip(lines[1:], published[1:], strict=True):
        for one, same in zip(line[4:9], other[4:9], strict=True):
            assert (one == same == "") or float(one) == pytest.approx(float(same), abs=1e-6)


def test_the_picture_names_every_row() -> None:
    picture, page = (ROOT / "forest.svg").read_text(), (ROOT / "README.md").read_text()
    rows = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| AutoAttack |")]
    assert len(rows) == 18
    assert all(row in picture for row in rows)
    assert (ROOT / "forest.pdf").read_bytes().startswith(b"%PDF")
