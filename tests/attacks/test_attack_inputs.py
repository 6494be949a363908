"""What attacks are called with: refused in one line where a number would be wrong, taken where it is right."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracles import Linear, interior_batch, smallest_margin
from worstclass.attacks import (
    APGD,
    FAB,
    PAPER_RATIO,
    PGD,
    Ensemble,
    Square,
    cw,
    fgsm,
    make_attack,
    pgd,
    step_ratio,
    validation_cw,
    validation_pgd,
)
from worstclass.errors import UserError
from worstclass.inputs.images import check_images, values_known
from worstclass.inputs.names import ATTACK_NAMES
from worstclass.rng import PerSample
from worstclass.types import BallAttack, Norm

EVERY: list[BallAttack] = [
    PGD(eps=0.1, steps=2, step_size=0.05),
    PGD(eps=0.1, steps=2, step_size=0.05, keep="any"),
    APGD(eps=0.1, steps=2),
    FAB(eps=0.1, steps=2),
    Square(eps=0.1, queries=3),
    Square(eps=0.1, queries=3, norm="l2"),
    Ensemble(attacks={"apgd": APGD(eps=0.1, steps=2)}),
]


# --- what is refused ---

X, Y = interior_batch(6, 3, 0.2)
WRONG: dict[str, tuple[Any, Any, str]] = {
    "normalised": ((X - 0.5) / 0.25, Y, "normalisation inside the model"),
    "of 0..255": (255 * X, Y, "divide by 255"),
    "not finite": (X.clone().index_fill_(0, torch.tensor([2]), torch.nan), Y, "not finite"),
    "uint8": ((255 * X).byte(), Y, r"x\.float\(\) / 255"),
    "int64": ((255 * X).long(), Y, "torch.int64"),
    "an array": (X.numpy(), Y, "torch tensor"),
    "grey of 3 dimensions": (X[:, 0], Y, r"x\[:, None\]"),
    "a vector": (X.flatten(1), Y, r"\(N, C, H, W\)"),
    "channels last": (torch.rand(6, 8, 8, 3), Y, r"permute\(0, 3, 1, 2\)"),
    "no pixels": (X[:, :, :0], Y, "no pixels"),
    "one-hot": (X, nn.functional.one_hot(Y, 3), "argmax"),
    "float labels": (X, Y.double(), "whole numbers"),
    "a column of labels": (X, Y[:, None], "whole numbers"),
    "too few labels": (X, Y[:5], "6 images have 5 labels"),
    "a negative label": (X, Y - 3, r"expected 0\.\.K-1"),
    "a label too many": (X, Y + 3, r"expected 0\.\.2"),
}


@pytest.mark.parametrize("attack", EVERY, ids=repr)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_batches_are_refused(attack: BallAttack, wrong: str) -> None:
    x, y, message = WRONG[wrong]
    with pytest.raises(UserError, match=message):
        attack(Linear(3), x, y)


def test_a_normalised_batch_is_not_clipped_without_a_word() -> None:
    """At 2/255 it came back 1.99 away: the clamp to [0, 1] had moved it."""
    with pytest.raises(UserError, match=r"lie in -1\.\d+\.\.1\.\d+: .*Normalized") as refused:
        make_attack("pgd-20", eps=2 / 255)(Linear(3), (X - 0.5) / 0.25, Y)
    assert "\n" not in str(refused.value)


def test_rounding_at_the_ends_of_the_range_is_not_refused() -> None:
    x = X.clone()
    x[0], x[1] = -5e-7, 1 + 5e-7
    x_adv = fgsm(eps=0.1)(Linear(3), x, Y)
    assert 0 <= x_adv.min() <= x_adv.max() <= 1


@pytest.mark.parametrize("attack", EVERY, ids=repr)
def test_models_that_do_not_classify_are_refused(attack: BallAttack) -> None:
    class Answers(nn.Module):
        def __init__(self, answer: Any) -> None:
            super().__init__()
            self.answer = answer

        def forward(self, x: Tensor) -> Any:
            return self.answer(x.flatten(1))

    zeros = torch.zeros_like(Y)
    for answer, message in (
        (lambda x: x[:, :1], "one logit"),
        (lambda x: x[:, 0], r"returns \(6,\)"),
        (lambda x: x[:, :3, None], r"returns \(6, 3, 1\)"),
        (lambda x: (x, x), "not tuple"),
    ):
        with pytest.raises(UserError, match=message):
            attack(Answers(answer), X, zeros)


def test_margins_are_checked() -> None:
    for radius_scale, message in (
        (torch.ones(5), r"\(6,\)"),
        (-torch.ones(6), "negative"),
        (torch.ones(6) / 0, "finite"),
    ):
        for attack in EVERY:
            with pytest.raises(UserError, match=message):
                attack(Linear(3), X, Y, radius_scale=radius_scale)


def test_a_training_step_looks_at_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look is to wait for the device: where values are known, no tensor is turned into a Python number."""

    def waits(*_: object) -> Any:
        raise AssertionError("the host waited for a value")

    attack, model = PGD(eps=0.1, steps=2, step_size=0.05), Linear(3)
    with monkeypatch.context() as patched:
        for name in ("__int__", "__float__", "__bool__", "item", "tolist"):
            patched.setattr(Tensor, name, waits)
        with values_known():
            attack(model, X, Y, radius_scale=torch.ones(6), generator=torch.Generator())
        with pytest.raises(AssertionError, match="waited"):
            attack(model, X, Y, generator=torch.Generator())


def test_one_generator_is_not_stretched_over_a_batch() -> None:
    for attack in EVERY:
        for size in (1, 5):
            with pytest.raises(UserError, match=f"{size} generators were given for 6 samples"):
                attack(Linear(3), X, Y, generator=PerSample(0, "s", range(size)))


# --- what is taken ---


@pytest.mark.parametrize("attack", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_whole_numbers_of_any_width_are_labels(attack: BallAttack, dtype: torch.dtype) -> None:
    assert torch.equal(attack(Linear(3), X, Y.to(dtype)), attack(Linear(3), X, Y))


@pytest.mark.parametrize("attack", EVERY, ids=repr)
def test_an_empty_batch_has_an_empty_answer(attack: BallAttack) -> None:
    assert attack(Linear(3), X[:0], Y[:0]).shape == (0, 1, 4, 4)


@pytest.mark.parametrize("attack", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_precisions_are_kept(attack: BallAttack, dtype: torch.dtype) -> None:
    """An attack in the model's own precision stays in the ball, up to that precision."""
    x_adv = attack(Linear(3).to(dtype), X.to(dtype), Y)
    assert x_adv.dtype == dtype
    assert (x_adv - X.to(dtype)).abs().max() <= attack.eps + 2 * torch.finfo(dtype).eps


# --- radii ---


@pytest.mark.parametrize("name", sorted(set(ATTACK_NAMES) - {"pgd-N", "cw-N"} | {"pgd-20", "cw-7"}))
def test_a_radius_of_8_is_a_question(name: str) -> None:
    with pytest.raises(UserError, match=r"eps = 8: did you mean 8/255\? .*at most 1\.$"):
        make_attack(name, eps=8)
    for eps, message in ((-0.1, "negative"), (float("nan"), "finite"), (float("inf"), "finite"), ("8/255", "a number")):
        with pytest.raises(UserError, match=message):
            make_attack(name, eps=eps)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown norm 'l1'"):
        make_attack(name, eps=0.1, norm="l1")  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_whole_image_range_is_the_widest_ball(norm: Norm) -> None:
    widest = 1.0 if norm == "linf" else 4.0  # of 16 pixels
    pgd(3, eps=widest, norm=norm)(Linear(3), X, Y)
    with pytest.raises(UserError, match=r"did you mean 128/255\?"):
        pgd(3, eps=128, norm=norm)(Linear(3), X, Y)


# --- names and their steps ---


def test_a_name_is_one_attack() -> None:
    """PGD-20, PGD-100 and CW-30 are the paper's; what validates a run has a name of its own."""
    eps = 8 / 255
    for steps in (20, 30, 100):
        assert pgd(steps, eps=eps) == PGD(eps=eps, steps=steps, step_size=PAPER_RATIO * eps)
        assert pgd(steps, eps=eps).step_size == pytest.approx(0.003)
    assert cw(eps=eps).step_size == pytest.approx(0.003)
    assert (
        make_attack("validation-pgd", eps=eps) == validation_pgd(eps=eps) == PGD(eps=eps, steps=20, step_size=eps / 4)
    )
    assert validation_pgd(eps=eps) != pgd(20, eps=eps)
    margin = PGD(eps=eps, steps=20, step_size=eps / 4, loss="cw")
    assert make_attack("validation-cw", eps=eps) == validation_cw(eps=eps) == margin


def test_fewer_steps_are_longer_and_none_is_a_jump() -> None:
    ratios = [step_ratio(steps) for steps in range(1, 200)]
    assert ratios == sorted(ratios, reverse=True)
    assert min(ratios) == PAPER_RATIO
    assert all(steps * step_ratio(steps) >= 2 - 1e-12 for steps in (*range(1, 20), *range(21, 200)))  # across the ball
    assert 1.9 < 20 * step_ratio(20) < 2
    assert step_ratio(19) < 1.15 * step_ratio(20)
    assert "steps=5, step_size=0.2," in repr(pgd(5, eps=0.5))  # a card shows it


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 19])
def test_few_steps_reach_the_worst_point_of_a_linear_model(steps: int, norm: Norm) -> None:
    """From any start in the ball, with two classes, where every step points the same way: no weaker than FGSM."""
    model, eps = Linear(2), 0.1
    x, y = interior_batch(50, 2, eps)
    logits = model(pgd(steps, eps=eps, norm=norm)(model, x, y, generator=PerSample(0, "s", range(50))))
    reached = (logits.gather(1, y[:, None]) - logits.gather(1, 1 - y[:, None])).squeeze(1).detach()
    worst = smallest_margin(model, x, y, eps, norm)
    if norm == "linf":
        assert torch.allclose(reached, worst, atol=1e-9)
    else:  # projection bends a step: a sphere's pole is approached
        clean = smallest_margin(model, x, y, 0.0, norm)
        assert ((clean - reached) >= 0.85 * (clean - worst)).all()


def test_black_images_from_truncated_floats_are_found() -> None:
    with pytest.raises(UserError, match="only 0 and 1"):
        check_images(X.round().byte())
    check_images(torch.zeros(3, 1, 4, 4, dtype=torch.uint8))
