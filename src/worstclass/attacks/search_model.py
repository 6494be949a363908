"""The model as a search sees it: the same function, computed faster. What a search finds, the model itself judges."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from worstclass.attacks.folding import fold
from worstclass.execution.backend import Precision, allow_tf32, no_waiting
from worstclass.types import Classifier


@dataclass
class Passes:
    """Images sent forward and backward through a model."""

    forward: int = 0
    backward: int = 0

    def count(self, x: Tensor) -> None:
        """One forward; the backward is counted when it comes."""
        self.forward += len(x)
        if x.requires_grad:
            x.register_hook(self._backward)

    def _backward(self, grad: Tensor) -> None:
        self.backward += len(grad)


class SearchModel(nn.Module):
    """`model`, which is `folded` or as it is; under bfloat16 if asked for."""

    def __init__(self, model: Classifier, *, folded: bool, bf16: bool) -> None:
        super().__init__()
        self.model, self.folded, self.bf16 = model, folded, bf16
        self.passes = Passes()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.count(x)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            logits: Tensor = self.model(x)
        return logits.to(x.dtype)


class Recorded(nn.Module):
    """A view whose forward and backward on images of one shape are replayed as CUDA graphs: a small batch then costs
    what the device needs for it, and not what the host needs to ask. What it returns is valid until it is called again.
    """

    def __init__(self, view: SearchModel, x: Tensor) -> None:
        super().__init__()
        self.view, self.shape = view, x.shape
        example = (x.clone().requires_grad_(),)
        with warnings.catch_warnings():  # it warms up and records on streams of its own, and warns of that
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
            graphs: Any = torch.cuda.make_graphed_callables(lambda x: view(x), example)
        self.replay: Callable[[Tensor], Tensor] = graphs

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.shape == self.shape:
            return self.replay(x)
        logits: Tensor = self.view(x)
        return logits


class Strict(nn.Module):
    """The model in strict float32, whatever a search has allowed itself."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model, self.passes = model, Passes()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.count(x)
        with allow_tf32(False):
            logits: Tensor = self.model(x)
            return logits


def search_model(model: Classifier, x: Tensor, *, precision: Precision = "fp32", as_it_is: bool = False) -> SearchModel:
    """A faster view of a model in evaluation mode: BatchNorm folded into convolutions, channels last.

    A model that cannot be traced, that draws at random, or whose traced copy has other logits or other gradients on
    `x`, is used `as_it_is`. On a GPU what follows a convolution is part of it, in bfloat16.
    """
    bf16 = precision == "bf16"
    dtype = torch.bfloat16 if bf16 else None
    folded = None if as_it_is else fold(model, x, dtype=dtype, fuse=x.is_cuda)
    if folded is None and not as_it_is and x.is_cuda:  # perhaps only a fused kernel is missing
        folded = fold(model, x, dtype=dtype)
    return SearchModel(folded or model, folded=folded is not None, bf16=bf16)


def recorded(view: SearchModel, x: Tensor) -> Classifier:
    """The view, recorded for images of this shape where that can be done: on a GPU, folded, by a model that never
    waits. One that is used as it is may draw at random, and a recording would freeze the draw."""
    if not x.is_cuda or not view.folded:
        return view
    try:
        with no_waiting():
            view(x)
        return Recorded(view, x)
    except RuntimeError:
        return view
