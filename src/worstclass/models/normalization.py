"""Normalisation inside the model, so that attacks and data live in [0, 1]."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalized(nn.Module):
    """A classifier behind per-channel standardisation."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model((x - self.mean) / self.std)
        return logits


def full_precision(linear: nn.Linear, features: Tensor) -> Tensor:
    """The last layer, in its own precision even under autocast.

    With bfloat16 logits a few samples in a thousand start with an exactly zero KL gradient and are never
    attacked; the last layer costs nothing in full precision.
    """
    with torch.autocast(features.device.type, enabled=False):
        logits: Tensor = linear(features.to(linear.weight.dtype))
        return logits


def pooled_logits(features: Tensor, linear: nn.Linear) -> Tensor:
    """Global average pooling and the last layer, both in the layer's precision."""
    return full_precision(linear, features.to(linear.weight.dtype).mean((2, 3)))
