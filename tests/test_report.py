"""Tables, figures and the page, from evaluated runs."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tiny import tiny_config, write_tiny_npz
from worstclass.errors import UserError
from worstclass.report import headline, load_results, rich_table, write_report
from worstclass.report.tables import number, percent, rows
from worstclass.runs import train_run
from worstclass.subjects import evaluate_subject, run_subject


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("report")
    data = write_tiny_npz(root / "tiny.npz")
    made = []
    for method in ("trades", "wat"):
        run = train_run(tiny_config(data, method=method, epochs=2), root / method)
        evaluate_subject(run_subject(run), ["pgd-5"], root / method)
        made.append(root / method)
    return made


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
    assert table[3][4] == card["worst"]["class"]
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(rich_table(results, "title"))
    text = console.export_text()
    assert all(cell in text for row in table for cell in row)


def test_base_is_chosen_or_given(folders: list[Path]) -> None:
    swapped = load_results(folders[::-1])
    assert [result.title for result in swapped] == ["WAT", "TRADES"]
    assert [result.is_base for result in swapped] == [False, True]
    given = load_results([folders[1]], base=folders[0])
    first = load_results(folders)[1].columns["pgd-5"]["against_base"]
    assert given[0].columns["pgd-5"]["against_base"] == first
    twice = load_results([folders[0], folders[0]])
    assert [result.title for result in twice] == ["TRADES (trades)", "TRADES (trades)"]


def test_a_natural_run_is_never_the_base(folders: list[Path], tmp_path: Path) -> None:
    """Its accuracy under attack is next to nothing, and rho against it says nothing."""
    data = folders[0].parent / "tiny.npz"
    run = train_run(tiny_config(data, method="natural", epochs=1), tmp_path / "natural")
    evaluate_subject(run_subject(run), ["pgd-5"], run.folder)
    assert [result.is_base for result in load_results([run.folder, *folders])] == [False, True, False]
    alone = load_results([run.folder, folders[1]])
    assert not any("against_base" in column for result in alone for column in result.columns.values())
    assert {row[6] for row in rows(alone)} == {""}


def test_runs_with_other_attacks_or_radii(folders: list[Path], tmp_path: Path) -> None:
    data = folders[0].parent / "tiny.npz"
    run = train_run(tiny_config(data, epochs=1), tmp_path / "cw")
    evaluate_subject(run_subject(run), ["cw-5"], run.folder)
    write_report(load_results([folders[0], run.folder]), tmp_path / "report.html")
    assert "cw-5" not in {path.stem for path in tmp_path.iterdir()}
    wider = train_run(tiny_config(data, epochs=1, eps=0.1), tmp_path / "wider")
    evaluate_subject(run_subject(wider), ["pgd-5"], wider.folder)
    with pytest.raises(UserError, match="another eps"):
        load_results([folders[0], wider.folder])


def test_unevaluated_runs_are_named(folders: list[Path], tmp_path: Path) -> None:
    run = train_run(tiny_config(folders[0].parent / "tiny.npz", epochs=1), tmp_path / "run")
    with pytest.raises(UserError, match=re.escape(f"worstclass evaluate {run.folder}")):
        load_results([folders[0], run.folder])


def test_page(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    written = write_report(results, tmp_path / "report.html")
    names = {path.name for path in written}
    assert {"report.html", "classwise-pgd-5.png", "classwise-natural.svg", "training.png"} <= names
    assert all(path.stat().st_size > 1000 for path in written)
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 3_000_000
    for row in rows(results):
        for cell in row:
            assert cell in page
    for sentence in headline(results):
        assert sentence in page
    assert "<script" not in page
    assert not re.findall(r"""(?:src|href)=["'](?!#)[^"']+""", page)  # nothing is loaded from anywhere
    assert page.count("<svg") == 3


def test_page_escapes_names(folders: list[Path], tmp_path: Path) -> None:
    results = load_results(folders)
    evil = "<script>alert(1)</script>"
    for result in results:
        result.run.about["class_names"][0] = evil
        for column in result.columns.values():
            column["worst"]["class"] = evil
    write_report(results, tmp_path / "report.html")
    assert "<script" not in (tmp_path / "report.html").read_text()


def test_numbers_in_words() -> None:
    assert percent({"value": 0.612, "low": 0.5941, "high": 0.63}) == "61.2 [59.4, 63.0]"
    assert number({"value": 0.7, "low": 0.5, "high": None}, 2, sign=True) == "+0.70 [+0.50, inf]"
    assert number({"value": None, "low": -2.0, "high": None}, 2, sign=True) == "undefined"
