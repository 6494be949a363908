"""What an audit returns: it prints and shows itself, compares, plots, saves and reports."""

import importlib
import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import worstclass as wc
from robust_cnn import load_cnn
from tiny import write_tiny_npz
from worstclass.auditing.result import AuditResult
from worstclass.data import Images, open_source
from worstclass.errors import UserError
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.files import read_json
from worstclass.metrics import compare
from worstclass.models import SmallCNN
from worstclass.report import load_results

EPS = 0.05


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"npz:{write_tiny_npz(tmp_path_factory.mktemp('audit') / 'tiny.npz')}"


@pytest.fixture
def model() -> SmallCNN:
    return load_cnn("tiny_cnn", 3)


@pytest.fixture(scope="module")
def images(data: str) -> Images:
    return open_source(data).read("test")


def records(result: AuditResult) -> list[dict[str, Any]]:
    return list(result.per_class)


# --- the result ---


@pytest.fixture(scope="module")
def result(images: Images) -> AuditResult:
    names = ["<b>top</b>", "[red]middle", "bottom"]
    return wc.audit(load_cnn("tiny_cnn", 3), (images.x, images.y), EPS, attacks="pgd-5", class_names=names, limit=45)


def test_a_result_prints_and_shows_itself(result: AuditResult) -> None:
    text = str(result)
    assert text.splitlines()[0] == "SmallCNN on arrays: L-inf radius 0.05, 45 images, 3 classes"
    assert f"Weakest class under PGD-5: {result.worst.name}" in text
    assert all(name in text for name in ("<b>top</b>", "[red]middle", "bottom", "Natural", "PGD-5"))
    assert f"{100 * result.average.value:.1f} [{100 * result.average.low:.1f}" in text
    assert "strong-attack: run: pgd-5." in text
    assert repr(result) == text
    shown = result._repr_html_()
    assert "&lt;b&gt;top&lt;/b&gt;" in shown
    assert "<b>" not in shown
    assert shown.count("<tr>") == 2 + 2 + 3
    with pytest.raises(UserError, match="unknown attack 'pgd-6'"):
        result.under("pgd-6")


def test_many_classes_show_their_worst_tenth() -> None:
    """A linear model of 40 pixels, one a class, that is wrong on half of the images of three classes."""

    class Brightest(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 20 * x.flatten(1)

    y = torch.arange(400) % 40
    seen = torch.where((y < 3) & (torch.arange(400) < 200), y + 1, y)
    x = 0.5 * torch.nn.functional.one_hot(seen, 40).float().view(400, 1, 5, 8)
    found = wc.audit(Brightest().eval(), (x, y), 0.01, attacks="pgd-1", checks=False)
    assert found.worst_tenth.value == pytest.approx((3 * 0.5 + 1) / 4)
    assert "Worst tenth %" in str(found)
    assert f"{100 * found.worst_tenth.value:.1f} [" in str(found)
    assert "Worst tenth" in str(found.compare(found))


def test_the_strongest_of_attacks_without_a_rank_leaves_the_least(images: Images, model: SmallCNN) -> None:
    """In whichever order they were asked for: a gate speaks of it."""
    for attacks in (["pgd-5", "pgd-1"], ["pgd-1", "pgd-5"]):
        found = wc.audit(model, (images.x, images.y), EPS, attacks=attacks, checks=False)
        assert found.average.value == min(found.under(name)[0].value for name in found.card["columns"])


def test_an_attack_that_leaves_less_than_a_ranked_one_is_the_strongest(result: AuditResult) -> None:
    """Square on masked gradients, which PGD does not see; what AutoAttack leaves comes first all the same."""

    def strongest(**left: float) -> str:
        columns = {name.replace("_", "-"): {"average": {"value": value}} for name, value in left.items()}
        return replace(result, card={**result.card, "columns": columns}).attack

    assert strongest(natural=0.9, pgd_20=0.7, square=0.2) == "square"
    assert strongest(natural=0.9, pgd_100=0.6, cw=0.5, pgd_20=0.7) == "cw"
    assert strongest(natural=0.9, pgd_20=0.0, apgd_t=0.0, square=0.0) == "apgd-t"
    assert strongest(natural=0.9, pgd_20=0.4, autoattack=0.41) == "autoattack"


def test_per_class_is_a_frame_where_pandas_is_there(result: AuditResult, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "pandas" else find(name, *rest)
    )
    rows = records(result)
    assert [row["class"] for row in rows] == result.card["class_names"]
    assert {row["images"] for row in rows} == {15}
    assert all(row["pgd-5_low"] <= row["pgd-5"] <= row["pgd-5_high"] for row in rows)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: object())
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda given: ("frame", given)))
    assert result.per_class == ("frame", rows)


def test_results_are_compared_image_by_image(result: AuditResult, images: Images, tmp_path: Path) -> None:
    other = load_cnn("tiny_cnn", 3)
    with torch.no_grad():
        list(other.parameters())[-1][0] += 1.0  # the bias of the first class
    names = result.card["class_names"]
    options: dict[str, Any] = {"attacks": ["pgd-5", "fgsm"], "class_names": names, "limit": 45, "checks": False}
    base = wc.audit(other, (images.x, images.y), EPS, **options)
    found = result.compare(base)
    assert list(found.columns) == ["natural", "pgd-5"]
    expected = compare(
        result.outcomes.labels, result.outcomes.predictions["pgd-5"], base.outcomes.predictions["pgd-5"], 3
    )
    assert found.columns["pgd-5"]["worst_difference"]["value"] == expected.worst_difference.value
    assert found.columns["pgd-5"]["p_value"] == expected.p_value
    assert "SmallCNN less SmallCNN" in str(found)
    assert found._repr_html_().count("<tr>") == 3
    base.save(tmp_path / "base")
    assert result.compare(tmp_path / "base").columns == found.columns
    elsewhere = wc.audit(other, (images.x, images.y), 0.1, **options)
    with pytest.raises(UserError, match="with another eps"):
        result.compare(elsewhere)


def test_a_comparison_says_what_else_differs(result: AuditResult) -> None:
    """Another seed of the attacks: said where it prints, and in a notebook."""
    other = replace(result, card={**result.card, "about": {**result.card["about"], "seed": 3}})
    found = result.compare(other)
    line = "Note: SmallCNN and SmallCNN differ in more than the method: seed of the attacks (0, not 3)."
    assert str(found).splitlines()[-1] == line
    assert f"<p>{line}</p>" in found._repr_html_()
    assert result.compare(result).notes == ()
    assert "Note" not in str(result.compare(result))


def test_a_radius_is_the_same_however_it_is_rounded(result: AuditResult) -> None:
    for factor, same in ((1 + 1e-8, True), (1 + 1e-4, False)):
        about = {**result.card["about"], "eps": factor * result.card["about"]["eps"]}
        other = replace(result, card={**result.card, "about": about})
        if same:
            assert list(result.compare(other).columns) == list(result.card["columns"])
        else:
            with pytest.raises(UserError, match="with another eps"):
                result.compare(other)


def test_a_result_plots_saves_and_reports(result: AuditResult, tmp_path: Path) -> None:
    figure = result.plot()
    assert figure.axes[0].get_title(loc="left").startswith("PGD-5: accuracy of each class")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == result.card["class_names"]
    assert result.plot("natural").axes[0].get_title(loc="left").startswith("Natural")
    result.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {CARD, OUTCOMES}
    assert read_json(tmp_path / "saved" / CARD) == json.loads(json.dumps(result.card))
    (read,) = load_results([tmp_path / "saved"])
    assert read.columns["pgd-5"]["worst"]["value"] == result.worst.value
    assert AuditResult.load(tmp_path / "saved").average == result.average
    result.save(tmp_path / "saved")
    written = result.report(tmp_path / "page.html")
    assert written[0] == tmp_path / "page.html"
    page = written[0].read_text()
    assert "PGD-5" in page
    assert "<b>top" not in page
