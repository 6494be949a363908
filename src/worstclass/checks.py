"""Can these numbers be trusted? Checks that speak: each is a named finding, with what to do about it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor

from worstclass.attacks import PGD, Ensemble, pgd
from worstclass.attacks.lanes import predict
from worstclass.data import Images, to_float
from worstclass.errors import AttackError
from worstclass.evaluate import evaluate
from worstclass.outcomes import ANY, Outcomes
from worstclass.types import BallAttack, Classifier, Norm

CHECKED_IMAGES = 500  # that the checks look at
RANDOM, PROBABILITY, SQUARE, GAP = 1e-4, 1e-5, 0.002, 0.01
UNLIKELY = 0.01  # of a difference that is chance, below which it is not taken for chance
FEW_STEPS, MANY_STEPS = 10, 40


@dataclass(frozen=True)
class Finding:
    """One check: its name, whether it passed, what was seen, and what to do if it did not."""

    name: str
    passed: bool
    seen: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def _finding(name: str, passed: bool, seen: str, advice: str) -> Finding:
    return Finding(name, bool(passed), seen, "" if passed else advice)


def verdict(findings: Sequence[Finding]) -> str:
    """One line: trustworthy, or why not."""
    failed = [finding for finding in findings if not finding.passed]
    if not failed:
        return f"Trustworthy: all {len(findings)} checks passed."
    return "Not trustworthy: " + "; ".join(f"{finding.name} ({finding.seen})" for finding in failed) + "."


def load_findings(card: Mapping[str, Any]) -> list[Finding]:
    """The findings of a card; an older card has none."""
    return [Finding(**finding) for finding in card.get("findings", [])]


def merge(earlier: Sequence[Finding], later: Sequence[Finding]) -> list[Finding]:
    """All findings, each in its latest state."""
    return list({finding.name: finding for finding in (*earlier, *later)}.values())


# The model, on one batch


def check_model(model: Classifier, x: Tensor, y: Tensor) -> list[Finding]:
    """What a batch of images (B, C, H, W) with labels tells about a model, as it is: its mode is left alone."""
    logits = predict(model, x)
    return [
        _input_range(x),
        _training_mode(model),
        _randomised(model, x, logits),
        _probabilities(logits),
        _zero_gradients(model, x, y, logits),
        _inner_gradients(model, x),
    ]


def _input_range(x: Tensor) -> Finding:
    low, high = float(x.min()), float(x.max())
    advice = "Scale images to [0, 1] and put any normalisation inside the model: attacks clip to that range."
    return _finding("inputs-in-range", low >= 0 and high <= 1, f"images lie in {low:.4g}..{high:.4g}", advice)


def _training_mode(model: Classifier) -> Finding:
    training = sorted({type(module).__name__ for module in model.modules() if module.training})
    seen = f"in training mode: {', '.join(training)}" if training else "every layer is in evaluation mode"
    advice = "Call model.eval(): in training mode BatchNorm mixes the images of a batch, and dropout draws at random."
    return _finding("evaluation-mode", not training, seen, advice)


def _randomised(model: Classifier, x: Tensor, logits: Tensor) -> Finding:
    again = predict(model, x)
    scale = logits.flatten(1).norm(dim=1) + 1e-10
    apart = float(((logits - again).flatten(1).norm(dim=1) / scale).max())
    advice = "The model draws at random: use autoattack-rand, which averages gradients over 20 draws."
    return _finding("deterministic", apart <= RANDOM, f"two forwards differ by {apart:.2g} of the logits", advice)


def _probabilities(logits: Tensor) -> Finding:
    bounded = bool(((logits >= -PROBABILITY) & (logits <= 1 + PROBABILITY)).all())
    sums = bool(((logits.sum(1) - 1).abs() <= PROBABILITY).all())
    seen = "outputs are probabilities" if bounded and sums else "outputs are not probabilities"
    advice = "Return logits: after a softmax gradients vanish, and the ratio of logits that DLR needs is lost."
    return _finding("logits", not (bounded and sums), seen, advice)


def _zero_gradients(model: Classifier, x: Tensor, y: Tensor, logits: Tensor) -> Finding:
    right = logits.argmax(1) == y
    moving = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        output = model(moving)
        grads = torch.autograd.grad(F.cross_entropy(output, y, reduction="sum"), moving, allow_unused=True)[0]
    still = torch.ones_like(right) if grads is None else grads.flatten(1).abs().amax(1) == 0
    count, total = int((still & right).sum()), int(right.sum())
    advice = (
        "Cross-entropy cannot move these images: look for a saturating or a discretising layer, and believe attacks on "
        "other losses (autoattack, square) rather than PGD."
    )
    return _finding("gradients", count == 0, f"{count} of {total} right images have a zero gradient", advice)


def _inner_gradients(model: Classifier, x: Tensor) -> Finding:
    with _watch_autograd() as calls:
        model(x)
    seen = f"{len(calls)} gradient computations inside a forward" if calls else "a forward computes no gradients"
    advice = (
        "A model that optimises at inference adapts to its input: AutoAttack may not be enough, an attack on the "
        "whole procedure is needed."
    )
    return _finding("no-inner-gradients", not calls, seen, advice)


@contextmanager
def _watch_autograd() -> Iterator[list[str]]:
    """The calls of autograd in the body, however they were imported."""
    watched = {function.__code__ for function in (torch.autograd.grad, torch.autograd.backward)}
    calls: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in watched:
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(before)


# What an evaluation's own outcomes say


def check_outcomes(outcomes: Outcomes, attacks: Mapping[str, BallAttack]) -> list[Finding]:
    """Whether the black-box attack found what the white-box ones missed, and the last iterate hides successes."""
    findings = []
    for name, attack in attacks.items():
        if isinstance(attack, Ensemble) and "square" in list(attack.attacks)[1:]:
            findings.append(_square_improves(name, outcomes.broken_by[name]))
    for name, predicted in outcomes.predictions.items():
        if name + ANY in outcomes.predictions:
            stronger = outcomes.predictions[name + ANY]
            gap = float(np.mean(predicted == outcomes.labels) - np.mean(stronger == outcomes.labels))
            advice = "The attack passes by successes: quote the any-iterate accuracy, or a smaller step and more steps."
            findings.append(
                _finding(f"last-iterate {name}", gap <= GAP, f"any iterate breaks {100 * gap:.2f} points more", advice)
            )
    return findings


def _square_improves(name: str, broken_by: NDArray[np.str_]) -> Finding:
    share = float((broken_by == "square").mean())
    advice = (
        "An attack without gradients found what gradients did not: they are likely masked. Give Square more queries, "
        "or build an attack for this model."
    )
    return _finding(f"square {name}", share <= SQUARE, f"Square broke {100 * share:.2f}% after the others", advice)


# Good practice: attacks that must relate as they should


def check_attacks(
    model: Classifier,
    images: Images,
    *,
    eps: float,
    norm: Norm = "linf",
    seed: int = 0,
    batch_size: int = 500,
    other: Classifier | None = None,
) -> list[Finding]:
    """A huge radius must reach chance, more steps must not hurt the attacker, and images made for `other`, another
    model, must not fool this one more often than its own. At most 500 images are looked at."""
    images = images.select(torch.arange(min(len(images), CHECKED_IMAGES)))
    huge = 1.0 if norm == "linf" else float(np.sqrt(images.x[0].numel()))
    attacks: dict[str, BallAttack] = {
        "huge": pgd(MANY_STEPS, eps=huge, norm=norm),
        "few": pgd(FEW_STEPS, eps=eps, norm=norm),
        "many": pgd(MANY_STEPS, eps=eps, norm=norm),
    }
    if other is not None:
        attacks["transfer"] = Transfer(other, pgd(MANY_STEPS, eps=eps, norm=norm))
    try:
        outcomes = evaluate(model, images, attacks, seed=seed, batch_size=batch_size)
    except AttackError as error:
        return [Finding("attacks-harm", False, str(error), "Find out why before quoting any number under this attack.")]
    right = {name: predicted == outcomes.labels for name, predicted in outcomes.predictions.items()}
    num_classes = predict(model, to_float(images.x[:1]).to(next(model.parameters()).device)).shape[1]
    findings = [
        _reaches_chance(right["huge" + ANY], num_classes, huge),
        _compare(
            "more-steps",
            right["few"],
            right["many"],
            f"accuracy under {FEW_STEPS} and {MANY_STEPS} steps",
            "More steps made the attack weaker: its step size does not fit, or gradients mislead it.",
        ),
    ]
    if other is not None:
        findings.append(
            _compare(
                "transfer",
                right["transfer"],
                right["many"],
                "accuracy on images made for the other model and for this one",
                "Images made for another model fool this one more often than its own: its gradients are masked.",
            )
        )
    return findings


@dataclass(frozen=True)
class Transfer:
    """Images made by an attack on another model."""

    source: Classifier
    attack: PGD

    @property
    def eps(self) -> float:
        return self.attack.eps

    @property
    def norm(self) -> Norm:
        return self.attack.norm

    def __call__(self, model: Classifier, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return self.attack(self.source, x, y, **options)


def _reaches_chance(right: NDArray[np.bool_], num_classes: int, huge: float) -> Finding:
    accuracy, chance = float(right.mean()), 1 / num_classes
    advice = (
        "Within this radius every image can become any other: accuracy above chance means that the attack does not see "
        "the model. Look for masked gradients."
    )
    seen = f"accuracy {100 * accuracy:.1f}% at radius {huge:.4g}, chance {100 * chance:.1f}%"
    return _finding("huge-radius", accuracy <= chance, seen, advice)


def _compare(name: str, weaker: NDArray[np.bool_], stronger: NDArray[np.bool_], seen: str, advice: str) -> Finding:
    """Fails if the model is right more often under what should be the stronger attack, beyond chance (McNemar)."""
    lost, gained = int((weaker & ~stronger).sum()), int((~weaker & stronger).sum())
    chance = binomtest(gained, gained + lost, alternative="greater").pvalue if gained + lost else 1.0
    seen = f"{seen}: {100 * weaker.mean():.1f}% and {100 * stronger.mean():.1f}%"
    return _finding(name, chance >= UNLIKELY, seen, advice)
