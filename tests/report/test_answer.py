"""What the page opens with, tables to copy, and where the theory is."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from many_classes import made_up
from worstclass.config.recipe import make_config
from worstclass.evaluation.card import measure
from worstclass.evaluation.outcomes import Outcomes
from worstclass.report import Group, Result, group_results, load_results, write_report
from worstclass.report.answer import _gains, answers, comparison, headline
from worstclass.report.leaderboard import render_leaderboard
from worstclass.report.markup import escape_latex, latex_table, markdown_table, plain_text
from worstclass.report.page import page_data
from worstclass.report.tables import notes, render_table, rows

NAMES = ["cat", "dog", "deer"]
AA = "autoattack"
LABELS = np.repeat(np.arange(3), 10)


def attacked(right: list[int]) -> np.ndarray:
    """Predictions of which so many of each class are right; of the wrong ones, most are of the next class."""
    wrong = (LABELS + 1 + (np.arange(30) % 10 == 9)) % 3
    return np.where(np.arange(30) % 10 < np.repeat(right, 10), LABELS, wrong)


def result(title: str, outcomes: Outcomes) -> Result:
    columns = {name: measure(LABELS, predicted, NAMES) for name, predicted in outcomes.predictions.items()}
    return Result(title, Path(title), None, outcomes, {"about": {}, "class_names": NAMES}, columns, False)


@pytest.fixture
def one() -> Group:
    """Cats: 9 of 10 are right; then `a` takes 3 and `b` takes 2, and PGD-20 alone leaves 3."""
    broken = np.full(30, "", dtype="U8")
    broken[:6] = ["natural", "b", "b", "a", "a", "a"]
    predictions = {"natural": attacked([9, 10, 10]), AA: attacked([4, 9, 8]), "pgd-20": attacked([3, 9, 9])}
    (group,) = group_results([result("net", Outcomes(LABELS, predictions, {AA: broken}))])
    return group


def test_the_weakest_class_and_what_takes_it(one: Group) -> None:
    (answer,) = answers([one], AA)
    assert (answer.weakest, answer.note, answer.about, answer.attack) == ("cat", "", "", "AutoAttack")
    low, high = (100 * one.results[0].columns[AA]["worst"][end] for end in ("low", "high"))
    assert answer.worst == f"40.0% [{low:.1f}, {high:.1f}]"
    assert answer.taken == (
        "90.0% on clean images, 40.0% under AutoAttack (A takes 30.0%, B takes 20.0%); PGD-20 leaves 30.0%"
    )
    assert answer.confused == "dog (50.0%), deer (10.0%)"
    assert answer.sentence.startswith(f"net: weakest class cat at {answer.worst} under AutoAttack, 70.0% [")
    assert comparison([one], AA) == ""
    assert headline([one], AA) == [answer.sentence]
    (natural,) = answers([one], "natural")
    assert natural.taken == "no attack was run"


def test_what_ships_of_a_method_is_in_its_answer(one: Group) -> None:
    """Of a run, and of seeds, where it may differ."""

    def of(seed: int, **about: float) -> Result:
        recipe = make_config({"method": "guarded", "seed": seed, "base_start": 0.5, "adjust_budget": 0.1})
        return replace(one.results[0], recipe=recipe, card={**one.results[0].card, "about": about})

    def said(*results: Result) -> str:
        (answer,) = answers(group_results(results), AA)
        assert answer.sentence.endswith(f"{answer.shipped[1:]}.")
        return answer.shipped

    base = "these weights are those of the base (TRADES): class weights gained too little for what they cost"
    assert said(of(1, mix=1.0, adjusted=0.5)) == ""
    assert said(of(1, mix=0.0)) == said(of(1, mix=0.0), of(2, mix=0.0)) == base
    assert said(of(1, mix=0.85)) == "weights 85% of the way from its base (TRADES)"
    assert said(of(1, adjusted=0.0)).startswith("the logits are not adjusted: no bias raised the weakest classes")
    assert said(of(1, mix=1.0), of(2, mix=0.0)) == f"seed 2: {base}"


def test_classes_that_are_equally_weak_are_named() -> None:
    both = Outcomes(LABELS, {"natural": LABELS, AA: attacked([2, 9, 2])})
    (answer,) = answers(group_results([result("net", both)]), AA)
    assert (answer.weakest, answer.note, answer.about) == ("2 classes", "equally weak: cat, deer", "cat: ")


def test_without_a_base_methods_are_ranked_in_a_sentence() -> None:
    nets = [
        result(name, Outcomes(LABELS, {"natural": LABELS, AA: attacked([right, 9, 9])}))
        for name, right in (("low", 2), ("high", 5))
    ]
    groups = group_results(nets)
    assert [answer.title for answer in answers(groups, AA)] == ["high", "low"]
    assert comparison(groups, AA).startswith("Weakest class, from best to worst: high 50.0%, low 20.0%;")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    root = tmp_path_factory.mktemp("answer")
    kinds = [("trades", 1), ("trades", 2), ("wat", 1), ("wat", 2)]
    return load_results([made_up(root / f"{method}{seed}", 10, method=method, seed=seed) for method, seed in kinds])


def test_seeds_are_one_answer_and_gains_have_intervals(results: list[Result]) -> None:
    groups = group_results(results)
    found = answers(groups, "pgd-20")
    assert sorted((answer.title, answer.seeds) for answer in found) == [("TRADES", 2), ("WAT", 2)]
    gap = groups[1].columns["pgd-20"]["against_base"]["worst_difference"]
    value, low, high = (100 * gap[end] for end in ("value", "low", "high"))
    assert f"Against TRADES: WAT {value:+.1f} points [{low:+.1f}, {high:+.1f}]" in comparison(groups, "pgd-20")
    average = groups[1].columns["pgd-20"]["against_base"]["average_difference"]
    said = comparison(groups, "pgd-20")
    assert ("for the weakest class (may be chance)" in said) == (low <= 0 <= high)
    assert ("on average (may be chance)" in said) == (average["low"] <= 0 <= average["high"])


@pytest.mark.parametrize(("high", "said"), [(-0.01, "-5.0 on average"), (0.0, "-5.0 on average (may be chance)")])
def test_an_average_that_may_be_chance_says_so(high: float, said: str) -> None:
    gain = {"value": 0.2, "low": 0.1, "high": 0.3}
    against = {"worst_difference": gain, "average_difference": {"value": -0.05, "low": -0.1, "high": high}}
    assert _gains(against, many=False) == f"+20.0 points [+10.0, +30.0] for the weakest class and {said}"


def test_seeds_that_disagree_are_named(one: Group) -> None:
    from worstclass.report.answer import _weakest

    table = np.array([[0.2, 0.3, np.nan], [0.3, 0.2, np.nan], [0.2, 0.9, np.nan]])
    assert _weakest(table, NAMES) == ("cat or dog", "by seed: cat, dog, cat")
    assert _weakest(table[[0, 2]], NAMES) == ("cat", "")


def test_the_page_opens_with_the_answer_and_ends_with_folded_theory(results: list[Result], tmp_path: Path) -> None:
    write_report(results, tmp_path / "report.html", gallery=False)
    markup = re.sub(r"<(script|style).*?</\1>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    sections = re.findall(r'<h2 id="([\w-]+)"', markup)
    assert (sections[0], sections[-1]) == ("answer", "theory")
    assert comparison(group_results(results), "pgd-20") in markup
    before, _, theory = markup.partition('<details class="theory">')
    assert "heorem" not in before
    assert "Theorem 1" in theory
    assert "fail" not in theory.partition("<h3>")[0]
    ids = re.findall(r' id="([\w-]+)"', markup)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([\w-]+)"', markup)) <= set(ids)
    assert {"forest", "classwise", "plane", "confusion", "weights"} <= set(re.findall(r'href="#([\w-]+)"', markup))


def test_what_is_copied_is_what_format_prints(results: list[Result]) -> None:
    groups = group_results(results)
    copies = page_data(results, groups)["copies"]
    for kind in ("markdown", "latex"):
        assert copies["methods"][kind] == render_leaderboard(groups, ["natural", "pgd-20"], kind)
        assert copies["measures"][kind] == render_table(results, kind)
    lines = copies["measures"]["markdown"].splitlines()
    assert lines[2] == f"| {' | '.join(rows(results)[0])} |"
    assert lines[-len(notes(results)) :] == notes(results)


def test_no_name_is_a_command_of_latex_or_a_cell_of_markdown() -> None:
    assert escape_latex(r"\input{a_b} ~50% ± 1^2") == (
        r"\textbackslash{}input\{a\_b\} \textasciitilde{}50\% $\pm$ 1\textasciicircum{}2"
    )
    assert markdown_table(("a", "b"), [("x|y", "1")], (0,)) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"
    assert "\\begin{tabular}{lr}" in latex_table(("a", "b"), [("x", "1")], (0,))


def test_a_table_as_text_is_the_same_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich, which notices the notebook, would show the table there and leave the text empty."""
    table = Table("Class", "Accuracy")
    table.add_row("shirt " * 50, "0.0")
    outside = plain_text(table)
    assert "shirt " * 49 in outside  # nothing is cut or wrapped
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert plain_text(table) == outside
    assert capsys.readouterr().out == ""
