"""ResNet-18 and PreAct-ResNet-18 in their variants for small images: a 3x3 stem, no max-pooling."""

import torch.nn.functional as F
from torch import Tensor, nn

from worstclass.models.normalization import Head

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # (width, stride), two blocks each


def conv3x3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size of the image, without bias."""
    return nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)


class Block(nn.Module):
    """conv-BN-ReLU, conv-BN, plus the shortcut, then ReLU."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels_in, channels_out, stride), nn.BatchNorm2d(channels_out)
        self.conv2, self.bn2 = conv3x3(channels_out, channels_out), nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels_out))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class PreActBlock(nn.Module):
    """BN-ReLU-conv twice, plus the shortcut; a projecting shortcut starts after the first ReLU."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels_in), conv3x3(channels_in, channels_out, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels_out), conv3x3(channels_out, channels_out)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active)))) + skip
        return out


class ResNet18(nn.Module):
    """Eight blocks in four stages; `preact` moves BN and ReLU before the convolutions."""

    def __init__(self, num_classes: int, in_channels: int = 3, *, preact: bool = False) -> None:
        super().__init__()
        block = PreActBlock if preact else Block
        self.stem = conv3x3(in_channels, 64)
        self.norm = nn.Identity() if preact else nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        width_in = 64
        for width, stride in STAGES:
            blocks += [block(width_in, width, stride), block(width, width, 1)]
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.final = nn.BatchNorm2d(512) if preact else nn.Identity()
        self.preact = preact
        self.linear = Head(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.stem(x)
        if not self.preact:
            out = F.relu(self.norm(out))
        out = self.blocks(out)
        if self.preact:
            out = F.relu(self.final(out))
        logits: Tensor = self.linear(out)
        return logits
