"""Models with a fault or a peculiarity each, for the checks and for the view that attacks search on."""

import copy
import random
import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from worstclass.models import SmallCNN


class Wrapped(nn.Module):
    """A model, asked in a peculiar way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits


class Viewing(nn.Module):
    """Flattens with `view`, as many do, which raises where channels come last."""

    def __init__(self, num_classes: int = 10, channels: int = 3, size: int = 16) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8 * (size // 2) ** 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.convolution(x)))
        logits: Tensor = self.linear(x.view(x.size(0), -1))
        return logits


class Probabilities(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(x), dim=1)


class Random(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x + 0.02 * torch.randn_like(x))


class BakedRandom(Wrapped):
    """Draws a constant shape: a tracer takes the draw for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x + 0.2 * torch.randn(1, 1, 8, 8))


class Coin(Wrapped):
    """Turns images round now and then: a tracer sees one side of the coin."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.flip(3) if random.random() < 0.5 else x)


class Discrete(Wrapped):
    """Robust-looking: its gradient is zero everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits((x * 8).round() / 8)


class Detached(Wrapped):
    """No gradient leads through it at all."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.logits(x)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 64).round() / 64

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class Quantised(Wrapped):
    """Has a gradient, of its own making: a tracer does not see it."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(StraightThrough.apply(x))  # type: ignore[no-untyped-call]


class Steep(Wrapped):
    """The same function, with a slope that is not finite at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits((x * x).sqrt())


class Masked(Wrapped):
    """Gradients lead the wrong way: their sign is turned round."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(2 * x.detach() - x)


class Purifying(Wrapped):
    """Optimises its input before it looks at it."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.autograd import grad

        with torch.enable_grad():
            z = x.detach().requires_grad_()
            (slope,) = grad(self.logits(z).logsumexp(1).sum(), z)
        return self.logits(x - 0.001 * slope)


class Mixing(Wrapped):
    """Looks at the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x - x.mean((0, 2, 3), keepdim=True))


class Stuck(Wrapped):
    """Stays in training mode whatever it is told."""

    def train(self, mode: bool = True) -> "Stuck":
        return super().train(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)


class Branching(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x if x.mean() > 0.5 else x + 0.1)


class Locked(Wrapped):
    """Cannot be copied."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.logits(x)


def parametrized(model: nn.Module) -> nn.Module:
    """With a weight norm before a BatchNorm: nothing to fold there."""
    assert isinstance(model, SmallCNN)
    copied = copy.deepcopy(model)
    weight_norm(copied.conv1)
    return copied
