"""The model as a search sees it: the same function, computed faster. What a search finds, the model itself judges."""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from worstclass.attacks.lanes import predict
from worstclass.models.normalization import Head
from worstclass.types import Classifier

SearchPrecision = Literal["fp32", "tf32", "bf16"]
SAME = 1e-3  # of the largest value: folding moves roundings, and what it finds is judged by the model itself
TRIED_IMAGES, TRIED_DRAWS = 16, 8  # to find out whether a view is the same function


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


class View(nn.Module):
    """`graded` where gradients are wanted, `plain` elsewhere; under bfloat16 if asked for."""

    def __init__(self, graded: Classifier, plain: Classifier, *, own_format: bool, bf16: bool) -> None:
        super().__init__()
        self.graded, self.plain, self.own_format, self.bf16 = graded, plain, own_format, bf16
        self.passes = Passes()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.count(x)
        wants_grad = torch.is_grad_enabled()
        if not self.own_format and (x.is_cuda or not wants_grad):
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            logits: Tensor = (self.graded if wants_grad else self.plain)(x)
        return logits.to(x.dtype)


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


@contextmanager
def allow_tf32(allowed: bool) -> Iterator[None]:
    """Matrix products of a GPU in TF32, or in strict float32; afterwards as it was."""
    cudnn: Any = torch.backends.cudnn
    switches: list[tuple[Any, str, Any]]
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        value = "tf32" if allowed else "ieee"
        switches = [(part, "fp32_precision", value) for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]
    else:  # torch before 2.9
        switches = [(part, "allow_tf32", allowed) for part in (torch.backends.cuda.matmul, cudnn)]
    before = [getattr(part, name) for part, name, _ in switches]
    for part, name, value in switches:
        setattr(part, name, value)
    try:
        yield
    finally:
        for (part, name, _), value in zip(switches, before, strict=True):
            setattr(part, name, value)


def search_view(model: Classifier, x: Tensor, *, precision: SearchPrecision = "fp32", as_it_is: bool = False) -> View:
    """A faster view of a model in evaluation mode: BatchNorm folded into convolutions, the better memory format.

    A model that cannot be traced, that draws at random, or whose traced copy has other logits or other gradients on
    `x`, is used `as_it_is`. On a CPU only forwards without gradients use channels_last: its backward was measured
    slower there.
    """
    bf16 = precision == "bf16"
    folded = None if as_it_is else _try_to_fold(model, x[:TRIED_IMAGES])
    if folded is None:
        return View(model, model, own_format=True, bf16=bf16)
    plain = folded if x.is_cuda else copy.deepcopy(folded)
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return View(folded, plain, own_format=False, bf16=bf16)


def _try_to_fold(model: Classifier, x: Tensor) -> Classifier | None:
    """The folded copy, if there is one and it is the same function."""
    try:
        with allow_tf32(False):
            folded = _folded(model)
            return folded if _agree(model, folded, x) else None
    except Exception:  # tracing and copying run the model's code on stand-ins: what it raises is anybody's guess
        return None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Head) or super().is_leaf_module(m, module_qualified_name)


def _folded(model: Classifier) -> Classifier:
    """A copy with BatchNorm folded into the convolution before it, without gradients of its own."""
    model = copy.deepcopy(model).requires_grad_(False)
    graph = _Tracer().trace(model)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in list(graph.nodes):
        before = node.args[0] if node.args else None
        if not (isinstance(before, fx.Node) and node.op == before.op == "call_module" and len(before.users) == 1):
            continue
        convolution, norm = model.get_submodule(str(before.target)), model.get_submodule(str(node.target))
        if not (isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats):
            continue
        if calls[before.target] == calls[node.target] == 1:
            model.set_submodule(str(before.target), fuse_conv_bn_eval(convolution, norm))
            node.replace_all_uses_with(before)
            graph.erase_node(node)
    return fx.GraphModule(model, graph)


def _agree(model: Classifier, other: Classifier, x: Tensor) -> bool:
    """The same logits, draw after draw, and the same gradients: a trace goes through a custom backward unseen."""
    logits = predict(other, x)
    if not all(_close(predict(model, x), logits) for _ in range(TRIED_DRAWS)):
        return False
    weights = torch.linspace(-1, 1, logits.shape[1], dtype=logits.dtype, device=logits.device)
    return _close(*(_slope(each, x, weights) for each in (model, other)))


def _slope(model: Classifier, x: Tensor, weights: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad((model(x) * weights).sum(), x)
    return slope


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= SAME * one.abs().max())
