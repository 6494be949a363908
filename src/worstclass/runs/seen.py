"""Which images a run has learned from, kept as digests beside it: whoever evaluates it can tell whether its test images
were among them, without the training images."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worstclass.data import Images, image_digests
from worstclass.errors import UserError
from worstclass.files import Npz, write_npz

SEEN = "seen.npz"
DIGESTS = "digests"
MAX_COMPARED = 2**29  # bytes of images: of larger data this takes long


def note_seen(folder: Path, images: Images, start: Path | None = None) -> None:
    """Keep the digests of all images that a run learns from or is validated with; once, and not of large data.

    What the run learned from that it starts from is among them; where that one does not know, neither does this.
    """
    if images.x.nbytes > MAX_COMPARED or (folder / SEEN).is_file():
        return
    before = np.empty(0, np.uint64) if start is None else _read(start)
    if before is not None:
        write_npz(folder / SEEN, {DIGESTS: np.union1d(before, image_digests(images))})


def count_seen(folder: Path, images: Images) -> int | None:
    """How many of these images are among them; None where a run does not know."""
    seen = _read(folder)
    return None if seen is None else int(np.isin(image_digests(images), seen).sum())


def _read(folder: Path) -> NDArray[np.uint64] | None:
    if not (folder / SEEN).is_file():
        return None
    with Npz(folder / SEEN) as file:
        seen = file.read(DIGESTS)
    if seen.ndim != 1 or seen.dtype != np.uint64:
        raise UserError(f"{folder / SEEN} is damaged: {DIGESTS} are {seen.dtype} of shape {seen.shape}.")
    return seen
