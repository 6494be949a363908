"""How a step is executed: as it is, or compiled and captured as one CUDA graph, in which precision. What it computes is
in step.py."""

import hashlib
import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from worstclass.attacks import conv_relu
from worstclass.attacks.folding import fold
from worstclass.errors import UserError
from worstclass.execution.backend import (
    Precision,
    allow_tf32,
    aside,
    compiling,
    no_waiting,
    on,
    quiet_compiler,
    setting,
)
from worstclass.models import sync_batchnorm
from worstclass.types import Classifier, Losses, Objective

WARM_UP_STEPS = 3
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
NOT_SUPPORTED = "the fast engine is deterministic from torch 2.10 on; here the eager one is (--engine eager)."
RECOMPILE_LIMIT = 256  # of one function in a process; torch's own, 8, is used up by a few runs
OPERATIONS = (conv_relu, sync_batchnorm)  # modules with operations of our own
OURS = ("worstclass.", "torch.nn.")  # what is defined there has no operations but those and torch's
LEAVING_AUTOCAST = ("torch.amp.autocast_mode._enter_autocast", "torch.amp.autocast_mode._exit_autocast")
LossesOf = Callable[[Tensor, Tensor, Tensor], Losses]  # of images, attacked images and labels


class Frozen(nn.Module):
    """The same classifier, its parameters (same storage) without gradients: what an attack needs, and no more.

    A compiled backward computes every gradient its inputs ask for; through this view it stops at the images.
    """

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        parameters = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        logits: Tensor = functional_call(self.model, parameters, (x,))
        return logits


class OutsideAutocast(nn.Module):
    """The same classifier in its own precision: bfloat16 would round the images and mislead attacks."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            logits: Tensor = self.model(x)
            return logits


class OneGraph(nn.Module):
    """A compiled classifier as one graph for calls with and without gradients.

    It is always called for its gradient, which is dropped where none is asked for: compiling it again takes seconds.
    """

    def __init__(self, model: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        wanted = x.requires_grad and torch.is_grad_enabled()
        with torch.enable_grad():
            logits = self.model(x if wanted else x.detach().requires_grad_())
        return logits if wanted else logits.detach()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """`fast` compiles the forwards and replays the whole step as one CUDA graph; it needs a GPU.

    `deterministic` gives the same bits each time on the same kind of machine, and costs speed.
    """

    fast: bool = False
    precision: Precision = "fp32"
    deterministic: bool = False

    @property
    def supported(self) -> bool:
        """Whether this torch can do it: kernels that are compiled can be chosen without measuring from 2.10 on."""
        return not (self.fast and self.deterministic) or hasattr(_compiler(), "deterministic")

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.fast else torch.contiguous_format

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """bfloat16 inside, if asked for; the networks keep their heads in full precision."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)

    @contextmanager
    def context(self, device: torch.device) -> Iterator[None]:
        """The same, small functions compiled: that takes seconds for each, and is for work done many thousand times."""
        with self.autocast(device), compiling(self.fast):
            yield

    def losses(self, model: Classifier, objective: Objective) -> LossesOf:
        """The losses of a batch."""

        def losses(x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
            return objective.losses(model, x, x_adv, y)

        if not self.fast:
            return losses
        keep_traces(model, objective)
        return torch.compile(losses, dynamic=False)

    def attacked(
        self,
        model: Classifier,
        x: Tensor,
        *,
        on_fallback: Callable[[str], None] = warnings.warn,
    ) -> Callable[[], Classifier]:
        """A function that gives the model as attacks see it now; `x` are a few images.

        Attacks see it in evaluation mode; for speed, and in bfloat16 so as not to round the images, it is folded where
        it can be, anew whenever it is asked for.
        """
        low = torch.bfloat16 if self.precision == "bf16" else None
        if not self.fast and low is None:
            return lambda: model
        x = x.contiguous(memory_format=self.memory_format)
        folded = fold(model.eval(), x, dtype=low, fuse=self.fast)
        if folded is None and self.fast:  # perhaps only a fused kernel is missing
            folded = fold(model, x, dtype=low)
        cause = "" if folded else "this model cannot be folded, and "
        rounds = low is not None and not (folded and folded.whole)
        folded = None if rounds else folded
        attacked = folded or (Frozen(model) if self.fast else model)
        if rounds and all(p.dtype.itemsize >= 4 for p in model.parameters()):
            attacked = OutsideAutocast(attacked)
            on_fallback(
                f"{cause}bf16 would round its images: attacks in training compute in the model's own precision."
            )
        refresh = folded.refresh if folded else lambda: None
        if self.fast:
            attacked = OneGraph(torch.compile(attacked, dynamic=False))
            refresh = torch.compile(refresh, dynamic=False) if folded else refresh

        def fresh() -> Classifier:
            refresh()
            return attacked

        return fresh

    @contextmanager
    def settings(self, device: torch.device) -> Iterator[None]:
        """What torch keeps globally, as this engine needs it while it prepares and takes steps: the current GPU, TF32
        matrix products or strict float32, how it compiles, determinism; afterwards as it was."""
        if not self.supported:
            raise UserError(NOT_SUPPORTED)
        with ExitStack() as stack:
            if self.fast:
                dynamo: Any = importlib.import_module("torch._dynamo.config")
                name = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # before 2.7
                stack.enter_context(setting(dynamo, name, max(getattr(dynamo, name), RECOMPILE_LIMIT)))
            if device.type == "cuda":
                stack.enter_context(on(device))  # graphs are captured and replayed on the current one
                stack.enter_context(allow_tf32(self.precision != "fp32"))
                if self.deterministic:
                    stack.enter_context(determinism())
            yield

    def prepare(
        self,
        work: Callable[[Tensor], None],
        sizes: Sequence[int],
        touched: Sequence[Tensor],
        generator: torch.Generator,
    ) -> Callable[[Tensor], None]:
        """The work on the indices of a batch itself, or its capture for batches of these sizes."""
        if not self.fast:
            return work
        if generator.device.type != "cuda":
            raise UserError("the fast engine needs a GPU; use the eager one here.")
        with setting(torch.backends.cudnn, "benchmark", not self.deterministic), quiet_compiler():
            return Captured(work, sizes, touched, generator)


@contextmanager
def determinism() -> Iterator[None]:
    """Algorithms that give the same bits each time, of torch, cuDNN and, where it can, the compiler; afterwards as it
    was."""
    algorithms = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    asked_for = os.environ.get(CUBLAS)
    with ExitStack() as stack:
        stack.enter_context(setting(torch.backends.cudnn, "benchmark", False))
        stack.enter_context(setting(torch.backends.cudnn, "deterministic", True))
        if hasattr(_compiler(), "deterministic"):
            stack.enter_context(setting(_compiler(), "deterministic", True))  # kernels are chosen without measuring
        os.environ.setdefault(CUBLAS, ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(algorithms, warn_only=only_warns)
            if asked_for is None:
                os.environ.pop(CUBLAS, None)


def keep_traces(model: Classifier, objective: Objective) -> None:
    """Let a later process find what is traced now.

    Whether it has a graph already torch asks by the names of the operations in it. The code of ours, whose
    gradients it traced, may have changed since: it is made part of the key, and where it cannot be, no graph is kept.
    From 2.12 on torch keeps none that leaves autocast, as a `Head` does, unless told to; it is told so of models that
    are ours throughout.
    """
    compiler = _compiler()
    try:
        marked = compiler.unsafe_marked_cacheable_functions
        code = hashlib.sha256("".join(map(inspect.getsource, OPERATIONS)).encode()).hexdigest()
    except (AttributeError, OSError):  # torch before 2.8, or we are installed without our source
        tracing: Any = importlib.import_module("torch._functorch.config")
        tracing.enable_autograd_cache = compiler.fx_graph_cache = False
        return
    ours = all(type(part).__module__.startswith(OURS) for part in (*model.modules(), objective))
    others = {k: v for k, v in marked.items() if k not in LEAVING_AUTOCAST}
    compiler.unsafe_marked_cacheable_functions = (
        others | {"worstclass": code} | (dict.fromkeys(LEAVING_AUTOCAST, code) if ours else {})
    )


def _compiler() -> Any:
    """The settings of torch's compiler; importing it takes a second, and eager runs do without."""
    return importlib.import_module("torch._inductor.config")


class Captured:
    """Work on a batch, recorded once for each size as a CUDA graph and replayed: no launch costs, no Python.

    Class weights, radii and the learning rate are tensors that the graph reads, so they change without a new
    capture. Warming up does the work for real; all that it `touched` is put back. Work that waits for the device
    cannot be captured: it raises, before anything is recorded. A graph writes to the memory of what it recorded without
    keeping it, so the work is kept here: memory given back would soon be somebody else's.
    """

    def __init__(
        self,
        work: Callable[[Tensor], None],
        sizes: Sequence[int],
        touched: Sequence[Tensor],
        generator: torch.Generator,
    ) -> None:
        self._work = work
        before = [tensor.clone() for tensor in touched]
        try:
            self._graphs = {size: self._record(work, size, generator) for size in sizes}
        finally:
            torch.cuda.synchronize()  # a warm-up that failed may still be running
            for tensor, value in zip(touched, before, strict=True):
                tensor.copy_(value)

    def __call__(self, index: Tensor) -> None:
        static, graph = self._graphs[len(index)]
        static.copy_(index)
        graph.replay()

    @staticmethod
    def _record(
        work: Callable[[Tensor], None], size: int, generator: torch.Generator
    ) -> tuple[Tensor, torch.cuda.CUDAGraph]:
        index = torch.arange(size, device=generator.device)
        with aside(generator.device):
            for _ in range(WARM_UP_STEPS - 1):
                work(index)
            with no_waiting():
                work(index)
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                work(index)
        return index, graph
