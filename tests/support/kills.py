"""SIGKILL, again and again, until a job is done."""

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
# Once, not in each process: commands import torch and all that needs it late, the first optimizer the compiler.
FORKS.set_forkserver_preload(["worstclass.sweep.jobs", "torch._dynamo", "pytest", "hypothesis"])


def kill_until_done(
    job: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    wait: float,
    growth: float,
    on_kill: Callable[[], object] = int,
) -> int:
    """Start a job in a process of its own, kill it after `wait` seconds, start it again with `growth` times as many;
    returns how many kills it took. Any other end than done or killed is a failure."""
    kills = 0
    while True:
        process = FORKS.Process(target=job, args=arguments)
        process.start()
        process.join(timeout=wait)
        if process.exitcode is None:
            process.kill()
            kills += 1
        process.join()
        if process.exitcode == 0:
            return kills
        assert process.exitcode == -signal.SIGKILL
        assert kills < 100
        on_kill()
        wait *= growth
