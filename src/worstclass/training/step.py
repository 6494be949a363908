"""One step of training, and one of validation: their only definitions. They run as they are on a CPU and can be
captured on a GPU: nothing here waits for the device, no `.item()`, no branch on a tensor."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Augmentation, Images, to_float
from worstclass.data.sampling import ClassSampler, draw_classes
from worstclass.execution.distributed import ALONE, Team
from worstclass.inputs.images import values_known
from worstclass.stats import ClassStats
from worstclass.training.averaging import Average
from worstclass.training.awp import AWP
from worstclass.training.data_parallel import sum_gradients
from worstclass.training.distillation import SoftLabels
from worstclass.training.health import Health
from worstclass.training.optimizers import Optimizer
from worstclass.types import Classifier, ClassStrategy, Losses, Objective


@dataclass(frozen=True)
class TrainStep:
    """What a step reads and writes; calling it with the indices (B,) of a batch takes the step.

    `losses` are the objective's, and `attacked` gives the model as the attack sees it: both as the engine has them.
    `radius` is the factor on every attack radius now. Of a `team`, each process attacks its share of the batch, and
    with the sum of their gradients all take the step.
    """

    model: Classifier
    losses: Callable[[Tensor, Tensor, Tensor], Losses]
    attacked: Callable[[], Classifier]
    context: Callable[[torch.device], AbstractContextManager[object]]
    memory_format: torch.memory_format
    optimizer: Optimizer
    objective: Objective
    strategy: ClassStrategy
    data: Images
    augment: Augmentation
    stats: ClassStats
    health: Health
    generator: torch.Generator
    radius: Tensor | None = None
    sampler: ClassSampler | None = None
    awp: AWP | None = None
    average: Average | None = None
    soft_labels: SoftLabels | None = None
    team: Team = ALONE

    def __call__(self, index: Tensor) -> None:
        x, y, batch = self.draw(index)
        x_adv = self.perturb(x, y, len(batch))
        losses, loss = self.descend(x, x_adv, y, self.soften(x, y), batch)
        self.follow(losses, loss, y)

    def draw(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images and labels of this process's share of a batch, and the labels of all of it."""
        if self.sampler is not None:
            index = self.sampler(index, self.generator)
        own, batch = self.team.share(len(index)), self.data.y[index]
        x = self.augment(self.data.x[index], self.generator)[own]
        return to_float(x).contiguous(memory_format=self.memory_format), batch[own], batch

    def perturb(self, x: Tensor, y: Tensor, total: int) -> Tensor:
        """Attacked images; the attack sees fixed BatchNorm statistics, and leaves them alone."""
        weights, source = self.strategy.weights, self.team.draws(self.generator, total)
        scale, aim = weights.radius_scale[y], {}
        if self.radius is not None:
            scale = scale * self.radius
        if weights.targets is not None:
            aim["target"] = draw_targets(weights.targets, y, source)
        with self.context(x.device), values_known():
            self.model.eval()
            return self.objective.perturb(self.attacked(), x, y, radius_scale=scale, generator=source, **aim)

    def soften(self, x: Tensor, y: Tensor) -> Tensor:
        """The labels that the losses see: their own (B,), or with self-distillation probabilities (B, K)."""
        if self.soft_labels is None:
            return y
        with torch.no_grad(), self.context(x.device), values_known():
            return self.soft_labels(x, y)

    def descend(self, x: Tensor, x_adv: Tensor, y: Tensor, labels: Tensor, batch: Tensor) -> tuple[Losses, Tensor]:
        """Losses, their reduction and its gradient, and a step of the optimizer; with AWP, from perturbed weights."""
        if self.awp is None:
            losses, loss = self.backward(x, x_adv, y, labels, batch)
            self.optimizer.step()
            return losses, loss
        self.awp.save()
        self.backward(x, x_adv, y, labels, batch)
        moved = self.awp.ascend()
        losses, loss = self.backward(x, x_adv, y, labels, batch)
        self.optimizer.step()
        self.awp.take_back(moved)
        return losses, loss

    def backward(self, x: Tensor, x_adv: Tensor, y: Tensor, labels: Tensor, batch: Tensor) -> tuple[Losses, Tensor]:
        """The losses of the batch, reduced by the strategy, and the gradients of the whole batch."""
        with self.context(x.device), values_known():
            self.model.train()
            losses = self.losses(x, x_adv, labels)
        reduce = getattr(self.strategy, "reduce", None)
        loss: Tensor = reduce(losses, y, batch, self.team) if reduce else self.strategy.weights.reduce(losses, y, batch)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
        sum_gradients(self.model, self.team)
        return losses, loss

    def follow(self, losses: Losses, loss: Tensor, y: Tensor) -> None:
        """What a step leaves behind: the average, the class table, the strategy's own notes, and its health."""
        if self.average is not None:
            self.average.follow()
        tally(self.stats, losses, y)
        observe = getattr(self.strategy, "observe", None)
        if observe:
            with torch.no_grad():
                observe(losses, y, self.team)
        self.health.watch(self.team.all_reduce(loss.detach()))


@dataclass(frozen=True)
class ValidStep:
    """A batch of held-out images, by indices (B,), into the class table.

    The losses are under the objective's own attack, as WAT's costs need them; robust accuracy is under `attack`,
    because accuracy under a KL attack is not robust accuracy. The model is expected in evaluation mode.
    """

    attacked: Callable[[], Classifier]
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
            self.stats.add(y)
            return
        x = to_float(self.data.x[own]).contiguous(memory_format=self.memory_format)
        source = self.team.draws(self.generator, len(index))
        with self.context(x.device), values_known():
            model = self.attacked()
            x_adv = self.objective.perturb(model, x, y, generator=source)
            attacked = self.attack(model, x, y, generator=source)
            with torch.no_grad():
                losses = self.objective.losses(model, x, x_adv, y)
                losses = losses._replace(natural_logits=model(x), robust_logits=model(attacked))
        tally(self.stats, losses, y)


def draw_targets(targets: Tensor, y: Tensor, source: rng.Source) -> Tensor:
    """For each label the class that its attack aims at, by the probabilities of its row; -1 where that is all zeros."""
    rows = targets[y]
    aims = draw_classes(rows, rng.uniform(torch.empty_like(y, dtype=rows.dtype), source))
    return torch.where(rows.sum(1) > 0, aims, -1)


def tally(stats: ClassStats, losses: Losses, y: Tensor) -> None:
    """Add a batch to the class table."""
    stats.add(y, **{name: MEASURES[name](losses, y) for name in stats.columns})


def _margin(losses: Losses, y: Tensor) -> Tensor:
    probabilities, label = losses.robust_logits.detach().softmax(1), y[:, None]
    other = probabilities.scatter(1, label, -torch.inf).amax(1)
    return other - probabilities.gather(1, label).squeeze(1)


def _one_hot(logits: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(logits.argmax(1), logits.shape[1])


MEASURES: dict[str, Callable[[Losses, Tensor], Tensor]] = {
    "natural_loss": lambda losses, y: losses.natural.detach(),
    "robust_loss": lambda losses, y: losses.robust.detach(),
    "natural_correct": lambda losses, y: losses.natural_logits.argmax(1) == y,
    "robust_correct": lambda losses, y: losses.robust_logits.argmax(1) == y,
    "robust_margin": _margin,
    "natural_predictions": lambda losses, y: _one_hot(losses.natural_logits),
    "robust_predictions": lambda losses, y: _one_hot(losses.robust_logits),
    "natural_probabilities": lambda losses, y: losses.natural_logits.detach().softmax(1),
    "robust_probabilities": lambda losses, y: losses.robust_logits.detach().softmax(1),
}
