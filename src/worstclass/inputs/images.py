"""What the library takes: images, labels and radii, checked in one place and at every door.

Images are uint8 in 0..255 or floating point in [0, 1], (N, C, H, W); labels are whole numbers (N,) in 0..K-1.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from worstclass.errors import UserError
from worstclass.inputs.radius import too_wide

TOLERANCE = 1e-6  # of float32 at 1, with room
PROBABILITY = 1e-5  # how far rounding may bring probabilities from 0, 1 and their sum
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ROWS = 1000  # images to look at before the others: most data show a bright pixel there
_known = ContextVar("known", default=False)


@contextmanager
def values_known() -> Iterator[None]:
    """Attacks in the body look at types and shapes only: whoever calls them has looked at the values.

    To look at values a host waits for its GPU, and a training step must not wait.
    """
    token = _known.set(True)
    try:
        yield
    finally:
        _known.reset(token)


def known() -> bool:
    """Whether values have been looked at."""
    return _known.get()


def tensor_of(model: nn.Module) -> Tensor | None:
    """A tensor of a model that shows its device and its precision: the first of floats, of its parameters or else of
    its buffers. None where it has none."""
    return next((each for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()), None)


@contextmanager
def kept_as_is(x: Tensor, name: str) -> Iterator[None]:
    """Raise if the body, a forward of the model `name`, writes into its images, be it the values they had."""
    before, writes = x.clone(), None if x.is_inference() else x._version
    yield
    if not torch.equal(x, before) or (writes is not None and x._version != writes):
        raise UserError(f"{name} changes its input in place: normalise with x = (x - mean) / std, not with x.sub_().")


def refuse_frozen(model: nn.Module) -> None:
    """Raise for a frozen TorchScript module: its weights are constants, which nothing can tell apart or move."""
    if not all(hasattr(module, "training") for module in model.modules()):
        raise UserError("the model is frozen TorchScript, without weights: give the module as it was before.")


def check_images(x: Any, *, values: bool = True) -> None:
    """Raise unless `x` is (N, C, H, W), uint8 or floating point; with `values`, also unless floats lie in [0, 1]."""
    if not isinstance(x, Tensor):
        raise UserError(f"images must be a torch tensor, not {type(x).__name__}.")
    shape = tuple(x.shape)
    if x.dim() != 4:
        hint = {3: ": x[:, None] adds the channel of grey images, x[None] makes a batch of one image"}.get(x.dim(), "")
        raise UserError(f"images must be (N, C, H, W), not {shape}{hint}.")
    if shape[1] == shape[2] > 4 and shape[3] in (1, 3, 4):
        raise UserError(f"images must be (N, C, H, W); {shape} looks like (N, H, W, C): x.permute(0, 3, 1, 2).")
    if 0 in shape[1:]:
        raise UserError(f"images of shape {shape} have no pixels.")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise UserError(f"images must be uint8 in 0..255 or floating point in [0, 1], not {x.dtype}.")
    if values and len(x):
        _check_values(x)


def _check_values(x: Tensor) -> None:
    if x.dtype == torch.uint8:
        if all(int(part.max()) <= 1 for part in x.split(ROWS)) and bool(x.any()):
            raise UserError(
                "uint8 images are 0..255, but these hold only 0 and 1, which is all but black: were they made from "
                "floats in [0, 1]? Pass the floats, or multiply by 255 first."
            )
        return
    low, high = (float(value) for value in torch.aminmax(x.detach()))
    if low >= -TOLERANCE and high <= 1 + TOLERANCE:
        return
    if not math.isfinite(low + high):
        raise UserError("images must lie in [0, 1]; some pixels are not finite.")
    if low >= 0 and 16 < high <= 255:
        hint = "divide by 255, or pass uint8"
    else:
        hint = (
            "put any normalisation inside the model (worstclass.models.Normalized, or mean= and std= of audit), "
            "not before it"
        )
    raise UserError(f"images must lie in [0, 1], these lie in {low:.4g}..{high:.4g}: {hint}.")


def check_labels(y: Any, size: int, num_classes: int | None = None, *, values: bool = True) -> None:
    """Raise unless `y` is one whole number for each of `size` images; with `values`, also unless inside 0..K-1."""
    if not isinstance(y, Tensor):
        raise UserError(f"labels must be a torch tensor, not {type(y).__name__}.")
    if y.dim() == 2 and y.shape[0] == size and y.shape[1] > 1:
        raise UserError(f"labels must be (N,) whole numbers, not {tuple(y.shape)}: one-hot labels are y.argmax(1).")
    if y.dim() != 1 or y.dtype not in INTEGERS:
        raise UserError(f"labels must be (N,) whole numbers such as torch.int64, not {tuple(y.shape)} of {y.dtype}.")
    if len(y) != size:
        raise UserError(f"{size} images have {len(y)} labels.")
    if values and len(y):
        low, high = int(y.min()), int(y.max())
        if low < 0 or (num_classes is not None and high >= num_classes):
            expected = f"0..{num_classes - 1}" if num_classes is not None else "0..K-1"
            raise UserError(f"labels lie in {low}..{high}, expected {expected}.")


def check_first_label(y: Tensor, num_classes: int) -> None:
    """Raise where labels count from 1, so that the last is one too many for a model of these classes."""
    if len(y) and int(y.min()) > 0 and int(y.max()) >= num_classes:
        told = f"labels lie in {int(y.min())}..{int(y.max())}, expected 0..{num_classes - 1}"
        raise UserError(f"{told}: the model has {num_classes} logits.")


def check_batch(x: Tensor, y: Tensor, radius_scale: Tensor | None, eps: float, norm: str) -> Tensor:
    """The labels as int64, if an attack of radius `eps` can take this batch; values are looked at unless `known`."""
    values = not known()
    if torch.is_inference_mode_enabled():
        raise UserError("attacks need gradients: call them outside of torch.inference_mode().")
    check_images(x, values=values)
    if not x.is_floating_point():
        raise UserError(f"an attack takes floating-point images in [0, 1], not {x.dtype}: x.float() / 255.")
    check_labels(y, len(x), values=values)
    if radius_scale is not None:
        if radius_scale.shape != y.shape:
            raise UserError(
                f"radius_scale must be one factor for each image, ({len(y)},), not {tuple(radius_scale.shape)}."
            )
        if values and not bool(((radius_scale >= 0) & radius_scale.isfinite()).all()):
            raise UserError("radius_scale must not be negative, and finite.")
    widest = math.sqrt(x.shape[1:].numel())
    if norm == "l2" and eps > widest * (1 + TOLERANCE):
        raise too_wide(eps, f"images of {tuple(x.shape[1:])} are at most {widest:.4g} apart in L2")
    return y.long()


def check_logits(logits: Any, size: int) -> None:
    """Raise unless a model's answer to `size` images is (B, K) logits of two classes or more."""
    if not isinstance(logits, Tensor):
        raise UserError(
            f"the model must return logits (B, K), not {type(logits).__name__}: wrap it in a module that returns those."
        )
    if logits.dim() != 2 or len(logits) != size or not logits.is_floating_point():
        found = f"{tuple(logits.shape)} of {logits.dtype}"
        raise UserError(f"the model must return logits (B, K), and for {size} images returns {found}.")
    if logits.shape[1] < 2:
        raise UserError("the model has one logit: two classes or more are needed.")


def are_probabilities(logits: Tensor) -> bool:
    """Whether each row of logits (B, K) is a distribution, as after a softmax."""
    return bool((logits >= -PROBABILITY).all()) and bool(((logits.sum(1) - 1).abs() <= PROBABILITY).all())


def check_answer(logits: Any, y: Tensor) -> None:
    """Raise unless logits are (B, K), and of the classes of the labels `y`; these are looked at unless `known`."""
    check_logits(logits, len(y))
    check_labels(y, len(y), logits.shape[1], values=not known())
