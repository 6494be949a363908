"""The theorems: Hedge against adversaries, complexities against enumeration, bounds against known distributions."""

import itertools
import json
from math import erf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tiny import tiny_config, write_tiny_npz
from worstclass.cli.main import app
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.metrics import Floats
from worstclass.models import SmallCNN
from worstclass.runs.run import Run, open_run
from worstclass.runs.train import train_run
from worstclass.stats import ClassStats
from worstclass.strategies import WAT
from worstclass.theory.certify import certify_run, linear_rows
from worstclass.theory.theorems import (
    hedge_weights,
    linear_robust_error,
    massart,
    rademacher,
    regret,
    regret_bound,
    theorem1,
    theorem2,
    theorem3,
)

pytestmark = pytest.mark.fast

COSTS = st.tuples(st.integers(1, 30), st.integers(2, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0, 5, allow_subnormal=False))
)


@settings(max_examples=300)
@given(costs=COSTS, eta=st.floats(0.01, 3))
def test_the_regret_of_hedge_is_bounded_whatever_the_costs(costs: Floats, eta: float) -> None:
    assert regret(costs, hedge_weights(costs, eta=eta)) <= regret_bound(costs, eta=eta) + 1e-9


def test_an_adversary_that_follows_the_weights_is_held_too() -> None:
    """Costs chosen against the weights of each round; weights that never move break the bound."""
    rounds, eta, costs = 400, 0.1, np.zeros((0, 2))
    for _ in range(rounds):
        weights = hedge_weights(np.vstack([costs, np.zeros((1, 2))]), eta=eta)[-1]
        costs = np.vstack([costs, np.eye(2)[np.argmin(weights)][None]])
    bound = regret_bound(costs, eta=eta)
    assert regret(costs, hedge_weights(costs, eta=eta)) <= bound
    stubborn = np.tile([1.0, 0.0], (rounds, 1))
    assert regret(np.tile([0.0, 1.0], (rounds, 1)), stubborn) > regret_bound(np.tile([0.0, 1.0], (rounds, 1)), eta=eta)


@settings(max_examples=300)
@given(costs=COSTS, eta=st.floats(0.005, 0.5))
def test_theorem_1_is_true_where_it_applies(costs: Floats, eta: float) -> None:
    certificate = theorem1(costs, eta=eta)
    assert certificate.left is not None
    assert certificate.right is not None
    if certificate.applies:
        assert certificate.left <= certificate.right + 1e-9


def test_theorem_1_by_hand() -> None:
    costs = np.array([[0.5, 1.0, 0.2], [0.4, 0.6, 0.4], [0.3, 0.2, 0.4]])
    certificate = theorem1(costs, eta=0.1)
    weights = [np.ones(3) / 3]
    for t in (1, 2):
        raw = np.exp(0.1 * costs[:t].sum(0))
        weights.append(raw / raw.sum())
    average = np.mean([w @ c for w, c in zip(weights, costs, strict=True)])
    assert certificate.left == pytest.approx(0.3)
    assert certificate.right == pytest.approx(average + np.log(3) / 0.3)
    assert certificate.parts["worst class of the epoch with the least worst class"] == pytest.approx(0.4)
    assert certificate.applies
    assert not theorem1(costs, eta=0.6).applies
    assert not theorem1(costs, eta=0.1, weights=np.ones((3, 3)) / 3).applies
    with pytest.raises(UserError, match="finite"):
        theorem1([[np.nan, 1.0]], eta=0.1)


def test_hedge_is_what_wat_plays() -> None:
    strategy, generator = WAT(torch.tensor([10, 10, 10]), eta=0.3), torch.Generator().manual_seed(0)
    costs, played = [], []
    y = torch.arange(3).repeat(10)
    for _ in range(5):
        played.append(torch.softmax(0.3 * strategy.state_dict()["cumulative_cost"], 0).numpy())
        stats = ClassStats(3)
        loss = torch.rand(30, generator=generator)
        stats.add(y, natural_loss=loss, robust_loss=loss, natural_correct=loss > 0, robust_correct=loss > 0)
        costs.append([2 * loss.mean().item(), *(2 * loss[y == k].mean().item() for k in range(3))])
        strategy.update(stats, stats)
    assert np.allclose(hedge_weights(costs, eta=0.3), np.stack(played), atol=1e-6)


def enumerated(losses: Floats) -> float:
    """The Rademacher complexity over all signs."""
    size = losses.shape[1]
    return float(np.mean([(losses @ np.array(s)).max() for s in itertools.product((-1.0, 1.0), repeat=size)]) / size)


@settings(max_examples=30)
@given(losses=arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=st.floats(0, 1)))
def test_the_complexity_is_that_of_all_signs(losses: Floats) -> None:
    value, error = rademacher(losses, draws=2000)
    exact = enumerated(losses)
    assert abs(value - exact) <= 5 * error + 1e-9
    assert exact <= massart(losses) + 1e-9


def test_one_classifier_has_no_complexity() -> None:
    assert rademacher(np.random.default_rng(0).random((1, 50))) == (0.0, 0.0)


def test_theorem_2_covers_the_population() -> None:
    """Classifiers with known error in each class: the bound with the union is above the truth in every sample drawn."""
    generator = np.random.default_rng(1)
    errors = generator.uniform(0.1, 0.6, size=(20, 3))
    labels = np.repeat(np.arange(3), 40)
    misses = printed = 0
    for draw in range(60):
        losses = (generator.random((20, 120)) < errors[:, labels]).astype(float)
        best = int(np.argmin([max(row[labels == k].mean() for k in range(3)) for row in losses]))
        certificate = theorem2(losses, labels, num_classes=3, which=best, delta=0.2, draws=50, seed=draw)
        truth = errors[best].max()
        assert certificate.right is not None
        misses += truth > certificate.right
        printed += truth > certificate.parts["bound as printed"]
    assert misses == 0
    assert printed <= 0.2 * 60


def test_theorem_2_by_hand() -> None:
    labels = np.array([0, 0, 1, 1])
    certificate = theorem2([[1, 0, 1, 1]], labels, num_classes=2, delta=0.1, exact_loss=(False, "an attack"))
    assert certificate.left == 1.0
    assert certificate.parts["bound as printed"] == pytest.approx(1.0 + 3 * sqrt(2 * np.log(20) / 8))
    assert certificate.right == pytest.approx(1 + 3 * sqrt(np.log(40) / 4))
    assert [a.holds for a in certificate.assumptions] == [True, True, True, False]
    with pytest.raises(UserError, match="every class"):
        theorem2([[1, 0, 1, 1]], labels, num_classes=3)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 4), dimension=st.integers(1, 6), eps=st.floats(0, 1))
def test_the_robust_error_of_a_linear_model_is_that_of_the_corners(
    seed: int, classes: int, dimension: int, eps: float
) -> None:
    """A linear margin is least at a corner of the box: try them all."""
    generator = np.random.default_rng(seed)
    weights, x = generator.normal(size=(classes, dimension)), generator.normal(size=(20, dimension))
    y = generator.integers(classes, size=20)
    corners = np.array(list(itertools.product((-eps, eps), repeat=dimension)))
    scores = (x[:, None] + corners) @ weights.T
    own = np.take_along_axis(scores, y[:, None, None], 2)
    rivals = np.where(np.arange(classes) == y[:, None, None], -np.inf, scores)
    brute = ((own - rivals.max(2, keepdims=True)).min((1, 2))) <= 0
    assert (linear_robust_error(weights, x, y, eps=eps) == brute).all()


@pytest.mark.parametrize("p", [1.0, 2.0, np.inf])
def test_theorem_3_covers_a_known_distribution(p: float) -> None:
    """Two Gaussian classes: the worst-class robust error has a closed form, and the bound is above it."""
    generator = np.random.default_rng(2)
    center, sigma, eps = np.array([1.0, -0.5, 0.25]), 0.6, 0.1
    weights = np.stack([center, -center])
    step = weights[0] - weights[1]
    distance = (step @ center - eps * np.abs(step).sum()) / (sigma * np.linalg.norm(step))
    truth = 0.5 * (1 - erf(distance / sqrt(2)))
    for _ in range(20):
        y = np.arange(2000) % 2
        x = np.where(y[:, None] == 0, center, -center) + sigma * generator.normal(size=(2000, 3))
        certificate = theorem3(weights, x, y, eps=eps, gamma=0.5, bound=3.0, p=p, draws=200)
        assert certificate.applies
        assert certificate.left == pytest.approx(truth, abs=0.04)
        assert certificate.right is not None
        assert truth <= certificate.right
    assert linear_robust_error(weights, x, y, eps=eps).mean() == pytest.approx(truth, abs=0.03)


def test_theorem_3_by_hand() -> None:
    """Each term, written out again."""
    generator = np.random.default_rng(3)
    weights, x, y = generator.normal(size=(3, 4)), generator.normal(size=(30, 4)), np.arange(30) % 3
    certificate = theorem3(weights, x, y, eps=0.2, gamma=0.7, bound=5.0, p=2, delta=0.1, draws=4000)
    errors = 0
    for xi, yi in zip(x, y, strict=True):
        rivals = [weights[k] @ xi + 0.2 * np.abs(weights[k] - weights[yi]).sum() for k in range(3) if k != yi]
        errors += weights[yi] @ xi <= 0.7 + max(rivals)
    assert certificate.parts["K times the share with margin at most gamma"] == pytest.approx(3 * errors / 30)
    spread = max(
        np.mean([np.linalg.norm(np.array(s) @ x[y == k]) for s in itertools.product((-1, 1), repeat=10)])
        for k in range(3)
    )
    assert certificate.parts["complexity term"] == pytest.approx(2 * 5 * 27 / (0.7 * 30) * spread, rel=0.05)
    assert certificate.parts["radius term"] == pytest.approx(2 * 5 * 9 * 0.2 * 4**0.5 / (0.7 * sqrt(30)))
    assert certificate.parts["confidence term"] == pytest.approx(3 * sqrt(np.log(60) / 20))
    terms = ("K times the share with margin at most gamma", "complexity term", "radius term")
    printed = sum(certificate.parts[term] for term in terms) + 3 * sqrt(3 * np.log(20) / 60)
    assert certificate.parts["bound as printed"] == pytest.approx(printed)
    assert certificate.right == pytest.approx(printed + 3 * sqrt(np.log(60) / 20) - 3 * sqrt(3 * np.log(20) / 60))
    assert not theorem3(weights, x, y, eps=0.2, gamma=0.7).applies  # W was not fixed beforehand
    assert not theorem3(weights, x, y, eps=0.2, gamma=0.7, bound=0.1).applies


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("theory") / "tiny.npz")


@pytest.mark.parametrize("method", ["wat", "trades", "csl"])
def test_a_run_is_certified(method: str, tiny: Path, tmp_path: Path) -> None:
    """Hedge's weights are recognised in WAT's log, and missed in the others'."""
    run = train_run(tiny_config(tiny, method=method), tmp_path / "run")
    first, second, third = certify_run(run)
    assert {a.name: a.holds for a in first.assumptions}["the weights are Hedge's"] == (method == "wat")
    assert "no outcomes" in second.verdict
    assert "small-cnn" in third.verdict
    evaluate_target(run_target(run), ["pgd-5"], run.folder)
    evaluate_target(run_target(run, checkpoint="last"), ["pgd-5"], tmp_path / "last")
    _, one, _ = certify_run(run)
    _, both, _ = certify_run(run, others=[tmp_path / "last"])
    accuracy = json.loads((run.folder / "card.json").read_text())["columns"]["pgd-5"]["worst"]["value"]
    assert one.left == pytest.approx(1 - accuracy)
    assert (one.parts["classifiers"], both.parts["classifiers"]) == (1, 2)
    assert both.right is not None
    assert one.right is not None
    assert both.right >= one.right


def test_a_linear_run_has_all_three(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "flat.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes, bias=False))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = train_run(tiny_config(tiny, model="flat:make"), tmp_path / "run", allow_code=True)
    evaluate_target(run_target(run, allow_code=True), ["pgd-20"], run.folder)
    arguments = ["certify", str(run.folder), "--allow-code", "--out", str(tmp_path / "c.json")]
    app(arguments, standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Theorem 3" in shown
    assert "does not apply" not in shown
    third = json.loads((tmp_path / "c.json").read_text())[2]
    model, _ = open_run(run.folder).load_model(allow_code=True)
    rows = linear_rows(model)
    assert rows is not None
    images = run_target(run, allow_code=True).images
    x = images.x.flatten(1).double().numpy() / 255
    robust = linear_robust_error(rows, x, images.y.numpy(), eps=run.config.eps)
    assert third["left"] == pytest.approx(max(robust[images.y.numpy() == k].mean() for k in range(3)))
    assert "pass --allow-code" in certify_run(run)[2].verdict


def test_what_is_not_linear_is_not_taken_for_it() -> None:
    assert linear_rows(SmallCNN(3, 1)) is None
    assert linear_rows(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))) is None
    assert linear_rows(torch.nn.Linear(4, 2, bias=False)) is not None


def test_a_run_without_epochs_has_no_certificate(tiny: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(tiny, epochs=1), tmp_path / "run")
    (run.folder / "log.jsonl").write_text("")
    with pytest.raises(UserError, match="no epoch"):
        certify_run(Run(run.folder, run.config, run.about))
