"""The paper's tables and figures: our cells are the cards', the paper's are its own, what is missing is named."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copied_runs import set_outcomes
from tiny import SEED, tiny_config, tiny_run, write_tiny_npz
from worstclass.cli.main import app
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.report.paper import reported
from worstclass.reproduce import FIGURES, FORMATS, TABLES, draw_figure, make_table, render
from worstclass.reproduce.rows import no_row
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run

ROOT = Path(__file__).parents[2]
WAT = ROOT / "results" / "cifar10-resnet18-wat-seed1"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run for each method of the paper, on data of our own; the base of rho has the shipped weights."""
    root = tmp_path_factory.mktemp("reproduce")
    made = {"trades": tiny_run(root, "trades", eps=0.02).folder}
    methods: dict[str, dict[str, Any]] = {
        "pgd-at": {"method": "pgd-at"},
        "csl": {"method": "csl"},
        "frl-rw": {"method": "frl-rw"},
        "frl-rwrm": {"method": "frl-rwrm"},
        "wat": {"method": "wat"},
        "wat-0.5": {"method": "wat", "eta": 0.5},
    }
    for name, settings in methods.items():
        made[name] = train_run(tiny_config(root / "tiny.npz", epochs=1, eps=0.02, **settings), root / name).folder
    for folder in made.values():
        evaluate_target(run_target(open_run(folder)), ["pgd-20", "cw", "apgd-ce"], folder)
    return made


def test_our_cells_are_the_cards_and_the_papers_its_own() -> None:
    """The committed WAT run in Table 1: every cell, and the difference between the two."""
    table = make_table("table1", [WAT])
    (block,) = table.blocks
    assert [line.title for line in block.lines] == ["TRADES", "FRL-RW", "FRL-RWRM", "CSL", "WAT", "WAT (reference)"]
    card = json.loads((WAT / "card.json").read_text())["columns"]
    line = block.lines[4]
    assert line.run == WAT
    for cell in line.cells:
        if cell.measure == "rho":
            assert cell.ours is None  # there is no TRADES run to compare with
            continue
        ours = card[cell.attack][cell.measure]
        assert (cell.ours, cell.low, cell.high) == pytest.approx([100 * ours[key] for key in ("value", "low", "high")])
        (printed,) = [
            c for c in reported() if (c.table, c.data, c.method, c.attack) == (1, "cifar10", "wat", cell.attack)
        ]
        assert cell.paper == getattr(printed, cell.measure)
        assert cell.difference == pytest.approx(100 * ours["value"] - cell.paper)
    assert all(cell.ours is None for other in block.lines[:4] for cell in other.cells)
    assert len(table.missing) == 5
    assert table.missing[1] == (
        "FRL-RW: worstclass train cifar10-resnet18-frl-rw && worstclass evaluate runs/cifar10-resnet18-frl-rw-seed1 "
        "--attacks natural,pgd-100,cw,autoattack"
    )


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_the_paper_has_its_place(name: str, tmp_path: Path) -> None:
    """Filled with one run in each setting, a table holds all that the paper prints in it."""
    spec = TABLES[name]
    folders = []
    for data, model in spec.settings:
        folder = tmp_path / f"{data}-{model}"
        shutil.copytree(WAT, folder)
        recipe = (folder / "recipe.toml").read_text()
        recipe = recipe.replace('data = "cifar10"', f'data = "{data}"').replace('"resnet18"', f'"{model}"')
        (folder / "recipe.toml").write_text(recipe)
        folders.append(folder)
    table = make_table(name, folders)
    shown = {
        (block.data, block.model, line.title, cell.attack): cell.paper
        for block in table.blocks
        for line in block.lines
        for cell in line.cells
        if cell.measure == "average" and not line.title.endswith("(reference)")
    }
    printed = [c for c in reported() if c.table == spec.number]
    assert sorted(v for v in shown.values() if v is not None) == sorted(c.average for c in printed)
    assert len(shown) == len(printed)


def test_rho_and_runs_of_other_data(runs: dict[str, Path]) -> None:
    """Our own data have the paper's rows without its numbers; rho is against TRADES among them."""
    table = make_table("table4", list(runs.values()))
    (block,) = table.blocks
    assert (block.data.startswith("npz:"), block.model) == (True, "small-cnn")
    by_title = {line.title: line for line in block.lines}
    assert {cell.paper for line in block.lines for cell in line.cells} == {None}
    rho = {title: line.cells[3].ours for title, line in by_title.items()}
    assert rho["TRADES"] == 0.0
    base = json.loads((runs["trades"] / "card.json").read_text())["columns"]["cw"]
    own = json.loads((runs["csl"] / "card.json").read_text())["columns"]["cw"]
    expected = own["worst"]["value"] / base["worst"]["value"] + own["average"]["value"] / base["average"]["value"] - 2
    assert rho["CSL"] == pytest.approx(expected)
    assert by_title["WAT (reference)"].run is None
    assert any("no run was given, and no recipe is shipped" in line for line in table.missing)
    assert any(str(runs["pgd-at"]) in note and "has no row" in note for note in table.notes)
    assert f"{runs['wat-0.5']}: is WAT, but eta = 0.5, not 0.1" in table.notes


def test_a_run_without_a_row_is_told_from_the_nearest() -> None:
    """A row of the shipped recipe, whose radius counts too; and of several rows that are as near, all."""
    published, setting = open_run(WAT).config, ("cifar10", "resnet18")

    def said(changes: dict[str, Any], table: str = "table1", place: tuple[str, str] = setting) -> str:
        return no_row(published.model_copy(update=changes), TABLES[table].recipes, place)

    assert said({"eta": 0.2, "objective": "bat"}) == "is WAT, but objective = bat, not default, eta = 0.2, not 0.1"
    assert said({"eps": 4 / 255}) == "is WAT, but eps = 4/255, not 8/255"
    assert said({"eps": 4 / 255, "eta": 7.0}, place=("d", "m")) == "is WAT, but eta = 7, not 0.1"
    assert said({"eta": 7.0}, "table3") == "is WAT, but eta = 7, not 0.01 or 0.05 or 0.1 or 0.5"
    assert said({"method": "dafa"}) == "has no row in this table"


def test_rho_is_against_trades_or_not_at_all(runs: dict[str, Path]) -> None:
    """PGD-AT is the base of other reports, and never of the paper's tables."""
    table = make_table("table4", [runs["pgd-at"], runs["wat"], runs["csl"]])
    assert all(cell.ours is None for line in table.blocks[0].lines for cell in line.cells if cell.measure == "rho")
    assert any("no TRADES run was given" in note for note in table.notes)


def test_runs_of_other_settings_are_named(runs: dict[str, Path]) -> None:
    for notes in (make_table("table1", [WAT, runs["wat"]]).notes, draw_figure("figure4", [WAT, runs["wat"]])[1]):
        assert any(str(runs["wat"]) in note and "is not in it" in note for note in notes)


def test_eta_tells_rows_apart(runs: dict[str, Path]) -> None:
    (block,) = make_table("table3", list(runs.values())).blocks
    found = {line.title: line.run for line in block.lines}
    assert found["WAT, eta 0.5"] == runs["wat-0.5"]
    assert found["WAT, eta 0.1"] == runs["wat"]
    assert found["WAT, eta 0.01"] is None


def test_seeds_have_a_line_each(runs: dict[str, Path], tmp_path: Path) -> None:
    again = train_run(
        tiny_config(runs["wat"].parent / "tiny.npz", epochs=1, eps=0.02, seed=SEED + 1), tmp_path / "wat2"
    )
    evaluate_target(run_target(again), ["cw"], again.folder)
    (block,) = make_table("table4", [runs["trades"], runs["wat"], again.folder]).blocks
    assert [line.title for line in block.lines if line.title.startswith("WAT, seed")] == [
        f"WAT, seed {SEED}",
        f"WAT, seed {SEED + 1}",
    ]


def test_an_attack_that_was_not_run_is_named(runs: dict[str, Path]) -> None:
    table = make_table("table1", [runs["trades"], runs["wat"]])
    assert f"WAT: worstclass evaluate {runs['wat']} --attacks pgd-100,autoattack" in table.missing


def test_a_run_that_is_not_by_the_recipe_is_noted(tmp_path: Path) -> None:
    shutil.copytree(WAT, tmp_path / "short")
    recipe = (tmp_path / "short" / "recipe.toml").read_text()
    (tmp_path / "short" / "recipe.toml").write_text(recipe.replace("epochs = 100", "epochs = 10"))
    (note,) = [note for note in make_table("table1", [tmp_path / "short"]).notes if "not the recipe" in note]
    assert note.endswith("not the recipe cifar10-resnet18-wat: epochs = 10")


def test_formats_hold_the_same_numbers() -> None:
    table = make_table("table5", [WAT])
    cell = next(c for c in table.blocks[0].lines[4].cells if (c.attack, c.measure) == ("pgd-100", "worst"))
    text = f"{cell.ours:.1f} [{cell.low:.1f}, {cell.high:.1f}]"
    for kind in ("text", "markdown", "latex"):
        shown = render(table, kind)
        assert text in shown, kind
        assert "36.6" in shown
        assert f"{cell.difference:+.1f}" in shown
        assert "worstclass train cifar10-resnet18-csl" in shown
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert len(lines) == 6 * 3 * 4
    (own,) = [
        each for each in lines if (each["method"], each["attack"], each["measure"]) == ("WAT", "pgd-100", "worst")
    ]
    assert float(own["ours"]) == cell.ours
    assert float(own["difference"]) == cell.difference
    assert set(FORMATS) == {"text", "markdown", "latex", "csv"}


def test_latex_is_well_formed(runs: dict[str, Path]) -> None:
    """Every row has as many cells as there are columns; what LaTeX reads as a command is escaped."""
    latex = render(make_table("table1", list(runs.values())), "latex")
    body = [line for line in latex.splitlines() if not line.startswith("%")]
    (columns,) = re.findall(r"tabular}{(l+r+)}", latex)
    for line in body:
        if line.endswith("\\\\"):
            spans = [int(n) for n in re.findall(r"multicolumn{(\d+)}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + 1 - len(spans) + sum(spans) == len(columns), line
    assert not re.search(r"(?<!\\)[%#_]", "\n".join(body))
    assert latex.count("\\begin{") == latex.count("\\end{") == 1
    assert [word for word in ("\\toprule", "\\midrule", "\\bottomrule") if word not in latex] == []


def test_markdown_is_a_table(runs: dict[str, Path]) -> None:
    rows = [
        line for line in render(make_table("table4", list(runs.values())), "markdown").splitlines() if line[:1] == "|"
    ]
    assert {line.count("|") for line in rows} == {2 + 4 + 1}


def test_pairs_are_drawn_from_the_cards(runs: dict[str, Path]) -> None:
    figure, remarks = draw_figure("figure4", list(runs.values()))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "WAT and TRADES",
        "WAT and CSL",
        "WAT and FRL-RW",
        "WAT and FRL-RWRM",
    ]
    for axes, other in zip(figure.axes, ("trades", "csl", "frl-rw", "frl-rwrm"), strict=True):
        for line, folder in zip(axes.get_lines(), (runs["wat"], runs[other]), strict=True):
            classes = json.loads((folder / "card.json").read_text())["columns"]["cw"]["classes"]
            assert np.allclose(line.get_ydata(), [100 * c["value"] for c in classes])
        assert [line.get_color() for line in axes.get_lines()] == ["#0072B2", "#8E44AD"]
    assert remarks == []


def test_bars_are_drawn_from_the_cards(runs: dict[str, Path]) -> None:
    figure, _ = draw_figure("figure2", list(runs.values()))
    for axes, folder in zip(figure.axes, (runs["pgd-at"], runs["trades"]), strict=True):
        classes = json.loads((folder / "card.json").read_text())["columns"]["pgd-20"]["classes"]
        bars: list[Any] = list(axes.patches)
        assert np.allclose([bar.get_height() for bar in bars], [100 * c["value"] for c in classes])


def test_a_class_without_images_is_not_the_weakest(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["trades"], folder := tmp_path / "trades")
    found = Outcomes.load(folder / "outcomes.npz")
    kept = found.labels != 0
    set_outcomes(folder, Outcomes(found.labels[kept], {n: each[kept] for n, each in found.predictions.items()}))
    figure, _ = draw_figure("figure2", [folder])
    assert "nan" not in figure.axes[1].get_title(loc="left")


def test_the_weight_of_a_class(runs: dict[str, Path], tmp_path: Path) -> None:
    """Figure 3: two points of the five, in place."""
    folders = []
    for weight in (0.05, 0.25):
        settings: dict[str, Any] = {"method": "fixed", "focus_class": 3, "focus_weight": weight}
        data = write_tiny_npz(tmp_path / "four.npz", num_classes=4)
        run = train_run(tiny_config(data, epochs=1, **settings), tmp_path / str(weight))
        evaluate_target(run_target(run), ["pgd-20"], run.folder)
        folders.append(run.folder)
    figure, remarks = draw_figure("figure3", folders)
    average = figure.axes[0].get_lines()[0]
    assert np.allclose(average.get_xdata(orig=False), [0.05, 0.25])
    cards = [json.loads((folder / "card.json").read_text())["columns"]["pgd-20"] for folder in folders]
    assert np.allclose(average.get_ydata(orig=False), [100 * card["average"]["value"] for card in cards])
    assert len(remarks) == 3


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_without_its_runs_is_drawn_and_says_what_is_missing(name: str, tmp_path: Path) -> None:
    figure, remarks = draw_figure(name, [WAT])
    assert any("worstclass train cifar10-resnet18-" in remark for remark in remarks)
    figure.savefig(tmp_path / "figure.png")


def test_the_command(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(folder) for folder in runs.values()]
    app(["reproduce", "figure4", *folders, "--out", str(tmp_path / "f4")], standalone_mode=False)
    assert {path.name for path in tmp_path.iterdir()} == {"f4.svg", "f4.pdf", "f4.png"}
    for name in ("one.pdf", "other.pdf"):
        app(["reproduce", "figure4", *folders, "--out", str(tmp_path / name)], standalone_mode=False)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "other.pdf").read_bytes()
    app(["reproduce", "table4", *folders, "--format", "csv", "--out", str(tmp_path / "t.csv")], standalone_mode=False)
    assert (tmp_path / "t.csv").read_text().startswith("table,data,model")
    shown = capsys.readouterr()
    assert "missing: WAT (reference)" in shown.err
    app(["reproduce", "table4", *folders, "--format", "markdown"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("**Table 4")
    for wrong in (
        ["table9", *folders],
        ["figure4", *folders, "--format", "csv"],
        ["table1", *folders, "--format", "x"],
    ):
        with pytest.raises(UserError):
            app(["reproduce", *wrong], standalone_mode=False)
    with pytest.raises(UserError, match="ending"):
        app(["reproduce", "figure4", *folders, "--out", str(tmp_path / "f.gif")], standalone_mode=False)
