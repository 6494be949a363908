"""Which images a batch holds: those of the epoch's order, of an order with so much of each class, or drawn by class."""

import torch
from torch import Tensor

from worstclass import rng


def class_order(y: Tensor, quota: Tensor, *, seed: int, epoch: int) -> Tensor:
    """An order of an epoch (N,) in which class k has the share `quota[k]` of the places, for labels y (N,).

    Its images take turns: none comes a second time before all have come once. A function of (seed, epoch), as
    `epoch_order` is. A class without images has no places.
    """
    y, generator = y.cpu(), rng.generator(seed, "class order", epoch)
    counts = torch.bincount(y, minlength=len(quota))
    wanted = torch.where(counts > 0, quota.double().cpu(), 0.0)
    wanted = wanted / wanted.sum() * len(y)
    places = wanted.floor().long()
    rest = (wanted - places).argsort(descending=True, stable=True)[: len(y) - int(places.sum())]
    places[rest] += 1
    turns = torch.rand(len(y), generator=generator).argsort()  # each class in random order
    turns = turns[y[turns].argsort(stable=True)]
    first = counts.cumsum(0) - counts
    classes = torch.repeat_interleave(torch.arange(len(quota)), places)
    turn = torch.arange(len(y)) - (places.cumsum(0) - places)[classes]
    order = turns[first[classes] + turn % counts[classes]]
    return order[torch.randperm(len(y), generator=generator)]


class ClassSampler:
    """Draws a class by its probability, then one of its images, for every place of a batch; with replacement.

    It takes the place of an order, so it needs all images on the device. `probabilities` (K,) may change between steps.
    """

    def __init__(self, y: Tensor, probabilities: Tensor) -> None:
        self._by_class = y.argsort(stable=True)
        self._counts = torch.bincount(y, minlength=len(probabilities))
        self._first = self._counts.cumsum(0) - self._counts
        self._probabilities = probabilities

    def __call__(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """As many images as `index` has, whichever those were."""
        draws = torch.rand(2, len(index), dtype=torch.float64, device=index.device, generator=generator)
        present = torch.where(self._counts > 0, self._probabilities.double(), 0.0)
        classes = draw_classes(present.expand(len(index), -1), draws[0])
        counts = self._counts[classes]
        within = (draws[1] * counts).long().minimum(counts - 1)
        return self._by_class[self._first[classes] + within]


def draw_classes(probabilities: Tensor, draws: Tensor) -> Tensor:
    """One class for each row of probabilities (B, K), which need not sum to 1, from a uniform number each (B,).

    Nothing waits for the device, as `torch.multinomial` may.
    """
    bounds = probabilities.cumsum(1)
    classes = (bounds <= draws[:, None] * bounds[:, -1:]).sum(1)
    last = probabilities.shape[1] - 1 - (probabilities.flip(1) > 0).long().argmax(1)  # rounding may lead past it
    return classes.minimum(last)
