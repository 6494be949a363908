"""Attacks that look for one fooling image a sample and stop there: how they are called, and what they return."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from worstclass.attacks.active_set import Look, Search
from worstclass.attacks.ball import radius_of
from worstclass.errors import UserError
from worstclass.inputs.images import check_batch
from worstclass.rng import PerSample, Randomness, Rows
from worstclass.types import Classifier, Norm


class Broken(NamedTuple):
    """For each sample an image that fools the model, or x itself; whether there is one; what the judge says of it."""

    x_adv: Tensor
    found: Tensor
    predicted: Tensor


class FirstSuccess(ABC):
    """An attack in the `norm` ball of radius `eps`; what a kind of it adds is the search.

    A call returns for each sample an image that fools the model, and x itself where none does. It uses the model and
    torch's settings as they are; `evaluate` sees to strict float32.
    """

    eps: float
    norm: Norm
    uses_gradients: ClassVar[bool] = True

    @abstractmethod
    def search(self, model: Classifier, search: Search) -> None:
        """Search the samples that stand, with `model`, until they are broken or the budget is spent."""

    @abstractmethod
    def work(self, num_classes: int) -> int:
        """Forward and backward passes of a sample that withstands."""

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        return self.breaks(model, x, y, radius_scale=radius_scale, generator=generator).x_adv

    def breaks(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
        judge: Classifier | None = None,
        rows: int = 0,
        look: Look | None = None,
    ) -> Broken:
        """Search with `model`; what counts is what `judge` (the model itself, if left out) gets wrong. The
        search sends at most `rows` images forward at once, or the batch if that is more: targets share it where they
        fit."""
        y = check_batch(x, y, radius_scale, self.eps, self.norm)
        search = Search(
            x,
            y,
            judge=judge or model,
            radius=torch.ones_like(x[:, :1, :1, :1]) * radius_of(self.eps, radius_scale, x),
            source=own_sources(generator, len(x)),
            rows=rows,
            look=look,
        )
        self.search(model, search)
        return Broken(search.x_adv, search.found, search.predicted)


def own_sources(source: Randomness, size: int) -> PerSample:
    """A generator for each sample: as given, or seeded by the one given, or of a fixed seed."""
    if isinstance(source, PerSample):
        if len(source.generators) != size:
            raise UserError(f"{len(source.generators)} generators were given for {size} samples.")
        return source
    if source is None:
        return PerSample(0, "default", range(size))
    generator, samples = (
        (source.generator, range(source.total)[source.rows]) if isinstance(source, Rows) else (source, range(size))
    )
    drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
    return PerSample(int(drawn), "lanes", samples)
