"""Which images a run has learned from, kept as digests beside it: whoever evaluates it can tell whether its test images
were among them, without the training images."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worstclass.data import Images, image_digests
from worstclass.errors import UserError
from worstclass.files import Npz, write_npz

SEEN = "seen.npz"
DIGESTS, TRAINED = "digests", "trained"
FEW = 0.01  # of validation images
MAX_COMPARED = 2**29  # bytes of images: of larger data this takes long


def note_seen(folder: Path, images: Images, trained: Images, start: Path | None = None) -> None:
    """Keep the digests of all images that a run learns from or is validated with, and of those that it is trained on;
    once, and not of large data.

    What the run learned from that it starts from is among them; where that one does not know, neither does this.
    """
    if images.x.nbytes > MAX_COMPARED or (folder / SEEN).is_file():
        return
    arrays = {}
    for name, own in ((DIGESTS, images), (TRAINED, trained)):
        before = np.empty(0, np.uint64) if start is None else _read(start, name)
        if before is not None:
            arrays[name] = np.union1d(before, image_digests(own))
    if arrays:
        write_npz(folder / SEEN, arrays)


def count_seen(folder: Path, images: Images, kind: str = DIGESTS) -> int | None:
    """How many of these images are among them; None where a run does not know."""
    seen = _read(folder, kind)
    return None if seen is None else int(np.isin(image_digests(images), seen).sum())


def refuse_trained(folder: Path, valid: Images, copies: int) -> None:
    """Raise where validation images were trained on by the run in a folder, but for copies that the data have."""
    if valid.x.nbytes > MAX_COMPARED:
        return
    count = count_seen(folder, valid, TRAINED)
    if count is not None and count > copies + FEW * len(valid):
        raise UserError(
            f"{folder} was trained on {count} of the {len(valid)} validation images: start anew, or from another run."
        )


def _read(folder: Path, kind: str) -> NDArray[np.uint64] | None:
    if not (folder / SEEN).is_file():
        return None
    with Npz(folder / SEEN) as file:
        if kind not in file.names and kind != DIGESTS:  # of a run from before
            return None
        seen = file.read(kind)
    if seen.ndim != 1 or seen.dtype != np.uint64:
        raise UserError(f"{folder / SEEN} is damaged: {kind} are {seen.dtype} of shape {seen.shape}.")
    return seen
