"""A convolution with what follows it, in bfloat16 on a GPU: one kernel forward, and back to its input alone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_CHANNELS = 8  # of colour images in two parts, padded: for more it was not measured


def fused_conv(*inputs: Any) -> Tensor:
    """max(0, convolution + bias + add), as an operation that the compiler knows or, outside of it, one that keeps the
    host less busy."""
    out: Tensor = conv_relu(*inputs) if torch.compiler.is_compiling() else ConvRelu.apply(*inputs)  # type: ignore[no-untyped-call]
    return out


def _conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    add: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """In one kernel on a GPU, and in its parts elsewhere."""
    if not x.is_cuda:
        out = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
        return (out if add is None else out + add).relu()
    if add is None:
        return torch.ops.aten.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]
    return torch.ops.aten.cudnn_convolution_add_relu(  # type: ignore[no-any-return]
        x, weight, add, 1.0, bias, stride, padding, dilation, groups
    )


conv_relu = torch.library.custom_op(
    "worstclass::conv_relu",
    _conv_relu,
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, Tensor? add, int[] stride, int[] padding, int[] dilation, "
    "int groups) -> Tensor",
)


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, *geometry: Any) -> Tensor:
    return F.conv2d(x, weight, bias, *geometry)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, add, *ctx.geometry = inputs
    ctx.save_for_backward(x, weight, output)
    ctx.adds = add is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, out = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.geometry
    grad = torch.ops.aten.threshold_backward(grad, out, 0)
    if groups == 1 and {*stride, *dilation} == {1} and weight.shape[1] <= FEW_CHANNELS:
        into_x = _into_few(grad, weight, padding)
    else:
        into_x, _, _ = torch.ops.aten.convolution_backward(
            grad, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
        )
    return into_x, None, None, grad if ctx.adds else None, None, None, None, None


def _into_few(grad: Tensor, weight: Tensor, padding: list[int]) -> Tensor:
    """A convolution's gradient to an input of few channels, as a matrix product and a sum of shifted images: the
    convolutions of a GPU are made for many channels."""
    rows, columns = weight.shape[2:]
    up, left = rows - 1 - padding[0], columns - 1 - padding[1]
    shares = (grad.permute(0, 2, 3, 1) @ weight.permute(0, 2, 3, 1).flatten(1)).unflatten(3, (rows, columns, -1))
    shares = F.pad(shares, (0, 0, 0, 0, 0, 0, left, left, up, up))  # (B, H, W, rows, columns, C), by output pixel
    height, width = shares.shape[1] - rows + 1, shares.shape[2] - columns + 1
    wide = torch.promote_types(shares.dtype, torch.float32)  # sums in bfloat16 would be rounded one by one
    into_x = shares.new_zeros((1, 1, 1, 1), dtype=wide)
    for i in range(rows):
        for j in range(columns):
            into_x = into_x + shares[:, rows - 1 - i :, columns - 1 - j :, i, j][:, :height, :width]
    return into_x.to(shares.dtype).permute(0, 3, 1, 2)


conv_relu.register_autograd(_backward, setup_context=_keep)


class ConvRelu(torch.autograd.Function):
    """The same, for calls outside of the compiler."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        out = _conv_relu(*inputs)
        _keep(ctx, inputs, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, grads[0])
