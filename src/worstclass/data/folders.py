"""Data as image files: PATH/train/CLASS/*.png and PATH/test/CLASS/*.png, all of one size."""

import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from worstclass.data.images import Images, check_class_names
from worstclass.errors import UserError
from worstclass.files import clean_errors

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # whatever a file is called: to open some others, Pillow starts programs
MAX_PIXELS = 2**24  # a small file may claim to be a picture of gigabytes


def folder_names(path: Path) -> tuple[str, ...]:
    """Class names: the folders of PATH/train, sorted."""
    train = path / "train"
    if not train.is_dir():
        raise UserError(f"no folder {train}: folder:PATH needs train/ and test/, each with one folder for each class.")
    names = sorted(entry.name for entry in train.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise UserError(f"{train} has {len(names)} class folder(s); two or more are needed.")
    return check_class_names(names, train)


def read_folder(path: Path, part: Literal["train", "test"]) -> Images:
    """Every image of a part, in the order of class and file name; greyscale stays one channel."""
    names = folder_names(path)
    if not (path / part).is_dir():
        raise UserError(f"no folder {path / part}.")
    extra = {e.name for e in (path / part).iterdir() if e.is_dir() and not e.name.startswith(".")} - set(names)
    if extra:
        raise UserError(f"{path / part} has classes that train/ has not: {', '.join(sorted(extra))}.")
    arrays, labels = [], []
    for label, name in enumerate(names):
        for file in sorted((path / part / name).glob("*")):
            if file.suffix.lower() in SUFFIXES:
                arrays.append(_read_image(file))
                labels.append(label)
    if not arrays:
        raise UserError(f"{path / part} holds no image files ({', '.join(sorted(SUFFIXES))}).")
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise UserError(
            f"{path / part}: images differ in size ({', '.join(map(str, sorted(shapes)))}); resize them first."
        )
    if len({len(array) for array in arrays}) > 1:  # grey among colour: all become colour
        arrays = [np.repeat(array, 3, axis=0) if len(array) == 1 else array for array in arrays]
    return Images(torch.from_numpy(np.stack(arrays)), torch.tensor(labels))


def _read_image(file: Path) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """One image as (C, H, W) with one or three channels."""
    from PIL import Image  # here: the training core needs torch and numpy alone

    if not file.is_file():  # a pipe would wait for ever
        raise UserError(f"{file} is not a file.")
    with clean_errors(f"{file} is not a readable image"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=FORMATS) as image:
            mode = image.mode
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
            grey = mode in ("L", "1")
            pixels = np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8)
    if mode.startswith(("I", "F")):
        raise UserError(f"{file} has more than 8 bits a channel; convert it to 0..255 first.")
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))
