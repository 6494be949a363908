"""A capture warms up: it takes steps for real, and puts back what they touched. Here the same, without the graph."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everything
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.config.methods import METHODS
from worstclass.errors import TrainingError
from worstclass.models import SmallCNN
from worstclass.runs.train import train_run
from worstclass.training import Engine

PARTS: dict[str, dict[str, Any]] = {
    "awp late": {"method": "trades", "average": "ema", "awp_gamma": 0.02, "awp_warmup": 1, "awp_every": 2},
    "attack": {"method": "wat", "attack_steps": 3, "early_attack_steps": [2], "attack_milestones": [0.5]},
    "everything": {
        "method": "everything",
        "average": "fawa",
        "fawa_threshold": 0.0,
        "optimizer": "adamw",
        "awp_gamma": 0.02,
        "awp_warmup": 1,
        "clip_grad_norm": 1.0,
        "radius_warmup": 1.5,
        "attack_steps": 3,
        "early_attack_steps": [2],
        "attack_milestones": [0.5],
    },
}


def warm_up(
    self: Engine,
    work: Callable[[Tensor], None],
    sizes: Sequence[int],
    touched: Sequence[Tensor],
    generator: torch.Generator,
) -> Callable[[Tensor], None]:
    """As `Captured` does it."""
    before = [tensor.clone() for tensor in touched]
    for size in sizes:
        for _ in range(2):
            work(torch.arange(size))
    for tensor, value in zip(touched, before, strict=True):
        tensor.copy_(value)
    return work


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_tiny_npz(tmp_path / "tiny.npz")


@pytest.mark.parametrize("part", PARTS)
def test_warming_up_changes_nothing(part: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not within a run either, where the form of a step changes: it is the run without, and so are its pieces."""
    monkeypatch.setitem(METHODS, "everything", everything.METHOD)
    config = tiny_config(data, epochs=2, **PARTS[part])
    plain = train_run(config, tmp_path / "plain")
    monkeypatch.setattr(Engine, "prepare", warm_up)
    assert_same_run(plain.folder, train_run(config, tmp_path / "warm").folder)

    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "pieces", on_step=stop, checkpoint_minutes=0)
    train_run(config, tmp_path / "pieces", resume=True)
    assert_same_run(plain.folder, tmp_path / "pieces")


class Poisoned(nn.Module):
    """Its logits are not finite once it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.factor = SmallCNN(3, 1), 1.0

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x) * self.factor
        return logits


def test_a_complaint_counts_the_steps_of_the_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a warm-up within the epoch are not among them."""
    model = Poisoned()
    monkeypatch.setattr("worstclass.runs.run.make_model", lambda *_, **__: model)
    monkeypatch.setattr(Engine, "prepare", warm_up)

    def poison(epoch: int, step: int, steps: int) -> None:
        model.factor = float("nan") if (epoch, step) == (2, 2) else 1.0

    config = tiny_config(data, method="natural", epochs=2, awp_gamma=0.02, awp_warmup=1)
    with pytest.raises(TrainingError, match="epoch 2, step 3"):
        train_run(config, tmp_path / "run", on_step=poison)
