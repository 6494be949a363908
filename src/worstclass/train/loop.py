"""The training loop: `fit` yields one record an epoch, and what to do with it is the caller's loop body."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Augment, Feed, Images, Resident, epoch_order, make_feed, to_float
from worstclass.errors import TrainingError, UserError
from worstclass.stats import ClassStats
from worstclass.team import ALONE, Team
from worstclass.train.distributed import shared
from worstclass.train.engine import Engine
from worstclass.train.step import Health, TrainStep, ValidStep
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
    """What a checkpoint holds: a model, its optimizer, the strategy, the epochs done, and within the next one the
    steps done, their class table and their seconds."""

    model: Classifier
    optimizer: torch.optim.SGD
    strategy: ClassStrategy
    epoch: int = 0
    step: int = 0
    table: Tensor | None = None
    seconds: float = 0.0


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
    team: Team = ALONE,
    data_limit: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
    on_fallback: Callable[[str], None] = warnings.warn,
) -> Iterator[EpochRecord]:
    """Train from `state` to `plan.epochs`, in place; yield a record after each epoch.

    Order, augmentation and attack starts are functions of (seed, epoch, step): a run that is stopped after any step
    and continued from its state is the run that was never stopped. The last, partial batch of an
    epoch is left out; another order brings those images back in the next. `on_step(step, steps)` is called
    after each step, and `on_fallback(line)` when the fast engine cannot take the model and the eager one goes on.
    Images of more than `data_limit` bytes (by default half of a GPU's free memory) stay in the host's memory.
    Every process of a `team` calls this with the same arguments, and each yields the same records.
    """
    if state.epoch >= plan.epochs:
        return
    work = prepare(
        state,
        train,
        valid,
        objective,
        plan,
        engine or Engine(),
        team=team,
        data_limit=data_limit,
        on_fallback=on_fallback,
    )
    while state.epoch < plan.epochs:
        epoch, started = state.epoch + 1, time.perf_counter() - state.seconds
        used = _snapshot(state.strategy.weights)
        before = {key: value.clone() for key, value in state.strategy.state_dict().items()}
        for group in state.optimizer.param_groups:
            group["lr"].fill_(plan.lr_at(epoch))
        _run_epoch(state, work, plan, started, on_step)
        train_stats = work.step.stats.copy()
        state.model.eval()
        valid_stats = _run_validation(work.valid_step, work.valid_feed, work.validate, seed=plan.seed, epoch=epoch)
        _check_finite(valid_stats, epoch)
        state.strategy.update(train_stats if state.strategy.source == "train" else valid_stats)
        for vector in state.strategy.weights.vectors():  # machines may differ in the last bit of an exponential
            vector.copy_(team.follow(vector))
        state.epoch, state.step, state.table, state.seconds = epoch, 0, None, 0.0
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


class Work(NamedTuple):
    """The two steps, the batches for each, and how the engine takes it: called with the indices of a batch."""

    step: TrainStep
    feed: Feed
    take: Callable[[Tensor], None]
    valid_step: ValidStep
    valid_feed: Feed
    validate: Callable[[Tensor], None]


def prepare(
    state: State,
    train: Images,
    valid: Images,
    objective: Objective,
    plan: Plan,
    engine: Engine,
    *,
    team: Team = ALONE,
    data_limit: int | None = None,
    on_fallback: Callable[[str], None] = warnings.warn,
) -> Work:
    """Put the data on the model's device if it fits, and the steps as the engine takes them; a model that the fast
    engine cannot take is left to the eager one."""
    device = next(state.model.parameters()).device
    batch_size = plan.batch_size_for(len(train))
    if batch_size < team.size:
        raise UserError(f"a batch of {batch_size} images cannot be split over {team.size} processes.")
    _lay_out(state.model, engine)
    trained = shared(state.model, team)
    feed, valid_feed = (
        make_feed(images, device, window=size, limit=data_limit)
        for images, size in ((train, batch_size), (valid, VALID_BATCH))
    )
    try:
        return _prepare(state, trained, feed, valid_feed, objective, plan, engine, team)
    except UserError:
        raise
    except Exception as error:  # compilers and captures fail in many ways
        if not engine.fast:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        on_fallback(f"the fast engine cannot take this model ({reason}): going on with the eager one.")
        engine = replace(engine, fast=False)
        _lay_out(state.model, engine)
        return _prepare(state, trained, feed, valid_feed, objective, plan, engine, team)


def _lay_out(model: Classifier, engine: Engine) -> None:
    model.to(memory_format=engine.memory_format)  # type: ignore[call-overload]  # torch's stub lacks it


def _prepare(
    state: State,
    trained: Classifier,
    feed: Feed,
    valid_feed: Feed,
    objective: Objective,
    plan: Plan,
    engine: Engine,
    team: Team,
) -> Work:
    train, valid = feed.images, valid_feed.images
    device, num_classes = train.y.device, len(state.strategy.weights.natural)
    engine.set_up(device)
    losses, view = engine.forwards(state.model, trained, objective, to_float(valid.x[:VALID_BATCH]))
    step = TrainStep(
        model=state.model,
        losses=losses,
        view=view,
        context=engine.context,
        memory_format=engine.memory_format,
        optimizer=state.optimizer,
        objective=objective,
        weights=state.strategy.weights,
        data=train,
        augment=plan.augment,
        stats=ClassStats(num_classes, device, team),
        health=Health(state.model, device),
        generator=torch.Generator(device),
        team=team,
    )
    valid_step = ValidStep(
        view=view,
        context=engine.context,
        memory_format=engine.memory_format,
        objective=objective,
        attack=plan.valid_attack,
        data=valid,
        stats=ClassStats(num_classes, device, team),
        generator=torch.Generator(device),
        team=team,
    )
    valid_sizes = {len(part) for part in torch.arange(len(valid_feed)).split(VALID_BATCH)}
    take = engine.prepare(step, [plan.batch_size_for(len(feed))], step.touched(), step.generator, shared=not team.alone)
    state.model.eval()
    validate = engine.prepare(valid_step, sorted(valid_sizes), [], valid_step.generator)
    return Work(step, feed, take, valid_step, valid_feed, validate)


def validate(
    model: Classifier, images: Images, objective: Objective, attack: PGD, num_classes: int, *, seed: int, epoch: int
) -> ClassStats:
    """The class table of held-out images, as `ValidStep` says; the model is expected in evaluation mode."""
    engine, device = Engine(), images.x.device
    step = ValidStep(
        view=lambda: model,
        context=engine.context,
        memory_format=engine.memory_format,
        objective=objective,
        attack=attack,
        data=images,
        stats=ClassStats(num_classes, device),
        generator=torch.Generator(device),
    )
    return _run_validation(step, Resident(images, device), step, seed=seed, epoch=epoch)


def _run_validation(
    step: ValidStep, feed: Feed, take: Callable[[Tensor], None], *, seed: int, epoch: int
) -> ClassStats:
    step.stats.reset()
    step.generator.manual_seed(rng.derive_seed(seed, "valid", epoch))
    with _own_global_generator(step.data.y.device):
        torch.manual_seed(rng.derive_seed(seed, "valid model", epoch, *step.team.apart))
        for index in feed.batches(torch.arange(len(feed)), VALID_BATCH):
            take(index)
    return step.stats.copy()


def _own_global_generator(device: torch.device) -> AbstractContextManager[None]:
    """A context in which the global generator, the only one that dropout knows, may be seeded; then it is as it was."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _run_epoch(
    state: State, work: Work, plan: Plan, started: float, on_step: Callable[[int, int], None] | None
) -> None:
    """The steps of an epoch that are yet to be taken."""
    step, epoch, device = work.step, state.epoch + 1, work.step.data.y.device
    step.stats.reset()
    step.health.reset(state.step)
    if state.table is not None:
        step.stats.table.copy_(state.table)
    state.table = step.stats.table
    order = epoch_order(len(work.feed), seed=plan.seed, epoch=epoch)
    batch_size = plan.batch_size_for(len(order))
    steps = len(order) // batch_size
    left = order[state.step * batch_size : steps * batch_size]
    with _own_global_generator(device):
        for number, index in enumerate(work.feed.batches(left, batch_size), state.step + 1):
            torch.manual_seed(rng.derive_seed(plan.seed, "model", epoch, number, *step.team.apart))
            step.generator.manual_seed(rng.derive_seed(plan.seed, "train", epoch, number))
            work.take(index)
            if number % HEALTH_INTERVAL == 0 or number == steps:
                complaint = step.health.complaint()
                if complaint:
                    raise TrainingError(f"epoch {epoch}, {complaint}.")
            state.step, state.seconds = number, time.perf_counter() - started
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
