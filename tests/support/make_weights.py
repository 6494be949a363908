"""Train the networks whose weights ship with the tests.

    PYTHONPATH=src:tests/support .venv/bin/python tests/support/make_weights.py

`robust_cnn` is trained against PGD on fashion-mini, padded to 20x20, for a few seconds. `tiny_cnn` is trained by TRADES
on the tiny data of tiny.py. Both are stored in half precision. Run this again only if the architecture or the data
change: on another processor it makes other networks, of which the tests say other things.
"""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from robust_cnn import EPS, WEIGHTS, pad
from tiny import tiny_config, write_tiny_npz
from worstclass.attacks import PGD
from worstclass.data import open_source, to_float
from worstclass.models import SmallCNN
from worstclass.rng import generator
from worstclass.runs.train import train_run


def train_robust() -> SmallCNN:
    """A network trained against PGD: about half of it holds at EPS."""
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
    return model


def train_tiny() -> nn.Module:
    """A network for the tiny data: right about most images, and broken by attacks at eps 0.05 on some."""
    with tempfile.TemporaryDirectory() as name:
        data = write_tiny_npz(Path(name) / "tiny.npz")
        config = tiny_config(data, method="trades", epochs=12, lr_milestones=["10/12"], seed=1)
        return train_run(config, Path(name) / "run").load_model("last")[0]


if __name__ == "__main__":
    WEIGHTS.mkdir(exist_ok=True)
    for name, model in (("robust_cnn", train_robust()), ("tiny_cnn", train_tiny())):
        halves = {
            key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in model.state_dict().items()
        }
        save_file(halves, WEIGHTS / f"{name}.safetensors")
