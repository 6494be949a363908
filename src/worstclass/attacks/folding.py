"""A model in evaluation mode as the same function in fewer operations, for attacks, which call it by the hundred.

BatchNorm is folded into the convolution before it, and the first convolution, in bfloat16, takes images in two parts
so that it does not round them. The folded weights are copies: `refresh` makes them anew from the model, which goes on
training. In bfloat16 on a GPU the bias, a sum and a ReLU after a convolution can be part of it too.
"""

import copy
import operator
from collections import Counter
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from worstclass.attacks.active_set import predict
from worstclass.attacks.conv_relu import fused_conv
from worstclass.execution.backend import allow_tf32
from worstclass.models.layers import AverageTo, ImageConv2d, conv2d
from worstclass.models.normalization import Head
from worstclass.models.sync_batchnorm import SYNCED, SyncedBatchNorm2d
from worstclass.types import Classifier

SAME_LOGITS = 1e-3  # of the largest: folding moves roundings, and what it finds is judged by the model itself
SAME_SLOPE = (
    0.05  # of each image's own: a ReLU at its corner turns a rounding into a little of it, a lost backward into all
)
TRIED_IMAGES, TRIED_DRAWS = 16, 8  # to find out whether a folded model is the same function
ADDS = {operator.add, torch.add}
RELUS = {F.relu, torch.relu, F.relu_, torch.relu_}


def fold(model: Classifier, x: Tensor, *, dtype: torch.dtype | None = None, fuse: bool = False) -> "Folded | None":
    """The folded model, its convolutions in `dtype`, and if `fuse`, what follows them part of them.

    None if the model cannot be traced, or the result does not run or is not the same function on `x`: a model that
    draws at random, or whose traced copy has other gradients. It is expected in evaluation mode.
    """
    x = x[:TRIED_IMAGES]
    try:
        with allow_tf32(False):
            for tried, seen in ((model, x), _shaken(model, x)):  # an untrained model may hide what it does behind zeros
                if not _agree(tried, Folded(tried, seen, fuse=fuse), seen):
                    return None
            folded = Folded(model, x, dtype=dtype, fuse=fuse)
            if fuse and x.is_cuda:  # not every convolution has a fused kernel
                with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                    _slope(folded, x, x.new_ones(()))
            return folded
    except Exception:  # tracing and copying run the model's code on stand-ins: what it raises is anybody's guess
        return None


class Folded(nn.Module):
    """The folded function. Everything but the convolutions shares its parameters with the model, without gradients.

    `whole` says that nothing rounds the images.
    """

    def __init__(self, model: Classifier, x: Tensor, *, dtype: torch.dtype | None = None, fuse: bool = False) -> None:
        super().__init__()
        shared = _shared_copy(model)
        graph = _Tracer().trace(shared)
        _take_any_layout(graph)
        _fold_norms(graph, model, shared, dtype)
        if fuse:
            with torch.no_grad(), torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
                three = x[:1].expand(3, *x.shape[1:])  # of one image, a constant for all has the shape
                _Shapes(fx.GraphModule(shared, graph)).run(three)
            _fuse_ends(graph, shared)
        self.module = fx.GraphModule(shared, graph)
        self.whole = dtype is None or _takes_images_in_two(graph, shared)
        self.convolutions = [part for part in self.module.modules() if isinstance(part, FoldedConv)]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x.contiguous(memory_format=torch.channels_last))
        return logits

    @torch.no_grad()
    def refresh(self) -> None:
        """Fold the model's weights as they are now."""
        for convolution in self.convolutions:
            convolution.refresh()


class FoldedConv(nn.Module):
    """A convolution with the BatchNorm after it folded in; called with what to add and whether a ReLU follows."""

    weight: Tensor
    bias: Tensor

    def __init__(
        self, convolution: nn.Conv2d, norm: nn.BatchNorm2d | None, dtype: torch.dtype | None, *, of_images: bool = False
    ) -> None:
        super().__init__()
        self._source = (convolution, norm)  # in a tuple: the model's parts are not parts of this one
        self.in_two = of_images and dtype == torch.bfloat16 and convolution.groups == 1
        like = self._for_parts(convolution.weight)
        weight = torch.empty_like(like, dtype=dtype or like.dtype, memory_format=torch.channels_last)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", weight.new_zeros(len(weight)))
        self.geometry = (
            list(convolution.stride),
            [int(side) for side in convolution.padding],
            list(convolution.dilation),
        )
        self.groups = convolution.groups
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        convolution, norm = self._source
        weight, bias = convolution.weight, convolution.bias
        if norm is None:
            self.weight.copy_(self._for_parts(weight))
            if bias is not None:
                self.bias.copy_(bias)
            return
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean if bias is None else bias - norm.running_mean
        self.weight.copy_(self._for_parts(weight * scale.view(-1, 1, 1, 1)))
        self.bias.copy_(shift * scale if norm.bias is None else shift * scale + norm.bias)

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        x = in_two_parts(x) if self.in_two else x
        stride, padding, dilation = self.geometry
        if relu and x.is_cuda and self.weight.dtype == torch.bfloat16:
            add = None if add is None else add.to(torch.bfloat16)
            return fused_conv(x.to(torch.bfloat16), self.weight, self.bias, add, stride, padding, dilation, self.groups)
        convolve = conv2d if torch.is_grad_enabled() else F.conv2d  # ours is for the gradient to grey images
        out = convolve(x, self.weight, self.bias, stride, padding, dilation, self.groups)
        out = out if add is None else out + add
        return out.relu() if relu else out

    def _for_parts(self, weight: Tensor) -> Tensor:
        """The weights for the input as `forward` takes it."""
        return _padded(torch.cat([weight, weight], 1)) if self.in_two else weight


def in_two_parts(x: Tensor) -> Tensor:
    """Images (B, C, H, W) in bfloat16, the bits that it cuts off as more channels, to 2^-17 of each pixel.

    Rounded pixels mislead the attack of TRADES. k/255 repeats the eight bits of k, and bfloat16 keeps eight: the next
    is a one, so that every pixel of a clean image is rounded up. The noise at the start next to it dithers that away;
    the start is darker than the image as seen, evenly so, and KL, nearly even around an image, is climbed on that side.
    """
    whole = x.detach().float()
    low = whole - (whole.view(torch.int32) & -0x10000).view(torch.float32)  # a compiler would cancel out two casts
    return _padded(torch.cat([x - low, low], 1).to(torch.bfloat16))


def _padded(x: Tensor) -> Tensor:
    """Channels of zeros up to a multiple of eight, as GPUs want them in bfloat16."""
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % 8))


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (AverageTo, Head, ImageConv2d, *SYNCED.values())) or super().is_leaf_module(
            m, module_qualified_name
        )


class _Shapes(fx.Interpreter):
    """Notes the shape of each value in its node."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["shape"] = value.shape if isinstance(value, Tensor) else None
        return value


def _shared_copy(model: Classifier) -> Classifier:
    """A copy of the modules around the same tensors: what training writes in place, the copy sees."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    return copy.deepcopy(model, memo).eval()


def _take_any_layout(graph: fx.Graph) -> None:
    """`view` raises where channels come last; `reshape` is the same function of any layout."""
    for node in graph.nodes:
        if node.op == "call_method" and node.target == "view" and not node.kwargs:
            node.target = "view" if isinstance(node.args[-1], torch.dtype) else "reshape"


def _fold_norms(graph: fx.Graph, model: Classifier, shared: Classifier, dtype: torch.dtype | None) -> None:
    """Put a `FoldedConv` in the place of each convolution, and of the BatchNorm that alone follows it."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in list(graph.nodes):
        convolution = _module(node, model)
        if not _is_convolution(convolution) or calls[node.target] > 1 or _hooked(convolution):
            continue
        if convolution.padding_mode != "zeros" or isinstance(convolution.padding, str):
            continue
        after = next(iter(node.users)) if len(node.users) == 1 else None
        norm = _module(after, model) if after is not None and calls[after.target] == 1 else None
        if not (_is_norm(norm) and norm.running_var is not None and not _hooked(norm)):
            norm = None
        of_images = all(_is_image(source, shared) for source in node.all_input_nodes)
        shared.set_submodule(str(node.target), FoldedConv(convolution, norm, dtype, of_images=of_images))
        if norm is not None:
            assert after is not None
            after.replace_all_uses_with(node)
            graph.erase_node(after)


def _fuse_ends(graph: fx.Graph, shared: Classifier) -> None:
    """Make relu(conv(x)) and relu(conv(x) + z) one call of the convolution, z being of its shape."""
    for relu in list(graph.nodes):
        last = relu.args[0] if relu.args and _is_relu(relu, shared) else None
        if not isinstance(last, fx.Node) or len(last.users) > 1:
            continue
        sums = last.op == "call_function" and last.target in ADDS and not last.kwargs
        pairs: list[tuple[Any, Any]] = [(last.args[0], last.args[1]), (last.args[1], last.args[0])] if sums else []
        for convolution, other in pairs or [(last, None)]:
            if _fusible(convolution, other, shared):
                with graph.inserting_before(relu):
                    arguments = (convolution.args[0], other)
                    fused = graph.call_module(str(convolution.target), arguments, {"relu": True})
                fused.meta = relu.meta
                relu.replace_all_uses_with(fused)
                for node in dict.fromkeys((relu, last, convolution)):
                    graph.erase_node(node)
                break


def _fusible(convolution: Any, other: Any, shared: Classifier) -> bool:
    """Whether `convolution` is one, with nothing fused to it and no other user, and `other` is nothing or as large."""
    if not (isinstance(convolution, fx.Node) and isinstance(_module(convolution, shared), FoldedConv)):
        return False
    if len(convolution.users) > 1 or len(convolution.args) != 1 or other is convolution:
        return False
    return other is None or (isinstance(other, fx.Node) and other.meta["shape"] == convolution.meta["shape"])


def _is_image(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node is the images, or made of them by nothing that has weights."""
    if node.op == "placeholder":
        return True
    return not _weighs(node, root) and any(_is_image(source, root) for source in node.all_input_nodes)


def _weighs(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node is the work of weights, of a module or taken from one."""
    module = _module(node, root)
    if module is not None:
        return isinstance(module, FoldedConv) or next(module.parameters(), None) is not None
    return any(n.op == "get_attr" and isinstance(_attribute(n, root), nn.Parameter) for n in node.all_input_nodes)


def _attribute(node: fx.Node, root: nn.Module) -> Any:
    return operator.attrgetter(str(node.target))(root)


def _takes_images_in_two(graph: fx.Graph, root: nn.Module) -> bool:
    takers = [n for n in graph.nodes if _weighs(n, root) and any(_is_image(m, root) for m in n.all_input_nodes)]
    modules = [_module(node, root) for node in takers]
    return all(isinstance(module, FoldedConv) and module.in_two for module in modules)


def _module(node: fx.Node, root: nn.Module) -> nn.Module | None:
    return root.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_convolution(module: nn.Module | None) -> TypeGuard[nn.Conv2d]:
    return type(module) in (nn.Conv2d, ImageConv2d)


def _is_norm(module: nn.Module | None) -> TypeGuard[nn.BatchNorm2d]:
    return type(module) in (nn.BatchNorm2d, SyncedBatchNorm2d)


def _hooked(module: nn.Module) -> bool:
    """Whether a call of the module does more than its forward: spectral norm of old is such a hook."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _is_relu(node: fx.Node, root: nn.Module) -> bool:
    if node.op == "call_function":
        return node.target in RELUS
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    module = _module(node, root)
    return type(module) is nn.ReLU and not _hooked(module)


def _shaken(model: Classifier, x: Tensor) -> tuple[Classifier, Tensor]:
    """A copy with other weights and BatchNorm statistics, away from zero, its values about as large; and `x` for it.

    Of a model in half precision the copy is in float32: rounding alone would part two equal ones.
    """
    model = copy.deepcopy(model)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if not tensor.is_floating_point() or tensor.numel() == 0:
                continue
            noise, size = torch.rand(tensor.shape, generator=source).to(tensor), tensor.abs().mean()
            if isinstance(tensor, nn.Parameter) and tensor.dim() > 1:  # both ways: sums over many inputs stay as large
                tensor.add_((noise - 0.5) * size.clamp(min=0.3 * tensor[0].numel() ** -0.5))
            else:
                tensor.add_(0.2 * (size + 0.05) * (noise + 0.5))  # upwards: a variance stays one
    return (model.float(), x.float()) if x.dtype.itemsize < 4 else (model, x)


def _agree(model: Classifier, other: Classifier, x: Tensor) -> bool:
    """The same logits, draw after draw, and the same gradients: a trace goes through a custom backward unseen."""
    logits = predict(other, x)
    for _ in range(TRIED_DRAWS):
        own = predict(model, x)
        if not bool((own - logits).abs().max() <= SAME_LOGITS * own.abs().max()):
            return False
    weights = torch.linspace(-1, 1, logits.shape[1], dtype=logits.dtype, device=logits.device)
    own_slope, slope = (_slope(each, x, weights).flatten(1) for each in (model, other))
    apart, size = (own_slope - slope).norm(dim=1), own_slope.norm(dim=1)
    return bool((size.isfinite() & (apart <= SAME_SLOPE * size)).all())


def _slope(model: Classifier, x: Tensor, weights: Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad((model(x) * weights).sum(), x)
    return slope
