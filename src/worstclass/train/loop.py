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
from worstclass.train.engine import Engine
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

    def batch_size_for(self, size: int) -> int:
        """The batch size on a data set that may be smaller than a batch."""
        return min(self.batch_size, size)


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
    engine: Engine | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Iterator[EpochRecord]:
    """Train from `state.epoch` to `plan.epochs`, in place; yield a record after each epoch.

    Order, augmentation and attack starts are functions of (seed, epoch, step): a run that is stopped after an
    epoch and continued from its state is the run that was never stopped. The last, partial batch of an
    epoch is left out; another order brings those images back in the next. `on_step(step, steps)` is called
    after each step.
    """
    if state.epoch >= plan.epochs:
        return
    engine = engine or Engine()
    device = next(state.model.parameters()).device
    num_classes = len(state.strategy.weights.natural)
    valid = valid.to(device)
    step, take = prepare_step(state, train.to(device), objective, plan, engine)
    while state.epoch < plan.epochs:
        epoch, started = state.epoch + 1, time.perf_counter()
        used = _snapshot(state.strategy.weights)
        before = {key: value.clone() for key, value in state.strategy.state_dict().items()}
        for group in state.optimizer.param_groups:
            group["lr"].fill_(plan.lr_at(epoch))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # dropout knows only the global one
            torch.manual_seed(rng.derive_seed(plan.seed, "model", epoch))
            _run_epoch(step, take, epoch, plan, on_step)
        train_stats = step.stats.copy()
        state.model.eval()
        with engine.autocast(device):
            valid_stats = validate(
                step.attacked, valid, objective, plan.valid_attack, num_classes, seed=plan.seed, epoch=epoch
            )
        _check_finite(valid_stats, epoch)
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


def prepare_step(
    state: State, train: Images, objective: Objective, plan: Plan, engine: Engine
) -> tuple[TrainStep, Callable[[Tensor], None]]:
    """The step on data that is on the device already, and how the engine takes it."""
    device = train.y.device
    engine.set_up(device)
    forward, attacked = engine.forwards(state.model)
    step = TrainStep(
        model=state.model,
        forward=forward,
        attacked=attacked,
        autocast=engine.autocast,
        memory_format=engine.memory_format,
        optimizer=state.optimizer,
        objective=objective,
        weights=state.strategy.weights,
        data=train,
        augment=plan.augment,
        stats=ClassStats(len(state.strategy.weights.natural), device),
        health=Health(state.model, device),
        generator=torch.Generator(device),
    )
    return step, engine.prepare(step, plan.batch_size_for(len(train)))


def validate(
    model: Classifier, images: Images, objective: Objective, attack: PGD, num_classes: int, *, seed: int, epoch: int
) -> ClassStats:
    """The class table of held-out images: the losses under the objective's own attack, as WAT's costs need
    them, and robust accuracy under `attack`, because accuracy under a KL attack is not robust accuracy. The model is
    expected in evaluation mode."""
    device = images.x.device
    stats = ClassStats(num_classes, device)
    generator = rng.generator(seed, "valid", epoch, device=device)
    for x_bytes, y in zip(images.x.split(VALID_BATCH), images.y.split(VALID_BATCH), strict=True):
        x = to_float(x_bytes)
        x_adv = objective.perturb(model, x, y, generator=generator)
        attacked = attack(model, x, y, generator=generator)
        with torch.no_grad():
            losses = objective.losses(model, x, x_adv, y)
            tally(stats, losses._replace(natural_logits=model(x), robust_logits=model(attacked)), y)
    return stats.copy()


def _run_epoch(
    step: TrainStep,
    take: Callable[[Tensor], None],
    epoch: int,
    plan: Plan,
    on_step: Callable[[int, int], None] | None,
) -> None:
    step.stats.reset()
    step.health.reset()
    order = epoch_order(len(step.data), seed=plan.seed, epoch=epoch).to(step.data.y.device)
    batch_size = plan.batch_size_for(len(order))
    steps = len(order) // batch_size
    for number, index in enumerate(order.split(batch_size)[:steps], start=1):
        step.generator.manual_seed(rng.derive_seed(plan.seed, "train", epoch, number))
        take(index)
        if number % HEALTH_INTERVAL == 0 or number == steps:
            complaint = step.health.complaint()
            if complaint:
                raise TrainingError(f"epoch {epoch}, {complaint}.")
        if on_step:
            on_step(number, steps)


def _check_finite(stats: ClassStats, epoch: int) -> None:
    if not bool(stats.table.isfinite().all()):
        raise TrainingError(
            f"a validation loss is not finite after epoch {epoch}: the learning rate is likely too high, "
            "or the model overflows on some images."
        )


def _snapshot(weights: ClassWeights) -> ClassWeights:
    return ClassWeights(
        weights.natural.cpu().clone(), weights.robust.cpu().clone(), weights.margin.cpu().clone(), weights.normalized
    )
