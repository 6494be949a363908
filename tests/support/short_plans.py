"""A plan of a few steps, and images to train on."""

from typing import Any

import torch

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Images
from worstclass.training import Plan


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "epochs": 1,
        "batch_size": 16,
        "lr": 0.1,
        "valid_attack": PGD(eps=0.1, steps=2, step_size=0.05),
    }
    return Plan(**(values | changes))


def images(size: int = 60, num_classes: int = 3, seed: int = 0) -> Images:
    g = rng.generator(seed, "images")
    x = torch.randint(0, 256, (size, 1, 8, 8), generator=g, dtype=torch.uint8)
    return Images(x, torch.arange(size) % num_classes)
