"""One step of training, and one of validation: their only definitions. They run as they are on a CPU and can be
captured on a GPU: nothing here waits for the device, no `.item()`, no branch on a tensor."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass.attacks import PGD
from worstclass.data import Augment, Images, to_float
from worstclass.distributed import ALONE, Team
from worstclass.inputs import values_known
from worstclass.stats import COLUMNS, ClassStats
from worstclass.training.data_parallel import sum_gradients
from worstclass.types import Classifier, ClassWeights, Losses, Objective


@dataclass(frozen=True)
class TrainStep:
    """What a step reads and writes; calling it with the indices (B,) of a batch takes the step.

    `losses` are the objective's, and `view` gives the model as the attack sees it: both as the engine has them.
    Of a `team`, each process attacks its share of the batch, and with the sum of their gradients all take the step.
    """

    model: Classifier
    losses: Callable[[Tensor, Tensor, Tensor], Losses]
    view: Callable[[], Classifier]
    context: Callable[[torch.device], AbstractContextManager[object]]
    memory_format: torch.memory_format
    optimizer: torch.optim.Optimizer
    objective: Objective
    weights: ClassWeights
    data: Images
    augment: Augment
    stats: ClassStats
    health: "Health"
    generator: torch.Generator
    team: Team = ALONE

    def __call__(self, index: Tensor) -> None:
        own, batch = self.team.share(len(index)), self.data.y[index]
        x = self.augment(self.data.x[index], self.generator)[own]
        x, y = to_float(x).contiguous(memory_format=self.memory_format), batch[own]
        with self.context(x.device), values_known():
            self.model.eval()  # the attack sees fixed BatchNorm statistics, and leaves them alone
            scale, source = self.weights.radius_scale[y], self.team.draws(self.generator, len(index))
            x_adv = self.objective.perturb(self.view(), x, y, radius_scale=scale, generator=source)
            self.model.train()
            losses = self.losses(x, x_adv, y)
        loss = self.weights.reduce(losses, y, batch)
        self.optimizer.zero_grad()
        loss.backward()
        sum_gradients(self.model, self.team)
        self.optimizer.step()
        tally(self.stats, losses, y)
        self.health.watch(self.team.all_reduce(loss.detach()))

    def touched(self) -> list[Tensor]:
        """All that a step writes but its counters: weights, buffers and momenta. These are made here, or laid out anew,
        so that each lies in memory as its weights do: the fused optimizer goes through both side by side."""
        parameters, momenta = list(self.model.parameters()), []
        for parameter in parameters if self.optimizer.defaults["momentum"] else ():
            state, momentum = self.optimizer.state[parameter], torch.zeros_like(parameter)
            if state.get("momentum_buffer") is not None:
                momentum.copy_(state["momentum_buffer"])
            state["momentum_buffer"] = momentum
            momenta.append(momentum)
        return [*(parameter.detach() for parameter in parameters), *self.model.buffers(), *momenta]


@dataclass(frozen=True)
class ValidStep:
    """A batch of held-out images, by indices (B,), into the class table.

    The losses are under the objective's own attack, as WAT's costs need them; robust accuracy is under `attack`,
    because accuracy under a KL attack is not robust accuracy. The model is expected in evaluation mode.
    """

    view: Callable[[], Classifier]
    context: Callable[[torch.device], AbstractContextManager[object]]
    memory_format: torch.memory_format
    objective: Objective
    attack: PGD
    data: Images
    stats: ClassStats
    generator: torch.Generator
    team: Team = ALONE

    def __call__(self, index: Tensor) -> None:
        own = index[self.team.share(len(index))]
        y = self.data.y[own]
        if len(own) == 0:  # a last batch with fewer images than processes; not every model takes none
            self.stats.add(y, **dict.fromkeys(COLUMNS, y))
            return
        x = to_float(self.data.x[own]).contiguous(memory_format=self.memory_format)
        source = self.team.draws(self.generator, len(index))
        with self.context(x.device), values_known():
            model = self.view()
            x_adv = self.objective.perturb(model, x, y, generator=source)
            attacked = self.attack(model, x, y, generator=source)
            with torch.no_grad():
                losses = self.objective.losses(model, x, x_adv, y)
                losses = losses._replace(natural_logits=model(x), robust_logits=model(attacked))
        tally(self.stats, losses, y)


def tally(stats: ClassStats, losses: Losses, y: Tensor) -> None:
    """Add a batch to the class table."""
    stats.add(
        y,
        natural_loss=losses.natural.detach(),
        robust_loss=losses.robust.detach(),
        natural_correct=losses.natural_logits.argmax(1) == y,
        robust_correct=losses.robust_logits.argmax(1) == y,
    )


class Health:
    """Remembers, on the device, the first step of an epoch whose loss was not finite, and the weights before it."""

    def __init__(self, model: Classifier, device: torch.device) -> None:
        self._parameters = list(model.parameters())
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._first_bad = torch.zeros((), dtype=torch.int64, device=device)
        self._norm, self._start_norm, self._bad_norm = torch.zeros(3, device=device).unbind()

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
