"""A network of which about half holds, and images for it: what AutoAttack is tested on."""

import torch
from torch import Tensor, nn

from worstclass.attacks import PGD
from worstclass.data import Images, open_source, to_float
from worstclass.models import SmallCNN
from worstclass.rng import generator

EPS = 0.1
RADIUS: dict[str, float] = {"linf": EPS, "l2": 0.6}


def train_robust() -> SmallCNN:
    """A network trained against PGD for a few seconds: about half of it holds at EPS."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCNN(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = open_source("fashion-mini").read("train")
    attack = PGD(eps=EPS, steps=3, step_size=0.06)
    for epoch in range(3):
        for number, index in enumerate(torch.randperm(len(images), generator=generator(0, "order", epoch)).split(128)):
            x, y = pad(to_float(images.x[index])), images.y[index]
            model.eval()
            x_adv = attack(model, x, y, generator=generator(0, "attack", epoch, number))
            model.train()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_adv), y).backward()
            optimizer.step()
    optimizer.zero_grad()
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
