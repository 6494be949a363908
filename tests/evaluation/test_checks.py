"""Each check speaks up about the model it was made for, and keeps quiet about a sound one."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from odd_models import (
    Branching,
    Coin,
    Detached,
    Discrete,
    Locked,
    Masked,
    Mixing,
    Probabilities,
    Purifying,
    Quantised,
    Random,
    Steep,
    Stuck,
    Wrapped,
    parametrized,
)
from oracles import unchanged
from tiny import tiny_config, tiny_run, write_tiny_npz
from worstclass.attacks import APGD, FAB, Ensemble, Square, autoattack, pgd
from worstclass.cli import main as cli
from worstclass.data import Images, to_float
from worstclass.errors import UserError
from worstclass.evaluation.checks import (
    DRAWS,
    STRONG,
    Finding,
    Transfer,
    check_attacks,
    check_model,
    check_outcomes,
    check_strength,
    is_trusted,
    load_findings,
    merge,
    some_of,
    verdict,
)
from worstclass.evaluation.checks import _compare as compare
from worstclass.evaluation.evaluate import evaluate
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import load_card
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.rng import PerSample, generator
from worstclass.runs.run import Run
from worstclass.runs.train import train_run
from worstclass.types import BallAttack, Norm


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("checks"))


def failed(model: nn.Module, images: Images) -> set[str]:
    found = check_model(model.eval(), to_float(images.x), images.y)
    assert all(bool(finding.advice) != finding.passed for finding in found)
    return {finding.name for finding in found if not finding.passed}


def test_a_sound_model_passes_and_is_left_alone(run: Run) -> None:
    target = run_target(run.folder)
    with unchanged(target.model):
        assert failed(target.model, target.images) == set()


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        (Probabilities, {"logits"}),
        (Random, {"deterministic"}),  # in another batch it would be the draws that differ
        (Discrete, {"gradients"}),
        (Detached, {"gradients"}),
        (Steep, {"gradients"}),
        (Mixing, {"one-by-one"}),
        (Purifying, {"no-inner-gradients"}),
        (Stuck, {"evaluation-mode", "one-by-one"}),
    ],
)
def test_each_fault_is_found_and_named(wrapper: type[Wrapped], expected: set[str], run: Run) -> None:
    target = run_target(run)
    assert failed(wrapper(target.model), target.images) == expected


def test_a_random_model_is_told_what_chance_alone_breaks(run: Run) -> None:
    """How many images are right in a draw, and how many in each: counted from what the model said."""
    target = run_target(run)
    said: list[Tensor] = []

    class Coin(Wrapped):
        """Wrong by chance about every fifth image."""

        def forward(self, x: Tensor) -> Tensor:
            logits = self.logits(x)
            logits = torch.where(torch.rand(len(x), 1) < 0.2, -logits, logits)
            said.append(logits.argmax(1))
            return logits

    found = {each.name: each for each in check_model(Coin(target.model), to_float(target.images.x), target.images.y)}
    draws = torch.stack(said[1 : 1 + DRAWS]) == target.images.y
    once, always = draws.double().mean(), draws.all(0).double().mean()
    assert f"{100 * once:.1f}% of {len(target.images)} images are right in one draw" in found["deterministic"].seen
    assert f"{100 * always:.1f}% in each of 20" in found["deterministic"].seen
    assert "one-by-one" not in found


def test_inputs_outside_the_range_are_found(run: Run) -> None:
    target = run_target(run)
    x = 2 * to_float(target.images.x) - 1
    by_name = {finding.name: finding for finding in check_model(target.model, x, target.images.y)}
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
    target = run_target(run)
    other = copy.deepcopy(target.model)
    noise = generator(0, "noise")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=noise))
    findings = check_attacks(target.model, target.images, num_classes=3, eps=0.05, other=other)
    assert [finding.name for finding in findings] == ["huge-radius", "attacks-harm", "more-steps", "transfer"]
    assert all(finding.passed for finding in findings), verdict(findings)
    assert verdict(findings) == "Trustworthy: all 4 checks passed."


def test_a_transfer_that_does_no_harm_condemns_nobody(run: Run) -> None:
    target = run_target(run)
    helping = Masked(target.model)  # its images make this model surer
    findings = check_attacks(target.model, target.images, num_classes=3, eps=0.05, other=helping)
    assert all(finding.passed for finding in findings), verdict(findings)


def test_masked_gradients_do_not_pass(run: Run) -> None:
    target = run_target(run)
    masked = Masked(target.model).eval()
    findings = check_attacks(masked, target.images, num_classes=3, eps=0.05, other=target.model)
    assert {finding.name for finding in findings if not finding.passed} >= {"huge-radius", "transfer"}
    assert verdict(findings).startswith("Not trustworthy: ")


def test_what_was_not_attacked_in_earnest_is_not_trusted(run: Run, tmp_path: Path) -> None:
    card = evaluate_target(run_target(run), ["pgd-5"], tmp_path, checks=True)
    assert "strong-attack (run: pgd-5)" in verdict(load_findings(card))
    assert check_strength({"autoattack": autoattack(eps=0.1)}).passed


def test_how_strong_the_attacks_are_is_said_of_all_that_were_run(run: Run, tmp_path: Path) -> None:
    """Also of one that is run later; without `checks` nothing is said of it where nothing was."""
    target, out = run_target(run), tmp_path / "checked"
    plain = load_findings(evaluate_target(target, ["pgd-1"], tmp_path / "plain"))
    assert STRONG not in [finding.name for finding in plain]
    assert not is_trusted(plain)
    evaluate_target(target, ["pgd-1"], out, checks=True)
    later = load_findings(evaluate_target(target, ["pgd-2"], out))
    assert [finding.seen for finding in later if finding.name == STRONG] == ["run: pgd-1, pgd-2"]
    assert load_findings(load_card(out)) == later


def test_a_transfer_from_other_data_is_refused_before_anything_runs(run: Run, tmp_path: Path) -> None:
    data = write_tiny_npz(tmp_path / "four.npz", num_classes=4)
    other = train_run(tiny_config(data, epochs=1), tmp_path / "four")
    with pytest.raises(UserError, match="in 4 classes cannot be tried"):
        evaluate_target(run_target(run), ["pgd-5"], tmp_path / "out", checks=True, transfer=run_target(other))
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
    target = run_target(run)
    broken = replace(target, model=Probabilities(target.model))
    card = evaluate_target(broken, ["pgd-5"], tmp_path, checks=True)
    names = [finding["name"] for finding in card["findings"]]
    assert names[:2] == ["inputs-in-range", "evaluation-mode"]
    assert {"logits", "huge-radius", "more-steps", "last-iterate pgd-5"} <= set(names)
    (logits,) = [finding for finding in card["findings"] if finding["name"] == "logits"]
    assert not logits["passed"]
    assert "Return logits" in logits["advice"]
    later = evaluate_target(broken, ["apgd-ce"], tmp_path)
    assert {"huge-radius", "logits"} <= {finding["name"] for finding in later["findings"]}
    assert later["findings"] == load_card(tmp_path)["findings"]
    assert "logits (outputs are probabilities)" in verdict(load_findings(later))


def test_the_latest_state_of_a_finding_counts() -> None:
    old, new = Finding("a", False, "x", "y"), Finding("a", True, "z")
    assert merge([old, Finding("b", True, "")], [new]) == [new, Finding("b", True, "")]


# The view that searches run on


@pytest.mark.parametrize(
    "wrapper", [Random, Coin, Quantised, Detached, Steep, Purifying, Branching, Locked, Stuck, Mixing, parametrized]
)
def test_every_part_attacks_every_model(wrapper: Any, run: Run) -> None:
    """Models that no view fits are attacked all the same, and the two records of an outcome agree."""
    target = run_target(run)
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
    outcomes = evaluate(wrapper(target.model), target.images, {"all": attack}, must_harm=False)
    broken = outcomes.broken_by["all"] != ""
    assert np.array_equal(outcomes.predictions["all"] != outcomes.labels, broken)
    assert broken.sum() > (outcomes.broken_by["all"] == "natural").sum()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_slope_that_is_not_finite_loses_no_image(norm: Norm, run: Run) -> None:
    target = run_target(run)
    x, y = to_float(target.images.x), target.images.y
    x[:, :, 0] = 0
    for attack in (APGD(eps=0.05, norm=norm, steps=5), FAB(eps=0.05, norm=norm, steps=5)):
        assert attack(Steep(target.model).eval(), x, y).isfinite().all()


def test_a_quantised_model_is_attacked_with_its_own_gradient(run: Run) -> None:
    """What a trace would have hidden: APGD is as strong as it is on the model itself."""
    target = run_target(run)
    model = Quantised(target.model).eval()
    outcomes = evaluate(model, target.images, {"apgd": APGD(eps=0.05, steps=20)}, seed=3)
    x, y = to_float(target.images.x), target.images.y
    right = model(x).argmax(1) == y
    source = PerSample(3, "evaluate/apgd", right.nonzero().squeeze(1).tolist())
    direct = APGD(eps=0.05, steps=20).breaks(model, x[right], y[right], generator=source)
    assert np.array_equal((outcomes.broken_by["apgd"] == "apgd")[right.numpy()], direct.found.numpy())
    assert direct.found.any()


class Parameterless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 20 * x.mean((1, 3))[:, [0, 2, 4]]


def test_models_without_parameters_and_in_double_precision(run: Run) -> None:
    target = run_target(run)
    attack = Ensemble(attacks={"apgd-ce": APGD(eps=0.05, steps=3), "square": Square(eps=0.05, queries=20)})
    for model in (Parameterless(), copy.deepcopy(target.model).double()):
        outcomes = evaluate(model, target.images, {"pgd": pgd(2, eps=0.05), "both": attack})
        assert outcomes.predictions.keys() == {"natural", "pgd", "pgd/any", "both"}
    with pytest.raises(UserError, match="no images"):
        evaluate(target.model, target.images.select(torch.arange(0)), {})


def test_attacks_that_print_alike_are_not_taken_for_one(run: Run) -> None:
    target = run_target(run)
    other = copy.deepcopy(target.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1)
    one, two = (Transfer(source, pgd(3, eps=0.05)) for source in (target.model, other))
    both = evaluate(target.model, target.images, {"one": one, "two": two}, must_harm=False)
    alone = evaluate(target.model, target.images, {"two": two}, must_harm=False)
    assert np.array_equal(both.predictions["two"], alone.predictions["two"])
    assert not np.array_equal(both.predictions["one"], both.predictions["two"])


def test_the_command_prints_checks_and_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    train_run(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1), folder)
    cli.app(
        ["evaluate", str(folder), "--attacks", "pgd-2", "--checks", "--transfer", str(folder)], standalone_mode=False
    )
    printed = capsys.readouterr().out
    assert "passed  evaluation-mode: every layer is in evaluation mode." in printed
    assert re.search(r"^(T|Not t)rustworthy", printed, re.MULTILINE)
    with pytest.raises(UserError, match="give --checks too"):
        cli.app(["evaluate", str(folder), "--transfer", str(folder)], standalone_mode=False)
    with pytest.raises(UserError, match="needs a GPU"):
        cli.app(["evaluate", str(folder), "--search", "bf16", "--device", "cpu"], standalone_mode=False)
    with pytest.raises(UserError, match="unknown search precision"):
        cli.app(["evaluate", str(folder), "--search", "fp8", "--device", "cpu"], standalone_mode=False)
