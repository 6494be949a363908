"""Layers that compute what torch's do and skip what is slow on a CPU; they have the same parameters."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """`F.conv2d`; of grey images on a CPU, as a matrix product.

    The gradient to an image of one channel, which every step of an attack needs, has no fast kernel in oneDNN: with the
    product, forward and backward of 128 images at 14x14 take 1.7 ms instead of 4.6 (one x86-64 core). The patches are
    slices: `F.unfold` goes image by image, and its threads wait for each other after each.
    """
    if x.device.type != "cpu" or x.shape[1] != 1:
        return F.conv2d(x, weight, bias, list(stride), list(padding), list(dilation), groups)
    image = F.pad(x[:, 0], (padding[1], padding[1], padding[0], padding[0]))
    kernel = weight.shape[2:]
    reach = [dilation[i] * (kernel[i] - 1) for i in (0, 1)]
    patches = torch.stack(
        [
            image[
                :,
                row * dilation[0] : image.shape[1] - reach[0] + row * dilation[0] : stride[0],
                column * dilation[1] : image.shape[2] - reach[1] + column * dilation[1] : stride[1],
            ]
            for row in range(kernel[0])
            for column in range(kernel[1])
        ],
        -1,
    )
    return F.linear(patches, weight.flatten(1), bias).permute(0, 3, 1, 2)


class ImageConv2d(nn.Conv2d):
    """The first convolution of a network, zero-padded: torch's, by `conv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        return conv2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            [int(side) for side in self.padding],
            self.dilation,
            self.groups,
        )


class AverageTo(nn.Module):
    """Average pooling to `size` x `size`; maps that are so small already are returned as they are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[2:] == (self.size, self.size) else F.adaptive_avg_pool2d(x, self.size)
