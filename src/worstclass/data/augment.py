"""Random changes of training images: batched, on the images' device, pixels of the same kind.

All of it is part of a captured step: no host sync, and no constant that would be copied to the device.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.data.color_shape import color_shape

Augmentation: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""Changes training images (B, C, H, W), uint8 or floats in [0, 1], by draws from the generator alone."""

AREA, RATIO = (0.02, 0.33), (0.3, 3.3)  # of an erased rectangle: share of the image, height to width


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random crop after zero padding, and horizontal flip; crop-shift, one change of colour or shape, and erasing.

    The last three are those of IDBH (Li and Spratling, ICLR 2023), whose published settings for CIFAR-10 are flips,
    `crop_shift=10`, `color_shape` and `erase=0.5` or 1, and no padding. `erase` is the share of the images.
    """

    crop_padding: int = 0
    flip: bool = False
    crop_shift: int = 0
    color_shape: bool = False
    erase: float = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self.crop_padding:
            x = crop_padded(x, self.crop_padding, generator)
        if self.flip:
            coin = torch.rand(len(x), 1, 1, 1, device=x.device, generator=generator) < 0.5
            x = torch.where(coin, x.flip(3), x)
        if self.crop_shift:
            x = crop_shifted(x, self.crop_shift, generator)
        if self.color_shape:
            x = color_shape(x, generator)
        if self.erase:
            x = erased(x, self.erase, generator)
        return x


def crop_padded(x: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """A window of the image's size, anywhere in the image with `pad` black pixels around it."""
    size, _, height, width = x.shape
    padded = F.pad(x, (pad, pad, pad, pad))
    offset = torch.randint(0, 2 * pad + 1, (2, size, 1), device=x.device, generator=generator)
    rows = offset[0] + torch.arange(height, device=x.device)
    columns = offset[1] + torch.arange(width, device=x.device)
    return _gather(padded, rows, columns)


def crop_shifted(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Cropshift: up to `most` rows and columns in all are cut away, at random sides, and what is left is put anywhere
    on a black image of the same size."""
    size, _, height, width = x.shape
    most = min(most, height - 1, width - 1)
    strength, share, *places = torch.rand(6, size, 1, device=x.device, generator=generator)
    cut = (strength * (most + 1)).floor()
    cut_columns = (share * (cut + 1)).floor()
    index, inside = [], []
    for length, lost, (start, target) in (
        (height, cut - cut_columns, places[:2]),
        (width, cut_columns, places[2:]),
    ):
        first, left = ((place * (lost + 1)).floor() for place in (start, target))
        along = torch.arange(length, device=x.device) - left
        inside.append((along >= 0) & (along < length - lost))
        index.append((along + first).clamp(0, length - 1).long())
    kept = inside[0][:, None, :, None] & inside[1][:, None, None, :]
    return _gather(x, *index).masked_fill(~kept, 0)


def erased(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Random erasing: in a share of the images a rectangle is black. One that does not fit is cut to the image."""
    size, _, height, width = x.shape
    coin, area, ratio, top, left = torch.rand(5, size, 1, device=x.device, generator=generator)
    low, high = (math.log(end) for end in RATIO)
    area = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
    ratio = (low + ratio * (high - low)).exp()
    inside = []
    for length, side, place in (
        (height, (area * ratio).sqrt(), top),
        (width, (area / ratio).sqrt(), left),
    ):
        side = side.round().clamp(1, length - 1)
        first = (place * (length - side + 1)).floor()
        along = torch.arange(length, device=x.device)
        inside.append((along >= first) & (along < first + side))
    gone = inside[0][:, None, :, None] & inside[1][:, None, None, :] & (coin < share)[..., None, None]
    return x.masked_fill(gone, 0)


def _gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels (B, C, h, w) of images by the rows (B, h) and columns (B, w) that each wants."""
    batch = torch.arange(len(x), device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
