"""WideResNet of any depth and width (Zagoruyko and Komodakis), without dropout."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from worstclass.models.normalization import pooled_logits
from worstclass.models.resnet import conv3x3


class WideBlock(nn.Module):
    """BN-ReLU-conv twice; where the shape changes, the shortcut is a 1x1 convolution of the first ReLU."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels_in), conv3x3(channels_in, channels_out, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels_out), conv3x3(channels_out, channels_out)
        self.shortcut: nn.Conv2d | None = None
        if channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active)))) + skip
        return out


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
                blocks.append(WideBlock(channels_in, channels[stage + 1], stride if index == 0 else 1))
        self.blocks = nn.Sequential(*blocks)
        self.final = nn.BatchNorm2d(channels[3])
        self.linear = nn.Linear(channels[3], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, 0, math.sqrt(2 / fan_out))
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return pooled_logits(F.relu(self.final(self.blocks(self.stem(x)))), self.linear)
