"""Randomness as an argument: every draw is a function of (seed, stream, indices), never of global state."""

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worstclass.errors import UserError


def derive_seed(seed: int, stream: str, *indices: int) -> int:
    """A 63-bit seed for one named stream, e.g. `derive_seed(1, "order", epoch)`."""
    words = [seed, zlib.crc32(stream.encode()), *indices]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, stream: str, *indices: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one named stream."""
    return torch.Generator(device).manual_seed(derive_seed(seed, stream, *indices))


@contextmanager
def global_generators(*devices: torch.device) -> Iterator[Callable[[int], None]]:
    """A function that seeds the global generators of the CPU and of these GPUs, the only ones that initialisers and
    dropout know; afterwards they are as they were. `torch.manual_seed` would seed every GPU's, for good."""
    gpus = [device for device in devices if device.type == "cuda"]

    def set_seed(seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            index = torch.cuda.current_device() if gpu.index is None else gpu.index
            torch.cuda.default_generators[index].manual_seed(seed)

    with torch.random.fork_rng(gpus):  # type: ignore[arg-type,unused-ignore]  # torch's stub knows no devices
        yield set_seed


class PerSample:
    """One generator for each sample, so that what a sample draws does not depend on its batch."""

    def __init__(self, seed: int, stream: str, indices: Iterable[int]) -> None:
        self._seed, self._stream = seed, stream
        self.generators = [generator(seed, stream, index) for index in indices]

    def select(self, rows: Iterable[int]) -> "PerSample":
        """The same generators, of some samples."""
        part = copy.copy(self)
        part.generators = [self.generators[row] for row in rows]
        return part

    def shared(self) -> torch.Generator:
        """A generator for what all samples have in common, whichever of them are here."""
        return generator(self._seed, f"{self._stream}/shared")


@dataclass(frozen=True)
class Rows:
    """Some rows of what a generator draws for a batch of `total`: a batch that is split draws what it would whole."""

    generator: torch.Generator
    rows: slice
    total: int


Source = torch.Generator | PerSample | Rows
Randomness = Source | None


def uniform(like: Tensor, source: Source) -> Tensor:
    """Uniform numbers in [0, 1), shaped like `like`."""
    return _draw(torch.rand, like, source)


def normal(like: Tensor, source: Source) -> Tensor:
    """Standard normal numbers, shaped like `like`."""
    return _draw(torch.randn, like, source)


def or_default(source: Randomness, device: torch.device) -> Source:
    """`source`, or a generator of a fixed seed: never the global state, so the same call gives the same answer."""
    return generator(0, "default", device=device) if source is None else source


def _draw(sample: Callable[..., Tensor], like: Tensor, source: Source) -> Tensor:
    if isinstance(source, PerSample):
        if len(source.generators) != len(like):  # one would be stretched over all
            raise UserError(f"{len(source.generators)} generators were given for {len(like)} samples.")
        rows = [sample(like.shape[1:], dtype=like.dtype, generator=g) for g in source.generators]
        return torch.stack(rows).to(like.device)
    if isinstance(source, Rows):
        whole = (source.total, *like.shape[1:])
        return sample(whole, dtype=like.dtype, device=like.device, generator=source.generator)[source.rows]
    return sample(like.shape, dtype=like.dtype, device=like.device, generator=source)
