"""The plug-in learners: the laws of ClassGuard for any history, its tally of training, and errors at every door."""

import copy
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import worstclass as wc
from worstclass.errors import UserError
from worstclass.stats import ClassStats
from worstclass.strategies.draws import CHANCE, Draws
from worstclass.strategies.guarded import PRIOR, Guarded, class_cost, divergence, tilted

pytestmark = pytest.mark.fast

Samples = tuple[Tensor, Tensor]
Epoch = tuple[Samples | None, Samples]

any_draws = pytest.mark.filterwarnings("ignore:group .* of what weigh saw")  # histories are drawn by no counts
few = settings(max_examples=25)  # the learner halves an interval sixty times in each update


def samples(groups: Sequence[tuple[int, int]]) -> Samples:
    """Whether each sample is right, and its group; of each group the number of right ones, and of all."""
    group = torch.arange(len(groups)).repeat_interleave(torch.tensor([total for _, total in groups]))
    correct = torch.cat([torch.arange(total) < right for right, total in groups])
    return correct, group


def table(correct: Tensor, group: Tensor, num_groups: int) -> ClassStats:
    """The trainer's table of the same samples."""
    stats = ClassStats(num_groups)
    stats.add(group, natural_loss=correct, robust_loss=correct, natural_correct=correct, robust_correct=correct)
    return stats


@st.composite
def histories(draw: st.DrawFn, tallied: bool | None = None) -> tuple[list[int], list[Epoch]]:
    """Counts of groups, and for a few epochs training samples, or none, and held-out samples; groups may be missing."""
    counts = draw(st.lists(st.integers(1, 5000), min_size=2, max_size=6))
    group = st.integers(0, 20).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total)))
    part = st.lists(group, min_size=len(counts), max_size=len(counts)).filter(lambda each: any(n for _, n in each))
    train = {None: st.none() | part, True: part, False: st.none()}[tallied]
    epochs = draw(st.lists(st.tuples(train, part), min_size=1, max_size=3))
    return counts, [(None if seen is None else samples(seen), samples(held_out)) for seen, held_out in epochs]


def play(guard: wc.ClassGuard, epoch: Epoch, batch_size: int = 16) -> None:
    """One epoch in batches, as a training loop has them."""
    train, (correct, group) = epoch
    if train is not None:
        for right, of in zip(*(each.split(batch_size) for each in train), strict=True):
            guard.weigh(torch.ones(len(of)), of, right)
    guard.update(correct, group)


def by_group(guard: wc.ClassGuard) -> Tensor:
    """The weight of a sample of each group (K,)."""
    return guard.weigh(torch.ones(guard.num_groups), torch.arange(guard.num_groups))


@any_draws
@few
@given(history=histories(), radius=st.floats(0.01, 1.0))
def test_no_history_leads_out_of_the_ball(history: tuple[list[int], list[Epoch]], radius: float) -> None:
    """And the mean weight of the training samples stays 1."""
    counts, epochs = history
    guard = wc.ClassGuard(counts, radius=radius)
    share = torch.tensor(counts).double() / sum(counts)
    balanced = torch.full_like(share, 1 / len(counts))
    for epoch in epochs:
        play(guard, epoch)
        assert float(guard.weights.sum()) == pytest.approx(1)
        assert divergence(guard.weights, balanced) <= radius + 1e-9
        assert float((share * by_group(guard)).sum()) == pytest.approx(1, rel=1e-5)
        assert torch.allclose(share * by_group(guard), guard.weights, rtol=1e-5)


@any_draws
@few
@given(history=histories(tallied=True), batch_size=st.integers(1, 50))
def test_it_is_the_trainers_learner(history: tuple[list[int], list[Epoch]], batch_size: int) -> None:
    """To the bit, for the same tables, however training was cut into batches."""
    counts, epochs = history
    guard, learner = wc.ClassGuard(torch.tensor(counts)), Guarded(torch.tensor(counts))
    for train, valid in epochs:
        assert train is not None
        play(guard, (train, valid), batch_size)
        learner.update(table(*train, len(counts)), table(*valid, len(counts)))
        assert torch.equal(guard.weights, learner.distribution)
        assert torch.equal(by_group(guard), learner.weights.natural)


@any_draws
@few
@given(history=histories(), seed=st.integers(0, 99))
def test_permuting_groups_permutes_weights(history: tuple[list[int], list[Epoch]], seed: int) -> None:
    """Group k is now called place[k]."""
    counts, epochs = history
    place = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    moved = torch.empty(len(counts))
    moved[place] = torch.tensor(counts, dtype=torch.float32)
    guard, other = wc.ClassGuard(counts), wc.ClassGuard(moved)
    for train, (correct, group) in epochs:
        play(guard, (train, (correct, group)))
        play(other, (None if train is None else (train[0], place[train[1]]), (correct, place[group])))
    assert torch.allclose(other.weights[place], guard.weights, rtol=1e-6)


@any_draws
@few
@given(history=histories())
def test_state_round_trips(history: tuple[list[int], list[Epoch]]) -> None:
    """Through a file, and in the middle of an epoch: the tally of training goes along."""
    counts, (*before, (train, valid)) = history
    guard = wc.ClassGuard(counts)
    for epoch in before:
        play(guard, epoch)
    if train is not None:
        guard.weigh(torch.ones(len(train[1])), train[1], train[0])
    file = io.BytesIO()
    torch.save(guard.state_dict(), file)
    file.seek(0)
    kept = guard.state_dict()
    guard.update(*valid)
    other = wc.ClassGuard(counts)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.state_dict().keys() == kept.keys()
    assert all(torch.equal(other.state_dict()[name], kept[name]) for name in kept)  # a snapshot: not moved by `update`
    other.update(*valid)
    assert torch.equal(by_group(other), by_group(guard))
    assert torch.equal(other.weights, guard.weights)


@pytest.mark.parametrize("tallied", [True, False])
def test_equal_errors_leave_groups_balanced(tallied: bool) -> None:
    counts = torch.tensor([10, 30, 60])
    guard = wc.ClassGuard(counts)
    assert by_group(guard).tolist() == pytest.approx([10 / 3, 10 / 9, 5 / 9])  # before the first update too
    for _ in range(3):
        play(guard, (samples([(5, 10), (15, 30), (30, 60)]) if tallied else None, samples([(5, 10), (5, 10), (5, 10)])))
    assert by_group(guard).tolist() == pytest.approx([10 / 3, 10 / 9, 5 / 9])


@few
@given(history=histories(tallied=False))
def test_without_a_tally_held_out_errors_stand_in_for_training(history: tuple[list[int], list[Epoch]]) -> None:
    """Shrunk towards the mean over the groups that were seen, group by group; all groups are heard."""
    counts, epochs = history
    guard, learner = wc.ClassGuard(counts), Guarded(torch.tensor(counts))
    cost = torch.zeros_like(learner.base)
    for epoch in epochs:
        _, (correct, group) = epoch
        seen = [int((group == k).sum()) for k in range(len(counts))]
        right = [int(correct[group == k].sum()) for k in range(len(counts))]
        accuracy = [r / n for r, n in zip(right, seen, strict=True) if n]
        train = ClassStats(len(counts))
        for k, (r, n) in enumerate(zip(right, seen, strict=True)):
            train.counts[k] = n + PRIOR
            train.sums("robust_correct")[k] = r + PRIOR * sum(accuracy) / len(accuracy)
        play(guard, epoch)
        valid = table(correct, group, len(counts))
        cost.lerp_(class_cost(train, valid, learner.counts, prior=learner.prior, slack=learner.slack), 0.2)
        expected = tilted(learner.base, cost, learner.tilt, learner.radius)
        assert torch.allclose(guard.weights, expected, rtol=1e-9)


def test_without_a_tally_few_samples_say_little() -> None:
    """Of two groups that fail alike, the one with more held-out samples weighs more, and both more than the others."""
    guard = wc.ClassGuard([100] * 4)
    guard.update(*samples([(0, 2), (0, 100), (90, 100), (90, 100)]))
    assert guard.weights[1] > guard.weights[0] > guard.weights[2] == guard.weights[3]


def test_a_tally_tells_what_training_cannot_mend() -> None:
    """A group that is right in training and wrong on held-out samples weighs less than if nothing were tallied."""
    valid = samples([(10, 100), (90, 100), (90, 100), (90, 100)])
    told, untold = wc.ClassGuard([100] * 4), wc.ClassGuard([100] * 4)
    play(told, (samples([(90, 100)] * 4), valid))
    play(untold, (None, valid))
    assert untold.weights[0] > told.weights[0]


def test_a_tally_is_of_one_epoch() -> None:
    """What was tallied before an update does not count in the next."""
    guard, fresh = wc.ClassGuard([100] * 3, memory=0.0), wc.ClassGuard([100] * 3, memory=0.0)
    first = samples([(90, 100), (10, 100), (50, 100)]), samples([(80, 100), (0, 100), (40, 100)])
    second = samples([(10, 100), (90, 100), (50, 100)]), samples([(0, 100), (80, 100), (40, 100)])
    for epoch in (first, second):
        play(guard, epoch)
    play(fresh, second)
    assert torch.allclose(guard.weights, fresh.weights)


def test_gradients_precision_and_dtypes() -> None:
    """The gradient of a loss is its weight over the batch size; 16-bit losses are weighed in float32."""
    guard = wc.ClassGuard([10, 30])
    group = torch.tensor([0, 1, 1, 0])
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        losses = torch.tensor([0.5, 1, 2, 4], dtype=dtype, requires_grad=True)
        for kind in (torch.int64, torch.int32, torch.uint8):
            assert torch.equal(guard.weigh(losses, group.to(kind)), guard.weigh(losses, group))
        weighed = guard.weigh(losses, group)
        assert weighed.dtype == torch.promote_types(dtype, torch.float32)
        weighed.mean().backward()
        assert losses.grad is not None
        assert losses.grad.tolist() == pytest.approx([2 / 4, 2 / 3 / 4, 2 / 3 / 4, 2 / 4], rel=1e-2)


def test_in_autocast_and_inference_mode() -> None:
    """An update inside of inference mode, where a loop may evaluate, leaves a learner that trains on."""
    model, x, y = torch.nn.Linear(4, 3), torch.rand(12, 4), torch.arange(12) % 3
    guard, hedge = wc.ClassGuard([4, 4, 4]), wc.ClassHedge(3)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
            losses = torch.nn.functional.cross_entropy(logits, y, reduction="none")
            loss = guard.weigh(losses, y, logits.argmax(1) == y).mean() + hedge.weigh(losses.bfloat16(), y).mean()
        loss.backward()
        with torch.inference_mode():
            logits = model(x)
            guard.update(logits.argmax(1) == y, y)
            hedge.update(torch.nn.functional.cross_entropy(logits, y, reduction="none"), y)
    assert loss.dtype == torch.float32


def test_a_step_does_not_wait_for_its_device() -> None:
    """On a device without values a host that asks for one fails: shapes alone go through."""
    guard = wc.ClassGuard([10, 30])
    losses, group = torch.empty(5, device="meta"), torch.zeros(5, dtype=torch.int64, device="meta")
    assert guard.weigh(losses, group, group == 0).device.type == "meta"


def test_a_compiled_step_is_one_graph() -> None:
    """It sees new weights without being compiled again, tallies, and refuses a group that is out of range."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    guard = wc.ClassGuard([10, 30, 20])
    eager = copy.deepcopy(guard)
    losses, (correct, group) = torch.linspace(0, 1, 9), samples([(3, 3), (0, 3), (2, 3)])
    step = torch.compile(lambda: guard.weigh(losses, group, correct).mean(), backend=backend, fullgraph=True)
    for _ in range(3):
        assert float(step()) == pytest.approx(float(eager.weigh(losses, group, correct).mean()))
        assert guard.state_dict()["tally"].tolist() == [[3, 3], [3, 0], [3, 2]]
        for each in (guard, eager):
            each.update(correct, group)
    assert len(graphs) == 1
    for wrong in (-1, 3):
        group[0] = wrong
        with pytest.raises(IndexError):
            step()


GROUP, LOSSES, RIGHT = torch.tensor([0, 1, 2, 1]), torch.ones(4), torch.tensor([True, False, True, True])


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([5], "two groups"),
        ([], "two groups"),
        (7, "two groups"),
        ([[1, 2], [3, 4]], "two groups"),
        ([3, 0, 4], "group 1 has 0"),
        ([3, 4, -1], "group 2 has -1"),
        ([3, math.nan], "group 1 has nan"),
        ([3, math.inf], "group 1 has inf"),
        (["a", "b"], "a number for each group"),
        (None, "a number for each group"),
    ],
)
def test_bad_counts(counts: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        wc.ClassGuard(counts)


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="Did you mean 'radius'"):
        wc.ClassGuard([1, 2], radios=0.1)
    with pytest.raises(UserError, match="unknown setting 'sample'"):  # it would weigh nothing
        wc.ClassGuard([1, 2], sample=True)
    for value in (-0.1, math.nan, math.inf, "wide", None):
        with pytest.raises(UserError, match="radius must be a number"):
            wc.ClassGuard([1, 2], radius=value)  # type: ignore[arg-type]


BAD_GROUPS: list[tuple[Any, str]] = [
    (GROUP.float(), "whole numbers"),
    (GROUP.bool(), "whole numbers"),
    (GROUP[:, None], "must"),
    (torch.tensor([0, 1, 2, -1]), r"-1\.\.2, expected 0\.\.2"),
    (torch.tensor([0, 1, 2, 3]), r"0\.\.3, expected 0\.\.2"),
    (GROUP[:3], "both be"),
    (GROUP.tolist(), "must"),
    (torch.tensor(1), "must"),
]
BAD_CORRECT: list[tuple[Any, str]] = [
    (RIGHT.float(), "correct must be bool"),
    (torch.tensor([0.1, 0.9, 1, 1]), "correct must be bool"),
    (RIGHT.long(), "correct must be bool"),
    (RIGHT[:3], "correct"),
    (RIGHT[:, None], "correct"),
    (RIGHT.tolist(), "correct"),
]


def test_what_is_refused_leaves_a_guard_as_it_was() -> None:
    guard = wc.ClassGuard([10, 20, 30])
    guard.weigh(LOSSES, GROUP, RIGHT)
    before = guard.state_dict()
    for group, words in BAD_GROUPS:
        with pytest.raises(UserError, match=words):
            guard.weigh(LOSSES, group, RIGHT)
        with pytest.raises(UserError, match=words):
            guard.update(RIGHT, group)
    for correct, words in BAD_CORRECT:
        with pytest.raises(UserError, match=words):
            guard.weigh(LOSSES, GROUP, correct)
        with pytest.raises(UserError, match=words):
            guard.update(correct, GROUP)
    for losses in (LOSSES.mean(), LOSSES[:, None], LOSSES.tolist()):
        with pytest.raises(UserError, match="reduction='none'"):
            guard.weigh(losses, GROUP)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="floating point"):
        guard.weigh(LOSSES.long(), GROUP)
    with pytest.raises(UserError, match="one sample or more"):
        guard.update(RIGHT[:0], GROUP[:0])
    after = guard.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


UNBALANCED = torch.linspace(900, 40, 10).round()
MAKERS: list[Callable[[Any], Any]] = [wc.ClassGuard, lambda counts: wc.ClassHedge(len(counts), class_counts=counts)]


def learn(learner: Any, labels: Tensor) -> None:
    """Weigh the labels of an epoch in batches, and update on all classes alike."""
    for batch in labels.split(64):
        learner.weigh(torch.ones(len(batch)), batch)
    every = torch.arange(10)
    learner.update(every > 4 if isinstance(learner, wc.ClassGuard) else torch.ones(10), every)


@pytest.mark.parametrize("make", MAKERS)
def test_a_balancing_sampler_on_top_is_told_once(make: Callable[[Any], Any]) -> None:
    """With the counts of the data, classes drawn evenly are balanced twice; with those of the draws all is well."""
    even = torch.arange(10).repeat(400)
    learner, right = make(UNBALANCED), make(torch.ones(10))
    mean = float(learner.weigh(torch.ones(len(even)), even).mean())
    assert mean > 2
    assert float(right.weigh(torch.ones(len(even)), even).mean()) == pytest.approx(1)
    words = rf"group 9 is 10% of what weigh saw and 0.851% .* weight was {mean:.2f}\. Give"
    with pytest.warns(UserWarning, match=words):
        learn(learner, even)
    learn(learner, even)  # pytest turns a second warning into an error
    learn(right, even)


def test_chance_is_not_told() -> None:
    """Random draws by the counts, with replacement and without, few and many, in 2800 updates."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(UNBALANCED.long())
    draws, weight = Draws(UNBALANCED.double() / UNBALANCED.sum()), torch.ones(10)
    for size in (1, 2, 5, 20, 100, 1000, len(labels)):
        for _ in range(200):
            for index in (
                torch.randint(len(labels), (size,), generator=draw),
                torch.randperm(len(labels), generator=draw)[:size],
            ):
                for batch in labels[index].split(300):
                    draws.add(batch)
                assert draws.end(weight) is None


def test_the_bound_on_chance() -> None:
    """The probability of a warning over all outcomes of n draws of two groups, summed: at most `CHANCE`."""
    for share in (0.5, 0.1, 0.01):
        for n in (1, 5, 30, 200):
            told = 0.0
            for k in range(n + 1):
                draws = Draws(torch.tensor([share, 1 - share], dtype=torch.float64))
                draws.add((torch.arange(n) >= k).long())
                if draws.end(torch.ones(2)):
                    told += math.comb(n, k) * share**k * (1 - share) ** (n - k)
            assert told <= CHANCE


def test_what_is_only_looked_at_is_no_draw() -> None:
    """A validation loss of other shares, weighed in passing."""
    guard, even = wc.ClassGuard(UNBALANCED), torch.arange(10).repeat(400)
    with torch.no_grad():
        guard.weigh(torch.ones(len(even)), even)
    guard.update(even > 4, even)


@pytest.mark.parametrize("make", [wc.ClassHedge, lambda k: wc.ClassGuard([1] * k)])
def test_the_state_of_another_learner_is_refused(make: Callable[[int], Any]) -> None:
    learner = make(3)
    for state in (make(4).state_dict(), {}, {"cumulative_cost": torch.tensor(0.0)}):
        with pytest.raises(UserError, match="the state of another learner"):
            learner.load_state_dict(state)


COUNTS = [10.0, 20.0, 30.0]
OTHERS: list[tuple[Any, Any, str]] = [
    (wc.ClassGuard(COUNTS), wc.ClassGuard([10, 20, 31]), r"class_counts\[2\] is 31, here 30\."),
    (wc.ClassGuard(COUNTS), wc.ClassGuard(COUNTS, radius=0.3), r"radius is 0.3, here 0.15\."),
    (wc.ClassGuard(COUNTS), wc.ClassGuard(COUNTS, memory=0, slack=0), "slack is 0, here 0.15; memory is 0, here 0.8"),
    (wc.ClassGuard(COUNTS), wc.ClassGuard(COUNTS, balanced=False), "balanced is 0, here 1"),
    (wc.ClassGuard(COUNTS), wc.ClassHedge(3), "it has no cost"),
    (wc.ClassHedge(3), wc.ClassHedge(3, eta=0.5), r"eta is 0.5, here 0.1\."),
    (wc.ClassHedge(3), wc.ClassHedge(3, class_counts=[1, 1, 4]), r"class_counts\[2\] is 4, here 1\."),
    (wc.ClassHedge(3), wc.ClassHedge(4), r"cumulative_cost is \(5,\), here \(4,\)"),
    (wc.ClassHedge(3), wc.ClassGuard(COUNTS), "it has no cumulative_cost"),
]


@pytest.mark.parametrize(("learner", "other", "words"), OTHERS)
def test_the_state_of_a_learner_made_otherwise_is_refused(learner: Any, other: Any, words: str) -> None:
    """In one line that says what differs; nothing is changed."""
    before = learner.state_dict()
    with pytest.raises(UserError, match=f"the state of another learner: {words}"):
        learner.load_state_dict(other.state_dict())
    assert all(torch.equal(learner.state_dict()[name], before[name]) for name in before)


def test_states_that_load() -> None:
    """From before it was said how a learner was made, and with counts in the same proportions."""
    group = torch.tensor([0, 1, 1, 2])
    for one, other in (
        (wc.ClassGuard(COUNTS), wc.ClassGuard([1 / 6, 1 / 3, 1 / 2])),
        (wc.ClassHedge(3, class_counts=COUNTS), wc.ClassHedge(3, class_counts=torch.tensor([1, 2, 3]))),
    ):
        one.weigh(LOSSES, group)
        one.update(group == 1 if isinstance(one, wc.ClassGuard) else LOSSES * group, group)
        one.weigh(LOSSES, group)
        state = one.state_dict()
        old = {name: value for name, value in state.items() if name in ("cost", "tally", "cumulative_cost")}
        for each in (state, old):
            other.load_state_dict(each)
            assert torch.allclose(other.weights, one.weights)
            assert other.state_dict()["drawn"].tolist() == ([1, 2, 1] if each is state else [0, 0, 0])


def test_class_hedge_refuses_what_class_guard_refuses() -> None:
    hedge = wc.ClassHedge(3)
    for group, words in BAD_GROUPS:
        with pytest.raises(UserError, match=words):
            hedge.weigh(LOSSES, group)
        with pytest.raises(UserError, match=words):
            hedge.update(LOSSES, group)
    with pytest.raises(UserError, match=r"group 1 has 0"):
        wc.ClassHedge(2, class_counts=[3, 0])
    for counts in ([30, 20, 10], torch.tensor([30, 20, 10])):  # as ClassGuard takes them
        with pytest.raises(UserError, match=r"must be a whole number, .*: give counts as class_counts="):
            wc.ClassHedge(counts)  # type: ignore[arg-type]


def test_what_is_right_is_no_loss() -> None:
    """As losses it would raise the strongest class and drop the weakest, without a word."""
    hedge = wc.ClassHedge(2)
    with pytest.raises(UserError, match=r"update takes losses, floating point, not torch.bool"):
        hedge.update(torch.tensor([True, False]), torch.tensor([0, 1]))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        with pytest.raises(UserError, match=r"update takes losses, floating point, not only 0 and 1; ClassGuard"):
            hedge.update(torch.tensor([True, True, False, True]).to(dtype), torch.tensor([0, 0, 1, 1]))
    assert torch.equal(hedge.weights, wc.ClassHedge(2).weights)


@pytest.mark.parametrize(
    "losses", [[0], [1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1.0078125], [0, 1, 1, 1e-6], [-0.0, 0, 2]]
)
def test_losses_that_happen_to_be_zero_or_one(losses: list[float]) -> None:
    """A single sample, a saturated network, a hinge loss at its start, losses rounded to 16 bits."""
    wc.ClassHedge(2).update(torch.tensor(losses, dtype=torch.float32), torch.arange(len(losses)) % 2)
