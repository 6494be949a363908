"""What to know of a data set before a class method is trained on it: sizes, duplicates, blanks, disputed labels."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.data import Images, to_float
from worstclass.metrics import binomial_interval

FEW = 20  # validation images of a class below which its accuracy is hardly known
NEAR = 0.02  # root mean square of the difference of two images in [0, 1]
UNBALANCED = 5  # times as many images
MANY_NEAR = 0.001  # of a part
SIDE = 12  # pixels of the small copies that are compared
RIDGE = 1e-2
BLOCK = 4096


@dataclass(frozen=True)
class DataCheck:
    """What was found: images of each class in each part, and lines to read before training."""

    class_names: tuple[str, ...]
    counts: Mapping[str, list[int]]  # by part
    half_width: list[float]  # of the 95% interval of a class's validation accuracy, at 50%
    disputed: list[float]  # share of a class's training images that a quick model takes for another
    exact: Mapping[tuple[str, str], int]  # images of the second part that are also in the first
    near: Mapping[tuple[str, str], int]
    conflicts: int  # pairs of equal images with different labels
    blank: int
    notes: list[str] = field(default_factory=list)


def check_data(parts: Mapping[str, Images], class_names: Sequence[str]) -> DataCheck:
    """Look through the parts `train`, `valid` and `test` of a data set."""
    num_classes = len(class_names)
    counts = {name: images.class_counts(num_classes).tolist() for name, images in parts.items()}
    held_out = np.array(counts["valid"])
    low, high = binomial_interval(held_out / 2, np.maximum(held_out, 1))
    exact, conflicts = exact_duplicates(parts)
    small = {name: descriptors(images.x) for name, images in parts.items()}
    pairs = list(combinations(parts, 2))
    near = {pair: near_duplicates(small[pair[0]], small[pair[1]]) - exact[pair] for pair in pairs}
    found = DataCheck(
        class_names=tuple(class_names),
        counts=counts,
        half_width=((high - low) / 2).tolist(),
        disputed=disputed_labels(small["train"], parts["train"].y.cpu(), num_classes).tolist(),
        exact=exact,
        near={pair: max(0, count) for pair, count in near.items()},
        conflicts=conflicts,
        blank=sum(int((images.x.flatten(1) == images.x.flatten(1)[:, :1]).all(1).sum()) for images in parts.values()),
    )
    found.notes.extend(_notes(found))
    return found


def exact_duplicates(parts: Mapping[str, Images]) -> tuple[dict[tuple[str, str], int], int]:
    """For each two parts, how many images of the second are in the first too; and how many images have an equal one
    with another label, in any part."""
    keys = {name: [_key(image) for image in images.x.cpu()] for name, images in parts.items()}
    labels: dict[bytes, set[int]] = {}
    for name, images in parts.items():
        for key, label in zip(keys[name], images.y.tolist(), strict=True):
            labels.setdefault(key, set()).add(label)
    sets = {name: set(each) for name, each in keys.items()}
    shared = {(one, other): sum(key in sets[one] for key in keys[other]) for one, other in combinations(parts, 2)}
    return shared, sum(len(labels[key]) > 1 for each in keys.values() for key in each)


def _key(image: Tensor) -> bytes:
    return hashlib.blake2b(image.contiguous().view(torch.uint8).numpy().tobytes(), digest_size=16).digest()


def descriptors(x: Tensor) -> Tensor:
    """Small copies of images, flat, (N, D)."""
    parts = []
    for block in x.cpu().split(BLOCK):
        images = to_float(block)
        if max(images.shape[2:]) > SIDE:
            images = F.adaptive_avg_pool2d(images, SIDE)
        parts.append(images.flatten(1))
    return torch.cat(parts)


def near_duplicates(one: Tensor, other: Tensor) -> int:
    """How many of the other images have one in the first that differs by no more than noise, equal ones included."""
    bound, squares = NEAR**2 * one.shape[1], one.square().sum(1)
    count = 0
    for block in other.split(BLOCK):
        nearest = torch.full((len(block),), torch.inf)
        for start in range(0, len(one), BLOCK):
            apart = squares[start : start + BLOCK] - 2 * block @ one[start : start + BLOCK].T
            nearest = torch.minimum(nearest, apart.amin(1) + block.square().sum(1))
        count += int((nearest <= bound).sum())
    return count


def disputed_labels(small: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """The share of each class's images (K,) that a ridge classifier, fitted on the other half, takes for another class.

    Classes weigh alike in the fit. It is a weak model: a class stands out only beside the others.
    """
    half = torch.arange(len(y)) % 2 == 0
    wrong = torch.zeros(len(y), dtype=torch.float64)
    x = torch.cat([small.double(), torch.ones(len(small), 1, dtype=torch.float64)], 1)
    for fit in (half, ~half):
        weights = 1 / torch.bincount(y[fit], minlength=num_classes).clamp_min(1).double()[y[fit]]
        scaled = x[fit] * weights[:, None]
        gram = scaled.T @ x[fit]
        ridge = RIDGE * gram.diagonal().mean() * torch.eye(x.shape[1], dtype=torch.float64)
        target = F.one_hot(y[fit], num_classes).double()
        solution = torch.linalg.solve(gram + ridge, scaled.T @ target)
        wrong[~fit] = ((x[~fit] @ solution).argmax(1) != y[~fit]).double()
    total = torch.bincount(y, minlength=num_classes).clamp_min(1)
    return torch.zeros(num_classes, dtype=torch.float64).index_add(0, y, wrong) / total


def _notes(found: DataCheck) -> list[str]:
    names, train, valid = found.class_names, found.counts["train"], found.counts["valid"]
    lines = []
    few = [k for k, count in enumerate(valid) if count < FEW]
    if few:
        k = max(few, key=lambda k: found.half_width[k])
        lines.append(
            f"{len(few)} of {len(names)} classes have fewer than {FEW} validation images; accuracy on the {valid[k]} "
            f"of '{names[k]}' is known to +-{100 * found.half_width[k]:.0f} points: choose no epoch or weight by it."
        )
    least, most = (choose(range(len(names)), key=train.__getitem__) for choose in (min, max))
    if train[most] > UNBALANCED * max(train[least], 1):
        lines.append(
            f"classes are unbalanced: '{names[most]}' has {train[most]} training images, "
            f"'{names[least]}' {train[least]}."
        )
    for (one, other), count in found.exact.items():
        if count:
            lines.append(f"{count} {other} images are in the {one} part too: accuracy measured on them is too high.")
    for (one, other), count in found.near.items():
        if count > MANY_NEAR * sum(found.counts[other]):
            lines.append(f"{count} {other} images are all but equal to one of the {one} part.")
    if found.conflicts:
        lines.append(f"{found.conflicts} images have an equal one with another label.")
    if found.blank:
        lines.append(f"{found.blank} images are of one colour.")
    usual = float(np.median(found.disputed))
    for k, share in enumerate(found.disputed):
        if share > 2 * usual + 0.15 and train[k] >= FEW:
            lines.append(
                f"'{names[k]}': a quick model takes {100 * share:.0f}% of its images for other classes "
                f"({100 * usual:.0f}% is usual here): it is hard, or its labels are wrong."
            )
    return lines
