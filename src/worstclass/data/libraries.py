"""Data of other libraries by name: Hugging Face datasets, torchvision, and the user's own by a factory."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from worstclass.data.arrays import check_counts_from_0
from worstclass.data.collect import LABELS, known_labels, names_of, read_resized, read_whole
from worstclass.data.images import Images, check_class_names
from worstclass.data.pictures import SIZE_REMEDY, enlarged_notes
from worstclass.data.source import VALIDATION_NAMES, Part, Source
from worstclass.errors import UserError, unknown
from worstclass.files import clean_errors
from worstclass.inputs.factories import call_factory, need
from worstclass.inputs.names import RESIZED, data_kind

SHOWN = 3  # names, at most, in a sentence
SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder by `save_to_disk`: of several splits, and of one."""


def hf_source(name: str, image_size: int | None = None) -> Source:
    """`hf:NAME`, `hf:NAME@SPLIT` or `hf:NAME#CONFIGURATION@SPLIT`: of the hub, or a folder by `save_to_disk`.

    The test part is the split `test`, or SPLIT; the training part is `train`, and `validation` if there is one.
    Nothing that a data set brings is run: version 4 of datasets has no loading scripts.
    """
    datasets = need("datasets", f"data '{name}'", "hf")
    version = str(datasets.__version__)
    if int(version.partition(".")[0]) < 4:
        raise UserError(f"data '{name}': datasets {version} may run code of a data set; it must be 4 or later.")
    rest, _, split = name.removeprefix("hf:").partition("@")
    path, _, configuration = rest.partition("#")

    @cache
    def load() -> Any:
        with clean_errors(f"data '{name}'"):
            if any((Path(path) / file).is_file() for file in SAVED):
                return datasets.load_from_disk(path)
            return datasets.load_dataset(path, configuration or None)

    def part_of(part: str) -> Any:
        found = load()
        if hasattr(found, "features"):  # one data set without splits: it is the part that is tested on
            if part == "train" or split:
                raise UserError(f"data '{name}' has no splits: it can be tested on, not trained on.")
            return found
        wanted = split if split and part == "test" else part
        if wanted not in found:
            kind = path if not configuration else f"{path}#{configuration}"
            splits = ", ".join(map(str, found))
            raise UserError(f"data '{name}' has no split '{wanted}' (it has {splits}): write hf:{kind}@SPLIT.")
        return found[wanted]

    test = part_of("test")
    image, label = _columns(test.features, name)
    labelled = getattr(test.features[label], "names", None)

    reader = _Reader(name, lambda part: _Pairs(part_of(part).select_columns([image, label]), image, label), image_size)
    names = _class_names(labelled, lambda: torch.as_tensor(test[label][:]), name)

    splits = [] if hasattr(load(), "features") else [each for each in VALIDATION_NAMES if each in load()]
    own = [each for each in splits if each != split]  # that one is tested on

    def read(part: Part) -> Images:
        if part != "validation":
            return reader.read(part)
        with clean_errors(f"data '{name}', split '{own[0]}'"):
            return reader.read(own[0])

    def notes(*parts: Part) -> list[str]:
        unread = (
            []
            if hasattr(load(), "features")
            else [each for each in load() if each not in {"train", split or "test", *own[:1]}]
        )
        if not unread or "train" not in (parts or ("train",)):
            return reader.notes(*parts)
        return [f"data '{name}' also has {', '.join(map(str, unread[:SHOWN]))}, not read.", *reader.notes(*parts)]

    return Source(name, names, read, has_validation=bool(own), notes=notes)


class _Pairs:
    """Rows of two columns as (image, label) items."""

    def __init__(self, rows: Any, image: str, label: str) -> None:
        self._rows, self._image, self._label = rows, image, label

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> tuple[Any, Any]:
        row = self._rows[place]
        return row[self._image], row[self._label]


def _columns(features: Any, name: str) -> tuple[str, str]:
    """The columns of images and of labels, by their types; of several labels the one with a usual name."""
    images = [key for key, kind in features.items() if type(kind).__name__ == "Image"]
    labels = [key for key, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    labels = labels or [key for key in LABELS if key in features]
    chosen = labels if len(labels) == 1 else [key for key in LABELS if key in labels][:1]
    if len(images) != 1 or len(chosen) != 1:
        what = "one column of images" if len(images) != 1 else f"one column of labels ({', '.join(LABELS)})"
        raise UserError(f"data '{name}' must have {what}; its columns are {', '.join(features)}.")
    return images[0], chosen[0]


def torchvision_source(name: str, data_dir: Path, image_size: int | None = None) -> Source:
    """`torchvision:NAME`, a class of torchvision.datasets, looked for in `data_dir` and downloaded there."""
    datasets = need("torchvision.datasets", f"data '{name}'", "torchvision")
    called = name.removeprefix("torchvision:")
    kinds = [key for key in datasets.__all__ if inspect.isclass(getattr(datasets, key))]
    if called not in kinds:
        raise unknown("data set of torchvision", called, kinds)
    kind = getattr(datasets, called)
    takes = inspect.signature(kind).parameters

    @cache
    def load(part: str) -> Any:
        given: dict[str, Any] = {"root": str(data_dir)} if "root" in takes else {}
        given |= {"download": True} if "download" in takes else {}
        given |= {"train": part == "train"} if "train" in takes else {"split": part} if "split" in takes else {}
        with clean_errors(f"data '{name}'"):
            if part == "train" and not {"train", "split"} & takes.keys():
                raise UserError(f"data '{name}' has no parts: it can be tested on, not trained on.")
            return kind(**given)

    return _source(name, load, image_size)


def factory_source(name: str) -> Source:
    """`module.path:factory` or `path/to/file.py:factory`: a function of `part`, "train" or "test", or of nothing.

    It returns a Dataset, a DataLoader or a pair (images, labels). One that takes nothing can be tested on, not trained
    on. This runs the user's code.
    """

    @cache
    def load(part: str) -> Any:
        return call_factory(name, "data", whole=part == "train", part=part)  # test images must not be trained on

    return _source(name, load)


def _source(name: str, load: Callable[[str], Any], image_size: int | None = None) -> Source:
    reader = _Reader(name, load, image_size)

    def labels() -> torch.Tensor:
        known = known_labels(load("test"))
        return reader.read("test").y if known is None else known

    def read(part: Part) -> Images:
        images = reader.read(part)
        last = int(images.y.max()) if len(images) else 0
        if last >= len(names):
            counted = "test labels end" if known_names is None else "its `classes` end"
            raise UserError(
                f"data '{name}': {part} labels go up to {last}, but {counted} at {len(names) - 1}. Give all classes: "
                "return a Dataset with the attribute `classes`, their names."
            )
        return images

    data = load("test")
    known_names = names_of(getattr(data, "dataset", data))
    names = _class_names(known_names, labels, name)
    return Source(name, names, read, notes=reader.notes)


class _Reader:
    """Reads parts that `load` gives, their pictures at one size if that is given."""

    def __init__(self, name: str, load: Callable[[str], Any], image_size: int | None) -> None:
        self._what, self._load, self._size = f"data '{name}'", load, image_size
        self._remedy = SIZE_REMEDY if data_kind(name) in RESIZED else None
        self._sides: dict[str, list[int]] = {}

    def read(self, part: str) -> Images:
        data = self._load(part)
        with clean_errors(self._what) if self._remedy else nullcontext():  # a factory's errors are its author's
            if self._size is None:
                return read_whole(data, self._what, self._remedy)
            images, self._sides[part] = read_resized(data, self._what, self._size)
            return images

    def notes(self, *parts: Part) -> list[str]:
        return enlarged_notes(self._sides, self._size, parts)


def _class_names(names: Any, labels: Callable[[], torch.Tensor], name: str) -> tuple[str, ...]:
    """The names that the data know, or the numbers of their classes."""
    if names is None:
        known = labels().numpy()
        check_counts_from_0(known, f"data '{name}'")
        names = [str(k) for k in range(int(known.max()) + 1)]
    return check_class_names(list(names), f"data '{name}'")
