"""Pictures as arrays: opened safely, upright, on white, and cut to a square of one size where that is asked for."""

import logging
import os
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from worstclass.data.source import VALIDATION_NAMES, Part
from worstclass.errors import UserError
from worstclass.files import clean_errors, memory

if TYPE_CHECKING:
    from PIL import Image

GREY = ("L", "1")  # modes of one channel
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # whatever a file is called: to open some others, Pillow starts programs
MAX_PIXELS = 2**24  # a small file may claim to be a picture of gigabytes
ORIENTATION = 0x0112  # of EXIF
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
THREADS = 4  # each may hold a picture of MAX_PIXELS
ENLARGED = 2  # times, above which it is told
SHOWN = 3  # sizes, at most, in a sentence
NAMED = 10  # files
SIZE_REMEDY = "--set image_size=64"
INTERVAL = 10.0  # seconds between two lines of the log
_log = logging.getLogger(__name__)


class SizesDiffer(UserError):
    """Images of several sizes (H, W), which cannot be stacked."""

    def __init__(self, where: str, shapes: Iterable[tuple[int, ...]]) -> None:
        known = sorted(set(shapes))
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        sizes = ", ".join(map(str, known[:SHOWN])) + more
        super().__init__(f"{where}: images differ in size ({sizes}): give image_size, as in {SIZE_REMEDY}.")


class Picture(NamedTuple):
    """Pixels (C, H, W) of one or three channels, and the shorter side of what they were made from."""

    pixels: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"
    side: int


def read_pictures(files: Sequence[Path], size: int | None) -> Generator[Picture, None, None]:
    """The pictures in files, in their order, cut and resized to a square of `size` pixels a side if that is given. The
    error for one that cannot be read names the others."""
    with _careful(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        try:
            if size is None:
                yield from map(_read_file, files)
            else:
                yield from pool.map(lambda file: _read_file(file, size), files)  # decoding leaves the interpreter free
        except UserError as error:
            fine = pool.map(lambda file: _is_readable(file, size), files)
            broken = [file for file, readable in zip(files, fine, strict=True) if not readable]
            if len(broken) < 2:
                raise
            names = ", ".join(str(file) for file in broken[:NAMED]) + (", ..." if len(broken) > NAMED else "")
            raise UserError(f"{error} {len(broken)} of {len(files)} images cannot be read: {names}") from None


def make_picture(image: "Image.Image", size: int | None, where: object) -> Picture:
    """An image of Pillow as uint8, upright; what is transparent is white. With a `size` it is the square in its middle.

    The filter is Pillow's bilinear one, that of torchvision's Resize: its support grows with the factor, so that
    nothing aliases when a photo shrinks, and it is smooth where a picture grows, as a mean over areas is not.
    """
    from PIL import Image, ImageOps

    if image.mode.startswith(("I", "F")):
        raise UserError(f"{where} has more than 8 bits a channel; convert it to 0..255 first.")
    grey, side, turn = image.mode in GREY, min(image.size), TURNS.get(_orientation(image))
    shown = (_on_white(image) if image.has_transparency_data else image).convert("L" if grey else "RGB")
    if size is not None:
        shown = ImageOps.fit(shown, (size, size), Image.Resampling.BILINEAR)
    if turn:
        shown = shown.transpose(Image.Transpose[turn])
    pixels = np.asarray(shown, dtype=np.uint8)
    return Picture(pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1)), side)


def read_header(file: Path) -> tuple[bool, int, int]:
    """Whether a picture is grey, its height and its width; its pixels are not read."""
    with _careful(), _opened(file) as image:
        turned = _orientation(image) > 4  # by a quarter
        height, width = (image.width, image.height) if turned else (image.height, image.width)
        return image.mode in GREY, height, width


def stack(
    pictures: Iterable[Picture], count: int, where: str, beside_colour: Callable[[], bool] = lambda: False
) -> tuple[Tensor, list[int]]:
    """`count` pictures of one size as (N, C, H, W), and their sides. They are colour where one of them is, or where
    they are `beside_colour`."""
    arrays: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    sides, told = [], time.monotonic()
    for picture in pictures:
        now = time.monotonic()
        if now - told >= INTERVAL:
            told = now
            _log.info("%s: %s of %s images read", where, len(arrays), count)
        arrays.append(picture.pixels)
        sides.append(picture.side)
        shapes = {arrays[0].shape[1:], picture.pixels.shape[1:]}
        if len(shapes) > 1:
            raise SizesDiffer(where, shapes)
        if len(arrays) == 1 and count * arrays[0].nbytes > memory():
            raise UserError(
                f"{where}: {count} images of {' x '.join(map(str, arrays[0].shape[1:]))} pixels are more than the "
                f"memory of this machine: give image_size, as in {SIZE_REMEDY}."
            )
    channels = {len(array) for array in arrays}
    if len(channels) > 1 or (channels == {1} and beside_colour()):
        arrays = [np.repeat(array, 3, axis=0) if len(array) == 1 else array for array in arrays]
    return torch.from_numpy(np.stack(arrays)), sides


def enlarged_notes(sides: Mapping[str, Sequence[int]], size: int | None, parts: Collection[Part] = ()) -> list[str]:
    """A line for each of the parts, or for all, with pictures that show much less than `size`, by the `sides` they
    had."""
    lines, wanted = [], {*(parts or sides)}
    wanted |= {*VALIDATION_NAMES} if "train" in wanted else set()
    for part, its in sides.items():
        small = [side for side in its if size is not None and side * ENLARGED < size]
        if small and part in wanted:
            lines.append(
                f"{len(small)} of {len(its)} {part} images are enlarged more than {ENLARGED} times, to {size} pixels "
                f"(the smallest from {min(small)}): leave them out, or take a smaller image_size."
            )
    return lines


@contextmanager
def _careful() -> Iterator[None]:
    """Where Pillow warns of a bomb it raises; a damaged EXIF block is nobody's concern. Not within a thread: the
    filters are the whole process's."""
    from PIL import Image  # here: the training core needs torch and numpy alone

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
        yield


@contextmanager
def _opened(file: Path) -> "Iterator[Image.Image]":
    """An image file; whatever is wrong with it in the body is one line."""
    from PIL import Image

    if not file.is_file():  # a pipe would wait for ever
        raise UserError(f"{file} is not a file.")
    with clean_errors(f"{file} is not a readable image"), Image.open(file, formats=FORMATS) as image:
        yield image


def _read_file(file: Path, size: int | None = None) -> Picture:
    with _opened(file) as image:
        if size is not None:
            image.draft(None, (2 * size, 2 * size))  # a JPEG is decoded at 1/2, 1/4 or 1/8, and never below this
        if image.width * image.height > MAX_PIXELS:  # that will be decoded
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
        image.load()
        return make_picture(image, size, file)


def _is_readable(file: Path, size: int | None) -> bool:
    try:
        _read_file(file, size)
    except UserError:
        return False
    return True


def _orientation(image: "Image.Image") -> int:
    """How a camera was held, 1..8 of EXIF; 1 where that is not known. No pixels are read."""
    if "exif" not in image.info:
        return 1
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # what is damaged there says nothing
        return 1
    return found if found in TURNS else 1


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
