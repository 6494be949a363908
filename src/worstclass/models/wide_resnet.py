"""WideResNet of any depth and width (Zagoruyko and Komodakis), without dropout."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from worstclass.models.normalization import Head
from worstclass.models.resnet import PreActBlock, conv3x3


class WideResNet(nn.Module):
    """Three stages of (depth - 4) / 6 blocks, 16, 32 and 64 times `width` channels wide."""

    def __init__(self, depth: int, width: int, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        channels = [16, 16 * width, 32 * width, 64 * width]
        self.stem = conv3x3(in_channels, channels[0])
        blocks: list[nn.Module] = []
        for stage, stride in enumerate((1, 2, 2)):
            for index in range((depth - 4) // 6):
                channels_in = channels[stage] if index == 0 else channels[stage + 1]
                blocks.append(PreActBlock(channels_in, channels[stage + 1], stride if index == 0 else 1))
        self.blocks = nn.Sequential(*blocks)
        self.final = nn.BatchNorm2d(channels[3])
        self.linear = Head(channels[3], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(F.relu(self.final(self.blocks(self.stem(x)))))
        return logits
