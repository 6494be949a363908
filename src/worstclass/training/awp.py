"""Adversarial weight perturbation (Wu et al., 2020): descend from where a small move of the weights hurts most."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass.types import Classifier


@dataclass(frozen=True)
class AWPRule:
    """How far each layer is moved, as a share of its norm, and after how many epochs that begins."""

    gamma: float
    warmup: int = 0


class AWP:
    """Moves every weight of two or more dimensions by gamma * ||w|| * g / ||g||, with the gradient g of the very loss
    that is trained on, class weights included; after the step the move is taken back."""

    def __init__(self, model: Classifier, gamma: float) -> None:
        self._gamma = gamma
        self._parameters = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
        self._buffers = list(model.buffers())

    def save(self) -> list[Tensor]:
        """What the forward passes that only look for the direction must not change: BatchNorm's statistics."""
        return [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def ascend(self, saved: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Move the weights along their gradients, and put the statistics back; returns the moves."""
        for buffer, value in zip(self._buffers, saved, strict=True):
            buffer.copy_(value)
        moves: list[tuple[Tensor, Tensor]] = []
        for weight in self._parameters:
            if weight.grad is not None:
                length, slope = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(weight.grad)
                move = weight.grad * (self._gamma * length / (slope + 1e-20))
                weight.add_(move)
                moves.append((weight, move))
        return moves

    @torch.no_grad()
    def take_back(self, moves: list[tuple[Tensor, Tensor]]) -> None:
        for weight, move in moves:
            weight.sub_(move)
