"""Each check speaks up about the model it was made for, and keeps quiet about a sound one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import unchanged
from tiny import tiny_config, write_tiny_npz
from worstclass.attacks import Square, autoattack, pgd
from worstclass.attacks.view import Strict, View, search_view
from worstclass.checks import Finding, check_attacks, check_model, check_outcomes, load_findings, merge, verdict
from worstclass.data import Images, to_float
from worstclass.models import ResNet18, SmallCNN, WideResNet
from worstclass.models.normalization import Normalized
from worstclass.outcomes import Outcomes
from worstclass.rng import generator
from worstclass.runs import Run, train_run
from worstclass.subjects import evaluate_subject, load_card, run_subject
from worstclass.types import BallAttack


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("checks")
    return train_run(tiny_config(write_tiny_npz(folder / "tiny.npz"), method="trades", epochs=3), folder / "run")


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class Probabilities(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.model(x), dim=1)


class Random(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model(x + 0.02 * torch.randn(x.shape)))


class BakedRandom(Wrapped):
    """Draws a constant shape, so a tracer takes the draw for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model(x + 0.2 * torch.randn(1, 1, 8, 8)))


class Discrete(Wrapped):
    """Robust-looking: its gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model((x * 8).round() / 8))


class Masked(Wrapped):
    """Gradients lead nowhere: the sign of the loss's slope is turned round on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model(2 * x.detach() - x))


class Purifying(Wrapped):
    """Optimises its input before it looks at it."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.autograd import grad

        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (slope,) = grad(self.model(z).logsumexp(1).sum(), z)
        return torch.as_tensor(self.model(x - 0.001 * slope))


class Stuck(Wrapped):
    """Stays in training mode whatever it is told."""

    def train(self, mode: bool = True) -> "Stuck":
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model(x))


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
        (Random, {"deterministic"}),
        (Discrete, {"gradients"}),
        (Purifying, {"no-inner-gradients"}),
        (Stuck, {"evaluation-mode"}),
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
    labels = np.zeros(1000, dtype=np.int64)
    broken_by = np.full(1000, "", dtype="U8")
    broken_by[:300] = "apgd-ce"
    attacks: dict[str, BallAttack] = {"autoattack": autoattack(eps=0.1), "square": Square(eps=0.1)}
    by = {"autoattack": broken_by, "square": np.full(1000, "square")}
    for count, passed in ((2, True), (3, False)):
        broken_by[300 : 300 + count] = "square"
        (finding,) = check_outcomes(Outcomes(labels, {}, by), attacks)
        assert (finding.name, finding.passed) == ("square autoattack", passed)


def test_a_last_iterate_that_hides_successes_is_a_finding() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    last, first = labels.copy(), labels.copy()
    first[:20] = 1
    (finding,) = check_outcomes(Outcomes(labels, {"pgd-5": last, "pgd-5/any": first}), {"pgd-5": pgd(5, eps=0.1)})
    assert not finding.passed
    assert "2.00 points" in finding.seen


def test_attacks_relate_as_they_should(run: Run) -> None:
    subject = run_subject(run)
    findings = check_attacks(subject.model, subject.images, eps=0.05, other=run_subject(run, checkpoint="last").model)
    assert [finding.name for finding in findings] == ["huge-radius", "more-steps", "transfer"]
    assert all(finding.passed for finding in findings), verdict(findings)
    assert verdict(findings) == "Trustworthy: all 3 checks passed."


def test_masked_gradients_do_not_pass(run: Run) -> None:
    subject = run_subject(run)
    masked = Masked(subject.model).eval()
    findings = check_attacks(masked, subject.images, eps=0.05, other=subject.model)
    assert findings
    assert not all(finding.passed for finding in findings)
    assert verdict(findings).startswith("Not trustworthy: ")


def test_more_steps_and_transfer_are_judged_beyond_chance() -> None:
    from worstclass.checks import _compare

    weaker, stronger = np.zeros(100, dtype=bool), np.zeros(100, dtype=bool)
    stronger[:6] = True  # six images the stronger attack lost: one in 64 by chance
    assert _compare("n", weaker, stronger, "s", "a").passed
    stronger[:7] = True  # seven: one in 128
    assert not _compare("n", weaker, stronger, "s", "a").passed
    assert _compare("n", weaker, weaker, "s", "a").passed


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


class Branching(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.model(x if x.mean() > 0.5 else x + 0.1))


@pytest.mark.parametrize("wrapper", [BakedRandom, Branching, Random])
def test_a_model_that_cannot_be_traced_is_used_as_it_is(wrapper: type[Wrapped]) -> None:
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


def test_a_search_on_any_model_still_counts_what_the_model_says(run: Run, tmp_path: Path) -> None:
    """Models that no view fits are attacked all the same."""
    subject = run_subject(run)
    for wrapper in (Random, Branching, Purifying):
        wrapped = replace(subject, model=wrapper(subject.model), about=dict(subject.about) | {"w": wrapper.__name__})
        card = evaluate_subject(wrapped, ["apgd-ce"], tmp_path / wrapper.__name__)
        column = card["columns"]["apgd-ce"]
        assert column["average"]["value"] < card["columns"]["natural"]["average"]["value"]
        assert sum(column["broken_by"].values()) == len(subject.images)
