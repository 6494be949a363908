"""What is looked at before the first attack: mistakes that would make hours of attacks worthless, one line each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest
from torch import Tensor, nn

from worstclass.attacks.active_set import predict
from worstclass.attacks.losses import margin
from worstclass.data import Images, repeated_images, to_float
from worstclass.errors import UserError, reason
from worstclass.evaluation.checks import CHECKED_IMAGES, SQUASHED, UNLIKELY, Finding, check_model, some_of
from worstclass.evaluation.evaluate import as_input
from worstclass.inputs.images import check_first_label, check_labels, check_logits, kept_as_is
from worstclass.inputs.names import BLACK_BOX
from worstclass.inputs.radius import radius_notes
from worstclass.metrics.measures import per_class_accuracy
from worstclass.metrics.percentages import percent
from worstclass.models import Normalized
from worstclass.types import Classifier, Norm

DARK = 0.02  # images whose brightest pixel is below were divided by 255 twice
LOG_PROBABILITY = 1e-4
REPEATED = 0.01  # a few copies, as public data have them, change no interval
REORDERED = 0.1  # of the images right by another order of the classes: fewer are two classes that look alike
CAUSES = ("order", "scale", "normalisation", "double-normalisation")  # of an accuracy at chance
OF_THE_MODEL = ("deterministic", "one-by-one", "no-inner-gradients", "evaluation-mode")  # findings to warn of


@dataclass(frozen=True)
class Line:
    """One line of the preflight: what was seen and what to do. An error stops the audit, a warning does not."""

    name: str
    text: str
    error: bool = False


def standardised(model: nn.Module, mean: Sequence[float], std: Sequence[float], like: Tensor) -> Normalized:
    """The model behind a standardisation, on the device and in the precision of `like`; its own tensors stay."""
    wrapped = Normalized(model, mean, std)
    wrapped.mean, wrapped.std = wrapped.mean.to(like), wrapped.std.to(like)
    wrapped.training = model.training
    return wrapped


def try_model(model: Classifier, images: Images, name: str) -> int:
    """How many classes a model has, by its answer to two images; what is wrong with the answer is one line."""
    x, _ = as_input(model, images.select(torch.arange(min(2, len(images)), device=images.y.device)))
    if len(x) == 0:
        raise UserError("there are no images to audit on.")
    try:
        with kept_as_is(x, name):
            logits = predict(model, x)
    except UserError:
        raise
    except Exception as error:  # whatever a user's model may raise
        raise UserError(f"{name} cannot take images of {tuple(x.shape[1:])}: {reason(error)}.") from error
    check_logits(logits, len(x))
    return int(logits.shape[1])


def check_classes(images: Images, num_classes: int, class_names: Sequence[str] | None, whose: str) -> None:
    """Raise unless labels are among the model's classes, and names as many as those."""
    check_first_label(images.y, num_classes)
    if class_names is not None and len(class_names) != num_classes:
        raise UserError(f"the model has {num_classes} classes, {whose} {len(class_names)}: they must agree.")
    try:
        check_labels(images.y, len(images), num_classes)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}: the model has {num_classes} logits.") from None


def preflight(
    model: Classifier,
    images: Images,
    *,
    num_classes: int,
    eps: float,
    norm: Norm = "linf",
    attacks: Sequence[str] = (),
    batch_size: int = CHECKED_IMAGES,
) -> list[Line]:
    """What to know before attacks are paid for, of a model in evaluation mode, on at most 500 of the images."""
    some = some_of(images, min(batch_size, CHECKED_IMAGES))
    x, y = as_input(model, some)
    logits = predict(model, x)
    if not bool(logits.isfinite().all()):
        return [Line("finite", _not_finite(logits), error=True)]
    findings = {finding.name: finding for finding in check_model(model, x, y)}
    black_box = bool(attacks) and set(attacks) <= set(BLACK_BOX)
    lines = [
        *_outputs(logits, findings["logits"]),
        *_accuracy(logits, y, num_classes),
        *_order(logits, y, num_classes),
        *_normalisation(model, x, y, logits),
        *_slope(model, x, y, findings["gradients"], black_box=black_box),
        *(Line(name, _told(findings[name])) for name in OF_THE_MODEL if name in findings and not findings[name].passed),
        *_images(some, images, num_classes),
        *_shape(model, x),
    ]
    lines += [Line("radius", text) for text in radius_notes(eps, norm)]
    return sorted(lines, key=lambda line: not line.error)


def likely_causes(lines: Sequence[Line]) -> list[Line]:
    """Of an accuracy at chance, the first line: what else was found says why."""
    return [line for line in lines[1:] if lines[0].name == "accuracy" and line.name in CAUSES]


def _told(finding: Finding) -> str:
    return f"{finding.seen}. {finding.advice}"


def _not_finite(logits: Tensor) -> str:
    wrong = ~logits.isfinite()
    columns = wrong.any(0).nonzero().flatten().tolist()
    listed = f"{', '.join(map(str, columns[:3]))}{', ...' if len(columns) > 3 else ''}"
    kind = "NaN" if bool(logits.isnan().any()) else "infinite"
    advice = "look for log, sqrt or a division" if kind == "NaN" else "mask a class by a finite number, such as -1e4"
    share = percent(float(wrong.double().mean()))
    told = "the model returns logits that are not finite on clean images"
    return f"{told}: {share}% are {kind}, of outputs {listed}: {advice}."


def _outputs(logits: Tensor, finding: Finding) -> list[Line]:
    if not finding.passed:
        return [Line("logits", _told(finding), error=finding.seen != SQUASHED)]
    if bool((logits.exp().sum(1) - 1).abs().max() <= LOG_PROBABILITY):
        text = "outputs are log-probabilities, not logits: attacks work on them as well, nothing needs to be done."
        return [Line("logits", text)]
    return []


def _accuracy(logits: Tensor, y: Tensor, num_classes: int) -> list[Line]:
    """By class, so that a model that always gives one answer is at chance whatever the sizes of the classes."""
    predicted = logits.argmax(1)
    by_class = per_class_accuracy(y.cpu().numpy(), predicted.cpu().numpy(), num_classes)
    classes = by_class[by_class == by_class]  # those with images
    accuracy, right = float(classes.mean()), int((predicted == y).sum())
    chance = f"and chance {100 / num_classes:.1f}%"
    seen = f"clean accuracy is {percent(accuracy)}% on {len(y)} images (mean over classes), {chance}"
    if len(classes) > 1 and accuracy <= 1 / num_classes:
        advice = "look at the weights, the order of the classes, and mean and std."
        return [Line("accuracy", f"{seen}: {advice}", error=True)]
    if binomtest(right, len(y), 1 / num_classes, alternative="greater").pvalue > UNLIKELY:
        return [Line("accuracy", f"{seen}: on {len(y)} images it is not clearly above chance.")]
    return []


def _order(logits: Tensor, y: Tensor, num_classes: int) -> list[Line]:
    """Whether the model's classes are those of the data in another order: a renaming of its predictions that suits
    every other image is tried on the rest."""
    predicted = logits.argmax(1)
    table = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    table.index_put_((y[::2].cpu(), predicted[::2].cpu()), torch.tensor(1), accumulate=True)
    labels, outputs = linear_sum_assignment(-(table + torch.eye(num_classes) / 2).numpy())  # of equals, as they are
    names = torch.empty(num_classes, dtype=torch.int64)
    names[torch.from_numpy(outputs)] = torch.from_numpy(labels)
    right, renamed = predicted[1::2] == y[1::2], names.to(y.device)[predicted[1::2]] == y[1::2]
    gained, lost = int((renamed & ~right).sum()), int((right & ~renamed).sum())
    if gained - lost < REORDERED * len(right):
        return []
    if binomtest(gained, gained + lost, alternative="greater").pvalue >= UNLIKELY:
        return []
    moved = [f"{k} to {int(name)}" for k, name in enumerate(names) if k != int(name)]
    before, after = (percent(float(each.double().mean())) for each in (right, renamed))
    listed = ", ".join([*moved[:3], *(["..."] if len(moved) > 3 else [])])
    text = f"clean accuracy is {before}% on {len(right)} images, and {after}% if outputs are renamed ({listed})"
    return [Line("order", f"{text}: are the model's classes in the data's order?")]


def _normalisation(model: Classifier, x: Tensor, y: Tensor, logits: Tensor) -> list[Line]:
    """Whether the model does better without the normalisation it was given, with another, or with one that it lacks."""
    std, mean = (each.tolist() for each in torch.std_mean(x.double(), (0, 2, 3)))
    own = (mean, [max(each, 1e-6) for each in std])
    white, signed = ([0.0] * len(mean), [1 / 255] * len(mean)), ([0.5] * len(mean), [0.5] * len(mean))
    others: list[tuple[str, nn.Module, str]] = []
    inner, instead = model, ""
    if isinstance(model, Normalized):
        inner, instead = model.model, " instead"
        text = "without mean and std: does the model normalise images itself already?"
        others.append(("double-normalisation", inner, text))
    for name, (shift, scale), text in (
        ("normalisation", own, f"on normalised images{instead}: does the model expect them? Give their mean and std."),
        ("scale", white, f"on images in 0..255{instead}: does the model expect them? Give mean 0 and std 1/255."),
        ("scale", signed, f"on images in -1..1{instead}: does the model expect them? Give mean 0.5 and std 0.5."),
    ):
        others.append((name, standardised(inner, shift, scale, x), text))
    right = logits.argmax(1) == y
    best, found = float(right.double().mean()), []
    for name, other, text in others:
        try:
            better = predict(other, x).argmax(1) == y
        except Exception:  # it cannot take such images: nothing is suspected
            continue
        gained, lost, after = int((better & ~right).sum()), int((right & ~better).sum()), float(better.double().mean())
        if after <= best or binomtest(gained, gained + lost, alternative="greater").pvalue >= UNLIKELY / len(others):
            continue
        seen = f"clean accuracy is {percent(float(right.double().mean()))}% on {len(y)} images, and {percent(after)}%"
        best, found = after, [Line(name, f"{seen} {text}")]
    return found


def _slope(model: Classifier, x: Tensor, y: Tensor, finding: Finding, *, black_box: bool) -> list[Line]:
    """No slope of the logits at all is an error for attacks by gradients; one of cross-entropy that is zero here and
    there is what confident models have."""
    moving = x.detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            (grad,) = torch.autograd.grad(margin(model(moving), y).sum(), moving)
    except RuntimeError:  # no path from the images to the logits
        grad = torch.zeros_like(moving)
    if not bool(grad.any()):
        text = "no gradient leads from the logits to the images (detach, no_grad or rounding in the model): "
        text += "attacks by gradients see nothing; attack with 'square', which needs none."
        return [Line("gradients", text, error=not black_box)]
    return [] if finding.passed else [Line("gradients", _told(finding))]


def _shape(model: Classifier, x: Tensor) -> list[Line]:
    """Whether an export is given images of another size than it was trained on: most networks take them."""
    inner = model.model if isinstance(model, Normalized) else model
    expected = getattr(model, "exported_shape", None) or getattr(inner, "exported_shape", None)
    if expected is None or tuple(expected) == tuple(x.shape[1:]):
        return []
    text = f"the model was trained on images of {tuple(expected)}, these are {tuple(x.shape[1:])}"
    return [Line("shape", f"{text}: give it images of its own size, as image_size reads them.")]


def _images(some: Images, images: Images, num_classes: int) -> list[Line]:
    lines = []
    if float(to_float(some.x).max()) < DARK:
        lines.append(Line("range", f"images are all but black, below {DARK}: were they divided by 255 twice?"))
    counts = images.class_counts(num_classes)
    if missing := int((counts == 0).sum()):
        lines.append(Line("classes", f"{missing} of {num_classes} classes have no images: nothing is known of them."))
    if (repeated := repeated_images(images)) > REPEATED * len(images):
        lines.append(
            Line("duplicates", f"{repeated} of {len(images)} images repeat another: intervals are too narrow.")
        )
    return lines
