"""The nouns of the library. Protocols and plain containers, no behaviour to inherit."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from worstclass.names import Norm as Norm
from worstclass.rng import Randomness
from worstclass.stats import ClassStats

Classifier = torch.nn.Module
"""Maps images (B, C, H, W) in [0, 1] to logits (B, K). Any normalisation is inside it."""


@runtime_checkable
class Stateful(Protocol):
    """Something a checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> object: ...


class Attack(Protocol):
    """Adversarial images for (x, y). `radius_scale` (B,) multiplies the radius of each sample.

    An attack leaves the model as it was: it neither flips train/eval nor touches parameter gradients.
    """

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor: ...


class BallAttack(Attack, Protocol):
    """An attack that says which ball it stays in: what an evaluation needs."""

    @property
    def eps(self) -> float: ...

    @property
    def norm(self) -> Norm: ...


class Losses(NamedTuple):
    """Per-sample losses, not reduced, and the logits they came from.

    The training loss of sample i is `natural[i] + robust[i]`, each (B,); the logits are (B, K). An objective with one
    forward returns its logits twice, so in training tables natural and robust accuracy are what its own images give:
    only validation tables have clean accuracy and accuracy under PGD.
    """

    natural: Tensor
    robust: Tensor
    natural_logits: Tensor
    robust_logits: Tensor


class Objective(Protocol):
    """A base objective: how to perturb a batch, and the per-sample losses on it."""

    def perturb(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor: ...

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses: ...


@dataclass(frozen=True)
class ClassWeights:
    """What a strategy decides: three (K,) vectors, written in place so that their storage never changes.

    `natural` and `robust` weigh the two losses of a sample by its class, `radius_scale` scales its attack radius.
    With `normalized` the weighted sums are divided by the sum of the weights instead of the batch size.
    """

    natural: Tensor
    robust: Tensor
    radius_scale: Tensor
    normalized: bool = False

    @classmethod
    def uniform(cls, num_classes: int, *, normalized: bool = False) -> "ClassWeights":
        """All ones: plain training."""
        return cls(torch.ones(num_classes), torch.ones(num_classes), torch.ones(num_classes), normalized)

    def to(self, device: torch.device) -> "ClassWeights":
        """The same weights on another device (before training starts: later the storage is kept)."""
        return ClassWeights(
            self.natural.to(device), self.robust.to(device), self.radius_scale.to(device), self.normalized
        )

    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three vectors themselves."""
        return self.natural, self.robust, self.radius_scale

    def set(
        self, *, natural: Tensor | None = None, robust: Tensor | None = None, radius_scale: Tensor | None = None
    ) -> None:
        """Overwrite the given vectors in place."""
        for target, value in zip(self.vectors(), (natural, robust, radius_scale), strict=True):
            if value is not None:
                target.copy_(value)

    def reduce(self, losses: Losses, y: Tensor, batch: Tensor | None = None) -> Tensor:
        """The scalar training loss of a batch; its part for samples of a batch with the labels `batch`."""
        batch = y if batch is None else batch
        natural, robust = self.natural[y] * losses.natural, self.robust[y] * losses.robust
        if self.normalized:
            return natural.sum() / self.natural[batch].sum() + robust.sum() / self.robust[batch].sum()
        return (natural + robust).sum() / len(batch)


class ClassStrategy(Stateful, Protocol):
    """How class weights move: WAT, FRL, CSL and their like. One class table in, three K-vectors out.

    One that weighs the average loss beside those of the classes may say so by a property `expert_weights` (K + 1,).
    """

    source: Literal["train", "valid"]
    weights: ClassWeights

    def update(self, stats: ClassStats) -> None: ...
