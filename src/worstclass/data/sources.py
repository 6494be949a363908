"""Where images come from: each source reads its training part and its test part apart."""

from collections.abc import Callable
from pathlib import Path

from worstclass.data.arrays import npz_test_shape, read_npz, read_npz_names
from worstclass.data.cifar import CIFAR10, CIFAR100, ensure_cifar, find_cifar, read_cifar, read_cifar_names
from worstclass.data.folders import folder_names, folder_test_shape, left_out, read_folder
from worstclass.data.libraries import factory_source, hf_source, torchvision_source
from worstclass.data.source import Source
from worstclass.inputs.names import check_data_name, is_factory

Notify = Callable[[str, int, int], None]
"""Progress of a download: what, bytes so far, bytes in all."""

FASHION_MINI = Path(__file__).with_name("fashion_mini.npz")


def data_at_hand(name: str, data_dir: Path = Path("data")) -> bool:
    """Whether a data set can be opened without a download."""
    layout = {"cifar10": CIFAR10, "cifar100": CIFAR100}.get(name)
    return layout is None or find_cifar(layout, data_dir) is not None


def open_source(name: str, *, data_dir: Path | str = Path("data"), notify: Notify | None = None) -> Source:
    """The data set called `name`; CIFAR is looked for in `data_dir` and downloaded there if it is missing.

    `module.path:factory` and `path/to/file.py:factory` run the user's code, `hf:NAME` and `torchvision:NAME` a library.
    """
    kind, _, path = check_data_name(name).partition(":")
    if is_factory(name):
        return factory_source(name)
    if kind == "hf":
        return hf_source(name)
    if kind == "torchvision":
        return torchvision_source(name, Path(data_dir))
    if kind == "npz":
        file = Path(path)
        return Source(name, read_npz_names(file), lambda part: read_npz(file, part), lambda: npz_test_shape(file))
    if kind == "folder":
        root = Path(path)
        return Source(
            name,
            folder_names(root),
            lambda part: read_folder(root, part),
            lambda: folder_test_shape(root),
            lambda *parts: left_out(root, *parts),
        )
    if name == "fashion-mini":
        return Source(name, read_npz_names(FASHION_MINI), lambda part: read_npz(FASHION_MINI, part))
    layout = CIFAR10 if name == "cifar10" else CIFAR100
    folder = ensure_cifar(layout, Path(data_dir), notify)
    return Source(name, read_cifar_names(layout, folder), lambda part: read_cifar(layout, folder, part))
