"""What is said against a run: closed forms, logs that must be warned of, and logs that must not."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worstclass.cli.watched import NewNotes
from worstclass.config.recipe import make_config
from worstclass.runs.log import describe
from worstclass.runs.notes import (
    as_good_as_selected,
    average_notes,
    counts_of,
    distribution,
    effective_classes,
    is_concentrated,
    lift,
    misplaced,
    training_notes,
    unlearned,
    unresponsive,
    variance,
)
from worstclass.runs.run import Run, open_run
from worstclass.stats import ClassStats
from worstclass.strategies import WAT, expert_weights
from worstclass.training import EpochRecord
from worstclass.training.loop import _frequency
from worstclass.types import ClassWeights

pytestmark = pytest.mark.fast

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("*/recipe.toml"))


def about(train: list[int], valid: list[int]) -> dict[str, Any]:
    names = [f"class {k}" for k in range(len(train))]
    counts = {"train": train, "valid": valid}
    return {"num_classes": len(train), "class_names": names, "valid_images": sum(valid), "class_counts": counts}


def line(weights: Any, accuracy: Any, *, epoch: int = 1, selected: bool = False, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "class_weights": weights, "class_robust_accuracy": accuracy, "selected": selected} | more


# --- concentration ---


@given(st.lists(st.floats(1e-6, 1), min_size=2, max_size=50))
def test_the_effective_number_of_classes(shares: list[float]) -> None:
    """Between 1 and K; K for equal classes, and m for m equal ones among others without weight."""
    p = np.array(shares) / sum(shares)
    assert 1 - 1e-9 <= effective_classes(p) <= len(p) + 1e-9
    equal = np.full(len(p), 1 / len(p))
    assert effective_classes(equal) == pytest.approx(len(p))
    assert effective_classes([*equal, 0, 0]) == pytest.approx(len(p))
    assert effective_classes([0.5, 0.25, 0.25]) == pytest.approx(2**1.5)


def test_what_the_weights_play() -> None:
    """Weight times share, the mean of both losses."""
    share = [0.5, 0.3, 0.2]
    assert distribution(line([1, 1, 1], []), share) == pytest.approx(share)
    assert distribution(line([0.4, 1, 2.5], []), share) == pytest.approx([2 / 10, 3 / 10, 5 / 10])
    both = line([1, 1, 1], [], class_robust_weights=[0.4, 1, 2.5])
    assert distribution(both, share) == pytest.approx([0.35, 0.3, 0.35])
    assert distribution(line([0, 0, 0], []), share) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("how", ["sampling", "quota"])
def test_what_the_draws_play(how: str) -> None:
    """Once: the weights of a log hold them."""
    share, drawn, ones = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.1, 0.8]), torch.ones(3)
    weights, table = ClassWeights.uniform(3, **{how: True}), ClassStats(3)
    weights.set(**{how: drawn})
    record = EpochRecord(1, 0.1, 1.0, table, table, weights, _frequency(weights, share), torch.ones(4), {}, ones)
    assert distribution(describe(record), share) == pytest.approx(drawn.tolist())


def test_balancing_lifts_no_class() -> None:
    """Weights up to 30 that make the classes of a long tail alike are no concentration."""
    counts = np.array([1000, 300, 100, 30])
    played = distribution(line((1 / counts).tolist(), []), counts)
    assert lift(played, counts).max() == pytest.approx(1)
    assert not is_concentrated(played, counts)


def test_the_run_of_the_defect_is_warned_of() -> None:
    """43 classes of 105 to 1125 images; two of the smallest weigh 31 and 25, the others 0.014 to 3.5."""
    counts = np.linspace(105, 1125, 43).round()
    weights = np.geomspace(3.5, 0.014, 43)
    weights[:2] = 31, 25
    weights /= (weights * counts).sum() / counts.sum()  # a mean of 1 over the images
    notes = training_notes([line(weights.tolist(), [0.5] * 43)], about(counts.astype(int).tolist(), [20] * 43), "last")
    assert list(notes) == ["concentrated"]
    assert "'class 0' weighs " in notes["concentrated"]
    assert "of 43)" in notes["concentrated"]


def hopeless_log(epochs: int = 40, num_classes: int = 43) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """WAT on validation of which two classes cannot be learnt: six images each, never right, and a high loss."""
    counts, images = torch.full((num_classes,), 500), [6, 6, *[30] * (num_classes - 2)]
    strategy = WAT(counts, eta=0.1)
    share = counts.double() / counts.sum()
    log = []
    for epoch in range(1, epochs + 1):
        valid = ClassStats(num_classes)
        for k, count in enumerate(images):
            right = torch.zeros(count) if k < 2 else (torch.arange(count) < count * min(0.7, 0.1 * epoch)).float()
            loss = torch.full((count,), 6.0 if k < 2 else 2 - 1.5 * min(0.7, 0.1 * epoch))
            label = torch.full((count,), k)
            valid.add(label, natural_loss=loss, robust_loss=loss, natural_correct=right, robust_correct=right)
        used, played = strategy.weights.copy(), expert_weights(strategy, share)
        strategy.update(valid, valid)
        record = EpochRecord(
            epoch, 0.1, 1.0, valid, valid, used, torch.ones(num_classes), played, {}, strategy.weights.natural.clone()
        )
        log.append(json.loads(json.dumps(describe(record))) | {"selected": epoch == 1})
    return log, about(counts.tolist(), images)


def test_wat_with_two_hopeless_classes_is_warned_of() -> None:
    log, data = hopeless_log()
    notes = training_notes(log, data, "worst-accuracy")
    assert list(notes) == ["concentrated", "unresponsive 0", "unresponsive 1", "selection"]
    assert "'class 1' does not respond" in notes["unresponsive 1"]
    assert "0% robust accuracy on 6 validation images" in notes["unresponsive 1"]
    assert "39 of the other 39 epochs" in notes["selection"]
    warned = [epoch for epoch in range(1, 41) if training_notes(log[:epoch], data, "worst-accuracy")]
    assert min(warned) < 20  # while something can be done


def test_each_note_is_said_once() -> None:
    """Though its numbers change; and not again where a run goes on."""
    log, data = hopeless_log()
    notes, said = NewNotes("worst-accuracy"), []
    for each in log:
        said += notes.after(each, data)
    assert sorted(note.split(" ")[0] for note in said) == ["'class", "'class", "few", "the"]


def test_of_many_classes_worst_is_the_worst_tenth(tmp_path: Path) -> None:
    """While it trains too, when the recipe that was given left it open."""
    data, config = about([100] * 40, [20] * 40), make_config({"data": "fashion-mini"})
    notes, said = NewNotes(config.select), []
    notes.start(Run(tmp_path, config.for_classes(40), data))
    for epoch in range(1, 11):
        said += notes.after(line([1] * 40, [0.0, *[0.2] * 3, *[0.9] * 36], epoch=epoch, selected=epoch == 1), data)
    assert len(said) == 1
    assert "by the worst tenth's 80 validation images" in said[0]


@pytest.mark.parametrize("recipe", RESULTS, ids=lambda path: path.parent.name)
def test_nothing_is_said_of_healthy_runs(recipe: Path) -> None:
    """After any epoch of those that are published, whose logs are older than the counts."""
    run = open_run(recipe.parent)
    assert counts_of(run.about, "valid").tolist() == [300] * 10
    log = run.log
    for epoch in range(5, len(log) + 1, 5):
        averaged = run.config.average != "none"
        assert training_notes(log[:epoch], run.about, run.config.select, averaged=averaged) == {}


# --- classes that do not respond ---


def three(own: list[float], others: float = 0.8, heavy_from: int = 2) -> tuple[Any, Any]:
    """Lifts and accuracies of a class that is heavy from an epoch on, and of two others."""
    lifts = np.array([[2.0 if epoch >= heavy_from else 1.0, 0.5, 0.5] for epoch in range(len(own))])
    return lifts, np.array([[accuracy, others, others] for accuracy in own])


def test_a_class_responds_if_it_rises_beyond_its_error() -> None:
    """From 10% to 10%, 20% and 35%, on 100 images: the standard error is 4.4 to 5.6 points."""
    images = np.array([100.0, 100.0, 100.0])
    for now, silent in ((0.1, True), (0.2, False), (0.35, False)):
        assert unresponsive(*three([0.1, 0.1] + [now] * 5), images) == ([0] if silent else [])
    smoothed = [(100 * p + 1) / 102 for p in (0.1, 0.2)]
    error = math.sqrt(sum(p * (1 - p) / 100 for p in smoothed))
    assert variance(0.1, 100) + variance(0.2, 100) == pytest.approx(error**2)
    assert 1.96 * error < 0.1
    few = np.array([50.0, 100.0, 100.0])  # of fewer images the same rise shows nothing
    assert unresponsive(*three([0.1, 0.1] + [0.2] * 5), few) == [0]


def test_who_is_heavy_for_a_moment_or_has_caught_up_is_left_alone() -> None:
    images = np.array([20.0, 20.0, 20.0])
    assert unresponsive(*three([0.1] * 6), images) == []  # heavy for four epochs
    assert unresponsive(*three([0.1] * 7), images) == [0]
    assert unresponsive(*three([0.5] * 7), images) == []  # more than half of the others'
    lifts, accuracy = three([0.1] * 7)
    lifts[4, 0] = 1.9
    assert unresponsive(lifts, accuracy, images) == []


def test_a_class_that_falls_with_all_others_has_not_lost_against_them() -> None:
    """Its gap shrinks from 70 to 20 points while its own accuracy stays."""
    lifts, accuracy = three([0.1] * 7)
    accuracy[2:, 1:] = 0.3
    assert unresponsive(lifts, accuracy, np.array([100.0] * 3)) == []


def test_a_heavy_class_that_is_strong() -> None:
    """75% against 50% on 100 images, where the standard error is 4.3 points; on 6 images nothing is shown."""
    lifts, accuracy = three([0.75] * 7, others=0.5)
    assert misplaced(lifts, accuracy, np.array([100.0] * 3)) == [0]
    assert misplaced(lifts, accuracy, np.array([6.0, 100.0, 100.0])) == []
    assert misplaced(lifts[:6], accuracy[:6], np.array([100.0] * 3)) == []  # heavy for four epochs
    assert misplaced(lifts, three([0.4] * 7, others=0.5)[1], np.array([100.0] * 3)) == []


# --- the selected epoch ---


def test_epochs_as_good_as_the_selected() -> None:
    """On 300 images 40% and 33% cannot be told apart, 40% and 31% can."""
    worst, images = [0.31, 0.33, 0.40, 0.39], [300] * 4
    spread = [float(np.sqrt(variance(p, 300) + variance(0.4, 300))) for p in (0.31, 0.33)]
    assert 1.96 * spread[0] < 0.09
    assert 1.96 * spread[1] > 0.07
    assert as_good_as_selected(worst, 2, images) == 2
    assert as_good_as_selected(worst, 2, [6] * 4) == 3


def test_an_epoch_that_chance_selected() -> None:
    accuracy = [0.0, 0.17, 0.0, 0.17, 0.33, 0.17, 0.0, 0.17, 0.17, 0.17]
    log = [line([1, 1], [a, 0.9], epoch=i + 1, selected=i in (0, 1, 4)) for i, a in enumerate(accuracy)]
    said = training_notes(log, about([100, 100], [6, 20]), "worst-accuracy")
    assert list(said) == ["selection"]
    assert "6 validation images 9 of the other 9 epochs" in said["selection"]
    assert training_notes(log, about([100, 100], [6, 20]), "average") == {}
    assert training_notes(log[:9], about([100, 100], [6, 20]), "worst-accuracy") == {}  # too early to say
    assert training_notes([], about([100, 100], [6, 20]), "worst-accuracy") == {}


def test_the_epochs_before_a_fork_are_not_judged() -> None:
    """Another attack validated them, one under which class 0 had what it has to rise to now."""
    before = [line([1, 1, 1], [0.35, 0.8, 0.8], epoch=i + 1, selected=i == 0) for i in range(20)]
    own = [0.05, 0.05, *[0.35] * 8]
    log = before + [line([6, 1, 1], [a, 0.8, 0.8], epoch=i + 21, selected=i in (0, 2)) for i, a in enumerate(own)]
    data, fork = about([100] * 3, [20] * 3), {"fork": {"epoch": 20}}
    assert "unresponsive 0" in training_notes(log, data, "worst-accuracy")
    forked = training_notes(log, data | fork, "worst-accuracy")
    assert list(forked) == ["selection"]
    assert "7 of the other 9 epochs" in forked["selection"]
    assert training_notes(before, data | fork, "worst-accuracy") == {}


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ([0, 0, 0], "no epoch held: nothing was averaged"),
        ([0, 0, 1], "epoch 2 was selected before any epoch held"),
        ([0, 1, 1], None),
        ([None, None, None], None),  # of another average, or older than the count
    ],
)
def test_an_average_of_nothing(counts: list[int | None], note: str | None) -> None:
    log = [line([1], [0.5], epoch=epoch, selected=epoch < 3) for epoch in (1, 2, 3)]
    log = [each | ({} if n is None else {"averaged_epochs": n}) for each, n in zip(log, counts, strict=True)]
    said = average_notes(log)
    assert len(said) == (note is not None)
    assert note is None or said[0].startswith(note)
    assert average_notes([]) == []


def test_the_worst_tenth_is_judged_by_all_its_images() -> None:
    """Of 40 classes one stays at 0; the three next ones rise in the selected epoch, or nowhere."""
    data = about([100] * 40, [20] * 40)
    for risen, chance in ((0.8, False), (0.3, True)):
        rows = [[0.0] + [risen if i == 4 else 0.2] * 3 + [0.9] * 36 for i in range(10)]
        log = [line([1] * 40, row, epoch=i + 1, selected=i in (0, 4)) for i, row in enumerate(rows)]
        said = training_notes(log, data, "worst-tenth").get("selection")
        assert (said is not None) == chance
        assert said is None or "by the worst tenth's 80 validation images 9 of the other 9" in said
        assert "by the worst class's 20 " in training_notes(log, data, "worst-accuracy")["selection"]


# --- nothing learned ---


@given(st.integers(2, 200), st.integers(1, 500), st.data())
def test_a_constant_answer_has_learned_nothing(num_classes: int, images: int, data: st.DataObject) -> None:
    """It has one class right and a mean over classes of 1/K, whichever it is, and whichever it is next."""
    answers = data.draw(st.lists(st.integers(0, num_classes - 1), min_size=5, max_size=8))
    constant, held_out = np.eye(num_classes)[answers], np.full(num_classes, float(images))
    assert unlearned(constant, held_out)
    assert not unlearned(constant[:4], held_out)


def test_what_chance_explains_is_nothing_learned() -> None:
    """1.96 standard errors of K classes of n images: 4.2 points for 10 classes of 20."""
    limit = 0.1 + 1.96 * math.sqrt(0.1 * 0.9 / 200)
    images = np.full(10, 20.0)
    assert unlearned(np.full((5, 10), limit - 1e-6), images)
    assert not unlearned(np.full((5, 10), limit + 1e-6), images)
    late = np.concatenate([np.full((5, 10), 0.1), np.full((5, 10), 0.5)])
    assert not unlearned(late, images)


def test_a_run_that_learns_nothing_is_told_so() -> None:
    weights, learnt = [1.0] * 10, [0.4] * 10
    log = [line(weights, [0.1] * 10, epoch=e, class_natural_accuracy=[0.0] * 9 + [1.0]) for e in range(1, 6)]
    said = training_notes(log, about([100] * 10, [20] * 10), "last")
    assert list(said) == ["unlearned"]
    assert "10.0% of clean validation images" in said["unlearned"]
    log = [*log, *(line(weights, [0.3] * 10, epoch=e, class_natural_accuracy=learnt) for e in range(6, 11))]
    assert not training_notes(log, about([100] * 10, [20] * 10), "last")
