"""Audit somebody else's model in one call: accuracy of each class under attack, and whether to believe it."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worstclass as wc

MEAN, STD = 0.286, 0.353


def make() -> nn.Module:
    """A network as one finds it: plain PyTorch, expects normalised images, knows nothing of this package."""
    features = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
    return nn.Sequential(features, nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))


def their_model(epochs: int) -> nn.Module:
    """Stands in for the model that you were sent."""
    torch.manual_seed(0)
    model, train = make(), wc.open_source("fashion-mini").read("train")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(train)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model((wc.to_float(train.x[index]) - MEAN) / STD), train.y[index]).backward()
            optimizer.step()
    return model.eval()


def main(folder: Path, *, epochs: int = 5, limit: int = 200, attacks: str = "autoattack") -> wc.AuditResult:
    """A minute or two on a CPU."""
    model, source = their_model(epochs), wc.open_source("fashion-mini")
    test = source.read("test")
    loader = DataLoader(TensorDataset(wc.to_float(test.x), test.y), batch_size=100)
    names = source.class_names

    result = wc.audit(model, loader, 0.05, attacks=attacks, limit=limit, class_names=names, mean=MEAN, std=STD)
    print(result)
    result.save(folder / "audit")
    result.report(folder / "audit.html")

    save_file(model.state_dict(), folder / "theirs.safetensors")  # for the command line
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
