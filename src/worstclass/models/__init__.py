"""Models by name, and the user's own by `module.path:factory`."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from worstclass import rng
from worstclass.errors import UserError, unknown
from worstclass.models.normalization import Normalized
from worstclass.models.resnet import ResNet18
from worstclass.models.small import SmallCNN
from worstclass.models.wide_resnet import WideResNet
from worstclass.names import check_model_name, runs_user_code

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

    `module.path:factory` imports the module (the current folder included) and calls
    `factory(num_classes=..., in_channels=...)`: this runs the user's code.
    """
    check_model_name(name)
    draws_on_gpus = runs_user_code(name) or torch.get_default_device().type == "cuda"
    gpus = range(torch.cuda.device_count()) if draws_on_gpus else ()
    with rng.global_generators(*(torch.device("cuda", gpu) for gpu in gpus)) as set_seed:
        set_seed(rng.derive_seed(seed, "init"))
        if runs_user_code(name):
            with _current_folder():
                factory = _user_factory(name)
                _check_signature(name, factory)
                model = factory(num_classes=num_classes, in_channels=in_channels)
            if not isinstance(model, nn.Module):
                raise UserError(f"model '{name}' must return a torch.nn.Module, not {type(model).__name__}.")
            return model
        if name in MODELS:
            return MODELS[name](num_classes, in_channels)
        depth, width = name.removeprefix("wrn").split("-")
        return WideResNet(int(depth), int(width), num_classes, in_channels)


@contextmanager
def _current_folder() -> Iterator[None]:
    """Let modules be imported from the current folder."""
    if "" in sys.path:
        yield
        return
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def _check_signature(name: str, factory: Callable[..., nn.Module]) -> None:
    """Raise unless the factory takes the two names; what fails inside it is its own error, and stays that."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # not every callable tells
        return
    try:
        signature.bind(num_classes=0, in_channels=0)
    except TypeError as error:
        raise UserError(f"model '{name}' must take num_classes and in_channels: {error}.") from None


def _user_factory(name: str) -> Callable[..., nn.Module]:
    module_name, _, factory_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"model '{name}': cannot import '{error.name}' (looked in the current folder too).") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"factory in module {module_name}", factory_name, names)
    made: Callable[..., nn.Module] = factory
    return made
