"""Networks that compute in float64: there, what is left between two right ways is far below any mistake."""

import torch.distributed as dist
from torch import Tensor, nn

from robust_cnn import load_cnn
from worstclass.models import make_model


class Double(nn.Module):
    """A network in float64 behind float32 images."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers).double()
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x.double())
        return logits


class Flat(nn.Module):
    """Flattens as many models do it: an empty batch is an error."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.size(0), -1)


def plain(*, num_classes: int, in_channels: int) -> nn.Module:
    """Without BatchNorm; one of its layers is never used."""
    convolution = nn.Conv2d(in_channels, 8, 3, stride=2, padding=1)
    return Double(convolution, nn.ReLU(), Flat(), nn.Linear(8 * 4 * 4, 16), nn.ReLU(), nn.Linear(16, num_classes))


def normed(*, num_classes: int, in_channels: int) -> nn.Module:
    """With BatchNorm of both kinds, one of them without momentum and one without weights."""
    first = nn.Sequential(nn.Conv2d(in_channels, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.Flatten())
    last = nn.Sequential(nn.Linear(8 * 4 * 4, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU())
    return Double(first, second, last, nn.Linear(16, num_classes))


def residual(*, num_classes: int, in_channels: int) -> nn.Module:
    """With the sums of a residual network."""
    return Double(make_model("wrn10-1", num_classes=num_classes, in_channels=in_channels, seed=0))


def shipped(*, num_classes: int, in_channels: int) -> nn.Module:
    """The network for the tiny data that ships with the tests."""
    return Double(load_cnn("tiny_cnn", num_classes))


class Changing(nn.Module):
    """After 40 calls in training it is another one.

    `fading`: it leaves its first layer out. `growing`: it no longer does. `lopsided`: only the first process has it.
    `wandering`: each process changes its weights in its own way.
    """

    def __init__(self, how: str, num_classes: int) -> None:
        super().__init__()
        self.how, self.first, self.second, self.calls = how, nn.Linear(64, 64), nn.Linear(64, num_classes), 0

    def forward(self, x: Tensor) -> Tensor:
        x, late, rank = x.flatten(1), self.calls >= 40, dist.get_rank()
        self.calls += self.training
        if late and self.how == "wandering":
            self.first.weight.data *= 1 + 0.01 * rank
        used = {"fading": not late, "growing": late, "lopsided": rank == 0, "wandering": True}[self.how]
        logits: Tensor = self.second(self.first(x) if used else x)
        return logits


def fading(*, num_classes: int, in_channels: int) -> nn.Module:
    return Changing("fading", num_classes)


def growing(*, num_classes: int, in_channels: int) -> nn.Module:
    return Changing("growing", num_classes)


def lopsided(*, num_classes: int, in_channels: int) -> nn.Module:
    return Changing("lopsided", num_classes)


def wandering(*, num_classes: int, in_channels: int) -> nn.Module:
    return Changing("wandering", num_classes)
