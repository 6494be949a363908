"""The steps of a run made ready: data where it fits, and each step as the engine takes it."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import DistError

from worstclass.data import Feed, Images, make_feed, to_float
from worstclass.distributed import ALONE, Team
from worstclass.errors import UserError
from worstclass.inputs import check_labels
from worstclass.stats import ClassStats
from worstclass.training.data_parallel import share
from worstclass.training.engine import Engine
from worstclass.training.state import Plan, State
from worstclass.training.step import Health, TrainStep, ValidStep
from worstclass.types import Classifier, Objective


class Work(NamedTuple):
    """The two steps, the batches for each, how the engine takes it (called with the indices of a batch), and which."""

    step: TrainStep
    feed: Feed
    take: Callable[[Tensor], None]
    valid_step: ValidStep
    valid_feed: Feed
    validate: Callable[[Tensor], None]
    engine: Engine


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
    _lay_out(state.model, engine)
    share(state.model, team)
    feed, valid_feed = (
        make_feed(images, device, window=size, limit=data_limit)
        for images, size in ((train, batch_size), (valid, plan.valid_batch_size))
    )
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
        _lay_out(state.model, engine)
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


def _lay_out(model: Classifier, engine: Engine) -> None:
    model.to(memory_format=engine.memory_format)  # type: ignore[call-overload]  # torch's stub lacks it


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
    device, num_classes = train.y.device, len(state.strategy.weights.natural)
    few = to_float(valid.x[: plan.valid_batch_size])
    losses, view = engine.forwards(state.model, objective, few, on_fallback=on_fallback)
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
        context=engine.autocast,
        memory_format=engine.memory_format,
        objective=objective,
        attack=plan.valid_attack,
        data=valid,
        stats=ClassStats(num_classes, device, team),
        generator=torch.Generator(device),
        team=team,
    )
    valid_sizes = {len(part) for part in torch.arange(len(valid_feed)).split(plan.valid_batch_size)}
    take = engine.prepare(step, [plan.batch_size_for(len(feed))], step.touched(), step.generator)
    state.model.eval()
    validate = engine.prepare(valid_step, sorted(valid_sizes), [], valid_step.generator)
    return Work(step, feed, take, valid_step, valid_feed, validate, engine)
