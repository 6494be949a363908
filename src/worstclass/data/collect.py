"""Images out of whatever people hold them in: arrays, a Dataset of (image, label) items, a DataLoader."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset

from worstclass.data.arrays import channels_first
from worstclass.data.images import Images, to_float
from worstclass.data.pictures import Picture, make_picture, stack
from worstclass.errors import UserError, shown

IMAGES = ("image", "images", "pixel_values", "img", "x")
LABELS = ("label", "labels", "fine_label", "target", "y")
"""How images and labels are called in a dict or a table; of several labels the first of these is taken."""

READ = 256  # images of a Dataset at a time
ROWS = 1000


def read_whole(data: Any, where: str, size_remedy: str | None = None) -> Images:
    """All images of a DataLoader, of a pair of tensors or arrays, or of a Dataset, in its order. The `size_remedy` is
    what to do where the images of a Dataset differ in size."""
    if isinstance(data, Images):
        return data
    if isinstance(data, DataLoader):
        if not in_order(data):
            return gather(data)
        options: dict[str, Any] = {"batch_size": data.batch_size, "num_workers": data.num_workers}
        return gather(DataLoader(data.dataset, collate_fn=data.collate_fn, **options))
    arrays = (Tensor, np.ndarray)
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(each, arrays) for each in data):
        return from_arrays(*data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if len(data) == 0:
            raise UserError(f"{where} has no images.")
        return gather(DataLoader(data, batch_size=READ, collate_fn=partial(collate, size_remedy=size_remedy)))
    raise UserError(f"{where} must be a Dataset, a DataLoader or a pair (images, labels), not {type(data).__name__}.")


def read_resized(data: Any, where: str, size: int) -> tuple[Images, list[int]]:
    """All pictures of a Dataset of (PIL image, label) items as squares of `size` pixels a side, and the shorter side
    that each had."""
    labels = []

    def pictures() -> Iterator[Picture]:
        for place in range(len(data)):
            image, label = data[place][:2]
            if not hasattr(image, "getexif"):
                raise UserError(f"{where}: image_size is for PIL images, not {type(image).__name__}.")
            labels.append(_labels(label))
            yield make_picture(image, size, f"{where}: image {place}")

    if len(data) == 0:
        raise UserError(f"{where} has no images.")
    x, sides = stack(pictures(), len(data), where)
    return Images(x, torch.stack(labels)), sides


def in_order(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader can be read in the order of its Dataset: shuffled or not, each image once, but by no sampler
    of its own."""
    sampler = loader.sampler
    plain = isinstance(sampler, SequentialSampler | RandomSampler) and loader.batch_size is not None
    if not plain or isinstance(loader.dataset, IterableDataset) or getattr(sampler, "replacement", False):
        return False
    return len(sampler) == len(loader.dataset)  # type: ignore[arg-type]


def known_labels(dataset: Any) -> Tensor | None:
    """Labels that a data set tells without reading an image, as torchvision's do; None where it does not."""
    found = getattr(dataset, "targets", None)
    if found is None and isinstance(getattr(dataset, "tensors", None), tuple) and len(dataset.tensors) > 1:
        found = dataset.tensors[1]
    try:
        labels = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels.dim() == 1 and len(labels) == len(dataset) and not labels.is_floating_point() else None


def names_of(dataset: Any) -> tuple[str, ...] | None:
    """`classes` of a data set, as torchvision's have it; of a part of one too."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    good = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if good and names else None


def gather(loader: DataLoader[Any]) -> Images:
    """All batches of a loader as one set of images."""
    images, labels = [], []
    for batch in loader:
        x, y = image_and_label(batch, "a batch of the data", "(images, labels)")
        if not isinstance(x, Tensor):
            raise UserError(f"images in a batch of the data must be a tensor, not {type(x).__name__}.")
        images.append(as_bytes(x))
        labels.append(_labels(y))
    if not images:
        raise UserError("there are no images: the DataLoader is empty.")
    if len({each.dtype for each in images}) > 1:  # some batches are whole grey levels, others not
        images = [to_float(each) for each in images]
    try:
        return Images(torch.cat(images), torch.cat(labels))
    except RuntimeError as error:
        raise UserError(f"images of the data are not of one shape: {str(error).splitlines()[0]}.") from None


def from_arrays(x: Any, y: Any) -> Images:
    """A pair of tensors or arrays. Arrays may have their channels last, as most do."""
    if isinstance(x, np.ndarray):
        remedy = "pass a torch tensor (N, C, H, W)"
        x = torch.from_numpy(_plain(channels_first(x, None, "the array of images", remedy)))
    y = torch.as_tensor(_plain(y) if isinstance(y, np.ndarray) else y)
    return Images(as_bytes(x), y.to(x.device))


def _plain(array: np.ndarray) -> np.ndarray:
    """As torch takes it: contiguous, in this machine's order of bytes."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))


def as_bytes(x: Tensor) -> Tensor:
    """Floats that are whole grey levels as uint8, from which `to_float` makes the same floats, bit by bit; others as
    they are. The same images then have the same fingerprint wherever they come from, in a quarter of the memory."""
    if not x.is_floating_point() or x.dim() != 4:
        return x
    parts = []
    for part in x.split(ROWS):
        levels = (part * 255).round()
        if not bool(((levels >= 0) & (levels <= 255)).all()):
            return x
        parts.append(levels.to(torch.uint8))
        if not torch.equal(to_float(parts[-1], x.dtype), part):
            return x
    whole = torch.cat(parts) if parts else x
    return x if len(whole) and int(whole.max()) <= 1 else whole  # uint8 of 0 and 1 alone would be refused as black


def collate(items: Sequence[Any], size_remedy: str | None = None) -> tuple[Tensor, Tensor]:
    """(image, label) items, as a batch: tensors (C, H, W), and arrays or PIL images, (H, W) or (H, W, C)."""
    pairs = [image_and_label(item, "an item of the data", "(image, label)") for item in items]
    tensors = [_image(image) for image, _ in pairs]
    if len({each.shape for each in tensors}) > 1:
        sizes = sorted({tuple(each.shape) for each in tensors})
        remedy = "add a crop or a resize" if size_remedy is None else f"give image_size, as in {size_remedy}"
        raise UserError(f"images must be of one size; these are of {sizes[0]} and {sizes[1]}: {remedy}.")
    return torch.stack(tensors), torch.stack([_labels(label) for _, label in pairs])


def image_and_label(item: Any, what: str, usual: str) -> tuple[Any, Any]:
    """The first two parts of an item or a batch, or of a dict, as Hugging Face has it, those of known keys."""
    if isinstance(item, Mapping):
        images, labels = ([key for key in known if key in item] for known in (IMAGES, LABELS))
        if len(images) != 1 or not labels:
            listed = f"one of {', '.join(IMAGES)} and one of {', '.join(LABELS)}"
            raise UserError(f"{what} is a dict of {', '.join(map(str, item)) or 'nothing'}: it must have {listed}.")
        return item[images[0]], item[labels[0]]
    if not isinstance(item, tuple | list) or len(item) < 2:
        found = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
        raise UserError(f"{what} must be {usual}, not {found}.")
    return item[0], item[1]


def _labels(value: Any) -> Tensor:
    """A label, or those of a batch; what is no number, such as the name of a class, is one line."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"labels of the data must be whole numbers, not {shown(value)}.") from None


def _image(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    mode = getattr(value, "mode", None)  # of a PIL image
    if isinstance(mode, str) and mode not in ("L", "RGB", "RGBA") and mode[0] not in "IF":
        value = value.convert("L" if mode == "1" else "RGB")  # the pixels of a palette are places in it
    array = np.array(value)
    if array.ndim not in (2, 3) or array.dtype.kind not in "uif":
        raise UserError(f"an image of the data must be a tensor, an array or a PIL image, not {type(value).__name__}.")
    first = channels_first(array[None], None, "an image of the data", "return a torch tensor (C, H, W)")[0]
    return torch.from_numpy(np.ascontiguousarray(first))
