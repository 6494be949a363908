"""Whatever people hold their test images in, as `Images`: a name, tensors, arrays, a Dataset, a DataLoader."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset

from worstclass import rng
from worstclass.data import Images, open_source, to_float
from worstclass.data.arrays import channels_first
from worstclass.errors import UserError, shown

KINDS = "a name such as 'cifar10', a pair (images, labels), a Dataset or a DataLoader"
READ = 256  # images of a Dataset at a time
ROWS = 1000


@dataclass(frozen=True)
class AuditData:
    """Images, what they are called, and their class names where the data know them."""

    images: Images
    name: str
    class_names: tuple[str, ...] | None = None


def read_data(data: Any, *, limit: int | None = None, seed: int = 0, data_dir: Path = Path("data")) -> AuditData:
    """The images to audit on; with `limit`, a sample of so many, by class. Of a name it is the test part.

    A shuffled DataLoader is read in the order of its Dataset, so that every audit sees the same images in one order.
    """
    if isinstance(data, str):
        source = open_source(data, data_dir=data_dir)
        return AuditData(sample(source.read("test"), limit, seed), data, source.class_names)
    if isinstance(data, Images):
        return AuditData(sample(data, limit, seed), "images")
    if isinstance(data, DataLoader):
        return _read_loader(data, limit, seed)
    arrays = (Tensor, np.ndarray)
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(each, arrays) for each in data):
        return AuditData(sample(_images(*data), limit, seed), "arrays")
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)
    if isinstance(data, Dataset) or indexed:
        return _read_dataset(data, limit, seed, batch_size=READ, collate_fn=_collate)
    raise UserError(f"audit takes {KINDS}, not {type(data).__name__}.")


def sample(images: Images, limit: int | None, seed: int) -> Images:
    """So many of the images, as `stratified_rows` chooses them; all without a limit."""
    rows = stratified_rows(images.y, limit, seed)
    return images if rows is None else images.select(rows.to(images.y.device))


def stratified_rows(labels: Tensor, limit: int | None, seed: int) -> Tensor | None:
    """`limit` rows in order, of each class in proportion to its size and at least one; None where that is all rows.

    Which ones is a function of (seed, class). Each class that has images needs one, so a smaller limit is an error.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UserError(f"limit must be a whole number of images, not {shown(limit)}.")
    if limit >= len(labels):
        return None
    classes, counts = labels.cpu().unique(return_counts=True)
    if limit < len(classes):
        raise UserError(f"limit = {limit} is less than an image for each of the {len(classes)} classes.")
    exact = counts.double() * limit / len(labels)
    take = exact.floor().long().clamp_min(1)
    order = (exact - take).argsort(descending=True, stable=True)
    for place in order[: max(0, limit - int(take.sum()))]:  # what rounding left, to the largest remainders
        take[place] += 1
    while int(take.sum()) > limit:  # what the classes below one image were given
        take[take.argmax()] -= 1
    chosen = []
    for label, count in zip(classes.tolist(), take.tolist(), strict=True):
        members = (labels.cpu() == label).nonzero().squeeze(1)
        own = rng.generator(seed, "audit/limit", int(label) % 2**31)
        chosen.append(members[torch.randperm(len(members), generator=own)[:count]])
    return torch.cat(chosen).sort().values


def _read_loader(loader: DataLoader[Any], limit: int | None, seed: int) -> AuditData:
    plain = isinstance(loader.sampler, SequentialSampler | RandomSampler) and loader.batch_size is not None
    if plain and not isinstance(loader.dataset, IterableDataset):
        options = {"collate_fn": loader.collate_fn, "num_workers": loader.num_workers}
        return _read_dataset(loader.dataset, limit, seed, batch_size=loader.batch_size, **options)
    name = type(loader.dataset).__name__
    return AuditData(sample(_gather(loader), limit, seed), name, _class_names(loader.dataset))


def _read_dataset(dataset: Any, limit: int | None, seed: int, **options: Any) -> AuditData:
    """In its own order. With a limit only the chosen images are read, where the labels are known without them."""
    if isinstance(dataset, IterableDataset):
        name, names = type(dataset).__name__, _class_names(dataset)
        return AuditData(sample(_gather(DataLoader(dataset, **options)), limit, seed), name, names)
    if len(dataset) == 0:
        raise UserError("there are no images to audit on: the data set is empty.")
    name, names = type(dataset).__name__, _class_names(dataset)
    labels = None if limit is None else _known_labels(dataset)
    if labels is None:
        return AuditData(sample(_gather(DataLoader(dataset, **options)), limit, seed), name, names)
    rows = stratified_rows(labels, limit, seed)
    chosen = dataset if rows is None else Subset(dataset, rows.tolist())
    return AuditData(_gather(DataLoader(chosen, **options)), name, names)


def _known_labels(dataset: Any) -> Tensor | None:
    """Labels that a data set tells without reading an image, as torchvision's do; None where it does not."""
    found = getattr(dataset, "targets", None)
    if found is None and isinstance(getattr(dataset, "tensors", None), tuple):
        found = dataset.tensors[-1]
    try:
        labels = torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels.dim() == 1 and len(labels) == len(dataset) and not labels.is_floating_point() else None


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    """`classes` of a data set, as torchvision's have it; of a part of one too."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    good = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if good and names else None


def _gather(loader: DataLoader[Any]) -> Images:
    images, labels = [], []
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) < 2 or not isinstance(batch[0], Tensor):
            found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
            raise UserError(f"a batch of the data must be (images, labels), not {found}.")
        images.append(_as_bytes(batch[0]))
        labels.append(torch.as_tensor(batch[1]))
    if not images:
        raise UserError("there are no images to audit on: the DataLoader is empty.")
    if len({each.dtype for each in images}) > 1:  # some batches are whole grey levels, others not
        images = [to_float(each) for each in images]
    try:
        return Images(torch.cat(images), torch.cat(labels))
    except RuntimeError as error:
        raise UserError(f"images of the data are not of one shape: {str(error).splitlines()[0]}.") from None


def _images(x: Any, y: Any) -> Images:
    """A pair of tensors or arrays. Arrays may have their channels last, as most do."""
    if isinstance(x, np.ndarray):
        remedy = "pass a torch tensor (N, C, H, W)"
        x = torch.from_numpy(np.ascontiguousarray(channels_first(x, None, "the array of images", remedy)))
    y = torch.as_tensor(y)
    return Images(_as_bytes(x), y.to(x.device))


def _as_bytes(x: Tensor) -> Tensor:
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


def _collate(items: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """(image, label) items, as a batch: tensors (C, H, W), and arrays or PIL images, (H, W) or (H, W, C)."""
    for item in items:
        if not isinstance(item, tuple | list) or len(item) < 2:
            found = f"{len(item)} parts" if isinstance(item, tuple | list) else type(item).__name__
            raise UserError(f"an item of the data must be (image, label), not {found}.")
    tensors = [_image(item[0]) for item in items]
    if len({each.shape for each in tensors}) > 1:
        sizes = sorted({tuple(each.shape) for each in tensors})
        raise UserError(f"images must be of one size; these are of {sizes[0]} and {sizes[1]}: add a crop or a resize.")
    return torch.stack(tensors), torch.stack([torch.as_tensor(item[1]) for item in items])


def _image(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    array = np.array(value)  # a PIL image too
    if array.ndim not in (2, 3) or array.dtype.kind not in "uif":
        raise UserError(f"an image of the data must be a tensor, an array or a PIL image, not {type(value).__name__}.")
    first = channels_first(array[None], None, "an image of the data", "return a torch tensor (C, H, W)")[0]
    return torch.from_numpy(np.ascontiguousarray(first))
