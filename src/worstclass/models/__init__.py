"""Models by name: ours, those of other libraries, and the user's own by `module.path:factory` or `file.py:factory`."""

from collections.abc import Callable

import torch
from torch import nn

from worstclass import rng
from worstclass.errors import UserError
from worstclass.inputs.factories import call_factory
from worstclass.inputs.names import check_given_model, check_model_name, model_kind, runs_user_code
from worstclass.models.libraries import library_model
from worstclass.models.normalization import Normalized
from worstclass.models.resnet import ResNet18
from worstclass.models.small import SmallCNN
from worstclass.models.wide_resnet import WideResNet

__all__ = ["MODELS", "Normalized", "ResNet18", "SmallCNN", "WideResNet", "make_model"]

MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "small-cnn": lambda num_classes, in_channels: SmallCNN(num_classes, in_channels),
    "resnet18": lambda num_classes, in_channels: ResNet18(num_classes, in_channels),
    "preact-resnet18": lambda num_classes, in_channels: ResNet18(num_classes, in_channels, preact=True),
    "wrn34-10": lambda num_classes, in_channels: WideResNet(34, 10, num_classes, in_channels),
}
"""Constructors of (num_classes, in_channels) for each of `names.MODEL_NAMES`."""


def make_model(name: str, *, num_classes: int, in_channels: int, seed: int = 0, pretrained: bool = False) -> nn.Module:
    """Build a model with weights that depend on `seed` alone, or, of a library and `pretrained`, with its weights.

    `module.path:factory` imports the module (the current folder included), `path/to/file.py:factory` that file (its
    folder included), and calls `factory(num_classes=..., in_channels=...)`, with one of the two, or with nothing, as
    it takes them: this runs the user's code.
    """
    (check_given_model if pretrained else check_model_name)(name)
    draws_on_gpus = runs_user_code(name) or torch.get_default_device().type == "cuda"
    gpus = range(torch.cuda.device_count()) if draws_on_gpus else ()
    with rng.global_generators(*(torch.device("cuda", gpu) for gpu in gpus)) as set_seed:
        set_seed(rng.derive_seed(seed, "init"))
        if model_kind(name):
            return library_model(name, num_classes=num_classes, in_channels=in_channels, pretrained=pretrained)
        if runs_user_code(name):
            model = call_factory(name, "model", num_classes=num_classes, in_channels=in_channels)
            if not isinstance(model, nn.Module):
                raise UserError(f"model '{name}' must return a torch.nn.Module, not {type(model).__name__}.")
            return model
        if name in MODELS:
            return MODELS[name](num_classes, in_channels)
        depth, width = name.removeprefix("wrn").split("-")
        return WideResNet(int(depth), int(width), num_classes, in_channels)
