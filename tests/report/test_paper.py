"""The paper's figures: complete, consistent with each other, and with their formula except where the docs say so."""

from collections import Counter
from pathlib import Path

import pytest

from worstclass.config.recipe import recipe_names
from worstclass.report.paper import Reported, recomputed_rho, reported

pytestmark = pytest.mark.fast

EQUATIONS = (Path(__file__).parents[2] / "docs" / "equations.md").read_text()


def test_every_table_is_there() -> None:
    assert Counter(cell.table for cell in reported()) == {1: 40, 2: 20, 3: 20, 4: 5, 5: 15}
    assert {cell.method for cell in reported()} == {"trades", "frl-rw", "frl-rwrm", "csl", "wat"}
    assert all(0 < cell.worst <= cell.average < 100 for cell in reported())
    assert all((cell.class_variance is not None) == (cell.table > 3) for cell in reported())
    assert all((cell.eta is not None) == (cell.method == "wat") for cell in reported())


def test_known_cells() -> None:
    """By hand, from the abstract of it all: 48.64 and 21.7 for TRADES, 46.04 and 30.1 for WAT."""
    cells = {(c.table, c.data, c.method, c.eta, c.attack): c for c in reported()}
    trades, wat = cells[1, "cifar10", "trades", None, "autoattack"], cells[1, "cifar10", "wat", 0.1, "autoattack"]
    assert (trades.average, trades.worst, wat.average, wat.worst, wat.rho) == (48.64, 21.7, 46.04, 30.1, 0.334)
    assert cells[2, "cifar10", "csl", None, "pgd-100"].average == 45.7
    assert cells[3, "cifar10", "wat", 0.5, "cw"].rho == 0.250
    assert cells[5, "cifar10", "csl", None, "natural"].class_variance == 0.0018


def test_tables_agree_where_they_repeat_each_other() -> None:
    seen: dict[tuple[object, ...], Reported] = {}
    for cell in reported():
        key = (cell.data, cell.model, cell.method, cell.eta, cell.attack)
        first = seen.setdefault(key, cell)
        assert (cell.average, cell.worst, cell.rho) == (first.average, first.worst, first.rho)


def test_every_rho_follows_from_its_accuracies_or_is_listed() -> None:
    """To 0.002; the rest is in docs/equations.md, with the value that the formula gives."""
    wrong = [cell for cell in reported() if abs(recomputed_rho(cell) - cell.rho) > 0.002]
    assert {(c.table, c.data, c.attack, c.rho) for c in wrong} == {
        (1, "cifar100", "natural", -0.020),
        (1, "cifar100", "pgd-100", 0.643),
        (1, "cifar100", "cw", 1.945),
        (2, "cifar10", "natural", 0.062),
    }
    text = " ".join(EQUATIONS.split())
    for cell in wrong:
        assert cell.method == "wat"
        assert f"{recomputed_rho(cell):.3f} (printed {cell.rho:.3f})" in text


def test_every_row_has_a_recipe() -> None:
    for cell in reported():
        name = f"{cell.data}-{cell.model}-{cell.method}"
        name += f"-eta{cell.eta:g}" if cell.table == 3 and cell.eta else ""
        assert name in recipe_names()
