"""Optimizers: torch's, fused, each by a small class; their state as named tensors whose storage never changes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from worstclass.errors import UserError
from worstclass.types import Classifier


class OptimizerRule(Protocol):
    """Which of torch's optimizers, and its settings. Its state is for each parameter the tensors that `like_weights`
    names, and the numbers that `counters` names; all start at zero."""

    @property
    def like_weights(self) -> tuple[str, ...]: ...

    @property
    def counters(self) -> tuple[str, ...]: ...

    def make(self, parameters: Iterable[Tensor], lr: Tensor) -> torch.optim.Optimizer: ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum, Nesterov's or not."""

    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 2e-4

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise UserError("nesterov needs a momentum above 0.")

    @property
    def like_weights(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def counters(self) -> tuple[str, ...]:
        return ()

    def make(self, parameters: Iterable[Tensor], lr: Tensor) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay."""

    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 2e-4

    @property
    def like_weights(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @property
    def counters(self) -> tuple[str, ...]:
        return ("step",)

    def make(self, parameters: Iterable[Tensor], lr: Tensor) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameters,
            lr=lr,
            betas=self.betas,
            weight_decay=self.weight_decay,
            fused=True,
            capturable=lr.is_cuda,
        )


class Optimizer:
    """An optimizer over the named parameters of a model, whose learning rate is a tensor that a graph can read.

    With `clip` gradients whose total norm is larger are scaled down to it before a step. The state is there from the
    start: zeros, with which the first step is what it would be without.
    """

    def __init__(self, model: Classifier, rule: OptimizerRule, lr: float, clip: float | None = None) -> None:
        self._parameters, self._rule, self.clip = dict(model.named_parameters()), rule, clip
        device = next(iter(self._parameters.values())).device
        self.lr, self._lr = torch.tensor(lr, device=device), lr
        self.inner = rule.make(self._parameters.values(), self.lr)
        for parameter in self._parameters.values():
            state = self.inner.state[parameter]
            state |= {name: torch.zeros_like(parameter) for name in rule.like_weights}
            state |= {name: torch.zeros((), device=device) for name in rule.counters}

    def lay_out(self) -> None:
        """Lay the state out in memory as the weights are now: a fused step goes through both side by side."""
        for parameter in self._parameters.values():
            state = self.inner.state[parameter]
            for name in self._rule.like_weights:
                state[name] = torch.zeros_like(parameter).copy_(state[name])

    def set_lr(self, lr: float) -> None:
        """The rate of the steps to come."""
        if lr != self._lr:
            self.lr.fill_(lr)
            self._lr = lr

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        """Descend by the gradients that are there."""
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), self.clip)
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return {
            f"{name}.{key}": value
            for name, parameter in self._parameters.items()
            for key, value in self.inner.state[parameter].items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])
