"""The two ends of a model: normalisation inside it, so that attacks and data live in [0, 1], and its last layer."""

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


class Head(nn.Linear):
    """The last layer, in its own precision even under autocast; maps (B, C, H, W) are averaged first, in it too.

    With bfloat16 logits a few samples in a thousand start with an exactly zero KL gradient and are never
    attacked; pooling and the last layer cost nothing in full precision.
    """

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.weight.dtype)
            return super().forward(features.mean((2, 3)) if features.dim() == 4 else features)
