"""Whether a run is sound: the first loss that was not finite, and why most likely."""

import torch
from torch import Tensor

from worstclass.execution.distributed import ALONE, Team
from worstclass.types import Classifier


class Health:
    """Remembers, on the device, the first step of an epoch whose loss was not finite, and the weights before it."""

    def __init__(self, model: Classifier, device: torch.device) -> None:
        self._parameters = list(model.parameters())
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._first_bad = torch.zeros((), dtype=torch.int64, device=device)
        self._norm, self._start_norm, self._bad_norm = torch.zeros(3, device=device).unbind()

    def touched(self) -> list[Tensor]:
        """All that `watch` writes."""
        return [self._steps, self._first_bad, self._norm, self._bad_norm]

    def reset(self, steps: int = 0) -> None:
        """Start an epoch, or go on after so many steps of it."""
        self._steps.fill_(steps)
        self._first_bad.fill_(-1)
        self._norm.copy_(self._weight_norm())
        self._start_norm.copy_(self._norm)

    def watch(self, loss: Tensor) -> None:
        """Note a step that has been taken."""
        self._steps += 1
        bad = ~loss.detach().isfinite() & (self._first_bad < 0)
        self._first_bad.copy_(torch.where(bad, self._steps, self._first_bad))
        self._bad_norm.copy_(torch.where(bad, self._norm, self._bad_norm))
        self._norm.copy_(self._weight_norm())

    def complaint(self, team: Team = ALONE) -> str | None:
        """What went wrong in this epoch, and why most likely; None if nothing did. Waits for the device.

        The processes of a `team` must hold the same weights; their norms may differ by rounding, between machines.
        """
        step = int(self._first_bad)
        if step < 0 and not team.alone:
            apart = ~torch.isclose(team.broadcast(self._norm), self._norm, rtol=1e-5)
            if int(team.all_reduce(apart.long())):
                return (
                    f"step {int(self._steps)}: the processes no longer hold the same weights. Only the step may write "
                    "them: a model that changes its own cannot be trained by several processes"
                )
        if step < 0:
            return None
        if float(self._bad_norm) < 10 * float(self._start_norm):
            cause = "the weights were still sound, so look at the model (does it overflow?) and at the data"
        else:
            cause = "the weights had blown up before it, so the learning rate is likely too high"
        return f"step {step}: the loss is not finite; {cause}"

    def _weight_norm(self) -> Tensor:
        return torch.nn.utils.get_total_norm([parameter.detach() for parameter in self._parameters])
