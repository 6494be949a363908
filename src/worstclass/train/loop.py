"""The training loop: `fit` yields one record an epoch, and what to do with it is the caller's loop body."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Augment, Images, epoch_order, to_float
from worstclass.errors import TrainingError
from worstclass.stats import ClassStats
from worstclass.train.step import Health, TrainStep, tally
from worstclass.types import Classifier, ClassStrategy, ClassWeights, Objective

HEALTH_INTERVAL = 50  # steps between two looks at the device
VALID_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how fast to train. `lr_milestones` are 1-based epochs from which the rate is divided."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 2e-4
    lr_milestones: tuple[int, ...] = ()
    lr_decay: float = 0.1
    augment: Augment = field(default_factory=Augment)
    valid_attack: PGD
    seed: int = 1

    def lr_at(self, epoch: int) -> float:
        """The learning rate of a 1-based epoch."""
        return self.lr * self.lr_decay ** sum(epoch >= milestone for milestone in self.lr_milestones)


@dataclass
class State:
    """What a checkpoint holds: a model, its optimizer, the strategy, and the epochs done."""

    model: Classifier
    optimizer: torch.optim.SGD
    strategy: ClassStrategy
    epoch: int = 0


def new_state(model: Classifier, strategy: ClassStrategy, plan: Plan, device: torch.device | str = "cpu") -> State:
    """Everything on the device and nothing trained. The learning rate is a tensor, so that it can change in a graph."""
    model = model.to(device)
    strategy.weights = strategy.weights.to(torch.device(device))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=torch.tensor(plan.lr, device=device),
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        fused=True,
    )
    return State(model, optimizer, strategy)


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: its class tables, the weights it was trained with, and the strategy's state before and after."""

    epoch: int
    lr: float
    seconds: float
    train: ClassStats
    valid: ClassStats
    weights: ClassWeights
    strategy_before: dict[str, Tensor]
    next_weights: Tensor


def fit(
    state: State,
    train: Images,
    valid: Images,
    objective: Objective,
    plan: Plan,
    *,
    on_step: Callable[[int, int], None] | None = None,
) -> Iterator[EpochRecord]:
    """Train from `state.epoch` to `plan.epochs`, in place; yield a record after each epoch.

    Order, augmentation and attack starts are functions of (seed, epoch): a run that is stopped after an
    epoch and continued from its state is the run that was never stopped. The last, partial batch of an
    epoch is left out; another order brings those images back in the next. `on_step(step, steps)` is called
    after each step.
    """
    device = next(state.model.parameters()).device
    num_classes = len(state.strategy.weights.natural)
    train, valid = train.to(device), valid.to(device)
    batch_size = min(plan.batch_size, len(train))
    step = TrainStep(
        model=state.model,
        optimizer=state.optimizer,
        objective=objective,
        weights=state.strategy.weights,
        data=train,
        augment=plan.augment,
        stats=ClassStats(num_classes, device),
        health=Health(device),
        generator=torch.Generator(device),
    )
    while state.epoch < plan.epochs:
        epoch, started = state.epoch + 1, time.perf_counter()
        used = _snapshot(state.strategy.weights)
        before = {key: value.clone() for key, value in state.strategy.state_dict().items()}
        for group in state.optimizer.param_groups:
            group["lr"].fill_(plan.lr_at(epoch))
        _run_epoch(step, epoch, batch_size, plan.seed, on_step)
        train_stats = step.stats.copy()
        valid_stats = validate(
            state.model, valid, objective, plan.valid_attack, num_classes, seed=plan.seed, epoch=epoch
        )
        _check_finite(state.model, valid_stats, epoch)
        state.strategy.update(train_stats if state.strategy.source == "train" else valid_stats)
        state.epoch = epoch
        yield EpochRecord(
            epoch=epoch,
            lr=plan.lr_at(epoch),
            seconds=time.perf_counter() - started,
            train=train_stats,
            valid=valid_stats,
            weights=used,
            strategy_before=before,
            next_weights=state.strategy.weights.natural.cpu().clone(),
        )


def validate(
    model: Classifier, images: Images, objective: Objective, attack: PGD, num_classes: int, *, seed: int, epoch: int
) -> ClassStats:
    """The class table of held-out images: the losses under the objective's own attack, as WAT's costs need
    them, and robust accuracy under `attack`, because accuracy under a KL attack is not robust accuracy."""
    device = images.x.device
    stats = ClassStats(num_classes, device)
    generator = rng.generator(seed, "valid", epoch, device=device)
    model.eval()
    for x_bytes, y in zip(images.x.split(VALID_BATCH), images.y.split(VALID_BATCH), strict=True):
        x = to_float(x_bytes)
        x_adv = objective.perturb(model, x, y, generator=generator)
        attacked = attack(model, x, y, generator=generator)
        with torch.no_grad():
            losses = objective.losses(model, x, x_adv, y)
            tally(stats, losses._replace(natural_logits=model(x), robust_logits=model(attacked)), y)
    return stats.copy()


def _run_epoch(
    step: TrainStep, epoch: int, batch_size: int, seed: int, on_step: Callable[[int, int], None] | None
) -> None:
    step.stats.reset()
    step.health.reset()
    step.generator.manual_seed(rng.derive_seed(seed, "train", epoch))
    order = epoch_order(len(step.data), seed=seed, epoch=epoch).to(step.data.y.device)
    steps = len(order) // batch_size
    for number, index in enumerate(order.split(batch_size)[:steps], start=1):
        step(index)
        if number % HEALTH_INTERVAL == 0 or number == steps:
            bad = step.health.first_bad_step()
            if bad is not None:
                raise TrainingError(_diagnosis(step, epoch, bad))
        if on_step:
            on_step(number, steps)


def _diagnosis(step: TrainStep, epoch: int, bad: int) -> str:
    """One line on a loss that is not finite, with its likely cause."""
    lr = float(step.optimizer.param_groups[0]["lr"])
    if not all(bool(p.isfinite().all()) for p in step.model.parameters()) and bad > 1:
        cause = f"the weights are not finite any more: the learning rate ({lr:g}) is likely too high"
    else:
        cause = "the model returns values that are not finite on these images: look at the model and the data"
    return f"the loss is not finite at epoch {epoch}, step {bad}; {cause}."


def _check_finite(model: Classifier, stats: ClassStats, epoch: int) -> None:
    if not bool(stats.table.isfinite().all()):
        raise TrainingError(
            f"a validation loss is not finite after epoch {epoch}: the learning rate is likely too high, "
            "or the model overflows on some images."
        )


def _snapshot(weights: ClassWeights) -> ClassWeights:
    return ClassWeights(
        weights.natural.cpu().clone(), weights.robust.cpu().clone(), weights.margin.cpu().clone(), weights.normalized
    )
