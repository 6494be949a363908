"""The nouns of the library. Protocols and plain containers, no behaviour to inherit."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from worstclass.errors import UserError
from worstclass.inputs.names import Norm as Norm
from worstclass.rng import Randomness
from worstclass.stats import ClassStats

Classifier = torch.nn.Module
"""Maps images (B, C, H, W) in [0, 1] to logits (B, K). Any normalisation is inside it."""


@runtime_checkable
class Stateful(Protocol):
    """Something a checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]:
        """The state by name, as tensors and plain numbers."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take over such a state, in place."""


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
    ) -> Tensor:
        """Images (B, C, H, W) in [0, 1], near x."""


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
    """A base objective: how to perturb a batch, and the per-sample losses on it.

    `target` (B,), given where a strategy aims attacks, is the class to lead each sample to; -1: away from its own.
    """

    def perturb(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        target: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        """The images to train on, made from x."""

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        """Per-sample losses on the clean images and on those of `perturb`; y (B,), or (B, K): probabilities."""


@dataclass(frozen=True)
class ClassWeights:
    """What a strategy decides, written in place so that its storage never changes: three (K,) vectors, and by choice
    four more tensors.

    `natural` and `robust` weigh the two losses of a sample by its class, `radius_scale` scales its attack radius.
    With `normalized` the weighted sums are divided by the sum of the weights instead of the batch size.
    `pair` (K, K) weighs the robust loss once more, by the class that is predicted under attack (row) and the label
    (column). `sampling` (K,) are the probabilities by which classes are drawn in each step; `quota` (K,) are the shares
    of the classes among the images of an epoch, read when it starts. `targets` (K, K) holds for each label
    (row) the probabilities of the classes that its attack aims at; a row of zeros leaves the attack untargeted.
    """

    natural: Tensor
    robust: Tensor
    radius_scale: Tensor
    normalized: bool = False
    pair: Tensor | None = None
    sampling: Tensor | None = None
    quota: Tensor | None = None
    targets: Tensor | None = None

    @classmethod
    def uniform(
        cls,
        num_classes: int,
        *,
        normalized: bool = False,
        pair: bool = False,
        sampling: bool = False,
        quota: bool = False,
        targets: bool = False,
    ) -> "ClassWeights":
        """Plain training: all ones, classes drawn alike, attacks untargeted."""
        ones = torch.ones(num_classes)
        return cls(
            ones,
            ones.clone(),
            ones.clone(),
            normalized,
            torch.ones(num_classes, num_classes) if pair else None,
            ones / num_classes if sampling else None,
            ones / num_classes if quota else None,
            torch.zeros(num_classes, num_classes) if targets else None,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device) -> "ClassWeights":
        """The same weights on another device (before training starts: later the storage is kept)."""
        return self._map(lambda tensor: tensor.to(device))

    def copy(self) -> "ClassWeights":
        """A snapshot on the CPU."""
        return self._map(lambda tensor: tensor.cpu().clone())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "ClassWeights":
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)

    def set(self, **values: Tensor) -> None:
        """Overwrite the given tensors in place: `set(natural=..., radius_scale=...)`."""
        own = self.tensors()
        for name, value in values.items():
            if name not in own:
                raise UserError(f"these class weights have no '{name}': they have {', '.join(own)}.")
            if value.shape != own[name].shape:
                raise UserError(f"the weights '{name}' must be {tuple(own[name].shape)}, not {tuple(value.shape)}.")
            own[name].copy_(value)

    def reduce(self, losses: Losses, y: Tensor, batch: Tensor | None = None) -> Tensor:
        """The scalar training loss of a batch; its part for samples of a batch with the labels `batch`."""
        batch = y if batch is None else batch
        natural, robust = self.natural[y] * losses.natural, self.robust[y] * losses.robust
        if self.pair is not None:
            robust = robust * self.pair[losses.robust_logits.detach().argmax(1), y]
        if self.normalized:
            return natural.sum() / self.natural[batch].sum() + robust.sum() / self.robust[batch].sum()
        return (natural + robust).sum() / len(batch)


class ClassStrategy(Stateful, Protocol):
    """How class weights move: WAT, FRL, CSL and their like. Class tables of an epoch in, class weights out.

    What a strategy may have beside these:
    `tables`, names of further columns that it wants in its tables (`stats.EXTRA_COLUMNS`, `stats.MATRICES`);
    `reduce(losses, y, batch, team)`, the loss of a batch in the place of its weights' own; both it and
    `observe(losses, y, team)`, called after each step, run inside of the step and must not wait for the device;
    `expert_weights` (K + 1,), where it weighs the average loss beside those of the classes.
    """

    weights: ClassWeights

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        """Set the weights after an epoch, from its tables of training and of validation images."""
