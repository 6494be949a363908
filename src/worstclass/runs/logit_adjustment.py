"""Post-hoc logit adjustment for the weakest classes: a bias for each class, chosen on attacked validation images.

A constant c_k is added to the logits of class k, in the bias of the last linear layer. The network keeps its shape and
attacks its gradients, so every attack sees the adjusted network itself. It moves the borders between classes, and none
of the features.

One half of the images chooses c, the other accepts it. Choosing is a game of a few rounds: attack the network with the
c of now, add what was found to all that was found before, and take the c that is best against all of it. Best is
J(c) = soft-min of the class accuracies + `PRICE` times their mean, so a point of the average is given up only where it
buys `PRICE` points or more at the low end. Accepting decides between c, three quarters, a half, a quarter and none
of it, each attacked anew.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from worstclass.data import Images, to_float
from worstclass.errors import UserError, class_called
from worstclass.rng import generator
from worstclass.runs.base import BATCH, PRICE
from worstclass.types import Attack

ROUNDS = 6
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the bias that was chosen
SHARPNESS = 20.0  # of the soft-min: classes within 5 points of the lowest count with it
LEAST = 4  # images of a class, two in each half
SURE = 1.0  # standard errors that a gain must have on the half that accepts
SMOOTHING = 0.125  # width of the step from wrong to right, as a share of the spread of margins
STEPS = 100  # of the ascent in a round


class Reading(NamedTuple):
    """A share of the bias, and what the half that accepts says of it: robust accuracies over classes."""

    scale: float
    average: float  # all classes alike
    worst: float
    soft_min: float


class Adjustment(NamedTuple):
    """What was found: the bias (K,) to add, which is zero where none was accepted, and what was read for each share."""

    bias: Tensor
    scale: float
    readings: list[Reading]

    def as_dict(self) -> dict[str, Any]:
        return {
            "bias": self.bias.tolist(),
            "scale": self.scale,
            "readings": [reading._asdict() for reading in self.readings],
        }


def adjust_logits(
    model: nn.Module,
    images: Images,
    attack: Attack,
    *,
    num_classes: int,
    budget: float = 0.05,
    seed: int = 0,
    class_names: Sequence[str] = (),
    on_attack: Callable[[int, int], None] = lambda done, total: None,
) -> Adjustment:
    """The bias to add to the last linear layer of a network, which is left as it was.

    `images` must be held out from training, `LEAST` or more of each class. At most `budget` of the average robust
    accuracy over classes is given up. The same arguments give the same bias. `class_names` are for errors.
    `on_attack(done, total)` hears how many of the attacks are done, none of them first.
    """
    total = ROUNDS + len(SCALES)
    layer = check_adjustable(model, images, num_classes, class_names)
    choosing, accepting = halves(images, num_classes)
    chosen = minimax_bias(model, layer, choosing, attack, seed=seed, on_round=lambda done: on_attack(done, total))
    right = {}
    for number, scale in enumerate(SCALES):
        on_attack(ROUNDS + number, total)
        logits = attacked_logits(model, layer, scale * chosen, accepting, attack, seed=seed, stream="accept")
        right[scale] = (logits + scale * chosen).argmax(1) == accepting.y.cpu()
    on_attack(total, total)
    scale, readings = accept(right, accepting.y.cpu(), num_classes, budget)
    return Adjustment(scale * chosen, scale, readings)


def check_adjustable(model: nn.Module, images: Images, num_classes: int, class_names: Sequence[str] = ()) -> nn.Linear:
    """The last linear layer, if what is added to its bias is added to the logits, and every class has images."""
    layer = last_layer(model, num_classes)
    x = to_float(images.x[:2].to(layer.bias.device), layer.bias.dtype)
    shift = torch.arange(num_classes, dtype=torch.float64) + 1
    mode = model.training
    with torch.no_grad():
        before = model.eval()(x).double().cpu()
        with biased(layer, shift):
            moved = model(x).double().cpu() - before
    model.train(mode)
    if not torch.allclose(moved, shift.expand_as(moved), rtol=0, atol=1e-3 * (1 + float(before.abs().max()))):
        raise UserError("logit adjustment needs a model whose logits are the output of its last linear layer.")
    counts = images.class_counts(num_classes)
    if int(counts.min()) < LEAST:
        raise UserError(
            f"logit adjustment needs {LEAST} validation images of each class or more; "
            f"{class_called(int(counts.argmin()), class_names)} has {int(counts.min())}. "
            f"A fifth of a small class is held out: add images up to {5 * LEAST}, bring validation images of your own, "
            "or leave out adjust_budget."
        )
    return layer


def last_layer(model: nn.Module, num_classes: int) -> nn.Linear:
    """The last linear layer of a network with K outputs and a bias."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    layer = next((each for each in reversed(layers) if each.out_features == num_classes), None)
    if layer is None or layer.bias is None:
        raise UserError(
            f"logit adjustment needs a last linear layer with {num_classes} outputs and a bias; this model has none."
        )
    return layer


@contextmanager
def biased(layer: nn.Linear, bias: Tensor) -> Iterator[None]:
    """A layer with this (K,) added to its own bias; afterwards it is as it was, to the bit."""
    own = layer.bias.detach().clone()
    add_bias(layer, bias)
    try:
        yield
    finally:
        with torch.no_grad():
            layer.bias.copy_(own)


def add_bias(layer: nn.Linear, bias: Tensor) -> None:
    """Add (K,) to the bias of a layer, for good."""
    with torch.no_grad():
        layer.bias.copy_(layer.bias.double() + bias.to(layer.bias.device))


def halves(images: Images, num_classes: int) -> tuple[Images, Images]:
    """Every other image of each class, and the rest."""
    place = torch.zeros_like(images.y)
    for k in range(num_classes):
        own = images.y == k
        place[own] = torch.arange(int(own.sum()), device=place.device)
    return images.select(place % 2 == 0), images.select(place % 2 == 1)


def attacked_logits(
    model: nn.Module, layer: nn.Linear, bias: Tensor, images: Images, attack: Attack, *, seed: int, stream: str
) -> Tensor:
    """Attack a network with this bias added, and return its logits without it (N, K), in float64 on the CPU."""
    device = layer.bias.device
    source = generator(seed, f"adjust {stream}", device=device)
    found = []
    with biased(layer, bias):
        for x, y in zip(images.x.split(BATCH), images.y.split(BATCH), strict=True):
            x, y = to_float(x.to(device), layer.bias.dtype), y.to(device)
            attacked = attack(model, x, y, generator=source)
            with torch.no_grad():
                found.append(model(attacked).double().cpu() - bias)
    return torch.cat(found)


def minimax_bias(
    model: nn.Module,
    layer: nn.Linear,
    images: Images,
    attack: Attack,
    *,
    seed: int,
    on_round: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """The bias (K,), summing to zero, with the highest J against `ROUNDS` attacks, each on the best bias so far."""
    y = images.y.cpu()
    bias = torch.zeros(layer.out_features, dtype=torch.float64)
    lead = torch.full((len(y), len(bias)), -torch.inf, dtype=torch.float64)
    for number in range(ROUNDS):
        on_round(number)
        logits = attacked_logits(model, layer, bias, images, attack, seed=seed, stream=f"round {number}")
        lead = torch.maximum(lead, leads(logits, y))
        bias = best_bias(lead, y)
    return bias


def leads(logits: Tensor, y: Tensor) -> Tensor:
    """How far each class is ahead of the label (N, K); the label itself is not a rival. The highest over several
    attacks is all that a bias has to know of them."""
    own = y[:, None]
    return (logits - logits.gather(1, own)).scatter(1, own, -torch.inf)


def margins(lead: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """The margin of each image (N,) once the bias is added: it is right where this is positive."""
    return bias[y] - (lead + bias).amax(1)


def best_bias(lead: Tensor, y: Tensor) -> Tensor:
    """The bias (K,) with the highest J, of images with these leads, by gradient ascent (Adam) from zero.

    The step from wrong to right is smoothed by a share of the spread of the margins. No bias is larger than that
    spread: images that far from a border are few.
    """
    num_classes = lead.shape[1]
    bias = torch.zeros(num_classes, dtype=lead.dtype)
    spread = float(margins(lead, y, bias).std().clamp_min(1e-6))
    width = SMOOTHING * spread
    share = 1 / torch.bincount(y, minlength=num_classes).to(lead)[y]  # of an image in the accuracy of its class
    best, highest = bias.clone(), -float("inf")
    mean, square = torch.zeros_like(bias), torch.zeros_like(bias)  # of the gradient, as Adam keeps them
    for step in range(1, STEPS + 1):
        front, rival = (lead + bias).max(1)
        right = torch.sigmoid((bias[y] - front) / width)
        accuracy = torch.zeros_like(bias).index_add_(0, y, right * share)
        value = float(score(accuracy))
        if value > highest:
            best, highest = bias.clone(), value
        slope = (score_slope(accuracy)[y] * share) * right * (1 - right) / width  # of J in each margin
        gradient = torch.zeros_like(bias).index_add_(0, y, slope).index_add_(0, rival, slope, alpha=-1)
        mean.lerp_(gradient, 1 - 0.9)
        square.lerp_(gradient**2, 1 - 0.999)
        rate = spread / 10 * (1 - step / STEPS)
        bias += rate * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        bias -= bias.mean()
        bias *= min(1.0, spread / max(float(bias.abs().max()), 1e-12))
    return best


def soft_min(accuracy: Tensor) -> Tensor:
    """-log(mean(exp(-s a_k))) / s over classes (..., K), with s the `SHARPNESS`."""
    total = torch.logsumexp(-SHARPNESS * accuracy, -1)
    return -(total - torch.log(torch.tensor(float(accuracy.shape[-1]), dtype=accuracy.dtype))) / SHARPNESS


def score(accuracy: Tensor) -> Tensor:
    """J of class accuracies (..., K)."""
    return soft_min(accuracy) + PRICE * accuracy.mean(-1)


def score_slope(accuracy: Tensor) -> Tensor:
    """The gradient of J (K,)."""
    return torch.softmax(-SHARPNESS * accuracy, 0) + PRICE / len(accuracy)


def accept(right: dict[float, Tensor], y: Tensor, num_classes: int, budget: float) -> tuple[float, list[Reading]]:
    """The share of the bias to keep, from who is right (N,) at each share, and what was read; 0 keeps nothing.

    Kept is the share of the highest J, if that is higher than without, its average keeps to the budget, and its gain of
    the soft-min is `SURE` standard errors or more, image by image.
    """
    one_hot = nn.functional.one_hot(y, num_classes).double()
    counts = one_hot.sum(0)
    accuracies = {scale: each.double() @ one_hot / counts for scale, each in right.items()}
    readings = [
        Reading(scale, float(each.mean()), float(each.min()), float(soft_min(each)))
        for scale, each in accuracies.items()
    ]
    base = accuracies[0.0]
    slope = torch.softmax(-SHARPNESS * base, 0)
    kept, highest = 0.0, float(score(base))
    for reading in readings[1:]:
        value = float(score(accuracies[reading.scale]))
        changed = ((right[reading.scale] != right[0.0]).double() @ one_hot + 1) / (counts + 2)  # none of ten: not never
        error = float((slope**2 * changed / counts).sum().sqrt())
        gain = reading.soft_min - readings[0].soft_min
        affordable = readings[0].average - reading.average <= budget
        if affordable and gain >= SURE * error and value > highest:
            kept, highest = reading.scale, value
    return kept, readings
