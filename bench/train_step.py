"""Time one training step, engine by engine, in one run: `python bench/train_step.py [--model resnet18] [--steps 50]`.

Random images, TRADES with 10 attack steps. "tidy eager" is the same step without compilation or capture.
"""

import argparse
import time

import torch

from worstclass.attacks import PGD, trades_attack
from worstclass.data import Augment, Images
from worstclass.models import make_model
from worstclass.objectives import Trades
from worstclass.strategies import WAT
from worstclass.train.engine import Engine
from worstclass.train.loop import Plan, new_state, prepare_step

FORWARDS_A_STEP = 27  # 1 for clean logits, 10 x 2 for the attack, 2 x 3 for training
GFLOP = {"resnet18": 1.114, "wrn34-10": 10.4}  # of one forward, 32 x 32
ENGINES = {
    "eager fp32": Engine(),
    "eager tf32": Engine(precision="tf32"),
    "fast fp32": Engine(fast=True),
    "fast tf32": Engine(fast=True, precision="tf32"),
    "fast bf16": Engine(fast=True, precision="bf16"),
}


def matrix_ceiling(device: torch.device) -> float:
    """TFLOP/s of a large bfloat16 product on random data, in this very run."""
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - started) / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--engines", default=",".join(ENGINES))
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ceiling = matrix_ceiling(device) if device.type == "cuda" else float("nan")
    print(
        f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}: ceiling {ceiling:.0f} TFLOP/s", flush=True
    )
    print(
        f"{'engine':12s} {'ms/step':>8s} {'images/s':>9s} {'TFLOP/s':>8s} {'ceiling':>8s} {'GiB':>6s} {'start s':>8s}"
    )
    for name in args.engines.split(","):
        time_engine(name, args, device, ceiling)


def time_engine(name: str, args: argparse.Namespace, device: torch.device, ceiling: float) -> None:
    """One line of the table."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2048, 3, 32, 32), dtype=torch.uint8, generator=generator)
    data = Images(x, torch.randint(10, (2048,), generator=generator)).to(device)
    plan = Plan(
        epochs=1,
        batch_size=args.batch_size,
        lr=0.01,
        augment=Augment(crop_padding=4, flip=True),
        valid_attack=PGD(eps=8 / 255, steps=20, step_size=2 / 255),
    )
    model = make_model(args.model, num_classes=10, in_channels=3)
    state = new_state(model, WAT(torch.ones(10), eta=0.1), plan, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    _, take = prepare_step(state, data, Trades(beta=6.0, attack=trades_attack(eps=8 / 255)), plan, ENGINES[name])
    index = torch.arange(args.batch_size, device=device)
    for _ in range(3):
        take(index)
    _wait(device)
    warm = time.perf_counter()
    for _ in range(args.steps):
        take(index)
    _wait(device)
    seconds = (time.perf_counter() - warm) / args.steps
    rate = args.batch_size * FORWARDS_A_STEP * GFLOP.get(args.model, float("nan")) / seconds / 1e3
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    print(
        f"{name:12s} {1e3 * seconds:8.2f} {args.batch_size / seconds:9.0f} {rate:8.1f} {rate / ceiling:8.1%} "
        f"{memory:6.2f} {warm - started:8.1f}",
        flush=True,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
