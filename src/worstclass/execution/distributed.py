"""The processes of one job, as torchrun starts them: which one this is, its share of the work, what all agree on."""

import gc
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from worstclass.errors import AttackError, TeamError, TrainingError, UserError
from worstclass.execution.torchrun import team_size
from worstclass.rng import Rows

T = TypeVar("T")
LOST = ("gloo", "NCCL", "TCPStore")  # in what torch raises when a process is gone
PATIENCE = timedelta(days=1)  # of a process that is done with its part of an evaluation


@dataclass(frozen=True)
class Team:
    """Process number `rank` of `size`, number `local_rank` on its machine; `alone`, it exchanges nothing.

    `device` is where tensors are exchanged. What is exchanged are tensors and nothing else.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device | str = "cpu"
    alone: bool = True

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    @property
    def apart(self) -> tuple[int, ...]:
        """What to add to a seed so that the processes draw apart from each other; nothing for the leader."""
        return () if self.leads else (self.rank,)

    def share(self, total: int) -> slice:
        """The rows of a batch that are this process's: consecutive, and as even as can be."""
        return slice(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    def draws(self, generator: torch.Generator, total: int) -> torch.Generator | Rows:
        """The generator as a source for this process's share: every process draws for the whole batch."""
        return generator if self.alone else Rows(generator, self.share(total), total)

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place; the same bits on each."""
        if not self.alone:
            dist.all_reduce(values)
        return values

    def broadcast(self, values: Tensor) -> Tensor:
        """The leader's values, on every process."""
        if self.alone:
            return values
        there = values.to(self.device, copy=True).contiguous()
        dist.broadcast(there, src=0)
        return there.to(values.device)

    def leader_first(self, work: Callable[[], T]) -> T:
        """Let the leader do the work first, then one process of each other machine, then the rest: a download then
        happens once on each machine, or once in all where they share their storage."""
        if self.alone:
            return work()
        turn = 0 if self.leads else 1 if self.local_rank == 0 else 2
        for _ in range(turn):
            self.barrier()
        result = work()
        for _ in range(turn, 2):
            self.barrier()
        return result

    def barrier(self) -> None:
        """Until every process is here."""
        self.all_reduce(torch.zeros(1, device=self.device))

    def check_same(self, text: str, complaint: str) -> None:
        """Raise on every process unless all of them have the same text."""
        own = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.int64)
        different = (self.broadcast(own) != own).any().to(self.device, torch.int64)
        if int(self.all_reduce(different)):
            raise UserError(complaint)


ALONE = Team()


def of_every_process(value: T) -> list[T]:
    """The values of all processes of a job that somebody else has set up, by rank; one's own where there is no such.

    Every process must call this.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@contextmanager
def joined(device: torch.device) -> Iterator[Team]:
    """Meet the other processes, as torchrun's environment says: over NCCL between GPUs, over gloo between CPUs.

    When one of them goes away, the others raise a `TeamError`. Without torchrun a process is alone.
    """
    if team_size() == 1:
        yield ALONE
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    try:
        dist.init_process_group(backend, device_id=device if on_gpu else None, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise TeamError(f"the processes of the job have not met: {str(error).splitlines()[0]}.") from error
    team = Team(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")), device, alone=False)
    try:
        yield team
    except (TrainingError, AttackError):
        raise
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(word in str(error) for word in LOST):
            raise TeamError(
                f"process {team.rank} of {team.size} has lost another one of the job ({str(error).splitlines()[0]}); "
                "what it wrote until then is whole."
            ) from error
        raise
    gc.collect()  # before this was here, two processes in seventy aborted at the interpreter's end; why was never shown
    with suppress(RuntimeError):  # the others may be gone by now; after an error, to say goodbye might wait for them
        dist.destroy_process_group()
