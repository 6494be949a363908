"""How things are computed, not what: precision of matrix products, small functions compiled, waiting as an error."""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

from worstclass.names import Precision as Precision

P = ParamSpec("P")
R = TypeVar("R")
_compiling = ContextVar("compiling", default=False)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function of a few small operations: one kernel inside `compiling`, and itself elsewhere."""

    @functools.cache
    def fast() -> Callable[P, R]:  # when first needed: importing the compiler takes a second
        return torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling() or not _compiling.get():  # inside a larger function it is part of it
            return function(*args, **kwargs)
        return fast()(*args, **kwargs)

    return either


@contextmanager
def compiling(enabled: bool = True) -> Iterator[None]:
    """Let `compiled` functions be compiled."""
    token = _compiling.set(enabled)
    try:
        yield
    finally:
        _compiling.reset(token)


@contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Matrix products of a GPU in TF32, or in strict float32; afterwards as it was."""
    before = [getattr(part, name) for part, name, _ in _switches(allowed)]
    set_tf32(allowed)
    try:
        yield
    finally:
        for (part, name, _), value in zip(_switches(allowed), before, strict=True):
            setattr(part, name, value)


def set_tf32(allowed: bool) -> None:
    """The same, for good."""
    for part, name, value in _switches(allowed):
        setattr(part, name, value)


def _switches(allowed: bool) -> list[tuple[Any, str, Any]]:
    """What to set, and to what."""
    cudnn: Any = torch.backends.cudnn
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        value = "tf32" if allowed else "ieee"
        return [(part, "fp32_precision", value) for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    return [(part, "allow_tf32", allowed) for part in (torch.backends.cuda.matmul, cudnn)]  # torch before 2.9


@contextmanager
def measuring(enabled: bool) -> Iterator[None]:
    """Let cuDNN choose convolutions by measuring them, once for each shape; afterwards as it was."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Without the compiler's remarks on code that it leaves to Python, unless somebody has asked for its log; and
    without its advice to compute in another precision than was asked for."""
    log = logging.getLogger("torch._dynamo.variables")
    before = log.level
    if log.getEffectiveLevel() == logging.WARNING:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
            yield
    finally:
        log.setLevel(before)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: graphs are captured and replayed on that."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Work on another stream of a GPU, in order with what comes before and after: only there can it be captured."""
    stream = _side_stream(torch.cuda.current_device() if device.index is None else device.index)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:  # one for all work: memory is kept for each stream apart
    return torch.cuda.Stream(index)


def wait(device: torch.device) -> None:
    """Until a GPU has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Raise where the host would wait for the device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
