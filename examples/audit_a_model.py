"""Audit somebody else's model: AutoAttack class by class, which attack broke what, and whether to believe it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from worstclass.data import open_source, to_float
from worstclass.evaluation.checks import load_findings, verdict
from worstclass.evaluation.targets import evaluate_target, model_target


class TheirNet(nn.Module):
    """A network as one finds it: plain PyTorch, its normalisation inside, dropout, no word of this package."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features((x - 0.286) / 0.353))
        return logits


def make(num_classes: int, in_channels: int) -> nn.Module:
    """What the audit calls: it knows the data, you know the architecture."""
    assert in_channels == 1
    return TheirNet(num_classes)


def audit(weights: Path, data: Path, out: Path, attack: str = "autoattack") -> dict[str, Any]:
    """Attack the model of this file with weights of theirs, on data of ours."""
    target = model_target("audit_a_model:make", weights=weights, data=f"npz:{data}", eps=0.05)
    card = evaluate_target(target, [attack], out, checks=True)
    column = card["columns"][attack]
    weakest = column["worst"]
    print(f"weakest under {attack}: {weakest['class']}, {100 * weakest['value']:.1f}% hold")
    print(f"broken by: {column['broken_by']}")
    print(verdict(load_findings(card)))
    return card


def their_weights(path: Path, epochs: int) -> None:
    """Stands in for the file that you were sent."""
    torch.manual_seed(0)
    images = open_source("fashion-mini").read("train")
    model = TheirNet(10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(to_float(images.x[index])), images.y[index]).backward()
            optimizer.step()
    save_file(model.state_dict(), path)


def our_data(path: Path, limit: int) -> None:
    """The images that the model must hold on, in the file that `npz:PATH` reads."""
    source = open_source("fashion-mini")
    test = source.read("test")
    x, y = test.x[:limit].numpy(), test.y[:limit].numpy()
    names = np.array(source.class_names)
    np.savez_compressed(path, x_train=x[:0], y_train=y[:0], x_test=x, y_test=y, class_names=names)


def main(folder: Path, epochs: int = 5, limit: int = 200, attack: str = "autoattack") -> dict[str, Any]:
    """Two or three minutes on two cores."""
    folder.mkdir(parents=True, exist_ok=True)
    their_weights(folder / "theirs.safetensors", epochs)
    our_data(folder / "ours.npz", limit)
    return audit(folder / "theirs.safetensors", folder / "ours.npz", folder / "audit", attack)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
