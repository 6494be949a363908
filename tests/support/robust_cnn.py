"""A network of which about half holds, and images for it: what attacks and checks are tested on.

Its weights ship with the tests (tests/weights): trained anew, it would be another network on another processor.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from worstclass.data import Images, open_source, to_float
from worstclass.models import SmallCNN

EPS = 0.1
RADIUS: dict[str, float] = {"linf": EPS, "l2": 0.6}
WEIGHTS = Path(__file__).parents[1] / "weights"


def load_cnn(name: str, num_classes: int) -> SmallCNN:
    """A SmallCNN for grey images with the weights of that name."""
    with torch.random.fork_rng(devices=[]):
        model = SmallCNN(num_classes, 1)
    model.load_state_dict(load_file(WEIGHTS / f"{name}.safetensors"))  # half precision there, float32 here
    return model.eval()


def pad(x: Tensor) -> Tensor:
    """To 20x20: at 14x14 the public L2 Square crashes."""
    return nn.functional.pad(x, (3, 3, 3, 3))


def some(size: int) -> Images:
    images = open_source("fashion-mini").read("test")
    return Images(pad(images.x[:size]), images.y[:size])


def batch(size: int) -> tuple[Tensor, Tensor]:
    images = some(size)
    return to_float(images.x), images.y
