"""What it costs to keep books by class: weights by class and the class table, as a share of a training step."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from worstclass.attacks import PGD, trades_attack
from worstclass.bench.timing import seconds
from worstclass.data import Images
from worstclass.models import make_model
from worstclass.objectives import Trades
from worstclass.stats import ClassStats
from worstclass.strategies import WAT
from worstclass.training.engine import Engine
from worstclass.training.prepare import prepare
from worstclass.training.state import Plan, new_state
from worstclass.training.step import tally
from worstclass.types import Losses


class Books(NamedTuple):
    """Seconds of a step and of the bookkeeping in it, and how many classes there are."""

    classes: int
    step: float
    books: float

    @property
    def share(self) -> float:
        return self.books / self.step


def bench_classes(
    num_classes: int,
    *,
    model: str = "small-cnn",
    image_size: int = 32,
    batch_size: int = 128,
    steps: int = 5,
    device: torch.device | str = "cpu",
) -> Books:
    """Time steps of WAT on TRADES, ten attack steps, and in the same run the bookkeeping alone, a hundred times more.

    The bookkeeping is what a step does by class: three weights for each sample, the weighted loss instead of a mean and
    its gradient, and a batch into the class table.
    """
    device = torch.device(device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (batch_size, 3, image_size, image_size), dtype=torch.uint8, generator=generator)
    images = Images(x, torch.randint(num_classes, (batch_size,), generator=generator)).to(device)
    network = make_model(model, num_classes=num_classes, in_channels=3)
    plan = Plan(epochs=1, batch_size=batch_size, lr=0.01, valid_attack=PGD(eps=0.03, steps=1, step_size=0.03))
    state = new_state(network, WAT(torch.ones(num_classes), eta=0.1), plan, device)
    objective = Trades(beta=6.0, attack=trades_attack(eps=0.03, steps=10, step_size=0.007))
    few = images.select(torch.arange(2, device=device))
    engine = Engine(fast=True, precision="bf16") if device.type == "cuda" else Engine()
    take = prepare(state, images, few, objective, plan, engine).take(plan.at(1))
    index, y, weights = torch.arange(batch_size, device=device), images.y, state.strategy.weights
    logits = torch.randn(batch_size, num_classes, device=device)
    natural, robust = (torch.rand(batch_size, device=device, requires_grad=True) for _ in range(2))
    losses, stats = Losses(natural, robust, logits, logits), ClassStats(num_classes, device)
    radius_scale = torch.ones_like(natural)

    def plain(_: Tensor) -> None:
        torch.autograd.grad((losses.natural + losses.robust).mean(), [natural, robust])

    def by_class(_: Tensor) -> None:
        radius_scale.copy_(weights.radius_scale[y])
        torch.autograd.grad(weights.reduce(losses, y), [natural, robust])
        tally(stats, losses, y)

    def time(work: Callable[[Tensor], None], times: int) -> float:
        return seconds(lambda: work(index), times, device)[0]

    source = torch.Generator(device)
    books, none = (engine.prepare(work, [batch_size], [], source) for work in (by_class, plain))
    return Books(num_classes, time(take, steps), time(books, 100 * steps) - time(none, 100 * steps))
