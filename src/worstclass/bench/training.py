"""One step of TRADES, ten attack steps: as public code writes it, tidy, and captured."""

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from worstclass.attacks import PGD, trades_attack
from worstclass.bench.timing import seconds
from worstclass.bench.ways import PUBLIC, WAYS
from worstclass.data import Augment, Images, to_float
from worstclass.execution.backend import allow_tf32, wait
from worstclass.models import make_model
from worstclass.objectives import Trades
from worstclass.stats import MATRICES
from worstclass.strategies import uniform
from worstclass.training.averaging import EMA
from worstclass.training.awp import AWPRule
from worstclass.training.engine import Engine
from worstclass.training.prepare import prepare
from worstclass.training.state import Plan, State, new_state

FORWARDS_A_STEP = 27  # what a step needs: 1 for clean logits, 10 x 2 for the attack, 2 x 3 for training
EPS, BETA, STEPS, STEP_SIZE = 8 / 255, 6.0, 10, 0.007
IMAGES, CLASSES = 2048, 10
ENGINES = {name: Engine(**how) for name, how in WAYS.items()}


class StepTime(NamedTuple):
    """One way to take a step: seconds a step, images and useful floating-point operations a second, bytes, start-up."""

    name: str
    seconds: float
    images: float
    flops: float
    memory: int
    start: float


def possible(device: torch.device) -> list[str]:
    """The keys of `ENGINES` that run on it, with this version of torch."""
    return [name for name, e in ENGINES.items() if e == Engine() or (device.type == "cuda" and e.supported)]


def bench_training(
    names: list[str], *, model: str = "resnet18", batch_size: int = 128, steps: int = 50, device: torch.device
) -> Iterator[StepTime]:
    """Time a step in each of these ways (`PUBLIC`, or a key of `ENGINES` with ` + ` parts), one after the other, on
    random images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = Images(x, torch.randint(CLASSES, (IMAGES,), generator=generator)).to(device)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        make_model(model, num_classes=CLASSES, in_channels=3).eval()(to_float(x[:1]))
    work = FORWARDS_A_STEP * counter.get_total_flops()
    for name in names:
        way, *parts = name.split(" + ")
        plan = Plan(
            epochs=1,
            batch_size=batch_size,
            lr=0.01,
            augment=Augment(crop_padding=4, flip=True),
            valid_attack=PGD(eps=EPS, steps=1, step_size=EPS),
            average=EMA() if "ema" in parts else None,
            awp=AWPRule(0.005) if "awp" in parts else None,
        )
        network = make_model(model, num_classes=CLASSES, in_channels=3)
        strategy: Any = uniform(CLASSES)
        if "tables" in parts:
            strategy.tables = MATRICES
        state = new_state(network, strategy, plan, device)
        wait(device)
        if device.type == "cuda":
            gc.collect()  # a folded network is a cycle; the memory of each is its own
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        index = torch.arange(batch_size, device=device) % IMAGES
        with allow_tf32(True) if way == PUBLIC else ENGINES[way].settings(device):
            take = _public_step(state, images) if way == PUBLIC else _our_step(state, images, plan, ENGINES[way])
            each, warm = seconds(partial(take, index), steps, device)
        memory = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        del take, state, network
        yield StepTime(name, each, batch_size / each, batch_size * work / each, memory, warm - started)


def matrix_ceiling(device: torch.device, *, size: int = 8192) -> float:
    """Floating-point operations a second of a large product of random matrices, bfloat16 on a GPU, in this run."""
    on_gpu = device.type == "cuda"
    size = size if on_gpu else size // 8
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    return 2 * size**3 / seconds(lambda: a @ a, 10, device)[0]


def _our_step(state: State, images: Images, plan: Plan, engine: Engine) -> Callable[[Tensor], None]:
    objective = Trades(beta=BETA, attack=trades_attack(eps=EPS, steps=STEPS, step_size=STEP_SIZE))
    few = images.select(torch.arange(2, device=images.y.device))
    return prepare(state, images, few, objective, plan, engine).take(plan.at(1))


def _public_step(state: State, images: Images) -> Callable[[Tensor], None]:
    """TRADES as its public code has it: clean logits anew in each attack step and thrice in training, all gradients
    kept; TF32 allowed, as it is for convolutions unless somebody forbids it. No augmentation: that is the loader's."""
    model, optimizer = state.model, state.optimizer

    def step(index: Tensor) -> None:
        x, y = to_float(images.x[index]), images.y[index]
        model.eval()
        x_adv = x + 0.001 * torch.randn_like(x)
        for _ in range(STEPS):
            x_adv.requires_grad_()
            loss = F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum")
            grad = torch.autograd.grad(loss, [x_adv])[0]
            x_adv = x_adv.detach() + STEP_SIZE * torch.sign(grad.detach())
            x_adv = torch.min(torch.max(x_adv, x - EPS), x + EPS).clamp(0, 1)
        model.train()
        optimizer.zero_grad()
        natural = F.cross_entropy(model(x), y)
        robust = F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum") / len(x)
        (natural + BETA * robust).backward()
        optimizer.step()

    return step
