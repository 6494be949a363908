"""Runs that differ in the seed alone, as one method: its mean, spread and comparison, in tables, figures and the page.

From the published runs: two seeds of TRADES and of WAT, three of WAT's reference variant, one of FRL-RW.
"""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from copied_runs import set_outcomes
from worstclass import metrics
from worstclass.cli.main import app
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.seeds import Spreads, compare_seeds, pooled_spread
from worstclass.report import Group, Result, figures, group_results, headline, load_results, write_report
from worstclass.report.answer import comparison
from worstclass.report.groups import by_worst, has_seeds
from worstclass.report.leaderboard import leaderboard_header, leaderboard_notes, leaderboard_rows, render_leaderboard
from worstclass.report.page import page_data
from worstclass.report.paper import printed
from worstclass.report.results import strongest_attack
from worstclass.reproduce import make_table, render

ROOT = Path(__file__).parents[2] / "results"
FOLDERS = [
    *(ROOT / f"cifar10-resnet18-{name}-seed1" for name in ("trades", "wat", "wat-reference", "frl-rw")),
    *(
        ROOT / f"cifar10-resnet18-{name}"
        for name in ("trades-seed2", "wat-seed2", "wat-reference-seed2", "wat-reference-seed3")
    ),
]
AA = "autoattack"


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return load_results(FOLDERS)


@pytest.fixture(scope="module")
def groups(results: list[Result]) -> list[Group]:
    return group_results(results, [AA])


def outcomes(name: str) -> Outcomes:
    (folder,) = [folder for folder in FOLDERS if folder.name == f"cifar10-resnet18-{name}"]
    return Outcomes.load(folder / "outcomes.npz")


def test_groups_are_the_methods(results: list[Result], groups: list[Group]) -> None:
    assert {group.title: group.seeds for group in groups} == {
        "TRADES": [1, 2],
        "WAT": [1, 2],
        "WAT (reference)": [1, 2, 3],
        "FRL-RW": [1],
    }
    assert [group.is_base for group in groups] == [True, False, False, False]
    assert has_seeds(groups)
    assert [group.title for group in by_worst(groups, AA)] == ["WAT", "WAT (reference)", "FRL-RW", "TRADES"]
    assert strongest_attack(results) == AA


def test_a_group_says_what_its_seeds_say_together(groups: list[Group]) -> None:
    wat = groups[1].columns[AA]
    runs = [outcomes("wat-seed1"), outcomes("wat-seed2")]
    accuracies = np.stack([metrics.per_class_accuracy(run.labels, run.predictions[AA], 10) for run in runs])
    assert wat["average"]["seeds"] == pytest.approx(accuracies.mean(axis=1).tolist())
    assert wat["worst"]["value"] == pytest.approx(accuracies.min(axis=1).mean())
    assert wat["worst"]["std"] == pytest.approx(accuracies.min(axis=1).std(ddof=1))
    assert wat["pooled_worst"]["value"] == pytest.approx(accuracies.mean(axis=0).min())
    assert wat["pooled_worst"]["value"] > wat["worst"]["value"]  # its seeds have other worst classes
    assert wat["paper"] == pytest.approx({"average": 0.4604, "worst": 0.301})
    rho = [
        metrics.compare(w.labels, w.predictions[AA], t.predictions[AA], 10).rho.value
        for w, t in zip(runs, [outcomes("trades-seed1"), outcomes("trades-seed2")], strict=True)
    ]
    assert wat["rho"]["seeds"] == pytest.approx(rho)  # each against TRADES of its own seed
    assert wat["rho"]["std"] == pytest.approx(np.std(rho, ddof=1))
    assert groups[0].columns[AA]["rho"] is None


def test_the_spread_is_that_of_all_methods(groups: list[Group]) -> None:
    """So the single seed of FRL-RW has an interval for seeds too."""
    spreads = Spreads(*(pooled_spread([g.columns[AA][key]["seeds"] for g in groups]) for key in Spreads._fields))
    assert {group.columns[AA]["degrees"] for group in groups} == {spreads.worst.degrees} == {4}
    frl, trades = outcomes("frl-rw-seed1"), [outcomes("trades-seed1"), outcomes("trades-seed2")]
    base = np.stack([run.predictions[AA] for run in trades])
    expected = compare_seeds(frl.labels, frl.predictions[AA][None], base, 10, spreads=spreads)
    found = groups[3].columns[AA]["against_base"]
    assert found["worst_difference"] == expected.worst_difference._asdict()
    single = group_results(load_results([FOLDERS[0], FOLDERS[3]]), [AA])
    alone = single[1].columns[AA]
    assert alone["degrees"] == 0
    assert "seeds are not accounted for" in leaderboard_notes(single)[0]
    wide, narrow = groups[3].columns[AA]["worst"], alone["worst"]
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_an_attack_that_some_runs_lack_has_rows_for_the_others() -> None:
    """WAT with averaged weights was not attacked by CW; without the base's column there is no difference to it."""
    folders = [FOLDERS[0], FOLDERS[1], ROOT / "cifar10-resnet18-wat-ema-seed1"]
    groups = group_results(load_results(folders), ["cw", AA])
    assert [group.title for group in by_worst(groups, AA)] == ["WAT + EMA", "WAT", "TRADES"]
    assert [group.title for group in by_worst(groups, "cw")] == ["WAT", "TRADES"]
    assert sum(row[0] == "CW" for row in leaderboard_rows(groups, ["cw"])) == 2
    base_lacks = group_results(load_results([folders[2], folders[0]], folders[2]), ["cw"])
    assert "against_base" not in base_lacks[1].columns["cw"]
    assert [row[1] for row in leaderboard_rows(base_lacks, ["cw"])] == ["TRADES"]
    assert "TRADES" in render_leaderboard(base_lacks, ["cw"], "text")


def test_a_mean_of_rho_says_which_seeds_it_leaves_out(tmp_path: Path) -> None:
    """rho is relative to the worst class of the base: where that is at 0 there is none."""
    shutil.copytree(FOLDERS[4], broken := tmp_path / "trades-seed2")
    found = Outcomes.load(broken / "outcomes.npz")
    none_stands = np.where(found.labels == 3, 0, found.predictions[AA])
    set_outcomes(broken, Outcomes(found.labels, {"natural": found.predictions["natural"], AA: none_stands}))
    runs = [FOLDERS[0], broken, FOLDERS[1], FOLDERS[5]]
    groups = group_results(load_results(runs, FOLDERS[0]), [AA])
    assert len(groups[1].columns[AA]["rho"]["seeds"]) == 1
    line = "rho of WAT under autoattack leaves out 1 of 2 seeds: the worst class of their base is at 0."
    assert line in leaderboard_notes(groups)
    whole = group_results(load_results([FOLDERS[0], FOLDERS[4], *runs[2:]]), [AA])
    assert not any("leaves out" in note for note in leaderboard_notes(whole))


def test_an_attack_that_no_method_has_for_all_seeds_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(FOLDERS[1], lacking := tmp_path / "wat-seed1")
    found = Outcomes.load(lacking / "outcomes.npz")
    set_outcomes(lacking, Outcomes(found.labels, {"natural": found.predictions["natural"]}))
    other = ROOT / "cifar10-resnet18-wat-seed2"
    with pytest.raises(UserError, match="no method has all of its seeds evaluated under cw"):
        app(["leaderboard", str(lacking), str(other), "--attack", "cw"], standalone_mode=False)


def test_what_is_not_like_the_base_is_said_with_and_without_seeds(tmp_path: Path) -> None:
    """Other settings once for all methods that share them; another seed; an attack that the base lacks."""
    ema = [ROOT / f"cifar10-resnet18-{name}-seed1" for name in ("dafa-ema-fork", "guarded-ema-fork", "wat-ema")]
    many = leaderboard_notes(group_results(load_results([*FOLDERS, *ema]), [AA]))
    assert [line.split(":")[0] for line in many[-2:]] == [
        "DAFA + EMA, fork at 70; Guarded + EMA, fork at 70 differ from the base in more than the method",
        "WAT + EMA differs from the base in more than the method",
    ]
    lone = [FOLDERS[0], ema[2], FOLDERS[7]]
    assert leaderboard_notes(group_results(load_results(lone), [AA]))[1:] == [
        "WAT (reference) is compared with TRADES (seed 1): no run of TRADES with seed 3 is given.",
        "WAT + EMA differs from the base in more than the method: average (ema, not none).",
    ]
    base_lacks = group_results(load_results([FOLDERS[1], ema[2]], ema[2]), ["cw"])
    assert leaderboard_notes([base_lacks[0]])[1:] == [
        "WAT differs from the base in more than the method: average (none, not ema).",
        "WAT + EMA has not been evaluated under cw: no rho there.",
    ]
    assert not any("evaluated under" in line for line in many)


def test_the_table_in_every_format(groups: list[Group]) -> None:
    rows = leaderboard_rows(groups, [AA])
    wat = groups[1].columns[AA]
    mean, std = (100 * wat["worst"][key] for key in ("value", "std"))
    assert rows[0][:3] == ("AutoAttack", "WAT", "2")
    assert rows[0][4].startswith(f"{mean:.1f} ± {std:.1f} [")
    assert rows[3][7:] == ("base", "base", "base")
    assert "±" not in rows[2][3]  # one seed
    for kind in ("text", "markdown"):
        shown = render_leaderboard(groups, [AA], kind)
        assert all(cell in shown for row in rows for cell in row)
        assert all(note in shown for note in leaderboard_notes(groups))
    latex = render_leaderboard(groups, [AA], "latex").splitlines()
    body = [line for line in latex if line.endswith("\\\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(leaderboard_header(groups)) - 1}
    assert f"{mean:.1f} $\\pm$ {std:.1f}" in body[1]
    lines = list(csv.DictReader(io.StringIO(render_leaderboard(groups, [AA], "csv"))))
    (own,) = [line for line in lines if (line["method"], line["measure"]) == ("WAT", "worst")]
    assert float(own["mean"]) == wat["worst"]["value"]
    assert [float(value) for value in own["seeds"].split()] == wat["worst"]["seeds"]


def test_a_forest_plot_shows_seeds_means_and_the_paper(groups: list[Group]) -> None:
    figure = figures.forest(groups, AA)
    ordered = by_worst(groups, AA)
    for axes, key in zip(figure.axes, ("average", "worst"), strict=True):
        drawn = [np.asarray(line.get_xdata(), dtype=float).tolist() for line in axes.get_lines()]
        expected: list[list[float]] = []
        for group in ordered:
            mean, paper = group.columns[AA][key], group.columns[AA]["paper"]
            expected += [[100 * mean["low"], 100 * mean["high"]], [100 * mean["value"]] * 2]
            expected += [[100 * value for value in mean["seeds"]], [100 * paper[key]]]
        assert [pytest.approx(each) for each in expected] == drawn
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["WAT (2 seeds)", "WAT (reference) (3 seeds)", "FRL-RW (1 seed)", "TRADES (2 seeds)"]


def test_the_page_has_methods(results: list[Result], tmp_path: Path) -> None:
    few = [replace(result, run=None, columns={AA: result.columns[AA]}) for result in results]  # to be quick
    groups = group_results(few)
    written = write_report(few, tmp_path / "report.html", groups=groups, gallery=False)
    assert {"forest.svg", "forest.pdf", "forest.png"} <= {path.name for path in written}
    page = (tmp_path / "report.html").read_text()
    assert all(cell in page for row in leaderboard_rows(groups, [AA]) for cell in row)
    assert headline(groups, AA)[0].startswith("WAT, 2 seeds: weakest cat or deer at 30.6 ± 0.3% [")
    assert comparison(groups, AA) in page
    method = page_data(few, groups)["methods"][2]
    assert (method["title"], method["seeds"]) == ("WAT (reference)", [1, 2, 3])
    assert method["columns"][AA]["worst"]["seeds"] == groups[2].columns[AA]["worst"]["seeds"]
    assert method["columns"][AA]["worst"]["paper"] == pytest.approx(0.301)


def test_the_papers_tables_have_a_mean_and_each_seed(groups: list[Group]) -> None:
    """Beside the paper stands the mean; rho is the mean of what each seed has against TRADES of its own."""
    table = make_table("table4", FOLDERS)
    (block,) = table.blocks
    titles = [line.title for line in block.lines]
    assert titles[:3] == ["TRADES, 2 seeds", "TRADES, seed 1", "TRADES, seed 2"]
    assert [line.seeds for line in block.lines if line.title.startswith("WAT (reference)")] == [3, 1, 1, 1]
    mean, *seeds = [line.cells for line in block.lines if line.title.startswith("WAT, ")]
    for cell, *each in zip(mean, *seeds, strict=True):
        values = [one.ours for one in each if one.ours is not None]
        assert cell.ours == pytest.approx(np.mean(values))
        assert cell.std == pytest.approx(np.std(values, ddof=1))
        assert cell.paper == each[0].paper
    for kind in ("text", "markdown"):
        assert f"{mean[1].ours:.1f} ± {mean[1].std:.1f} [{mean[1].low:.1f}, {mean[1].high:.1f}]" in render(table, kind)
    assert f"{mean[1].ours:.1f} $\\pm$ {mean[1].std:.1f} [" in render(table, "latex")
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    (own,) = [line for line in lines if (line["method"], line["measure"]) == ("WAT, 2 seeds", "worst")]
    assert (own["seeds"], float(own["std"])) == ("2", mean[1].std)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(folder) for folder in (FOLDERS[0], FOLDERS[1], FOLDERS[5])]
    app(["leaderboard", *folders, "--forest", str(tmp_path / "forest")], standalone_mode=False)
    assert {path.name for path in tmp_path.iterdir()} == {"forest.svg", "forest.pdf", "forest.png"}
    assert "45.2 ± 0.5" in capsys.readouterr().out
    arguments = ["--attack", "cw", "--format", "csv", "--out", str(tmp_path / "t.csv")]
    app(["leaderboard", *folders, *arguments], standalone_mode=False)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert {line["attack"] for line in lines} == {"cw"}
    with pytest.raises(UserError, match="Did you mean 'autoattack'"):
        app(["leaderboard", *folders, "--attack", "autoatack"], standalone_mode=False)


def test_what_the_paper_prints_is_of_the_same_method() -> None:
    config = load_results([FOLDERS[1]])[0].config
    cell = printed(config, AA)
    assert cell is not None
    assert (cell.average, cell.worst) == (46.04, 30.1)
    for other in ({"average": "ema"}, {"awp_gamma": 0.005}, {"eps": 0.03}, {"eta": 0.2}, {"model": "small-cnn"}):
        assert printed(config.model_copy(update=other), AA) is None
    assert printed(config, "pgd-20") is None


def test_methods_that_differ_in_a_setting_are_told_apart_by_it_and_not_by_their_seeds(tmp_path: Path) -> None:
    """A run of another eta with another seed is another method."""
    shutil.copytree(FOLDERS[1], tmp_path / "other")
    recipe = (tmp_path / "other" / "recipe.toml").read_text()
    recipe = recipe.replace("eta = 0.1\n", "eta = 0.2\n").replace("seed = 1", "seed = 7")
    (tmp_path / "other" / "recipe.toml").write_text(recipe)
    found = group_results(load_results([FOLDERS[1], FOLDERS[5], tmp_path / "other"]), ["cw"])
    assert {group.title: group.seeds for group in found} == {"WAT, eta 0.1": [1, 2], "WAT, eta 0.2": [7]}


def test_a_fork_is_no_seed_of_a_whole_run(tmp_path: Path) -> None:
    """Of the same recipe, it is another row, and says where it was forked."""
    shutil.copytree(FOLDERS[5], tmp_path / "fork")
    about = json.loads((tmp_path / "fork" / "run.json").read_text())
    about["fork"] = {"run": "other", "epoch": 70, "weights": "0"}
    (tmp_path / "fork" / "run.json").write_text(json.dumps(about))
    found = group_results(load_results([FOLDERS[1], tmp_path / "fork"]), ["cw"])
    assert {group.title: group.seeds for group in found} == {"WAT": [1], "WAT, fork at 70": [2]}
