"""Seconds of a piece of work."""

import time
from collections.abc import Callable

import torch

from worstclass.execution.backend import wait


def seconds(work: Callable[[], object], times: int, device: torch.device, *, warm_up: int = 3) -> tuple[float, float]:
    """Seconds each of so many times, and when the clock was started, after the warm-up."""
    for _ in range(warm_up):
        work()
    wait(device)
    started = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - started) / times, started
