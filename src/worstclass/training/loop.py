"""The training loop: `fit` yields one record an epoch, and what to do with it is the caller's loop body."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Feed, Images, Resident, epoch_order
from worstclass.data.sampling import class_order
from worstclass.errors import TrainingError
from worstclass.execution.distributed import ALONE, Team
from worstclass.stats import ClassStats
from worstclass.strategies import expert_weights
from worstclass.training.averaging import measuring, norms_of
from worstclass.training.data_parallel import follow_leader
from worstclass.training.engine import Engine
from worstclass.training.prepare import Work, check_batch, prepare
from worstclass.training.schedules import ramp
from worstclass.training.state import VALID_BATCH, Plan, State, as_tensors
from worstclass.training.step import TrainStep, ValidStep
from worstclass.types import Classifier, ClassWeights, Objective

HEALTH_INTERVAL = 50  # steps between two looks at the device
MEASURED = 0.05  # share of an epoch's images that BatchNorm statistics are measured on


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: its class tables, the weights it was trained with, and the strategy's state before its update. Of a
    strategy that moves within the steps both are as the last step left them."""

    epoch: int
    lr: float
    seconds: float
    train: ClassStats
    valid: ClassStats
    weights: ClassWeights
    frequency: Tensor  # (K,): how often an image of each class came, beside its share of the data
    expert_weights: Tensor  # (K + 1,): of the average loss, then of each class
    strategy_before: dict[str, Tensor]
    next_weights: Tensor
    valid_epoch: int | None = None  # of the table `valid`, where that is not this epoch's
    averaged_epochs: int | None = None  # in an average over epochs; 0 where it is the raw weights yet


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
    on_engine: Callable[[Engine], None] | None = None,
    on_fallback: Callable[[str], None] = warnings.warn,
) -> Iterator[EpochRecord]:
    """Train from `state` to `plan.epochs`, in place; yield a record after each epoch.

    Order, augmentation and attack starts are functions of (seed, epoch, step): a run that is stopped after any step
    and continued from its state is the run that was never stopped. The last, partial batch of an
    epoch is left out; another order brings those images back in the next. `on_step(step, steps)` is called
    after each step, `on_engine(engine)` once with the one that takes them, and `on_fallback(line)` when something is
    not taken as it was asked for, such as a model that the fast engine cannot take.
    Images of more than `data_limit` bytes (by default half of a GPU's free memory) stay in the host's memory.
    Every process of a `team` calls this with the same arguments, and each yields the same records.
    """
    check_batch(plan.batch_size_for(len(train)), team)
    follow_leader(state, team)
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
    if on_engine:
        on_engine(work.engine)
    counts = train.class_counts(len(state.strategy.weights.natural))
    share = counts.double() / counts.sum()
    while state.epoch < plan.epochs:
        epoch, started = state.epoch + 1, time.perf_counter() - state.seconds
        _check_weights(state.strategy.weights, counts > 0)
        with work.engine.settings(work.step.data.y.device):  # not while the caller has the record
            order = _order(state.strategy.weights, train.y, seed=plan.seed, epoch=epoch)
            _run_epoch(state, work, order, plan, started, on_step)
            train_stats = state.table.copy()
            state.model.eval()
            if state.average is not None:
                raw = None if work.validate_raw is None else _run_validation(work, work.validate_raw, plan, epoch)
                state.average.end_epoch(raw)
                if plan.recalibrate:
                    _recalibrate(state.average.model, work, order, plan, epoch)
            valid_stats, valid_epoch = _last_validation(state, work, plan, epoch)
        # now and not before the first step, to which a run that was stopped within the epoch cannot go back
        used, played = state.strategy.weights.copy(), expert_weights(state.strategy, share)
        kept = as_tensors(state.strategy.state_dict(), type(state.strategy).__name__)
        before, frequency = {key: value.clone() for key, value in kept.items()}, _frequency(used, share)
        written = state.strategy.weights.tensors()
        state.strategy.update(train_stats, valid_stats)
        _check_in_place(state.strategy.weights, written)
        for tensor in state.strategy.weights.tensors().values():
            tensor.copy_(team.broadcast(tensor))  # machines may differ in the last bit of an exponential
        state.table.reset()
        state.epoch, state.step, state.seconds = epoch, 0, 0.0
        yield EpochRecord(
            epoch=epoch,
            lr=plan.lr_at(epoch, 1 - 1 / work.steps),  # of its last step
            seconds=time.perf_counter() - started,
            train=train_stats,
            valid=valid_stats,
            weights=used,
            frequency=frequency,
            expert_weights=played,
            strategy_before=before,
            next_weights=state.strategy.weights.natural.cpu() * _frequency(state.strategy.weights, share),
            valid_epoch=None if valid_epoch == epoch else valid_epoch,
            averaged_epochs=getattr(state.average, "averaged_epochs", None),
        )


def validate(
    model: Classifier,
    images: Images,
    objective: Objective,
    attack: PGD,
    num_classes: int,
    *,
    seed: int,
    epoch: int,
    batch_size: int = VALID_BATCH,
) -> ClassStats:
    """The class table of held-out images, as `ValidStep` says; the model is expected in evaluation mode."""
    engine, device = Engine(), images.x.device
    step = ValidStep(
        attacked=lambda: model,
        context=engine.autocast,
        memory_format=engine.memory_format,
        objective=objective,
        attack=attack,
        data=images,
        stats=ClassStats(num_classes, device),
        generator=torch.Generator(device),
    )
    return _validate(step, Resident(images, device), step, batch_size, seed=seed, epoch=epoch)


def _last_validation(state: State, work: Work, plan: Plan, epoch: int) -> tuple[ClassStats, int]:
    """The table of this epoch's validation, or of the last one where there is none after this epoch; and its epoch."""
    last = state.valid
    if last is not None and last.epoch and epoch % plan.valid_every and epoch < plan.epochs:
        return last.stats.copy(), last.epoch
    stats = _run_validation(work, work.validate, plan, epoch)
    _check_finite(stats, epoch)
    if last is not None:
        last.stats.table.copy_(stats.table)
        last.epoch = epoch
    return stats, epoch


def _run_validation(work: Work, take: Callable[[Tensor], None], plan: Plan, epoch: int) -> ClassStats:
    return _validate(work.valid_step, work.valid_feed, take, plan.valid_batch_size, seed=plan.seed, epoch=epoch)


def _validate(
    step: ValidStep, feed: Feed, take: Callable[[Tensor], None], batch_size: int, *, seed: int, epoch: int
) -> ClassStats:
    step.stats.reset()
    step.generator.manual_seed(rng.derive_seed(seed, "valid", epoch))
    with rng.global_generators(step.data.y.device) as set_seed:
        set_seed(rng.derive_seed(seed, "valid model", epoch, *step.team.apart))
        for index in feed.batches(torch.arange(len(feed)), batch_size):
            take(index)
    return step.stats.copy()


def _run_epoch(
    state: State, work: Work, order: Tensor, plan: Plan, started: float, on_step: Callable[[int, int], None] | None
) -> None:
    """The steps of an epoch that are yet to be taken."""
    step, epoch, device = work.step, state.epoch + 1, work.step.data.y.device
    step.health.reset(state.step)
    steps, batch_size = work.steps, plan.batch_size_for(len(order))
    left = order[state.step * batch_size : steps * batch_size]
    with rng.global_generators(device) as set_seed:
        for number, index in enumerate(work.feed.batches(left, batch_size), state.step + 1):
            at = plan.at(epoch, (number - 1) / steps)
            take = work.take(at, number)  # before anything is seeded: to capture a step is to take some
            set_seed(rng.derive_seed(plan.seed, "model", epoch, number, *step.team.apart))
            step.generator.manual_seed(rng.derive_seed(plan.seed, "train", epoch, number))
            state.optimizer.set_lr(plan.lr * plan.schedule(at))
            if step.radius is not None:
                step.radius.fill_(ramp(at, plan.radius_warmup))
            if step.soft_labels is not None and plan.adr is not None:
                step.soft_labels.set(*plan.adr.at(at))
            take(index)
            if number % HEALTH_INTERVAL == 0 or number == steps:
                complaint = step.health.complaint(step.team)
                if complaint:
                    raise TrainingError(f"epoch {epoch}, {complaint}.")
            state.step, state.seconds = number, time.perf_counter() - started
            if on_step:
                on_step(number, steps)


def _recalibrate(average: Classifier, work: Work, order: Tensor, plan: Plan, epoch: int) -> None:
    """Measure the BatchNorm statistics of averaged weights on some images of the epoch, augmented and attacked anew, in
    the passes that training makes. Every process of a team does the same on the same images."""
    norms = norms_of(average)
    if not norms:
        return
    step = replace(work.step, model=average, attacked=work.valid_step.attacked, team=ALONE)
    at_once, batch_size = plan.valid_batch_size, plan.batch_size_for(len(order))
    parts = order[: at_once * max(1, round(MEASURED * len(order) / at_once))].split(at_once)
    step.generator.manual_seed(rng.derive_seed(plan.seed, "statistics", epoch))
    with rng.global_generators(step.data.y.device) as set_seed:
        set_seed(rng.derive_seed(plan.seed, "statistics model", epoch))
        passes = [_attacked(step, work.feed, part, batch_size) for part in parts]
        with measuring(average, norms), torch.no_grad(), work.valid_step.context(step.data.y.device):
            for x, x_adv, y in passes:
                step.objective.losses(average, x, x_adv, y)


def _attacked(step: TrainStep, feed: Feed, index: Tensor, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images as an epoch would draw them, attacked; and their labels."""
    drawn = [step.draw(part) for part in feed.batches(index, batch_size)]
    x, y = (torch.cat(parts) for parts in zip(*((x, y) for x, y, _ in drawn), strict=True))
    return x, step.perturb(x, y, len(y)), y


def _order(weights: ClassWeights, y: Tensor, *, seed: int, epoch: int) -> Tensor:
    """The images of an epoch, in the order that they are taken in."""
    if weights.quota is None:
        return epoch_order(len(y), seed=seed, epoch=epoch)
    return class_order(y, weights.quota, seed=seed, epoch=epoch)


def _frequency(weights: ClassWeights, share: Tensor) -> Tensor:
    """How often an image of each class comes (K,), beside its share of the data: 1 where nothing is drawn by class."""
    drawn = weights.sampling if weights.quota is None else weights.quota
    if drawn is None:
        return torch.ones(len(share))
    share = share.cpu()
    drawn = torch.where(share > 0, drawn.cpu().double(), 0.0)
    return (drawn / drawn.sum() / share.clamp_min(1e-12)).float()


def _check_in_place(weights: ClassWeights, before: Mapping[str, Tensor]) -> None:
    """Raise unless the weights are where they were before an update: a captured step reads them there."""
    if {name: each.data_ptr() for name, each in weights.tensors().items()} != {
        name: each.data_ptr() for name, each in before.items()
    }:
        raise TrainingError(
            "the strategy has made new weights, which a captured step would not see: write them in place, with "
            "weights.set(natural=...)."
        )


def _check_weights(weights: ClassWeights, present: Tensor) -> None:
    """Raise unless losses can be weighed, and classes drawn, by what the strategy says: a step cannot look, and no loss
    would show it."""
    drawn = {"sampling": weights.sampling, "quota": weights.quota}
    for name, values in weights.tensors().items():
        if not bool(((values >= 0) & values.isfinite()).all()):
            what = "are no probabilities" if name in (*drawn, "targets") else "are no weights"
            raise TrainingError(f"the strategy's '{name}' {what}: some are negative or not finite.")
    if not bool((weights.natural + weights.robust).any()):
        raise TrainingError("the strategy's 'natural' and 'robust' weights are zero for every class.")
    for name, chances in drawn.items():
        if chances is not None and not bool((chances.cpu()[present.cpu()] > 0).any()):
            raise TrainingError(f"the strategy's '{name}' is zero for every class that there are images of.")


def _check_finite(stats: ClassStats, epoch: int) -> None:
    if not bool(stats.table.isfinite().all()):
        raise TrainingError(
            f"a validation loss is not finite after epoch {epoch}: the learning rate is likely too high, "
            "or the model overflows on some images."
        )
