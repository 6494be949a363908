"""What is cheap to know of training and validation images: which are there twice, whether they are alike, and
what a quick model makes of them."""

import hashlib
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from worstclass.data.images import Images, to_float

SAMPLE = 200  # images of a class, spread over all of them
SIDE = 12  # pixels of the small copies that are compared
BLOCK = 4096
RIDGE = 1e-2


def exact_duplicates(parts: Mapping[str, Images]) -> tuple[dict[tuple[str, str], int], int]:
    """For each two parts, how many images of the second are in the first too; and how many images have an equal one
    with another label, in any part."""
    keys = {name: _keys(images) for name, images in parts.items()}
    labels: dict[bytes, set[int]] = {}
    for name, images in parts.items():
        for key, label in zip(keys[name], images.y.tolist(), strict=True):
            labels.setdefault(key, set()).add(label)
    sets = {name: set(each) for name, each in keys.items()}
    shared = {(one, other): sum(key in sets[one] for key in keys[other]) for one, other in combinations(parts, 2)}
    return shared, sum(len(labels[key]) > 1 for each in keys.values() for key in each)


def repeated_images(images: Images) -> int:
    """How many images equal one before them."""
    return len(images) - len({*_keys(images)})


def image_digests(images: Images) -> NDArray[np.uint64]:
    """Eight bytes that stand for the pixels of each image (N,)."""
    return np.frombuffer(b"".join(key[:8] for key in _keys(images)), dtype="<u8").astype(np.uint64)


def _keys(images: Images, rows: int = 1000) -> list[bytes]:
    """A digest of each image; some images at a time, so that nothing is copied whole."""
    keys = []
    for part in images.x.split(rows):
        flat = part.cpu().contiguous().view(torch.uint8).flatten(1).numpy()
        keys += [hashlib.blake2b(row, digest_size=16).digest() for row in flat]
    return keys


def validation_shift(train: Images, valid: Images, num_classes: int) -> list[float]:
    """How far the mean validation image of each class is from its mean training image.

    The squared distance, as a multiple of what chance gives images that were drawn alike: about 1 then, whatever their
    number, and seldom above 6. A class without images is at 0. At most `SAMPLE` images of each kind are looked at.
    """
    shifts = []
    for k in range(num_classes):
        own, held_out = (_sample(images, k) for images in (train, valid))
        if len(own) < 2 or len(held_out) == 0:
            shifts.append(0.0)
            continue
        mean = own.mean(0)
        distance = (mean - held_out.mean(0)).square().sum()
        variance = (own - mean).square_().sum() / (len(own) - 1)
        by_chance = variance * (1 / len(own) + 1 / len(held_out))
        shifts.append(float(distance / by_chance) if by_chance > 0 else 0.0)
    return shifts


def small_copies(x: Tensor) -> Tensor:
    """Copies of images (N, C, H, W) of at most `SIDE` pixels a side, as floats."""
    parts = []
    for block in x.cpu().split(BLOCK):
        images = to_float(block)
        if max(images.shape[2:]) > SIDE:
            rows, columns = (_averaging(side) for side in images.shape[2:])
            images = rows.T @ images @ columns
        parts.append(images)
    return torch.cat(parts)


def _averaging(side: int) -> Tensor:
    """The matrix (side, SIDE) of adaptive average pooling; two products are several times as fast as the layer."""
    return F.adaptive_avg_pool1d(torch.eye(side)[None], SIDE)[0]


def quick_predictions(small: Tensor, y: Tensor, num_classes: int, *asked: Tensor) -> list[Tensor]:
    """What a ridge classifier takes each image for (N,): fitted on the half of `small` (N, D) that the image is not of,
    and asked for it as each of `asked` (N, D) has it. Classes weigh alike in the fit."""
    half = torch.arange(len(y)) % 2 == 0
    x, *views = (F.pad(each.double(), (0, 1), value=1.0) for each in (small, *asked))
    found = [torch.zeros_like(y) for _ in asked]
    for fit in (half, ~half):
        weights = 1 / torch.bincount(y[fit], minlength=num_classes).clamp_min(1).double()[y[fit]]
        scaled = x[fit] * weights[:, None]
        gram = scaled.T @ x[fit]
        ridge = RIDGE * gram.diagonal().mean() * torch.eye(x.shape[1], dtype=torch.float64)
        target = torch.zeros(num_classes, x.shape[1], dtype=torch.float64).index_add(0, y[fit], scaled).T
        solution = torch.linalg.solve(gram + ridge, target)
        for answer, view in zip(found, views, strict=True):
            answer[~fit] = (view[~fit] @ solution).argmax(1)
    return found


def mirror_pairs(images: Images, num_classes: int) -> list[tuple[int, int]]:
    """Classes that a mirror makes of one another, left and right arrows say: most images of each, flipped, are taken
    for the other by a quick model that knows most of both as they are."""
    keep = torch.cat([_spread((images.y == k).nonzero().squeeze(1)) for k in range(num_classes)])
    y, small = images.y[keep].cpu(), small_copies(images.x[keep])
    as_is, flipped = small.flatten(1), small.flip(-1).flatten(1)
    shares = []
    for found in quick_predictions(as_is, y, num_classes, as_is, flipped):
        table = torch.bincount(y * num_classes + found, minlength=num_classes**2).double()
        table = table.reshape(num_classes, num_classes)
        shares.append(table / table.sum(1, keepdim=True).clamp_min(1))
    known, swapped = shares[0].diagonal() > 0.5, shares[1] > 0.5
    both = swapped & swapped.T & known[:, None] & known
    return [(int(k), int(j)) for k, j in both.nonzero() if k < j]


def _spread(members: Tensor) -> Tensor:
    """At most `SAMPLE` of them."""
    return members[:: -(-len(members) // SAMPLE) or 1]


def _sample(images: Images, k: int) -> Tensor:
    members = _spread((images.y == k).nonzero().squeeze(1))
    return to_float(images.x[members]).flatten(1).double().cpu()
