"""The model as a search sees it: the same function, computed faster. What a search finds, the model itself judges."""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from worstclass.attacks.lanes import predict
from worstclass.models.normalization import Head
from worstclass.types import Classifier

SearchPrecision = Literal["fp32", "tf32", "bf16"]
SAME = 1e-3  # of the largest logit: folding moves roundings, never decisions


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
    """Matrix products of a GPU in TF32, or in strict float32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def search_view(model: Classifier, x: Tensor, *, precision: SearchPrecision = "fp32") -> View:
    """A faster view of a model in evaluation mode: BatchNorm folded into convolutions, the better memory format.

    A model that cannot be traced, or whose traced copy answers otherwise on `x` (it draws at random, say), is used as
    it is. On a CPU only forwards without gradients use channels_last: its backward was measured slower there.
    """
    bf16 = precision == "bf16"
    folded = _folded(model)
    if folded is None or not _agree(model, folded, x):
        return View(model, model, own_format=True, bf16=bf16)
    plain = folded
    if not x.is_cuda:
        plain = _folded(model) or folded
    plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    return View(folded, plain, own_format=False, bf16=bf16)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Head) or super().is_leaf_module(m, module_qualified_name)


def _folded(model: Classifier) -> Classifier | None:
    """A copy with BatchNorm folded into the convolution before it, without gradients of its own."""
    model = copy.deepcopy(model).requires_grad_(False)
    try:
        graph = _Tracer().trace(model)
    except Exception:  # tracing runs the model's code on stand-ins: what it raises there is anybody's guess
        return None
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
    with allow_tf32(False):
        logits, others = predict(model, x), predict(other, x)
    return bool((logits - others).abs().max() <= SAME * logits.abs().max())
