"""The steps of a run made ready: data where it fits, and each step as the engine takes it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.distributed import DistError

from worstclass.data import Feed, Images, Resident, make_feed, to_float
from worstclass.data.sampling import ClassSampler
from worstclass.errors import UserError
from worstclass.execution.distributed import ALONE, Team
from worstclass.inputs.images import check_labels
from worstclass.stats import COLUMNS, ClassStats
from worstclass.training.awp import AWP
from worstclass.training.data_parallel import share
from worstclass.training.distillation import SoftLabels
from worstclass.training.engine import Engine
from worstclass.training.health import Health
from worstclass.training.schedules import Progress
from worstclass.training.state import Plan, State
from worstclass.training.step import TrainStep, ValidStep
from worstclass.types import Objective


@dataclass
class Work:
    """The two steps, the batches for each, and how the engine takes them (called with the indices of a batch)."""

    step: TrainStep
    feed: Feed
    valid_step: ValidStep
    valid_feed: Feed
    validate: Callable[[Tensor], None]
    validate_raw: Callable[[Tensor], None] | None  # into the same table
    engine: Engine
    plan: Plan
    touched: list[Tensor]
    sizes: list[int]
    awp: AWP | None
    _taken: dict[tuple[int, bool], Callable[[Tensor], None]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Of an epoch: a last, partial batch is left out."""
        return len(self.feed) // self.plan.batch_size_for(len(self.feed))

    def take(self, at: Progress, number: int = 1) -> Callable[[Tensor], None]:
        """How the engine takes step `number` of an epoch at that point of the run. Where the step itself changes on the
        way, it is captured once for each form, when that is first needed."""
        schedule, awp = self.plan.attack_steps, self.plan.awp
        phase = schedule.phase(at) if schedule else -1
        perturbed = awp is not None and awp.perturbs(at.epoch, number)
        if (phase, perturbed) not in self._taken:
            objective = schedule.objective(self.step.objective, phase) if schedule else self.step.objective
            step = replace(self.step, objective=objective, awp=self.awp if perturbed else None)
            self._taken[phase, perturbed] = self.engine.prepare(step, self.sizes, self.touched, step.generator)
        return self._taken[phase, perturbed]


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
    """Put the data on the model's device if it fits, and the steps as the engine takes them, inside its `settings`; a
    model that the fast engine cannot take is left to the eager one."""
    check_data(train, valid, len(state.strategy.weights.natural))
    device = next(state.model.parameters()).device
    batch_size = plan.batch_size_for(len(train))
    check_batch(batch_size, team)
    if engine.fast and batch_size % team.size:  # compiled for other shapes, a process may exchange in another order
        on_fallback(
            f"{batch_size} images are not an even batch for {team.size} processes: going on with the eager engine."
        )
        engine = replace(engine, fast=False)
    _lay_out(state, engine)
    share(state.model, team)
    feed, valid_feed = (
        make_feed(images, device, window=size, limit=data_limit)
        for images, size in ((train, batch_size), (valid, plan.valid_batch_size))
    )
    if state.strategy.weights.sampling is not None and not isinstance(feed, Resident):
        raise UserError("this method draws images by class, and needs all training images in the device's memory.")
    try:
        with engine.settings(device):
            return _prepare(state, feed, valid_feed, objective, plan, engine, team, on_fallback)
    except UserError:
        raise
    except Exception as error:  # compilers and captures fail in many ways
        if not engine.fast or isinstance(error, DistError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if not team.alone:  # another process may have taken it, and would wait for this one's next exchange
            raise UserError(f"the fast engine cannot take this model ({reason}): use --engine eager.") from error
        on_fallback(f"the fast engine cannot take this model ({reason}): going on with the eager one.")
        engine = replace(engine, fast=False)
        _lay_out(state, engine)
        with engine.settings(device):
            return _prepare(state, feed, valid_feed, objective, plan, engine, team, on_fallback)


def check_data(train: Images, valid: Images, num_classes: int) -> None:
    """Raise unless both parts have images, of one size and of these classes: once, before any step."""
    for name, images in (("train", train), ("valid", valid)):
        if not isinstance(images, Images):
            raise UserError(f"{name} must be worstclass.data.Images(x, y), not {type(images).__name__}.")
        if len(images) == 0:
            raise UserError(f"{name} has no images.")
        check_labels(images.y, len(images), num_classes)
    if train.x.shape[1:] != valid.x.shape[1:]:
        sizes = tuple(train.x.shape[1:]), tuple(valid.x.shape[1:])
        raise UserError(f"training images are {sizes[0]}, validation images {sizes[1]}.")


def check_batch(batch_size: int, team: Team) -> None:
    """Raise unless each process of a team has a share of a batch."""
    if batch_size < team.size:
        raise UserError(f"a batch of {batch_size} images cannot be split over {team.size} processes.")


def _lay_out(state: State, engine: Engine) -> None:
    for model in (state.model, state.shipped):
        model.to(memory_format=engine.memory_format)  # type: ignore[call-overload]  # torch's stub lacks it
    state.optimizer.lay_out()


def _prepare(
    state: State,
    feed: Feed,
    valid_feed: Feed,
    objective: Objective,
    plan: Plan,
    engine: Engine,
    team: Team,
    on_fallback: Callable[[str], None],
) -> Work:
    train, valid = feed.images, valid_feed.images
    device, weights = train.y.device, state.strategy.weights
    few = to_float(valid.x[: plan.valid_batch_size])
    state.table.team = team
    step = TrainStep(
        model=state.model,
        losses=engine.losses(state.model, objective),
        attacked=engine.attacked(state.model, few, on_fallback=on_fallback),
        context=engine.context,
        memory_format=engine.memory_format,
        optimizer=state.optimizer,
        objective=objective,
        strategy=state.strategy,
        data=train,
        augment=plan.augment,
        stats=state.table,
        health=Health(state.model, device),
        generator=torch.Generator(device),
        radius=torch.ones((), device=device) if plan.radius_warmup else None,
        sampler=None if weights.sampling is None else ClassSampler(train.y, weights.sampling),
        average=state.average,
        soft_labels=SoftLabels(state.average.model) if plan.adr and state.average else None,
        team=team,
    )
    valid_step = ValidStep(
        attacked=step.attacked if state.average is None else engine.attacked(state.shipped, few, on_fallback=_silence),
        context=engine.autocast,
        memory_format=engine.memory_format,
        objective=objective,
        attack=plan.valid_attack,
        data=valid,
        stats=ClassStats(len(weights.natural), device, team, state.table.columns[len(COLUMNS) :]),
        generator=torch.Generator(device),
        team=team,
    )
    sizes = sorted({len(part) for part in torch.arange(len(valid_feed)).split(plan.valid_batch_size)})
    work = Work(
        step=step,
        feed=feed,
        valid_step=valid_step,
        valid_feed=valid_feed,
        validate=valid_step,
        validate_raw=None,
        engine=engine,
        plan=plan,
        touched=[*state.touched(), *step.health.touched()],
        sizes=[plan.batch_size_for(len(feed))],
        awp=AWP(state.model, plan.awp) if plan.awp else None,
    )
    work.take(plan.at(state.epoch + 1))
    state.model.eval()
    work.validate = engine.prepare(valid_step, sizes, [], valid_step.generator)
    if state.average is not None and state.average.gated:
        raw = replace(valid_step, attacked=step.attacked)
        work.validate_raw = engine.prepare(raw, sizes, [], raw.generator)
    return work


def _silence(line: str) -> None:
    """It was said of the raw weights."""
