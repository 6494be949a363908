"""Data in one .npz file: x_train, y_train, x_test, y_test, and class_names if it likes. No pickle is read."""

import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from worstclass.data.images import Images
from worstclass.errors import UserError

CHANNELS = (1, 3, 4)
UNREADABLE = (ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def read_npz_names(path: Path) -> tuple[str, ...]:
    """The file's class names, or the numbers of its classes as names."""
    with open_npz(path) as archive:
        if "class_names" in archive:
            names = tuple(str(name) for name in read_array(archive, path, "class_names").reshape(-1))
        else:
            labels = read_array(archive, path, "y_train")
            check_labels(labels, labels.size, f"{path}: y_train")  # every class needs an image
            names = tuple(str(k) for k in range(int(labels.max()) + 1))
    if len(names) < 2:
        raise UserError(f"{path} has {len(names)} class(es); two or more are needed.")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two classes have the same name.")
    return names


def read_npz(path: Path, part: Literal["train", "test"]) -> Images:
    """The part's images, (N, H, W), (N, H, W, C) or (N, C, H, W) as uint8, and their labels."""
    num_classes = len(read_npz_names(path))
    with open_npz(path) as archive:
        x, y = read_array(archive, path, f"x_{part}"), read_array(archive, path, f"y_{part}")
    if x.dtype != np.uint8:
        raise UserError(f"{path}: x_{part} must be uint8 in 0..255, not {x.dtype}.")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in CHANNELS:
        raise UserError(f"{path}: x_{part} has shape {x.shape}; (N, H, W), (N, H, W, C) or (N, C, H, W) is expected.")
    check_labels(y, num_classes, f"{path}: y_{part}")
    if len(x) != len(y):
        raise UserError(f"{path}: {len(x)} images in x_{part} but {len(y)} labels in y_{part}.")
    return Images(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))


def check_labels(labels: "np.ndarray[Any, Any]", num_classes: int, where: str) -> None:
    """Labels are whole numbers, one for each image, inside 0..K-1."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise UserError(f"{where}: one whole number for each image is expected, not {labels.dtype} {labels.shape}.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(f"{where}: labels lie in {low}..{high}, expected 0..{num_classes - 1}.")


def open_npz(path: Path) -> Any:
    """An .npz archive of plain arrays; objects (pickle) in it are refused."""
    if not path.is_file():
        raise UserError(f"no data file at {path}.")
    try:
        with zipfile.ZipFile(path):  # first: np.load leaves the file of a broken archive open
            pass
        archive = np.load(path, allow_pickle=False)
    except UNREADABLE as error:
        raise UserError(f"{path} is not a readable .npz file: {error}.") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise UserError(f"{path} is not an .npz archive.")
    return archive


def read_array(archive: Any, path: Path, key: str) -> "np.ndarray[Any, Any]":
    if key not in archive:
        raise UserError(f"{path} has no array '{key}' (it has {', '.join(sorted(archive.files)) or 'none'}).")
    try:
        array: np.ndarray[Any, Any] = archive[key]
    except UNREADABLE as error:
        raise UserError(f"{path}: array '{key}' cannot be read: {error}.") from error
    return array
