"""Adversarial weight perturbation (Wu et al., 2020): descend from where a small move of the weights hurts most."""

from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass.errors import UserError
from worstclass.types import Classifier


@dataclass(frozen=True)
class AWPRule:
    """How far each layer is moved, as a share `gamma` of its norm; after how many epochs that begins; and in every how
    many steps it is done: 1 is the published way, more cost as much less."""

    gamma: float
    warmup: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UserError(f"awp_every is a number of steps, at least 1, not {self.every}.")

    def perturbs(self, epoch: int, step: int) -> bool:
        """Whether a step of an epoch, both counted from 1, is taken from perturbed weights."""
        return epoch > self.warmup and (step - 1) % self.every == 0


class AWP:
    """Moves every weight of two or more dimensions by gamma * ||w|| * g / ||g||, with the gradient g of the very loss
    that is trained on, class weights included; after the step the move is taken back."""

    def __init__(self, model: Classifier, rule: AWPRule) -> None:
        self.rule, self._model = rule, model
        self._saved = [buffer.clone() for buffer in model.buffers()]

    @torch.no_grad()
    def save(self) -> None:
        """Note what the passes that only look for the direction must not change: BatchNorm's statistics."""
        _copy(self._saved, list(self._model.buffers()))

    @torch.no_grad()
    def ascend(self) -> tuple[list[Tensor], list[Tensor]]:
        """Move the weights along their gradients, and put the statistics back; returns the weights and their moves."""
        _copy(list(self._model.buffers()), self._saved)
        given = [(p.detach(), p.grad) for p in self._model.parameters() if p.dim() > 1 and p.grad is not None]
        weights, grads = [weight for weight, _ in given], [grad for _, grad in given]
        lengths, slopes = (torch.stack(torch._foreach_norm(each)) for each in (weights, grads))
        scales = self.rule.gamma * lengths / (slopes + 1e-20)
        moves = [grad * scale for grad, scale in zip(grads, scales.unbind(), strict=True)]
        torch._foreach_add_(weights, moves)
        return weights, moves

    @torch.no_grad()
    def take_back(self, moved: tuple[list[Tensor], list[Tensor]]) -> None:
        torch._foreach_sub_(*moved)


def _copy(to: list[Tensor], values: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, values)
