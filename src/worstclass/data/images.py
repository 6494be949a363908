"""Labelled images on a device, and the operations training needs on them there."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass import rng
from worstclass.errors import UserError, class_called, shown
from worstclass.inputs.images import check_images, check_labels


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W), uint8 in 0..255 or floating point in [0, 1], and labels (N,), both on one device.

    What is anything else is refused here, before a number comes of it; other whole numbers become int64 labels.
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        check_images(self.x)
        check_labels(self.y, len(self.x))
        if self.x.device != self.y.device:
            raise UserError(f"images are on {self.x.device}, their labels on {self.y.device}.")
        object.__setattr__(self, "y", self.y.long())

    @classmethod
    def unchecked(cls, x: Tensor, y: Tensor) -> "Images":
        """A part or a copy of images that were checked: nothing is looked at, so no host waits for its device."""
        images = object.__new__(cls)
        object.__setattr__(images, "x", x)
        object.__setattr__(images, "y", y)
        return images

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device | str) -> "Images":
        """The same images on another device."""
        return Images.unchecked(self.x.to(device), self.y.to(device))

    def select(self, index: Tensor) -> "Images":
        """The rows of an index or of a mask (N,)."""
        return Images.unchecked(self.x[index], self.y[index])

    def class_counts(self, num_classes: int) -> Tensor:
        """Images of each class (K,)."""
        check_labels(self.y, len(self), num_classes)
        return torch.bincount(self.y, minlength=num_classes)


def check_class_names(names: Sequence[str], where: object) -> tuple[str, ...]:
    """The names, if there are two or more, all different, of 1 to 255 characters that can be shown."""
    if len(names) < 2:
        raise UserError(f"{where} has {len(names)} class(es); two or more are needed.")
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"{where}: {shown(name)} is not a class name: it must be text.")
    if len(set(names)) < len(names):
        raise UserError(f"{where}: two classes have the same name.")
    for name in names:
        if not 1 <= len(name) <= 255 or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
            raise UserError(f"{where}: {name[:255]!r} is not a class name: 1 to 255 characters that can be shown.")
    return tuple(names)


def to_float(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Images as floats in [0, 1], float32 unless said otherwise: uint8 is divided by 255, floats stay as they are."""
    if not x.is_floating_point():
        if x.dtype != torch.uint8:
            raise UserError(f"images must be uint8 in 0..255 or floating point in [0, 1], not {x.dtype}.")
        x = x.float().div_(255)
    return x.float() if dtype is None else x.to(dtype)


def channel_statistics(x: Tensor, rows: int = 1000) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of images as floats in [0, 1], some images at a time."""
    if x.is_floating_point():
        return _float_statistics(x, rows)
    counts = torch.zeros(x.shape[1], 256, dtype=torch.int64)
    for part in x.split(rows):
        for count, channel in zip(counts, part.unbind(1), strict=True):
            count += channel.flatten().bincount(minlength=256)
    values, total = torch.arange(256, dtype=torch.float64) / 255, counts[0].sum()
    mean = counts.double() @ values / total
    var = (counts * (values - mean[:, None]) ** 2).sum(1) / (total - 1)
    return mean, var.sqrt()


def _float_statistics(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """In two passes: the sum, then the squares about the mean."""
    total = x[:, 0].numel()
    mean = torch.stack([part.double().sum((0, 2, 3)) for part in x.split(rows)]).sum(0) / total
    about = torch.stack([(part.double() - mean[:, None, None]).square().sum((0, 2, 3)) for part in x.split(rows)])
    return mean, (about.sum(0) / (total - 1)).sqrt()


def long_tail(images: Images, num_classes: int, ratio: float) -> Images:
    """The first images of each class, n * ratio^(-k / (K - 1)) of class k, n those of the smallest class: CIFAR-10-LT
    and its like. The order stays."""
    counts = images.class_counts(num_classes)
    keep = torch.zeros(len(images), dtype=torch.bool, device=images.y.device)
    for k in range(num_classes):
        members = (images.y == k).nonzero().squeeze(1)
        keep[members[: round(int(counts.min()) * ratio ** (-k / (num_classes - 1)))]] = True
    return images.select(keep)


def held_out(count: int, fraction: float, minimum: int = 0) -> int:
    """Validation images of a class of `count` images, two or more: the `fraction`, rounded to the nearest.

    At least `minimum`, or a fifth of the class where that is fewer; at least one, and one is left to train on.
    """
    return max(min(max(1, round(fraction * count)), count - 1), min(minimum, count // 5))


def split_validation(
    images: Images, num_classes: int, fraction: float, minimum: int = 0, *, class_names: Sequence[str] = ()
) -> tuple[Images, Images]:
    """Training and validation images: the last images of each class, in order, are validation.

    `held_out` says how many: the `fraction`, or a `minimum` of them. Every class must have at least two images;
    `class_names` name the one that has not.
    """
    if not 0 < fraction < 1:
        raise UserError(f"the fraction for validation must be above 0 and below 1, not {shown(fraction)}.")
    check_labels(images.y, len(images), num_classes)  # a class beyond would all be trained on
    counts = images.class_counts(num_classes).tolist()
    if few := [f"{class_called(k, class_names)} has {count}" for k, count in enumerate(counts) if count < 2]:
        which = ", ".join([f"{few[0]} training image(s)", *few[1:3], *(["..."] if len(few) > 3 else [])])
        raise UserError(
            f"{which}: two or more are needed, one of them for validation. Add images, or take the class away."
        )
    valid = torch.zeros(len(images), dtype=torch.bool)
    for k in range(num_classes):
        members = (images.y == k).nonzero().squeeze(1)
        valid[members[-held_out(len(members), fraction, minimum) :]] = True
    return images.select(~valid), images.select(valid)


def epoch_order(size: int, *, seed: int, epoch: int) -> Tensor:
    """The order of the training images in one epoch, a function of (seed, epoch) on every device."""
    return torch.randperm(size, generator=rng.generator(seed, "order", epoch))
