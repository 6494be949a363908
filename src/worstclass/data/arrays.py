"""Data in one .npz file: x_train, y_train, x_test, y_test, and class_names if it likes. No pickle is read."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from worstclass.data.images import Images, check_class_names
from worstclass.errors import UserError
from worstclass.files import Npz, clean_errors

CHANNELS = (1, 3, 4)


def read_npz_names(path: Path) -> tuple[str, ...]:
    """The file's class names, or the numbers of its classes as names."""
    with Npz(path) as archive:
        if "class_names" in archive.names:
            with clean_errors(f"{path}: class_names"):
                return check_class_names(archive.read("class_names").reshape(-1).astype(str).tolist(), path)
        labels = archive.read("y_train")
    check_labels(labels, labels.size, f"{path}: y_train")  # every class needs an image
    return check_class_names([str(k) for k in range(int(labels.max()) + 1)], path)


def read_npz(path: Path, part: Literal["train", "test"]) -> Images:
    """The part's images, (N, H, W), (N, H, W, C) or (N, C, H, W) as uint8, and their labels."""
    num_classes = len(read_npz_names(path))
    with Npz(path) as archive:
        x, y = archive.read(f"x_{part}"), archive.read(f"y_{part}")
    if x.dtype != np.uint8:
        raise UserError(f"{path}: x_{part} must be uint8 in 0..255, not {x.dtype}.")
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] not in CHANNELS:
        raise UserError(f"{path}: x_{part} has shape {x.shape}; (N, H, W), (N, H, W, C) or (N, C, H, W) is expected.")
    if x.size == 0:
        raise UserError(f"{path}: x_{part} has no pixels: its shape is {x.shape}.")
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
