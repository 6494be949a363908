"""Averages of the weights over a run: what is validated, selected and shipped in the place of the raw weights."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from worstclass.stats import ClassStats
from worstclass.types import Classifier, Stateful


class Average(Stateful, Protocol):
    """Weights that follow those of a model: `model` holds them."""

    model: Classifier
    gated: bool  # wants the raw weights' validation table after each epoch

    def follow(self) -> None:
        """After a step, inside of it: nothing may wait for the device."""

    def end_epoch(self, raw: ClassStats | None) -> None:
        """After an epoch, with the validation table of the raw weights if it is `gated`."""


class AverageRule(Protocol):
    """Which average, and its settings."""

    def make(self, model: Classifier) -> Average: ...


@dataclass(frozen=True)
class EMA:
    """An exponential moving average, step by step. Its decay after s steps is at most (1 + s) / (10 + s), so that the
    first weights are soon forgotten."""

    decay: float = 0.999

    def make(self, model: Classifier) -> Average:
        return _StepAverage(model, self.decay)


@dataclass(frozen=True)
class FAWA:
    """CFA's fairness-aware weight average: an exponential moving average, epoch by epoch, over those epochs alone whose
    raw weights hold a worst class of at least `threshold` on validation. Until there is one it is the raw weights."""

    decay: float = 0.85
    threshold: float = 0.2

    def make(self, model: Classifier) -> Average:
        return _GatedAverage(model, self.decay, self.threshold)


@torch.no_grad()
def _move(average: Classifier, model: Classifier, share: Tensor) -> None:
    """Move an average by this share of the way to a model, a tensor so that nothing waits for it.

    BatchNorm's statistics are averaged as weights are; counters are copied. The tensors are looked up each time: a
    model may be laid out anew.
    """
    floats: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    counters: tuple[list[Tensor], list[Tensor]] = ([], [])
    tensors = ([*each.parameters(), *each.buffers()] for each in (average, model))
    for own, live in zip(*tensors, strict=True):
        lists = floats.setdefault(own.dtype, ([], [])) if own.is_floating_point() else counters
        lists[0].append(own)
        lists[1].append(live)
    for dtype, (owns, lives) in floats.items():
        way = torch._foreach_sub(lives, owns)
        torch._foreach_mul_(way, share.to(dtype))  # of another kind of number, it would be a kernel for each tensor
        torch._foreach_add_(owns, way)
    if counters[0]:
        torch._foreach_copy_(*counters)


def _twin(model: Classifier) -> Classifier:
    return copy.deepcopy(model).requires_grad_(False).eval()


def norms_of(model: Classifier) -> list[_BatchNorm]:
    """The BatchNorm layers that keep statistics."""
    return [each for each in model.modules() if isinstance(each, _BatchNorm) and each.running_mean is not None]


@contextmanager
def measuring(model: Classifier, norms: list[_BatchNorm]) -> Iterator[None]:
    """Inside, passes of the model measure the statistics of its `norms` from nothing, each pass as much as any other.

    Statistics that were averaged with the weights are too wide for them: noise cancels out in averaged weights, and
    what they compute varies less than what each of the raw weights did. A layer that no pass has measured, such as one
    that its model keeps frozen, has its statistics back.
    """
    momenta = [norm.momentum for norm in norms]
    before = [[buffer.clone() for buffer in norm.buffers()] for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    try:
        yield
    finally:
        model.eval()
        for norm, momentum, old in zip(norms, momenta, before, strict=True):
            norm.momentum = momentum
            if norm.num_batches_tracked is not None and not int(norm.num_batches_tracked):
                torch._foreach_copy_(list(norm.buffers()), old)


class _StepAverage:
    gated = False

    def __init__(self, model: Classifier, decay: float) -> None:
        self.model, self._live, self._decay = _twin(model), model, decay
        self._steps = torch.zeros((), dtype=torch.int64, device=next(model.parameters()).device)

    def follow(self) -> None:
        steps = self._steps.double()
        decay = ((1 + steps) / (10 + steps)).clamp_max(self._decay)
        _move(self.model, self._live, 1 - decay)
        self._steps += 1

    def end_epoch(self, raw: ClassStats | None) -> None:
        return

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps} | {f"model.{name}": value for name, value in self.model.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _load(self.model, self._steps, state)


class _GatedAverage:
    gated = True

    def __init__(self, model: Classifier, decay: float, threshold: float) -> None:
        self.model, self._live = _twin(model), model
        self._decay, self._threshold = decay, threshold
        self._steps = torch.zeros((), dtype=torch.int64, device=next(model.parameters()).device)

    def follow(self) -> None:
        return

    def end_epoch(self, raw: ClassStats | None) -> None:
        assert raw is not None
        holds = float(raw.mean("robust_correct").min()) >= self._threshold
        if int(self._steps) == 0:
            self.model.load_state_dict(self._live.state_dict())
        elif holds:
            _move(self.model, self._live, torch.tensor(1 - self._decay, dtype=torch.float64, device=self._steps.device))
        self._steps += int(holds)

    @property
    def averaged_epochs(self) -> int:
        """How many it is an average of; 0 where it is the raw weights."""
        return int(self._steps)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps} | {f"model.{name}": value for name, value in self.model.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _load(self.model, self._steps, state)


def _load(model: Classifier, steps: Tensor, state: dict[str, Any]) -> None:
    steps.copy_(state["steps"])
    model.load_state_dict({name.removeprefix("model."): state[name] for name in state if name.startswith("model.")})
