"""Annealing self-distillation rectification (Wu et al., ICLR 2024): labels softened by what averaged weights say."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from worstclass.errors import UserError
from worstclass.training.schedules import Progress
from worstclass.types import Classifier


@dataclass(frozen=True)
class ADR:
    """The share of the average's predictions in a label, and their temperature: the first and the last of each, with
    half a period of a cosine between them, step by step."""

    share: tuple[float, float]
    temperature: tuple[float, float] = (2.5, 2.0)

    def __post_init__(self) -> None:
        if not all(0 <= each <= 1 for each in self.share):
            raise UserError(f"adr_share is two numbers in [0, 1], not {self.share}.")
        if not all(each > 0 for each in self.temperature):
            raise UserError(f"adr_temperature is two numbers above 0, not {self.temperature}.")

    def at(self, progress: Progress) -> tuple[float, float]:
        """Share and temperature there."""
        way = (1 - math.cos(math.pi * progress.done)) / 2
        share, temperature = (first + way * (last - first) for first, last in (self.share, self.temperature))
        return share, temperature


class SoftLabels:
    """Labels (B, K) of a batch: r q + (1 - r) onehot(y), q = softmax(f(x) / T) of the averaged weights on clean images.

    r = share - (max q - q_y), at least 0: the less the average agrees with a label, the less is heard of it. Both
    numbers are tensors, so that they can change in a captured step.
    """

    def __init__(self, teacher: Classifier) -> None:
        self.teacher = teacher
        device = next(teacher.parameters()).device
        self.share, self.temperature = torch.ones(2, dtype=torch.float64, device=device)

    def set(self, share: float, temperature: float) -> None:
        self.share.fill_(share)
        self.temperature.fill_(temperature)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = self.teacher(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        said = (logits / self.temperature).softmax(1)
        gap = said.amax(1) - said.gather(1, y[:, None]).squeeze(1)
        heard = (self.share - gap).clamp(0, 1)[:, None]
        labels: Tensor = heard * said + (1 - heard) * F.one_hot(y, said.shape[1])
        return labels
