"""What is cheap to know of training and validation images: which are there twice, and whether they are alike."""

import hashlib
from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

from worstclass.data.images import Images, to_float

SAMPLE = 200  # images of a class, spread over all of them


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
        distance = (own.mean(0) - held_out.mean(0)).square().sum()
        by_chance = own.var(0).sum() * (1 / len(own) + 1 / len(held_out))
        shifts.append(float(distance / by_chance) if by_chance > 0 else 0.0)
    return shifts


def _sample(images: Images, k: int) -> Tensor:
    members = (images.y == k).nonzero().squeeze(1)
    return to_float(images.x[members[:: -(-len(members) // SAMPLE) or 1]]).flatten(1).double().cpu()
