"""Each check speaks up about the model it was made for, and keeps quiet about a sound one."""

import copy
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from oracles import unchanged
from tiny import tiny_config, write_tiny_npz
from worstclass.attacks import APGD, FAB, Ensemble, Square, autoattack, pgd
from worstclass.attacks.view import Strict, View, search_view
from worstclass.checks import (
    Finding,
    Transfer,
    check_attacks,
    check_model,
    check_outcomes,
    check_strength,
    load_findings,
    merge,
    some_of,
    verdict,
)
from worstclass.checks import _compare as compare
from worstclass.data import Images, to_float
from worstclass.errors import UserError
from worstclass.evaluate import evaluate
from worstclass.models import ResNet18, SmallCNN, WideResNet
from worstclass.models.normalization import Normalized
from worstclass.outcomes import Outcomes
from worstclass.rng import PerSample, generator
from worstclass.runs import Run, train_run
from worstclass.subjects import evaluate_subject, load_card, run_subject
from worstclass.types import BallAttack, Norm


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("checks")
    return train_run(tiny_config(write_tiny_npz(folder / "tiny.npz"), method="trades", epochs=3), folder / "run")


class Wrapped(nn.Module):
    """A model, asked in a peculiar way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


class Probabilities(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(x), dim=1)


class Random(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x + 0.02 * torch.randn_like(x))


class BakedRandom(Wrapped):
    """Draws a constant shape: a tracer takes the draw for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x + 0.2 * torch.randn(1, 1, 8, 8))


class Coin(Wrapped):
    """Turns images round now and then: a tracer sees one side of the coin."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.flip(3) if random.random() < 0.5 else x)


class Discrete(Wrapped):
    """Robust-looking: its gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits((x * 8).round() / 8)


class Detached(Wrapped):
    """No gradient leads through it at all."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.logits(x)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 64).round() / 64

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Quantised(Wrapped):
    """Has a gradient, of its own making: a tracer does not see it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(StraightThrough.apply(x))  # type: ignore[no-untyped-call]


class Steep(Wrapped):
    """The same function, with a slope that is not finite at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits((x * x).sqrt())


class Masked(Wrapped):
    """Gradients lead the wrong way: their sign is turned round."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(2 * x.detach() - x)


class Purifying(Wrapped):
    """Optimises its input before it looks at it."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.autograd import grad

        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (slope,) = grad(self.logits(z).logsumexp(1).sum(), z)
        return self.logits(x - 0.001 * slope)


class Mixing(Wrapped):
    """Looks at the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x - x.mean((0, 2, 3), keepdim=True))


class Stuck(Wrapped):
    """Stays in training mode whatever it is told."""

    def train(self, mode: bool = True) -> "Stuck":
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)


class Branching(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x if x.mean() > 0.5 else x + 0.1)


class Locked(Wrapped):
    """Cannot be copied."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.logits(x)


def parametrized(model: nn.Module) -> nn.Module:
    """With a weight norm before a BatchNorm: nothing to fold there."""
    assert isinstance(model, SmallCNN)
    copied = copy.deepcopy(model)
    weight_norm(copied.conv1)
    return copied


def failed(model: nn.Module, images: Images) -> set[str]:
    found = check_model(model.eval(), to_float(images.x), images.y)
    assert all(bool(finding.advice) != finding.passed for finding in found)
    return {finding.name for finding in found if not finding.passed}


def test_a_sound_model_passes_and_is_left_alone(run: Run) -> None:
    subject = run_subject(run)
    with unchanged(subject.model):
        assert failed(subject.model, subject.images) == set()


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        (Probabilities, {"logits"}),
        (Random, {"deterministic", "one-by-one"}),
        (Discrete, {"gradients"}),
        (Detached, {"gradients"}),
        (Steep, {"gradients"}),
        (Mixing, {"one-by-one"}),
        (Purifying, {"no-inner-gradients"}),
        (Stuck, {"evaluation-mode", "one-by-one"}),
    ],
)
def test_each_fault_is_found_and_named(wrapper: type[Wrapped], expected: set[str], run: Run) -> None:
    subject = run_subject(run)
    assert failed(wrapper(subject.model), subject.images) == expected


def test_inputs_outside_the_range_are_found(run: Run) -> None:
    subject = run_subject(run)
    x = 2 * to_float(subject.images.x) - 1
    by_name = {finding.name: finding for finding in check_model(subject.model, x, subject.images.y)}
    assert not by_name["inputs-in-range"].passed
    assert "[0, 1]" in by_name["inputs-in-range"].advice


def test_square_that_improves_on_the_others_is_a_finding() -> None:
    """Beyond chance, and where it comes last: in `plus` it does not."""
    labels = np.zeros(1000, dtype=np.int64)
    broken_by = np.full(1000, "", dtype="U8")
    broken_by[:300] = "apgd-ce"
    attacks: dict[str, BallAttack] = {
        "autoattack": autoattack(eps=0.1),
        "square": Square(eps=0.1),
        "plus": autoattack(eps=0.1, version="plus"),
    }
    by = {"autoattack": broken_by, "square": np.full(1000, "square"), "plus": broken_by}
    for count, passed in ((6, True), (7, False)):  # of 1000, where the public code warns at 3
        broken_by[300 : 300 + count] = "square"
        (finding,) = check_outcomes(Outcomes(labels, {}, by), attacks)
        assert (finding.name, finding.passed) == ("square autoattack", passed)
    few = {"autoattack": np.array(["square"] + [""] * 99)}
    assert check_outcomes(Outcomes(labels[:100], {}, few), {"autoattack": autoattack(eps=0.1)})[0].passed


def test_a_last_iterate_that_hides_successes_is_a_finding() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    last, first = labels.copy(), labels.copy()
    first[:20] = 1
    (finding,) = check_outcomes(Outcomes(labels, {"pgd-5": last, "pgd-5/any": first}), {"pgd-5": pgd(5, eps=0.1)})
    assert not finding.passed
    assert "2.00 points" in finding.seen


def test_attacks_relate_as_they_should(run: Run) -> None:
    subject = run_subject(run)
    other = run_subject(run, checkpoint="last").model
    findings = check_attacks(subject.model, subject.images, num_classes=3, eps=0.05, other=other)
    assert [finding.name for finding in findings] == ["huge-radius", "attacks-harm", "more-steps", "transfer"]
    assert all(finding.passed for finding in findings), verdict(findings)
    assert verdict(findings) == "Trustworthy: all 4 checks passed."


def test_a_transfer_that_does_no_harm_condemns_nobody(run: Run) -> None:
    subject = run_subject(run)
    helping = Masked(subject.model)  # its images make this model surer
    findings = check_attacks(subject.model, subject.images, num_classes=3, eps=0.05, other=helping)
    assert all(finding.passed for finding in findings), verdict(findings)


def test_masked_gradients_do_not_pass(run: Run) -> None:
    subject = run_subject(run)
    masked = Masked(subject.model).eval()
    findings = check_attacks(masked, subject.images, num_classes=3, eps=0.05, other=subject.model)
    assert {finding.name for finding in findings if not finding.passed} >= {"huge-radius", "transfer"}
    assert verdict(findings).startswith("Not trustworthy: ")


def test_what_was_not_attacked_in_earnest_is_not_trusted(run: Run, tmp_path: Path) -> None:
    card = evaluate_subject(run_subject(run), ["pgd-5"], tmp_path, checks=True)
    assert "strong-attack (run: pgd-5)" in verdict(load_findings(card))
    assert check_strength({"autoattack": autoattack(eps=0.1)}).passed


def test_a_transfer_from_other_data_is_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    data = write_tiny_npz(tmp_path / "four.npz", num_classes=4)
    other = train_run(tiny_config(data, epochs=1), tmp_path / "four")
    with pytest.raises(UserError, match="in 4 classes cannot be tried"):
        evaluate_subject(run_subject(run), ["pgd-5"], tmp_path / "out", checks=True, transfer=run_subject(other))
    assert not (tmp_path / "out").exists()


def test_images_are_taken_from_all_over() -> None:
    images = Images(torch.zeros(1000, 1, 2, 2, dtype=torch.uint8), torch.arange(1000) // 100)
    assert some_of(images, 50).class_counts(10).tolist() == [5.0] * 10
    assert len(some_of(images, 5000)) == 1000


def test_more_steps_and_transfer_are_judged_beyond_chance() -> None:

    weaker, stronger = np.zeros(100, dtype=bool), np.zeros(100, dtype=bool)
    stronger[:6] = True  # six images the stronger attack lost: one in 64 by chance
    assert compare("n", weaker, stronger, "s", "a").passed
    stronger[:7] = True  # seven: one in 128
    assert not compare("n", weaker, stronger, "s", "a").passed
    assert compare("n", weaker, weaker, "s", "a").passed


def test_findings_are_in_the_card_and_stay_there(run: Run, tmp_path: Path) -> None:
    subject = run_subject(run)
    broken = replace(subject, model=Probabilities(subject.model))
    card = evaluate_subject(broken, ["pgd-5"], tmp_path, checks=True)
    names = [finding["name"] for finding in card["findings"]]
    assert names[:2] == ["inputs-in-range", "evaluation-mode"]
    assert {"logits", "huge-radius", "more-steps", "last-iterate pgd-5"} <= set(names)
    (logits,) = [finding for finding in card["findings"] if finding["name"] == "logits"]
    assert not logits["passed"]
    assert "Return logits" in logits["advice"]
    later = evaluate_subject(broken, ["apgd-ce"], tmp_path)
    assert {"huge-radius", "logits"} <= {finding["name"] for finding in later["findings"]}
    assert later["findings"] == load_card(tmp_path)["findings"]
    assert "logits (outputs are probabilities)" in verdict(load_findings(later))


def test_the_latest_state_of_a_finding_counts() -> None:
    old, new = Finding("a", False, "x", "y"), Finding("a", True, "z")
    assert merge([old, Finding("b", True, "")], [new]) == [new, Finding("b", True, "")]


# The view that searches run on


@pytest.mark.parametrize(
    "model",
    [
        SmallCNN(10, 3),
        ResNet18(10),
        ResNet18(10, preact=True),
        WideResNet(10, 1, 10),
        Normalized(SmallCNN(10, 3), (0.5, 0.4, 0.3), (0.2, 0.2, 0.3)),
    ],
    ids=["small-cnn", "resnet18", "preact", "wrn", "normalized"],
)
def test_the_view_is_the_same_function(model: nn.Module) -> None:
    """Logits and gradients, with BatchNorm statistics that are not the initial ones."""
    noise = generator(0, "noise")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=noise))
            module.running_var.copy_(torch.rand(module.num_features, generator=noise) + 0.5)
    model.eval()
    x = torch.rand(5, 3, 16, 16, generator=noise)
    with unchanged(model):
        view = search_view(model, x)

    def norms(module: nn.Module) -> int:
        return sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())

    assert not view.own_format
    assert norms(view.graded) < norms(model) or isinstance(model, WideResNet)  # whose norms come before convolutions
    for wanted in (False, True):
        with torch.set_grad_enabled(wanted):
            assert torch.allclose(view(x), model(x), atol=1e-4)
    one, other = (x.clone().requires_grad_() for _ in range(2))
    view(one).square().sum().backward()
    model(other).square().sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    assert torch.allclose(one.grad, other.grad, atol=1e-3 * float(other.grad.abs().max()))


@pytest.mark.parametrize(
    "wrapper",
    [BakedRandom, Coin, Random, Quantised, Detached, Purifying, Branching, Locked, Stuck, parametrized],
)
def test_a_model_that_a_view_would_change_is_used_as_it_is(wrapper: Any) -> None:
    """Draws, backwards, contexts, branches that a trace loses; layers that cannot be folded or copied."""
    model = wrapper(SmallCNN(10, 1)).eval()
    view = search_view(model, torch.rand(4, 1, 8, 8))
    assert view.graded is model
    assert view.plain is model


def test_passes_are_counted() -> None:
    model = SmallCNN(3, 1).eval()
    view = search_view(model, torch.rand(2, 1, 8, 8))
    x = torch.rand(5, 1, 8, 8, requires_grad=True)
    torch.autograd.grad(view(x).sum(), x)
    with torch.no_grad():
        view(x[:2])
    assert (view.passes.forward, view.passes.backward) == (7, 5)
    judge = Strict(model)
    judge(x[:3].detach())
    assert (judge.passes.forward, judge.passes.backward) == (3, 0)
    assert isinstance(view, View)


@pytest.mark.parametrize(
    "wrapper", [Random, Coin, Quantised, Detached, Steep, Purifying, Branching, Locked, Stuck, Mixing, parametrized]
)
def test_every_part_attacks_every_model(wrapper: Any, run: Run) -> None:
    """Models that no view fits are attacked all the same, and the two records of an outcome agree."""
    subject = run_subject(run)
    attack = Ensemble(
        attacks={
            "apgd-ce": APGD(eps=0.05, steps=5),
            "apgd-t": APGD(eps=0.05, steps=5, loss="targeted-dlr"),
            "fab-t": FAB(eps=0.05, steps=5),
            "square": Square(eps=0.05, queries=50),
        }
    )
    if wrapper is Detached:  # there is no gradient to follow
        attack = Ensemble(attacks={"square": Square(eps=0.05, queries=50)})
    outcomes = evaluate(wrapper(subject.model), subject.images, {"all": attack}, must_harm=False)
    broken = outcomes.broken_by["all"] != ""
    assert np.array_equal(outcomes.predictions["all"] != outcomes.labels, broken)
    assert broken.sum() > (outcomes.broken_by["all"] == "natural").sum()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_slope_that_is_not_finite_loses_no_image(norm: Norm, run: Run) -> None:
    subject = run_subject(run)
    x, y = to_float(subject.images.x), subject.images.y
    x[:, :, 0] = 0
    for attack in (APGD(eps=0.05, norm=norm, steps=5), FAB(eps=0.05, norm=norm, steps=5)):
        assert attack(Steep(subject.model).eval(), x, y).isfinite().all()


def test_a_quantised_model_is_attacked_with_its_own_gradient(run: Run) -> None:
    """What a trace would have hidden: APGD is as strong as it is on the model itself."""
    subject = run_subject(run)
    model = Quantised(subject.model).eval()
    outcomes = evaluate(model, subject.images, {"apgd": APGD(eps=0.05, steps=20)}, seed=3)
    x, y = to_float(subject.images.x), subject.images.y
    right = model(x).argmax(1) == y
    source = PerSample(3, "evaluate/apgd", right.nonzero().squeeze(1).tolist())
    direct = APGD(eps=0.05, steps=20).breaks(model, x[right], y[right], generator=source)
    assert np.array_equal((outcomes.broken_by["apgd"] == "apgd")[right.numpy()], direct.found.numpy())
    assert direct.found.any()


class Parameterless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 20 * x.mean((1, 3))[:, [0, 2, 4]]


def test_models_without_parameters_and_in_double_precision(run: Run) -> None:
    subject = run_subject(run)
    attack = Ensemble(attacks={"apgd-ce": APGD(eps=0.05, steps=3), "square": Square(eps=0.05, queries=20)})
    for model in (Parameterless(), copy.deepcopy(subject.model).double()):
        outcomes = evaluate(model, subject.images, {"pgd": pgd(2, eps=0.05), "both": attack})
        assert outcomes.predictions.keys() == {"natural", "pgd", "pgd/any", "both"}
    with pytest.raises(UserError, match="no images"):
        evaluate(subject.model, subject.images.select(torch.arange(0)), {})


def test_attacks_that_print_alike_are_not_taken_for_one(run: Run) -> None:
    subject = run_subject(run)
    other = copy.deepcopy(subject.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1)
    one, two = (Transfer(source, pgd(3, eps=0.05)) for source in (subject.model, other))
    both = evaluate(subject.model, subject.images, {"one": one, "two": two}, must_harm=False)
    alone = evaluate(subject.model, subject.images, {"two": two}, must_harm=False)
    assert np.array_equal(both.predictions["two"], alone.predictions["two"])
    assert not np.array_equal(both.predictions["one"], both.predictions["two"])
