"""The groups that a loop draws, against the counts that its learner was given."""

import math

import torch
from torch import Tensor

CHANCE = 1e-6
"""The share of updates, at most, in which random draws by the counts are taken for other draws."""

FAR = 1.5
"""A share that is off by less than this factor is near enough."""


class Draws:
    """How many samples of each group (K,) were weighed since the last update; says once if `class_counts` are others.

    Let q_k be the share of group k among n samples, p_k its share in `class_counts`, and kl the divergence of two
    coins. For random draws, with replacement or without, P(n kl(q_k, p_k) >= t) <= 2 exp(-t), by Chernoff and
    Hoeffding. With t = log(2 K / `CHANCE`) that holds for all K groups at once: few samples never suffice. A group is
    far off if it reaches t, and q_k / p_k or p_k / q_k is at least `FAR`.
    """

    def __init__(self, class_share: Tensor) -> None:
        self.share, self.count = class_share, torch.zeros(len(class_share), dtype=torch.int64)
        self._told = False

    def to(self, device: torch.device) -> None:
        self.count = self.count.to(device)

    def add(self, index: Tensor) -> None:
        """Count a batch of groups (B,), in place and without waiting for the device."""
        self.count.index_add_(0, index, torch.ones_like(index))

    def end(self, by_group: Tensor) -> str | None:
        """Start anew; the first time that a group was far off, a line about the furthest; it weighed (K,)."""
        count, weight = self.count.cpu().double(), by_group.cpu().double()
        self.count.zero_()
        seen = count / count.sum()  # of nothing it is nan, which is far from nothing
        kl = torch.xlogy(seen, seen / self.share) + torch.xlogy(1 - seen, (1 - seen) / (1 - self.share))
        times = torch.maximum(seen / self.share, self.share / seen)
        far = (count.sum() * kl >= math.log(2 * len(count) / CHANCE)) & (times >= FAR)
        if self._told or not bool(far.any()):
            return None
        self._told = True
        k = int(torch.where(far, times, 0).argmax())
        return (
            f"group {k} is {100 * seen[k]:.3g}% of what weigh saw and {100 * self.share[k]:.3g}% of class_counts; the "
            f"mean weight was {(seen * weight).sum():.2f}. Give the counts that are drawn: with a balancing sampler, "
            "equal ones."
        )
