"""How a step is executed: as it is, or compiled and captured as one CUDA graph. What it computes is in step.py."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from worstclass.errors import UserError
from worstclass.train.step import TrainStep
from worstclass.types import Classifier

Precision = Literal["fp32", "tf32", "bf16"]
WARM_UP_STEPS = 3


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


@dataclass(frozen=True, kw_only=True)
class Engine:
    """`fast` compiles the forwards and replays the whole step as one CUDA graph; it needs a GPU."""

    fast: bool = False
    precision: Precision = "fp32"

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.fast else torch.contiguous_format

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """bfloat16 inside, if asked for; the networks keep their heads in full precision."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)

    def forwards(self, model: Classifier) -> tuple[Classifier, Classifier]:
        """The model as the losses see it, and as attacks see it."""
        if not self.fast:
            return model, model
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        compiled, attacked = torch.compile(model), torch.compile(Frozen(model))
        return compiled, attacked  # type: ignore[return-value]  # compiled modules are modules

    def set_up(self, device: torch.device) -> None:
        """Set what torch keeps globally: TF32 matrix products, or strict float32."""
        if device.type == "cuda":
            allowed = self.precision != "fp32"
            torch.backends.cuda.matmul.allow_tf32 = allowed
            torch.backends.cudnn.allow_tf32 = allowed
            torch.backends.cudnn.benchmark = self.fast

    def prepare(self, step: TrainStep, batch_size: int) -> Callable[[Tensor], None]:
        """The step itself, or its capture: called with the indices of a batch either way."""
        if not self.fast:
            return step
        if step.data.y.device.type != "cuda":
            raise UserError("the fast engine needs a GPU; use the eager one here.")
        return Captured(step, batch_size)


class Captured:
    """A step recorded once as a CUDA graph and replayed: no launch costs, no Python.

    Class weights, margins and the learning rate are tensors that the graph reads, so they change without a new
    capture. Warming up takes real steps; everything they touched is put back.
    """

    def __init__(self, step: TrainStep, batch_size: int) -> None:
        self._index = torch.zeros(batch_size, dtype=torch.int64, device=step.data.y.device)
        self._index.copy_(torch.arange(batch_size) % len(step.data))
        state = _everything(step)
        before = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                step(self._index)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(step.generator)
        step.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self._graph):
            step(self._index)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    def __call__(self, index: Tensor) -> None:
        self._index.copy_(index)
        self._graph.replay()


def _everything(step: TrainStep) -> list[Tensor]:
    """All that a step writes: weights, buffers, momenta (made here if need be), statistics."""
    momenta = []
    for parameter in step.model.parameters():
        state = step.optimizer.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momenta.append(state["momentum_buffer"])
    with torch.no_grad():
        weights = [parameter.detach() for parameter in step.model.parameters()]
    return [*weights, *step.model.buffers(), *momenta, step.stats.table]
