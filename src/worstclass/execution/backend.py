"""How things are computed, not what: precision of matrix products, small functions compiled, waiting as an error."""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

from worstclass.inputs.names import Precision as Precision

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
def setting(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A setting of torch's with another value; afterwards as it was. `cudnn.benchmark` lets cuDNN choose convolutions
    by measuring them, once for each shape."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Matrix products of a GPU in TF32, or in strict float32; afterwards as it was."""
    _hear_of_the_old_switches()
    with _tf32(allowed):
        yield


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """From 2.9 on torch has these switches twice, and reading an old one raises where a new one contradicts it. Both
    are set, so that whoever looks can read either."""
    backends: Any = torch.backends
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    places = (cudnn, "conv"), (cudnn, "rnn"), (backends.mkldnn, "matmul")
    parts = [matmul, *(getattr(*place, None) for place in places)]
    news = [(part, part.fp32_precision) for part in parts if hasattr(part, "fp32_precision")]
    olds = _readable(torch.get_float32_matmul_precision), _readable(lambda: bool(cudnn.allow_tf32))
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    for part, _ in news[:3]:  # the old ones may leave it to a setting for all of torch
        part.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:  # one that could not be read was the opposite of the new one
        torch.set_float32_matmul_precision(olds[0] or ("highest" if news[0][1] == "tf32" else "high"))
        cudnn.allow_tf32 = news[1][1] != "tf32" if olds[1] is None else olds[1]
        for part, value in news:  # a CPU's too: the first line has set it
            part.fp32_precision = value


@functools.cache
def _hear_of_the_old_switches() -> None:
    """Once in a process torch 2.9 and later may warn of those that 2.8 has not replaced yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use the new API settings")
        with _tf32(False):
            pass


def _readable(read: Callable[[], R]) -> R | None:
    """What a switch says, unless reading it raises."""
    try:
        return read()
    except RuntimeError:
        return None


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
