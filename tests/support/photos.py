"""Folders of photos that tests write and read."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny import picture
from worstclass.data import open_source
from worstclass.errors import UserError

RED, GREEN, BLUE, GOLD = (255, 0, 0), (0, 128, 0), (0, 0, 255), (200, 180, 40)


def one_line(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(root: Path, files: Mapping[str, Any]) -> str:
    """Images by path; a colour is an image of 5 x 4 pixels of it."""
    for name, its in files.items():
        picture(root / name, np.full((4, 5, 3), its, dtype=np.uint8) if isinstance(its, tuple) else its)
    return f"folder:{root}"


def read(root: Path, part: Any = "train", **options: Any) -> np.ndarray[Any, Any]:
    return open_source(f"folder:{root}", **options).read(part).x.numpy()


def noise(height: int, width: int, *channels: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, *channels), dtype=np.uint8)


PHOTOS = {f"{k}/{i:02}.png": (40 * j + 20, 5 * i, 0) for j, k in enumerate(("ant", "bee", "cat")) for i in range(20)}


def colours(images: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    return [tuple(image[:, 0, 0].tolist()) for image in images]


def share(name: str) -> float:
    """Where the digest of a name lies in [0, 1)."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) / 2**256
