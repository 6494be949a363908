"""Models by name, and the user's own by `module.path:factory` or `path/to/file.py:factory`."""

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from worstclass import rng
from worstclass.errors import UserError, unknown
from worstclass.models.normalization import Normalized
from worstclass.models.resnet import ResNet18
from worstclass.models.small import SmallCNN
from worstclass.models.wide_resnet import WideResNet
from worstclass.names import check_model_name, factory_file, runs_user_code

__all__ = ["MODELS", "Normalized", "ResNet18", "SmallCNN", "WideResNet", "make_model"]

MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "small-cnn": lambda num_classes, in_channels: SmallCNN(num_classes, in_channels),
    "resnet18": lambda num_classes, in_channels: ResNet18(num_classes, in_channels),
    "preact-resnet18": lambda num_classes, in_channels: ResNet18(num_classes, in_channels, preact=True),
    "wrn34-10": lambda num_classes, in_channels: WideResNet(34, 10, num_classes, in_channels),
}
"""Constructors of (num_classes, in_channels) for each of `names.MODEL_NAMES`."""


def make_model(name: str, *, num_classes: int, in_channels: int, seed: int = 0) -> nn.Module:
    """Build a model with weights that depend on `seed` alone.

    `module.path:factory` imports the module (the current folder included), `path/to/file.py:factory` that file (its
    folder included), and calls `factory(num_classes=..., in_channels=...)`, with one of the two, or with nothing, as
    it takes them: this runs the user's code.
    """
    check_model_name(name)
    draws_on_gpus = runs_user_code(name) or torch.get_default_device().type == "cuda"
    gpus = range(torch.cuda.device_count()) if draws_on_gpus else ()
    with rng.global_generators(*(torch.device("cuda", gpu) for gpu in gpus)) as set_seed:
        set_seed(rng.derive_seed(seed, "init"))
        if runs_user_code(name):
            path = factory_file(name)
            with _importing_from("" if path is None else str(path.resolve().parent)):
                factory = _user_factory(name)
                model = factory(**_accepted(name, factory, num_classes=num_classes, in_channels=in_channels))
            if not isinstance(model, nn.Module):
                raise UserError(f"model '{name}' must return a torch.nn.Module, not {type(model).__name__}.")
            return model
        if name in MODELS:
            return MODELS[name](num_classes, in_channels)
        depth, width = name.removeprefix("wrn").split("-")
        return WideResNet(int(depth), int(width), num_classes, in_channels)


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Let modules be imported from a folder, "" for the current one."""
    if folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _accepted(name: str, factory: Callable[..., nn.Module], **given: int) -> dict[str, int]:
    """What of `given` the factory takes: all, one, or nothing. An error inside of the factory stays what it is."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # not every callable tells
        return given
    errors = []
    for chosen in (given, *({key: value} for key, value in given.items()), {}):
        try:
            signature.bind(**chosen)
            return chosen
        except TypeError as error:
            errors.append(error)
    raise UserError(
        f"model '{name}' must take num_classes and in_channels, one of them, or nothing: {errors[0]}."
    ) from None


def _user_factory(name: str) -> Callable[..., nn.Module]:
    module_name, _, factory_name = name.rpartition(":")
    path = factory_file(name)
    module = _import(module_name, name) if path is None else _import_file(path, name)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"factory in {'module' if path is None else 'file'} {module_name}", factory_name, names)
    made: Callable[..., nn.Module] = factory
    return made


def _import(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"model '{name}': cannot import '{error.name}' (looked in the current folder too).") from error


def _import_file(path: Path, name: str) -> ModuleType:
    """A file as a module under a name of its own: a file called `torch.py` or `model.py` replaces no other module."""
    if not path.is_file():
        raise UserError(f"model '{name}': there is no file {path}.")
    own = f"_worstclass_file_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[own]
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"model '{name}': {path} cannot import '{error.name}'.") from error
        raise
    return module
