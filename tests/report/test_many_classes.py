"""From 20 classes on, tables, headlines and figures have the worst tenth; below, nothing changes."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from many_classes import class_names, made_up
from worstclass.cli.board import print_results
from worstclass.cli.console import print_card
from worstclass.evaluation.saved import load_card
from worstclass.metrics import compare, worst_tenth, worst_tenth_interval
from worstclass.metrics.percentages import percent_interval
from worstclass.report import load_results
from worstclass.report.answer import headline
from worstclass.report.figures import classwise, forest, training
from worstclass.report.groups import group_results
from worstclass.report.leaderboard import leaderboard_header, leaderboard_notes, leaderboard_rows, render_leaderboard
from worstclass.report.page import page_data
from worstclass.report.results import Result
from worstclass.report.tables import TENTH, TENTH_NOTE, header, notes, rows
from worstclass.sweep.results import summarize

PGD = "pgd-20"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """TRADES and two seeds of WAT, of 43 classes."""
    root = tmp_path_factory.mktemp("many")
    folders = [made_up(root / "trades", 43), made_up(root / "wat1", 43, method="wat")]
    return load_results([*folders, made_up(root / "wat2", 43, method="wat", seed=2)])


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    root = tmp_path_factory.mktemp("few")
    return load_results([made_up(root / "trades", 19), made_up(root / "wat", 19, method="wat")])


def test_the_measure_is_that_of_the_outcomes(results: list[Result]) -> None:
    trades, wat = results[:2]
    labels, ours = wat.outcomes.labels, wat.outcomes.predictions[PGD]
    correct, counts = np.bincount(labels[ours == labels], minlength=43), np.bincount(labels)
    found = wat.columns[PGD]["worst_tenth"]
    assert found["value"] == worst_tenth(correct / counts)
    assert (found["low"], found["high"]) == worst_tenth_interval(correct, counts)
    gap = compare(labels, ours, trades.outcomes.predictions[PGD], 43).worst_tenth_difference
    assert wat.columns[PGD]["against_base"]["worst_tenth_difference"] == gap._asdict()


def test_every_table_has_it(results: list[Result], capsys: pytest.CaptureFixture[str]) -> None:
    place = header(results).index(TENTH)
    shown = {(row[0], row[1]): row[place] for row in rows(results)}
    for result in results:
        assert shown["PGD-20", result.title] == percent_interval(result.columns[PGD]["worst_tenth"])
    assert TENTH_NOTE in notes(results)
    card = load_card(results[0].folder)
    print_card(card)
    printed = capsys.readouterr().out
    assert TENTH in printed
    assert percent_interval(card["columns"][PGD]["worst_tenth"]) in printed


def test_the_leaderboard_has_it(results: list[Result]) -> None:
    groups = group_results(results, [PGD])
    wat = groups[1].columns[PGD]
    values = [result.columns[PGD]["worst_tenth"]["value"] for result in results[1:]]
    assert wat["worst_tenth"]["seeds"] == values
    assert wat["worst_tenth"]["value"] == pytest.approx(np.mean(values))
    names, (best, base) = leaderboard_header(groups), leaderboard_rows(groups, [PGD])
    assert len(names) == len(best) == len(base)
    assert best[names.index(TENTH)].startswith(f"{100 * np.mean(values):.1f} ± ")
    gap = wat["against_base"]["worst_tenth_difference"]
    assert gap["value"] == pytest.approx(np.mean(values) - results[0].columns[PGD]["worst_tenth"]["value"])
    assert best[names.index("Worst tenth - base")].startswith(f"{100 * gap['value']:+.1f} [")
    assert base[names.index("Worst tenth - base")] == "base"
    assert TENTH_NOTE in leaderboard_notes(groups)
    lines = {
        (line["method"], line["measure"]): float(line["mean"])
        for line in csv.DictReader(io.StringIO(render_leaderboard(groups, [PGD], "csv")))
    }
    assert lines["WAT", "worst_tenth"] == wat["worst_tenth"]["value"]
    assert lines["WAT", "worst_tenth_difference"] == gap["value"]
    for kind in ("text", "markdown", "latex"):
        assert "Worst tenth" in render_leaderboard(groups, [PGD], kind)


def test_the_headline_has_three_numbers_with_intervals(results: list[Result]) -> None:
    first = results[0]
    (sentence,) = headline(group_results([first]), PGD)
    for key in ("average", "worst", "worst_tenth"):
        value, low, high = (100 * first.columns[PGD][key][end] for end in ("value", "low", "high"))
        assert f"{value:.1f}% [{low:.1f}, {high:.1f}]" in sentence
    assert all("worst tenth" in sentence for sentence in headline(group_results(results), PGD))


def test_few_classes_are_shown_as_ever(few: list[Result], capsys: pytest.CaptureFixture[str]) -> None:
    groups = group_results(few, [PGD])
    print_card(load_card(few[0].folder))
    texts = [*headline(groups, PGD), *header(few), *notes(few), capsys.readouterr().out]
    texts += [render_leaderboard(groups, [PGD], kind) for kind in ("text", "csv")]
    assert not any("tenth" in text.lower() for text in texts)
    assert len(forest(groups, PGD).axes) == 2
    assert "confusion" in page_data(few)["runs"][0]["columns"][PGD]


@pytest.mark.parametrize("num_classes", [20, 43, 200])
def test_figures_name_the_lowest_and_the_highest(num_classes: int, tmp_path: Path) -> None:
    (result,) = load_results([made_up(tmp_path / "run", num_classes)])
    accuracy = [each["value"] for each in result.columns[PGD]["classes"]]
    order = np.argsort(accuracy, kind="stable")
    left, right = classwise([result], PGD).axes
    shown = [label.get_text() for label in left.get_yticklabels()]
    assert shown[:10] == [class_names(num_classes)[k] for k in order[:10]]
    assert shown[10:20] == [class_names(num_classes)[k] for k in order[-10:]]
    assert shown[20] == (f"… {num_classes - 20} more …" if num_classes > 20 else "")
    assert np.asarray(right.lines[0].get_ydata()).tolist() == pytest.approx(np.sort(accuracy) * 100)
    assert result.run is not None
    texts = {text.get_text() for text in training([("TRADES", result.run)]).axes[0].texts}
    assert texts == {"average", "worst class", "worst tenth", "kept"}
    assert len(forest(group_results([result], [PGD]), PGD).axes) == 3


def test_the_page_holds_no_matrix_of_many_classes(results: list[Result]) -> None:
    """Of each class the three that it is most taken for; of the epochs, bands and the three weakest."""
    data = page_data(results)
    run, outcomes = data["runs"][0], results[0].outcomes
    column, log = run["columns"][PGD], run["log"]
    assert "confusion" not in column
    for k, thieves in enumerate(column["confusions"]):
        taken = np.bincount(outcomes.predictions[PGD][outcomes.labels == k], minlength=43) / 30
        taken[k] = -1
        assert [share for _, share in thieves] == pytest.approx(sorted(taken, reverse=True)[:3], abs=1e-4)
        assert [taken[j] for j, _ in thieves] == pytest.approx([share for _, share in thieves], abs=1e-4)
    last = np.array(results[0].run.log[-1]["class_robust_accuracy"]) if results[0].run else np.array([])
    assert log["weakest"] == np.argsort(np.round(last, 4), kind="stable")[:3].tolist()
    assert log["class_robust_accuracy"]["bands"][-1][0] == pytest.approx(last.min(), abs=1e-4)
    assert [line[-1] for line in log["class_robust_accuracy"]["lines"]] == pytest.approx(np.sort(last)[:3], abs=1e-4)


@pytest.mark.parametrize(("num_classes", "shown"), [(19, False), (43, True)])
def test_a_sweep_has_it(num_classes: int, shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    classes = {f"class {k}": k / num_classes for k in range(num_classes)}
    tenth = worst_tenth(list(classes.values()))
    cell = {"average": 0.5, "worst": 0.0, "worst_class": "class 0", "worst_tenth": tenth, "classes": classes}
    jobs = [
        {"name": f"wat-seed{seed}", "group": "wat", "seed": seed, "state": "done", "results": {PGD: cell}}
        for seed in (1, 2)
    ]
    summary = summarize(jobs)
    assert summary[0]["results"][PGD]["worst_tenth"] == {"mean": tenth, "std": 0.0}
    print_results({"sweep": {"attacks": PGD}, "jobs": jobs, "summary": summary})
    printed = capsys.readouterr().out
    assert ("worst tenth" in printed) == shown
    assert (f"50.0 / 0.0 / {100 * tenth:.1f}" in printed) == shown
    assert (f"/ {100 * tenth:.1f} ± 0.0" in printed) == shown
