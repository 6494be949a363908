"""Which images a run has learned from, kept as digests beside it: whoever evaluates it can tell whether its test images
were among them, without the training images."""

from pathlib import Path

import numpy as np

from worstclass.data import Images, image_digests
from worstclass.errors import UserError
from worstclass.files import Npz, write_npz

SEEN = "seen.npz"
DIGESTS = "digests"
MAX_COMPARED = 2**29  # bytes of images: of larger data this takes long


def note_seen(folder: Path, images: Images) -> None:
    """Keep the digests of all images that a run learns from or is validated with; once, and not of large data."""
    if images.x.nbytes <= MAX_COMPARED and not (folder / SEEN).is_file():
        write_npz(folder / SEEN, {DIGESTS: np.unique(image_digests(images))})


def count_seen(folder: Path, images: Images) -> int | None:
    """How many of these images are among them; None where a run does not know."""
    if not (folder / SEEN).is_file():
        return None
    with Npz(folder / SEEN) as file:
        seen = file.read(DIGESTS)
    if seen.ndim != 1 or seen.dtype != np.uint64:
        raise UserError(f"{folder / SEEN} is damaged: {DIGESTS} are {seen.dtype} of shape {seen.shape}.")
    return int(np.isin(image_digests(images), seen).sum())
