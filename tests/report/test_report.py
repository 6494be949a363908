"""Tables, figures and the page, from evaluated runs."""

import errno
import io
import itertools
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.text import Annotation
from rich.console import Console

import worstclass as wc
from copied_runs import copy_run, set_recipe
from tiny import SEED, tiny_config
from worstclass.attacks import PGD
from worstclass.cli.console import print_table
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.inputs.radius import show_radii, show_radius
from worstclass.metrics.percentages import percent_interval
from worstclass.report import figures, group_results, headline, load_results, rich_table, write_report
from worstclass.report.page import page_data
from worstclass.report.tables import notes, number, rows
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run


def test_table(folders: list[Path]) -> None:
    results = load_results(folders)
    table = rows(results)
    assert [row[:2] for row in table] == [
        ("Natural", "TRADES"),
        ("Natural", "WAT"),
        ("PGD-5", "TRADES"),
        ("PGD-5", "WAT"),
    ]
    assert [row[6] == "base" for row in table] == [True, False, True, False]
    card = results[1].card["columns"]["pgd-5"]
    assert table[3][2].startswith(f"{100 * card['average']['value']:.1f} [")
    levels = [one["value"] for one in card["classes"]]
    ties = levels.count(min(levels))
    assert table[3][4] == (card["worst"]["class"] if ties == 1 else f"{ties} classes")
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(rich_table(results, "title"))
    text = console.export_text()
    assert all(cell in text for row in table for cell in row)


def test_a_table_is_wide_rather_than_cut(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    results = [replace(result, title="FRL-RWRM, " + "0123456789" * 5) for result in load_results(folders)]
    print_table(results)
    shown = capsys.readouterr().out
    assert "\u2026" not in shown
    assert all(cell in shown for row in rows(results) for cell in row)


def test_base_is_chosen_or_given(folders: list[Path]) -> None:
    swapped = load_results(folders[::-1])
    assert [result.title for result in swapped] == ["WAT", "TRADES"]
    assert [result.is_base for result in swapped] == [False, True]
    given = load_results([folders[1]], base=folders[0])
    first = load_results(folders)[1].columns["pgd-5"]["against_base"]
    assert given[0].columns["pgd-5"]["against_base"] == first
    twice = load_results([folders[0], folders[0]])
    assert [result.title for result in twice] == ["TRADES (trades) 1", "TRADES (trades) 2"]


def test_paths_may_be_text(folders: list[Path], tmp_path: Path) -> None:
    base, other = map(str, folders)
    run, results = wc.open_run(other), wc.load_results([other], base)
    assert (run.folder, results[0].folder) == (folders[1], folders[1])
    out = str(tmp_path / "page" / "report.html")
    assert wc.write_report(results, out, data_dir="data", gallery=False)[0] == Path(out)
    target = wc.run_target(run, data_dir="data")
    assert not target.model.training
    wc.evaluate_target(target, ["natural"], str(tmp_path / "again"), base=base)
    with pytest.raises(UserError, match="holds a run already"):
        wc.train_run(run.config, other, data_dir="data")
    with pytest.raises(UserError, match="is not an empty folder"):
        wc.adjust_run(run, other, data_dir="data")


def test_runs_of_one_method_are_told_apart_by_their_recipes(folders: list[Path], tmp_path: Path) -> None:
    recipe = (folders[0] / "recipe.toml").read_text()
    other: dict[str, dict[str, Any]] = {
        "second": {"seed": SEED + 1},
        "third": {"seed": SEED + 2, "lr_milestones": [k / 20 for k in range(1, 21)]},
    }
    for name, changes in other.items():
        shutil.copytree(folders[0], tmp_path / name)
        lines = [line for line in recipe.splitlines() if line.split(" =")[0] not in changes]
        lines += [f"{key} = {value}" for key, value in changes.items()]
        set_recipe(tmp_path / name, "\n".join(lines))
    first, second, third = folders[0], tmp_path / "second", tmp_path / "third"
    apart = load_results([first, folders[1], second])
    assert [result.title for result in apart] == [f"TRADES, seed {SEED}", "WAT", f"TRADES, seed {SEED + 1}"]
    long = load_results([first, folders[1], third])
    assert [result.title for result in long] == ["TRADES (trades)", "WAT", "TRADES (third)"]
    twice = load_results([first, second, second])
    assert [result.title for result in twice] == [
        f"TRADES, seed {SEED}",
        f"TRADES, seed {SEED + 1} (second) 1",
        f"TRADES, seed {SEED + 1} (second) 2",
    ]
    fourth = tmp_path / "fourth"
    shutil.copytree(folders[1], fourth)
    recipe = (fourth / "recipe.toml").read_text()
    set_recipe(fourth, recipe + 'objective = "trades"\n')
    apart = load_results([folders[1], fourth])
    assert [result.title for result in apart] == ["WAT, objective default", "WAT, objective trades"]


def test_a_title_has_no_key_that_its_run_does_not_use(folders: list[Path], tmp_path: Path) -> None:
    """Two runs of WAT differ in beta; a third has no beta."""
    recipe = (folders[1] / "recipe.toml").read_text()
    others = {"beta": recipe.replace("beta = 6.0", "beta = 3.0")}
    others["madry"] = recipe.replace("beta = 6.0\n", 'objective = "pgd-at"\n')
    for name, text in others.items():
        shutil.copytree(folders[1], tmp_path / name)
        set_recipe(tmp_path / name, text)
    titles = [result.title for result in load_results([folders[1], *(tmp_path / name for name in others)])]
    assert titles == ["WAT, objective default, beta 6", "WAT, objective default, beta 3", "WAT, objective pgd-at"]


def test_seeds_are_compared_with_their_own_kind(folders: list[Path], tmp_path: Path) -> None:
    """Runs of seed 2 that are right on the same images have a rho of 0, whatever the runs of seed 1 are."""
    labels = Outcomes.load(folders[0] / "outcomes.npz").labels
    good, bad = (
        {"natural": labels, "pgd-5": np.where(np.arange(len(labels)) % n > 0, labels, (labels + 1) % 3)} for n in (4, 2)
    )
    trades, wat = (copy_run(folder, tmp_path / f"{folder.name}1", good, seed=1) for folder in folders)
    trades2, wat2 = (copy_run(folder, tmp_path / f"{folder.name}2", bad, seed=2) for folder in folders)
    wat3 = copy_run(folders[1], tmp_path / "wat3", bad, seed=3, select="last", valid_fraction=0.3)
    results = load_results([trades, wat, wat2, trades2, wat3])
    assert [result.is_base for result in results] == [True, False, False, True, False]
    assert [result.base for result in results] == ["", "TRADES, seed 1", "TRADES, seed 2", "", "TRADES, seed 1"]
    rho = [result.columns["pgd-5"].get("against_base", {}).get("rho", {}).get("value") for result in results]
    assert (rho[:4], rho[4] < 0) == ([None, 0, 0, None], True)
    own = "WAT, valid_fraction 0.3, select last, seed 3"
    assert results[4].title == own
    assert notes(results) == [
        "rho compares each run with the base of its own seed.",
        f"{own} is compared with TRADES, seed 1: no run of TRADES with seed 3 is given.",
        f"{own} and TRADES, seed 1 differ in more than the method: "
        "valid_fraction (0.3, not 0.25), select (last, not worst-accuracy).",
    ]
    given = load_results([wat, wat2, trades2], base=trades)
    assert [result.base for result in given] == ["TRADES (trades1)", "TRADES", ""]
    base = page_data(results)["base"]
    assert base == {"title": "TRADES, seed 1, TRADES, seed 2", "columns": {}}  # no lines of equal rho
    write_report(results, tmp_path / "report.html", gallery=False)
    page = (tmp_path / "report.html").read_text()
    assert all(note in page for note in notes(results))
    assert "Against TRADES: WAT" in page


def test_an_epoch_that_was_not_selected_is_named(folders: list[Path], tmp_path: Path) -> None:
    """And folders of one name by where they are."""
    for folder in folders:
        target = run_target(open_run(folder), checkpoint="last")
        evaluate_target(target, ["pgd-5"], tmp_path / folder.name / "last")
    apart = load_results([*folders, tmp_path / "wat" / "last"])
    assert [result.title for result in apart] == ["TRADES", "WAT, selected epoch", "WAT, last epoch"]
    for name in ("a", "b"):
        shutil.copytree(tmp_path / "wat" / "last", tmp_path / name / "last")
    alike = load_results([tmp_path / name / "last" for name in ("a", "b")])
    assert [result.title for result in alike] == ["WAT (a/last)", "WAT (b/last)"]


def test_classes_that_tie_at_nothing_are_counted(folders: list[Path], tmp_path: Path) -> None:
    labels = Outcomes.load(folders[0] / "outcomes.npz").labels
    right = {"trades": labels == 0, "wat": (labels == 0) & (np.arange(len(labels)) % 2 == 0)}
    copies = [
        copy_run(f, tmp_path / f.name, {"pgd-5": np.where(right[f.name], labels, (labels + 1) % 3)}) for f in folders
    ]
    results = load_results(copies)
    assert [row[4] for row in rows(results) if row[0] == "PGD-5"] == ["2 classes", "2 classes"]
    assert [row[6] for row in rows(results) if row[0] == "PGD-5"] == ["base", "undefined"]
    sentences = headline(group_results(results), "pgd-5")
    assert all("2 classes at 0.0%" in sentence for sentence in sentences[:2])
    assert sentences[2].startswith("Against TRADES: WAT ")
    assert "rho is undefined where the worst class of the base is at 0.0%: a gain is relative to it." in notes(results)
    difference = results[1].columns["pgd-5"]["against_base"]["worst_difference"]
    assert difference["low"] < 0 < difference["high"]
    write_report(results, tmp_path / "report.html", gallery=False)


@pytest.mark.parametrize("title", ["{} " + "long" * 50, "FRL-RWRM, seed {}", "{}"])
def test_a_legend_fits(title: str, folders: list[Path]) -> None:
    results = load_results(folders)
    many = [replace(result, title=title.format(index)) for index, result in enumerate(4 * results)]
    figure = figures.classwise(many, "pgd-5")
    figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    assert len(legend.get_texts()) == len(many)
    assert axes.get_position().width > 0.8
    assert axes.get_position().height * figure.get_figheight() > 2.5
    box = legend.get_window_extent()
    assert box.x1 < figure.bbox.x1
    around = axes.get_tightbbox()
    assert around is not None
    assert box.y0 >= around.y1


def test_no_two_runs_have_one_colour(folders: list[Path]) -> None:
    many = [replace(result, title=str(index)) for index, result in enumerate(10 * load_results(folders))]
    assert len(many) > 2 * len(figures.COLORS)
    (axes,) = figures.classwise(many, "pgd-5").axes
    drawn = [to_hex(bars.patches[0].get_facecolor()) for bars in axes.containers if isinstance(bars, BarContainer)]
    assert len(set(drawn)) == len(many)
    assert drawn == [run["color"] for run in page_data(many)["runs"]]
    assert drawn[: len(figures.COLORS)] == [color.lower() for color in figures.COLORS]


@pytest.mark.parametrize(("average", "worst"), [(0.97, 0.96), (0.5, 0.2), (0.01, 0.0)])
def test_lines_are_named_where_they_end(average: float, worst: float, folders: list[Path], tmp_path: Path) -> None:
    """None is lost at an edge, and none lies over another."""
    run = open_run(folders[1])
    log = [
        line
        | {"class_weights": [8.0, 8.1, 8.2]}
        | {"valid": line["valid"] | {"robust_accuracy": average, "worst_robust_accuracy": worst}}
        for line in run.log
    ]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    figure = figures.training([("A title that goes on " * 10, replace(run, folder=tmp_path))])
    figure.draw_without_rendering()
    left, right = figure.axes
    assert left.get_position().width > 0.3
    for axes, expected in ((left, ["worst class", "average"]), (right, run.class_names)):
        shown = [text for text in axes.texts if text.get_text() != "kept"]
        boxes = {text.get_text(): text.get_window_extent() for text in shown}
        assert sorted(boxes, key=lambda name: boxes[name].y0) == expected
        assert all(isinstance(text, Annotation) and text.get_annotation_clip() is False for text in shown)
        assert all(axes.bbox.y0 - 10 < box.y0 and box.y1 < axes.bbox.y1 + 10 for box in boxes.values())
        assert all(box.x0 > axes.transData.transform((len(log), 0))[0] for box in boxes.values())
        assert all(box.x1 <= figure.bbox.x1 for box in boxes.values())
        ordered = sorted(boxes.values(), key=lambda box: box.y0)
        assert all(low.y1 < high.y0 + 1 for low, high in itertools.pairwise(ordered))


def test_a_natural_run_is_never_the_base(folders: list[Path], tmp_path: Path) -> None:
    """Its accuracy under attack is next to nothing, and rho against it says nothing."""
    data = folders[0].parent / "tiny.npz"
    run = train_run(tiny_config(data, method="natural", epochs=1), tmp_path / "natural")
    evaluate_target(run_target(run), ["pgd-5"], run.folder)
    assert [result.is_base for result in load_results([run.folder, *folders])] == [False, True, False]
    alone = load_results([run.folder, folders[1]])
    assert not any("against_base" in column for result in alone for column in result.columns.values())
    assert {row[6] for row in rows(alone)} == {""}


def test_runs_with_other_attacks_or_radii(folders: list[Path], tmp_path: Path) -> None:
    data = folders[0].parent / "tiny.npz"
    run = train_run(tiny_config(data, epochs=1), tmp_path / "cw")
    evaluate_target(run_target(run), ["cw-5"], run.folder)
    write_report(load_results([folders[0], run.folder]), tmp_path / "report.html")
    drawn = {path.stem for path in tmp_path.iterdir()}
    assert "classwise-natural" in drawn
    assert "classwise-cw-5" not in drawn
    wider = train_run(tiny_config(data, epochs=1, eps=0.1, attack_step_size=0.06), tmp_path / "wider")
    evaluate_target(run_target(wider), ["pgd-5"], wider.folder)
    with pytest.raises(UserError, match="another eps"):
        load_results([folders[0], wider.folder])


def test_unevaluated_runs_are_named(folders: list[Path], tmp_path: Path) -> None:
    run = train_run(tiny_config(folders[0].parent / "tiny.npz", epochs=1), tmp_path / "run")
    with pytest.raises(UserError, match=re.escape(f"worstclass evaluate {run.folder}")):
        load_results([folders[0], run.folder])


def test_a_figure_is_whole_or_absent_and_the_error_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        figures.save_figure(figures.Picture(), tmp_path / "figure.png")
    assert caught.value.filename == str(tmp_path / "figure.png")
    assert [*tmp_path.iterdir()] == []


def test_a_radius_is_written_as_the_field_does() -> None:
    shown = {
        8 / 255: "8/255",
        2 / 255: "2/255",
        0.1: "0.1",
        0.2: "0.2",
        1.0: "1",
        0.031: "0.031",
        1 / 3000: "0.0003333",
    }
    assert {eps: show_radius(eps) for eps in shown} == shown
    assert show_radii(repr(PGD(eps=8 / 255, steps=20, step_size=0.003))).startswith("PGD(eps=8/255, steps=20, ")


def test_numbers_in_words() -> None:
    assert percent_interval({"value": 0.612, "low": 0.5941, "high": 0.63}) == "61.2 [59.4, 63.0]"
    assert number({"value": 0.7, "low": 0.5, "high": None}, 2, sign=True) == "+0.70 [+0.50, inf]"
    assert number({"value": None, "low": -2.0, "high": None}, 2, sign=True) == "undefined"
