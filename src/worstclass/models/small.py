"""A small network for images from 8x8 to 32x32: the demo's, and fast enough for two CPU cores."""

import torch.nn.functional as F
from torch import Tensor, nn

from worstclass.models.layers import AverageTo, ImageConv2d
from worstclass.models.normalization import Head


class SmallCNN(nn.Module):
    """Two convolutions of stride 2 with BatchNorm, pooling to 4x4, and two linear layers.

    Most of a convolution's time on a CPU goes where the image is large and the channels are few; both strides
    come early, and the linear layers add capacity almost for free.
    """

    def __init__(self, num_classes: int, in_channels: int = 1, width: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.conv1, self.bn1 = ImageConv2d(in_channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.BatchNorm2d(2 * width)
        self.pool = AverageTo(4)
        self.hidden = nn.Linear(2 * width * 4 * 4, hidden)
        self.linear = Head(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.hidden(self.pool(x).flatten(1)))
        logits: Tensor = self.linear(x)
        return logits
