"""Bring a model of your own: a factory, its weights as safetensors, and the commands that train and evaluate it."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import worstclass as wc


def make(num_classes: int, in_channels: int) -> nn.Module:
    """A network from images in [0, 1] to logits; it works for any size of image."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, num_classes),
    )


def main(folder: Path, epochs: int = 3, limit: int | None = None) -> str:
    """Train on clean images, save the weights, and return the command that evaluates them."""
    torch.manual_seed(0)
    images = wc.open_source("fashion-mini").read("train")
    x, y = wc.to_float(images.x[:limit]), images.y[:limit]
    model = make(num_classes=10, in_channels=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(y)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    save_file(model.state_dict(), folder / "own_model.safetensors")
    return (
        f"worstclass evaluate own_model:make --weights {folder / 'own_model.safetensors'} "
        f"--data fashion-mini --eps 8/255 --attacks natural,pgd-20 --out {folder / 'judged'}"
    )


if __name__ == "__main__":
    print("In the folder of this file, run:")
    print(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
