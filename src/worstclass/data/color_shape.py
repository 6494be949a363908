"""One change of colour or shape for each image, drawn from eight: IDBH's "color" set (Li and Spratling, ICLR 2023)."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

GREY = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R 601, as Pillow has it
LEVELS = 255


def color_shape(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each image (C, H, W) of a batch is changed in one of the eight ways, chosen and scaled at random."""
    which, strength, sign, axis = torch.rand(4, len(x), 1, 1, 1, device=x.device, generator=generator)
    which = (which * len(WAYS)).floor()
    image = x / LEVELS if x.dtype == torch.uint8 else x
    out = image
    for number, (change, low, high) in enumerate(WAYS):
        amount = low + strength * (high - low)
        if change is rotate:  # whole degrees, as published
            amount = low + (strength * (high - low + 1)).floor()
        if change in (shear, rotate):
            amount = torch.where(sign < 0.5, -amount, amount)
        changed = shear(image, amount, axis < 0.5) if change is shear else change(image, amount)
        out = torch.where(which == number, changed, out)
    if x.dtype == torch.uint8:
        return (out * LEVELS).round().to(torch.uint8)
    return out


def saturate(x: Tensor, amount: Tensor) -> Tensor:
    """Away from its grey image, or towards it; of an image without colours nothing changes."""
    return _blend(_grey(x), x, amount)


def brighten(x: Tensor, amount: Tensor) -> Tensor:
    """All pixels by this factor."""
    return (x * amount).clamp(0, 1)


def contrast(x: Tensor, amount: Tensor) -> Tensor:
    """Away from its mean grey, or towards it."""
    return _blend(_grey(x).mean((2, 3), keepdim=True), x, amount)


def sharpen(x: Tensor, amount: Tensor) -> Tensor:
    """Away from a blurred image, in which a pixel counts five times its neighbours; the outermost pixels stay."""
    if min(x.shape[2:]) < 3:
        return x
    blurred = x.clone()
    blurred[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return _blend(blurred, x, amount)


def stretch(x: Tensor, amount: Tensor) -> Tensor:
    """Autocontrast: each channel from black to white."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp_min(1e-12), x).clamp(0, 1)


def equalize(x: Tensor, amount: Tensor) -> Tensor:
    """Each channel with all its levels about equally often, as Pillow does it: level i becomes
    (step / 2 + pixels darker than i) / step, where the steps are those of all pixels but the brightest."""
    levels = (x * LEVELS).round().clamp(0, LEVELS)
    ordered = levels.flatten(2).contiguous().sort(2).values.contiguous()
    every = torch.arange(LEVELS + 1, dtype=x.dtype, device=x.device).expand(*ordered.shape[:2], -1).contiguous()
    darker = torch.searchsorted(ordered, every)
    brightest = (ordered == ordered[..., -1:]).sum(2, keepdim=True)
    step = (ordered.shape[2] - brightest) // LEVELS
    table = ((step // 2 + darker) // step.clamp_min(1)).clamp(0, LEVELS)
    mapped = table.gather(2, levels.flatten(2).long()).view_as(x).to(x.dtype) / LEVELS
    return torch.where((step > 0)[..., None], mapped, x)


def shear(x: Tensor, amount: Tensor, across: Tensor) -> Tensor:
    """Along the rows, where `across`, or along the columns; by this angle, in radians."""
    slope = amount.flatten().tan()
    none, one = torch.zeros_like(slope), torch.ones_like(slope)
    rows = across.flatten()
    wide, high = torch.where(rows, slope, none), torch.where(rows, none, slope)
    return _moved(x, torch.stack((one, wide, high, one), 1))


def rotate(x: Tensor, amount: Tensor) -> Tensor:
    """By so many degrees about the centre, counter-clockwise."""
    angle = amount.flatten() * (math.pi / 180)
    return _moved(x, torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), 1))


WAYS: tuple[tuple[Callable[..., Tensor], float, float], ...] = (
    (saturate, 0.1, 1.9),
    (brighten, 0.5, 1.9),
    (contrast, 0.5, 1.9),
    (sharpen, 0.1, 1.9),
    (stretch, 0.0, 0.0),
    (equalize, 0.0, 0.0),
    (shear, 0.05, 0.15),
    (rotate, 1.0, 10.0),
)
"""The changes, equally likely, with the least and the largest amount."""


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    red, green, blue = (x[:, channel : channel + 1] for channel in range(3))
    return GREY[0] * red + GREY[1] * green + GREY[2] * blue


def _blend(start: Tensor, x: Tensor, amount: Tensor) -> Tensor:
    return (start + amount * (x - start)).clamp(0, 1)


def _moved(x: Tensor, matrix: Tensor) -> Tensor:
    """The nearest pixel, by a linear map (B, 4) of places about the centre, in pixels; black where there is none."""
    height, width = x.shape[2:]
    a, b, c, d = matrix.unbind(1)
    scale = width / height
    none = torch.zeros_like(a)
    theta = torch.stack((a, b / scale, none, c * scale, d, none), 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    moved: Tensor = F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return moved
