"""Where images come from: each source reads its training part and its test part apart."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from worstclass.data.arrays import npz_test_shape, npz_validation, read_npz, read_npz_names
from worstclass.data.cifar import CIFAR10, CIFAR100, ensure_cifar, find_cifar, read_cifar, read_cifar_names
from worstclass.data.folders import Folder
from worstclass.data.libraries import factory_source, hf_source, torchvision_source
from worstclass.data.source import Source
from worstclass.errors import UserError, shown
from worstclass.inputs.names import MAX_SIZE, RESIZED, SPLIT, check_data_name, data_kind, is_factory

Notify = Callable[[str, int, int], None]
"""Progress of a download: what, bytes so far, bytes in all."""

FASHION_MINI = Path(__file__).with_name("fashion_mini.npz")


def data_at_hand(name: str, data_dir: Path = Path("data")) -> bool:
    """Whether a data set can be opened without a download."""
    layout = {"cifar10": CIFAR10, "cifar100": CIFAR100}.get(name)
    return layout is None or find_cifar(layout, data_dir) is not None


def open_source(
    name: str,
    *,
    image_size: int | None = None,
    test_fraction: float | None = None,
    data_dir: Path | str = Path("data"),
    notify: Notify | None = None,
) -> Source:
    """The data set called `name`; CIFAR is looked for in `data_dir` and downloaded there if it is missing.

    `module.path:factory` and `path/to/file.py:factory` run the user's code, `hf:NAME` and `torchvision:NAME` a library.
    `image_size`: images of any size, of a folder or a library, are cropped at the centre to squares and resized to so
    many pixels. `test_fraction`: of a folder without train/ and test/, the share of each class that is for testing.
    """
    kind, _, path = check_data_name(name).partition(":")
    _check_reading(name, image_size, test_fraction)
    if is_factory(name):
        return factory_source(name)
    if kind == "hf":
        return hf_source(name, image_size)
    if kind == "torchvision":
        return torchvision_source(name, Path(data_dir), image_size)
    if kind == "npz":
        file = Path(path)
        shape, validation = partial(npz_test_shape, file), npz_validation(file)
        return Source(name, read_npz_names(file), partial(read_npz, file), shape, validation is not None)
    if kind == "folder":
        images = Folder(Path(path), image_size=image_size, test_fraction=test_fraction)
        return Source(name, images.class_names, images.read, images.test_shape, images.has_validation, images.notes)
    if name == "fashion-mini":
        return Source(name, read_npz_names(FASHION_MINI), lambda part: read_npz(FASHION_MINI, part))
    layout = CIFAR10 if name == "cifar10" else CIFAR100
    folder = ensure_cifar(layout, Path(data_dir), notify)
    return Source(name, read_cifar_names(layout, folder), lambda part: read_cifar(layout, folder, part))


def _check_reading(name: str, image_size: int | None, test_fraction: float | None) -> None:
    """Raise unless data of this kind are read so."""
    for key, value, kinds in (("image_size", image_size, RESIZED), ("test_fraction", test_fraction, SPLIT)):
        if value is not None and data_kind(name) not in kinds:
            raise UserError(f"{key} is for {', '.join(kinds)}, not for data '{name}'.")
    if image_size is not None and not (type(image_size) is int and 1 <= image_size <= MAX_SIZE):
        raise UserError(f"image_size must be a whole number of pixels, 1 to {MAX_SIZE}, not {shown(image_size)}.")
    if test_fraction is not None and not (isinstance(test_fraction, float) and 0 < test_fraction < 1):
        raise UserError(f"test_fraction must be a number between 0 and 1, not {shown(test_fraction)}.")
