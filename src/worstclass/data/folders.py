"""Data as image files: PATH/train/CLASS/*.png and PATH/test/CLASS/*.png, all of one size."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from worstclass.data.images import Images, check_class_names
from worstclass.errors import UserError
from worstclass.files import clean_errors

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
GREY = ("L", "1")  # modes of one channel
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # whatever a file is called: to open some others, Pillow starts programs
MAX_PIXELS = 2**24  # a small file may claim to be a picture of gigabytes
BY_SYSTEMS = {"thumbs.db", "desktop.ini"}  # files that nobody put there
SHOWN = 3  # names, at most, in a sentence


def folder_names(path: Path) -> tuple[str, ...]:
    """Class names: the folders of PATH/train, or of PATH/test where that is all, sorted."""
    part = next((path / part for part in ("train", "test") if (path / part).is_dir()), path / "train")
    _check_part(part)
    names = sorted(entry.name for entry in part.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise UserError(f"{part} has {len(names)} class folder(s); two or more are needed.")
    return check_class_names(names, part)


def _check_part(part: Path) -> None:
    if not part.is_dir():
        raise UserError(f"no folder {part}: folder:PATH needs train/ and test/, each with one folder for each class.")


def read_folder(path: Path, part: Literal["train", "test"]) -> Images:
    """Every image of a part, in the order of class and file name; greyscale stays one channel."""
    names = folder_names(path)
    _check_part(path / part)
    extra = {e.name for e in (path / part).iterdir() if e.is_dir() and not e.name.startswith(".")} - set(names)
    if extra:
        raise UserError(f"{path / part} has classes that train/ has not: {', '.join(sorted(extra))}.")
    arrays, labels = [], []
    for label, name in enumerate(names):
        for file in _image_files(path / part / name):
            arrays.append(_read_image(file))
            labels.append(label)
    if not arrays:
        raise UserError(f"{path / part} holds no image files ({', '.join(sorted(SUFFIXES))}).")
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise UserError(
            f"{path / part}: images differ in size ({', '.join(map(str, sorted(shapes)))}); resize them first."
        )
    channels = {len(array) for array in arrays}
    if len(channels) > 1 or (part == "test" and channels == {1} and _has_colour(path / "train")):  # all become colour
        arrays = [np.repeat(array, 3, axis=0) if len(array) == 1 else array for array in arrays]
    return Images(torch.from_numpy(np.stack(arrays)), torch.tensor(labels))


def folder_test_shape(path: Path) -> tuple[int, ...] | None:
    """(C, H, W) of test images, by headers alone; None where there is no image."""
    files = (file for name in folder_names(path) for file in _image_files(path / "test" / name))
    if (first := next(files, None)) is None:
        return None
    mode, width, height = _read_header(first)
    colour = mode not in GREY or _has_colour(path / "train") or _has_colour(path / "test")
    return (3 if colour else 1), height, width


def left_out(path: Path, *parts: Literal["train", "test"]) -> list[str]:
    """A line for each of the parts, or of both, whose class folders hold more than images: that is not read."""
    lines = []
    for part in parts or ("train", "test"):
        found = []
        for name in folder_names(path):
            for entry in sorted((path / part / name).glob("*")):
                hidden = entry.name.startswith(".") or entry.name.lower() in BY_SYSTEMS
                if not hidden and (entry.is_dir() or entry.suffix.lower() not in SUFFIXES):
                    found.append(f"{name}/{entry.name}{'/' * entry.is_dir()}")
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            lines.append(
                f"{len(found)} files or folders in the class folders of {part}/ are no images of a known kind "
                f"({', '.join(sorted(SUFFIXES))}) and are left out: {', '.join(found[:SHOWN])}{more}."
            )
    return lines


def _image_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*")) if file.suffix.lower() in SUFFIXES]


def _has_colour(part: Path) -> bool:
    """Whether an image of a part has colours, by their headers."""
    folders = sorted(entry for entry in part.glob("*") if entry.is_dir() and not entry.name.startswith("."))
    return any(_read_header(file)[0] not in GREY for folder in folders for file in _image_files(folder))


def _read_header(file: Path) -> tuple[str, int, int]:
    """Mode, width and height of an image; its pixels are not read."""
    with _opened(file) as image:
        return image.mode, image.width, image.height


@contextmanager
def _opened(file: Path) -> "Iterator[Image.Image]":
    """An image file; whatever is wrong with it in the body is one line."""
    from PIL import Image  # here: the training core needs torch and numpy alone

    if not file.is_file():  # a pipe would wait for ever
        raise UserError(f"{file} is not a file.")
    with clean_errors(f"{file} is not a readable image"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=FORMATS) as image:
            yield image


def _on_white(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))


def _read_image(file: Path) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """One image as (C, H, W) with one or three channels; what is transparent is white."""
    with _opened(file) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
        image.load()
        if image.mode.startswith(("I", "F")):
            raise UserError(f"{file} has more than 8 bits a channel; convert it to 0..255 first.")
        grey = image.mode in GREY
        shown = _on_white(image) if image.has_transparency_data else image
        pixels = np.asarray(shown.convert("L" if grey else "RGB"), dtype=np.uint8)
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))
