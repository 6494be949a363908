"""Data in one .npz file: x_train, y_train, x_test, y_test; x_valid, y_valid, class_names and layout if it likes. No
pickle is read."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from worstclass.data.images import Images, check_class_names
from worstclass.data.source import VALIDATION_NAMES, Part
from worstclass.errors import UserError, choose
from worstclass.files import Npz, clean_errors

CHANNELS = (1, 3, 4)
LAYOUTS = ("NHWC", "NCHW")


def read_npz_names(path: Path) -> tuple[str, ...]:
    """The file's class names, or the numbers of its classes as names: those of its training part, or of its test part
    where that is all."""
    with Npz(path) as archive:
        if "class_names" in archive.names:
            with clean_errors(f"{path}: class_names"):
                return check_class_names(archive.read("class_names").reshape(-1).astype(str).tolist(), path)
        tested = "y_test" in archive.names and not {"x_train", "y_train"} & {*archive.names}
        which = "y_test" if tested else "y_train"
        labels = archive.read(which)
    check_labels(labels, labels.size, f"{path}: {which}")  # every class needs an image
    if not tested:  # a model that is at hand says it better
        check_counts_from_0(labels, f"{path}: {which}")
    return check_class_names([str(k) for k in range(int(labels.max()) + 1)], path)


def npz_validation(path: Path) -> str | None:
    """How the file calls its validation part, if it has one: `valid` of x_valid."""
    with Npz(path) as archive:
        found = [name for name in VALIDATION_NAMES if {f"x_{name}", f"y_{name}"} & {*archive.names}]
    if len(found) > 1:
        raise UserError(f"{path} has x_{found[0]} and x_{found[1]}: which are the validation images?")
    return found[0] if found else None


def read_npz(path: Path, part: Part) -> Images:
    """The part's images, (N, H, W), (N, H, W, C) or (N, C, H, W) as uint8, and their labels.

    Channels are the axis of size 1, 3 or 4. Where both axes have such a size, `layout` in the file must say which.
    """
    called = npz_validation(path) if part == "validation" else part
    num_classes = len(read_npz_names(path))
    with Npz(path) as archive:
        x, y = archive.read(f"x_{called}"), archive.read(f"y_{called}")
        layout = _read_layout(archive, path)
    if x.dtype != np.uint8:
        raise UserError(f"{path}: x_{called} must be uint8 in 0..255, not {x.dtype}.")
    x = channels_first(x, layout, f"{path}: x_{called}")
    if x.size == 0:
        raise UserError(f"{path}: x_{called} has no pixels: its shape is {x.shape}.")
    check_labels(y, num_classes, f"{path}: y_{called}")
    if len(x) != len(y):
        raise UserError(f"{path}: {len(x)} images in x_{called} but {len(y)} labels in y_{called}.")
    return Images(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))


def npz_test_shape(path: Path) -> tuple[int, ...] | None:
    """(C, H, W) of the test images, by the header of x_test alone; None where it is not there."""
    with Npz(path) as archive:
        if "x_test" not in archive.names:
            return None
        shape, layout = archive.shape("x_test"), _read_layout(archive, path)
    like = np.broadcast_to(np.uint8(0), shape)  # takes no memory
    return tuple(channels_first(like, layout, f"{path}: x_test").shape[1:])


def _read_layout(archive: Npz, path: Path) -> str | None:
    if "layout" not in archive.names:
        return None
    with clean_errors(f"{path}: layout"):
        return str(archive.read("layout").reshape(-1).astype(str).tolist()[0])


def channels_first(
    x: "np.ndarray[Any, Any]",
    layout: str | None,
    where: str,
    remedy: str = "add layout='NHWC' or layout='NCHW' to the file",
) -> "np.ndarray[Any, Any]":
    """Images as (N, C, H, W); where the shape has two readings, the error ends in the `remedy`."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise UserError(f"{where} has shape {x.shape}; (N, H, W), (N, H, W, C) or (N, C, H, W) is expected.")
    possible = [name for name in LAYOUTS if x.shape[name.index("C")] in CHANNELS]
    if layout is not None:
        possible = [choose(f"layout ({where})", layout, LAYOUTS)]
    if not possible:
        raise UserError(f"{where} has shape {x.shape}; no axis has the size of channels, 1, 3 or 4.")
    if len(possible) > 1:
        raise UserError(f"{where} has shape {x.shape}, which may be (N, H, W, C) or (N, C, H, W): {remedy}.")
    return x.transpose(0, 3, 1, 2) if possible == ["NHWC"] else x


def check_counts_from_0(labels: "np.ndarray[Any, Any]", where: str) -> None:
    """Labels that are to say how many classes there are."""
    if int(labels.min()) == 1:
        told = f"labels lie in 1..{int(labels.max())}"
        raise UserError(f"{where}: {told}: count classes from 0, or name them all (class_names), the first one too.")


def check_labels(labels: "np.ndarray[Any, Any]", num_classes: int, where: str) -> None:
    """Labels are whole numbers, one for each image, inside 0..K-1."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
        raise UserError(f"{where}: one whole number for each image is expected, not {labels.dtype} {labels.shape}.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(f"{where}: labels lie in {low}..{high}, expected 0..{num_classes - 1}.")
