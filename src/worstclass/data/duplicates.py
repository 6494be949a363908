"""Images that are there twice."""

import hashlib
from collections.abc import Mapping
from itertools import combinations

import torch

from worstclass.data.images import Images


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
