"""Whatever people hold their test images in, as `Images`: a name, tensors, arrays, a Dataset, a DataLoader."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from worstclass import rng
from worstclass.data import Images, open_source
from worstclass.data.collect import (
    READ,
    collate,
    from_arrays,
    gather,
    image_and_label,
    in_order,
    known_labels,
    names_of,
)
from worstclass.errors import UserError, shown

READ_TWICE = 16  # items of a Dataset
KINDS = "a name such as 'cifar10', a pair (images, labels), a Dataset or a DataLoader"


@dataclass(frozen=True)
class AuditData:
    """Images, what they are called, their class names where the data know them, and what was not read."""

    images: Images
    name: str
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def read_data(
    data: Any,
    *,
    limit: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    test_fraction: float | None = None,
    data_dir: Path = Path("data"),
) -> AuditData:
    """The images to audit on; with `limit`, a sample of so many, by class. Of a name it is the test part, by the
    `image_size` and `test_fraction` of `open_source`.

    A shuffled DataLoader is read in the order of its Dataset, so that every audit sees the same images in one order.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number from 0 on, not {shown(seed)}.")
    if image_size is not None and not isinstance(data, str):
        raise UserError("image_size is for data by name: resize the images of a Dataset in its transform.")
    if test_fraction is not None and not isinstance(data, str):
        raise UserError("test_fraction is for data by name: give the test images alone.")
    if isinstance(data, AuditData):
        return replace(data, images=sample(data.images, limit, seed))
    if isinstance(data, str):
        source = open_source(data, image_size=image_size, test_fraction=test_fraction, data_dir=data_dir)
        images = sample(source.read("test"), limit, seed)
        return AuditData(images, data, source.class_names, tuple(source.notes("test")))
    if isinstance(data, Images):
        return AuditData(sample(data, limit, seed), "images")
    if isinstance(data, DataLoader):
        return _read_loader(data, limit, seed)
    arrays = (Tensor, np.ndarray)
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(each, arrays) for each in data):
        return AuditData(sample(from_arrays(*data), limit, seed), "arrays")
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)
    if isinstance(data, Dataset) or indexed:
        return _read_dataset(data, limit, seed, batch_size=READ, collate_fn=collate)
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
    if in_order(loader):
        options = {"collate_fn": loader.collate_fn, "num_workers": loader.num_workers}
        return _read_dataset(loader.dataset, limit, seed, batch_size=loader.batch_size, **options)
    name, images = type(loader.dataset).__name__, gather(loader)
    if not isinstance(loader.dataset, IterableDataset):
        whole = loader.batch_sampler is None  # an item is a batch already
        _check_fixed(loader.dataset, (lambda items: loader.collate_fn(items[0])) if whole else loader.collate_fn)
    return AuditData(sample(images, limit, seed), name, names_of(loader.dataset))


def _read_dataset(dataset: Any, limit: int | None, seed: int, **options: Any) -> AuditData:
    """In its own order. With a limit only the chosen images are read, where the labels are known without them."""
    if isinstance(dataset, IterableDataset):
        name, names = type(dataset).__name__, names_of(dataset)
        return AuditData(sample(gather(DataLoader(dataset, **options)), limit, seed), name, names)
    if len(dataset) == 0:
        raise UserError("there are no images to audit on: the data set is empty.")
    name, names = type(dataset).__name__, names_of(dataset)
    labels = None if limit is None else known_labels(dataset)
    rows = None if labels is None else stratified_rows(labels, limit, seed)
    chosen = dataset if rows is None else Subset(dataset, rows.tolist())
    images = gather(DataLoader(chosen, **options))
    _check_fixed(chosen, options["collate_fn"])
    return AuditData(sample(images, limit, seed), name, names)


def _check_fixed(dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
    """Raise where an item that is read twice is not the same: random crops of test images are other images."""
    for row in torch.linspace(0, len(dataset) - 1, min(READ_TWICE, len(dataset))).round().long().tolist():
        one, other = (image_and_label(collate_fn([dataset[row]]), "a batch", "(images, labels)")[0] for _ in range(2))
        if not torch.equal(one, other):
            whole = dataset.dataset if isinstance(dataset, Subset) else dataset
            raise UserError(
                f"{type(whole).__name__} returns another image each time: leave the random transform "
                "(crop, flip, noise) out of the test images."
            )
