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
from worstclass.attacks.active_set import predict
from worstclass.data import Images
from worstclass.evaluation.evaluate import as_input, evaluate
from worstclass.evaluation.outcomes import ANY, NATURAL, Outcomes
from worstclass.inputs.images import PROBABILITY, are_probabilities
from worstclass.metrics.percentages import percent
from worstclass.types import BallAttack, Classifier, Norm

CHECKED_IMAGES = 500  # that the checks look at
RANDOM, MIXED, SQUARE, GAP = 1e-4, 1e-3, 0.002, 0.01
DRAWS = 20  # as autoattack-rand's
UNLIKELY = 0.01  # of a difference that is chance, below which it is not taken for chance
FEW_STEPS, MANY_STEPS = 10, 40
STRONG = "strong-attack"
SQUASHED = "all outputs lie in 0..1, as after a sigmoid"
COPIES = 0.01  # of the images: fewer, as CIFAR has, move no accuracy by a point


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


def is_trusted(findings: Sequence[Finding]) -> bool:
    """Whether all passed, and among them that an attack was run that numbers may rest on: `verdict` may say so."""
    return all(finding.passed for finding in findings) and STRONG in [finding.name for finding in findings]


def load_findings(card: Mapping[str, Any]) -> list[Finding]:
    """The findings of a card; an older card has none."""
    return [Finding(**finding) for finding in card.get("findings", [])]


def merge(earlier: Sequence[Finding], later: Sequence[Finding]) -> list[Finding]:
    """All findings, each in its latest state."""
    return list({finding.name: finding for finding in (*earlier, *later)}.values())


def check_unseen(seen: int, images: int) -> Finding:
    """How many of the test images a run has learned from, or was validated with."""
    told = f"{seen} of {images} images are training or validation images of this run"
    advice = "Accuracy on them says nothing of new images: take them out of one of the two parts."
    return _finding("unseen-images", seen <= COPIES * images, told if seen else "no image was seen in training", advice)


# The model, on one batch


def check_model(model: Classifier, x: Tensor, y: Tensor) -> list[Finding]:
    """What a batch of images (B, C, H, W) with labels tells about a model, as it is: its mode is left alone."""
    logits = predict(model, x)
    randomised = _randomised(model, x, y, logits)
    return [
        _input_range(x),
        _training_mode(model),
        randomised,
        *([_alone(model, x, logits)] if randomised.passed else []),  # it would be the draws that differ
        _probabilities(logits),
        _gradients(model, x, y, logits),
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


def _randomised(model: Classifier, x: Tensor, y: Tensor, logits: Tensor) -> Finding:
    draws = [predict(model, x) for _ in range(DRAWS)]
    apart = max(_apart(each, logits) for each in draws)
    seen = f"forwards differ by {apart:.2g} of the logits"
    if apart > RANDOM:
        right = torch.stack([each.argmax(1) == y for each in draws]).double()
        once, always = percent(float(right.mean())), percent(float(right.amin(0).mean()))
        seen += f"; without an attack {once}% of {len(y)} images are right in one draw, {always}% in each of {DRAWS}"
    advice = (
        "The model draws at random: autoattack-rand averages gradients over 20 draws. An image counts as broken at the "
        "first draw that is wrong, so robust accuracy is lower by the model's own chance."
    )
    return _finding("deterministic", apart <= RANDOM, seen, advice)


def _alone(model: Classifier, x: Tensor, logits: Tensor) -> Finding:
    half = (len(x) + 1) // 2
    apart = _apart(predict(model, x[:half]), logits[:half])
    advice = "An image's logits depend on the others in its batch, so no number here is one of the model alone."
    seen = f"in another batch logits move by {apart:.2g}"
    return _finding("one-by-one", apart <= MIXED, seen, advice)


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of two sets of logits, as a share of their length."""
    lengths = other.flatten(1).norm(dim=1) + 1e-10
    return float(((one - other).flatten(1).norm(dim=1) / lengths).max())


def _probabilities(logits: Tensor) -> Finding:
    bounded = bool(((logits >= -PROBABILITY) & (logits <= 1 + PROBABILITY)).all())
    sums = are_probabilities(logits)
    squashed = bounded and logits.shape[1] > 1 and float(logits.amax()) > 0.5
    seen = "outputs are probabilities" if sums else SQUASHED
    advice = "Return logits: after a softmax or sigmoid gradients vanish, outputs tie, and DLR lacks its ratio."
    if not sums and not squashed:
        return _finding("logits", True, "outputs are not probabilities", "")
    return _finding("logits", False, seen, advice)


def _gradients(model: Classifier, x: Tensor, y: Tensor, logits: Tensor) -> Finding:
    right = logits.argmax(1) == y
    moving = x.detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            loss = F.cross_entropy(model(moving), y, reduction="sum")
            (grad,) = torch.autograd.grad(loss, moving)
    except RuntimeError:  # no path from the images to the logits
        grad = torch.zeros_like(moving)
    zero, broken = grad.flatten(1).abs().amax(1) == 0, ~grad.flatten(1).isfinite().all(1)
    still, odd, total = int((zero & right).sum()), int(broken.sum()), int(right.sum())
    advice = (
        "Cross-entropy cannot move these images: look for a saturating or a discretising layer, or for a slope that is "
        "not finite, and believe attacks without gradients (square) rather than the others."
    )
    seen = f"{still} of {total} right images have a zero gradient, {odd} of {len(x)} one that is not finite"
    return _finding("gradients", still + odd == 0, seen, advice)


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
        if isinstance(attack, Ensemble) and list(attack.attacks)[1:][-1:] == ["square"]:  # the last of several
            findings.append(_square_improves(name, outcomes.broken_by[name]))
        if name + ANY in outcomes.predictions:
            last, best = (outcomes.predictions[each] == outcomes.labels for each in (name, name + ANY))
            gap = float(last.mean() - best.mean())
            advice = "The attack passes by successes: quote the any-iterate accuracy, or a smaller step and more steps."
            seen = f"any iterate breaks {100 * gap:.2f} points more"
            findings.append(_finding(f"last-iterate {name}", gap <= GAP, seen, advice))
    return findings


def _square_improves(name: str, broken_by: NDArray[np.str_]) -> Finding:
    """The public code warns above 0.2%; on few images a share above it may be chance."""
    count, total = int((broken_by == "square").sum()), len(broken_by)
    chance = binomtest(count, total, SQUARE, alternative="greater").pvalue
    advice = (
        "An attack without gradients found what gradients did not: they may be masked, or the white-box attacks stuck. "
        "Give Square more queries, the others restarts (autoattack-plus), or build an attack for this model."
    )
    return _finding(f"square {name}", chance >= UNLIKELY, f"Square broke {count} of {total} after the others", advice)


# Good practice: attacks that must relate as they should


def check_attacks(
    model: Classifier,
    images: Images,
    *,
    num_classes: int,
    eps: float,
    norm: Norm = "linf",
    seed: int = 0,
    batch_size: int = 500,
    other: Classifier | None = None,
) -> list[Finding]:
    """A huge radius must reach chance, attacks must harm and more steps not hurt the attacker, and images made for
    `other`, another model, must not fool this one more often than its own. At most 500 images are looked at."""
    images = some_of(images)
    if not has_gradients(model, as_input(model, images.select(torch.arange(1)))[0]):
        advice = "These checks attack by gradients and were not made: nothing says that the numbers can be believed."
        return [_finding("attacks-harm", False, "no gradient leads from the logits to the images", advice)]
    huge = 1.0 if norm == "linf" else float(np.sqrt(images.x[0].numel()))
    attacks: dict[str, BallAttack] = {
        "huge": pgd(MANY_STEPS, eps=huge, norm=norm),
        "few": pgd(FEW_STEPS, eps=eps, norm=norm),
        "many": pgd(MANY_STEPS, eps=eps, norm=norm),
    }
    if other is not None:
        attacks["transfer"] = Transfer(other, pgd(MANY_STEPS, eps=eps, norm=norm))
    outcomes = evaluate(model, images, attacks, seed=seed, batch_size=batch_size, must_harm=False)
    right = {name: predicted == outcomes.labels for name, predicted in outcomes.predictions.items()}
    findings = [
        _reaches_chance(right["huge" + ANY], num_classes, huge),
        _compare(
            "attacks-harm",
            right[NATURAL],
            right["many"],
            f"accuracy without an attack and under {MANY_STEPS} steps",
            "The attack helps the model: its gradients point the wrong way.",
        ),
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


def has_gradients(model: Classifier, x: Tensor) -> bool:
    """Whether a path leads from the images to the logits, however flat it may be."""
    moving = x.detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            torch.autograd.grad(model(moving).sum(), moving)
    except RuntimeError:
        return False
    return True


def check_strength(attacks: Mapping[str, BallAttack]) -> Finding:
    """Whether anything was run that numbers may rest on."""
    strong = [name for name, attack in attacks.items() if isinstance(attack, Ensemble)]
    seen = f"run: {', '.join(attacks) or 'no attack'}"
    return _finding(STRONG, bool(strong), seen, "Accuracy under less is an upper bound: run autoattack.")


def some_of(images: Images, count: int = CHECKED_IMAGES) -> Images:
    """So many of the images, evenly spread: files are often sorted by class."""
    rows = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long()
    return images.select(rows)


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
    seen = f"accuracy {percent(accuracy)}% at radius {huge:.4g}, chance {percent(chance)}%"
    return _finding("huge-radius", accuracy <= chance, seen, advice)


def _compare(name: str, weaker: NDArray[np.bool_], stronger: NDArray[np.bool_], seen: str, advice: str) -> Finding:
    """Fails if the model is right more often under what should be the stronger attack, beyond chance (McNemar)."""
    lost, gained = int((weaker & ~stronger).sum()), int((~weaker & stronger).sum())
    chance = binomtest(gained, gained + lost, alternative="greater").pvalue if gained + lost else 1.0
    seen = f"{seen}: {percent(weaker.mean())}% and {percent(stronger.mean())}%"
    return _finding(name, chance >= UNLIKELY, seen, advice)
