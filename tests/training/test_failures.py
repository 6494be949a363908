"""Runs that go wrong: losses and weights that are not finite, runs that diverge or break."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from short_plans import images, plan
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.errors import TrainingError, UserError
from worstclass.models import SmallCNN, make_model
from worstclass.objectives import Natural
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST, SELECTED, Saver
from worstclass.runs.train import train_run
from worstclass.strategies import uniform
from worstclass.training import fit, new_state
from worstclass.training.checkpoint import load_tensors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


class Exploding(nn.Module):
    """Returns NaN from its n-th training forward on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.net, self.calls, self.after = SmallCNN(3, 1), 0, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        logits: torch.Tensor = self.net(x)
        return logits * (float("nan") if self.calls > self.after else 1.0)


def test_a_loss_that_is_not_finite_stops_the_run_and_says_where() -> None:
    the_plan = plan(epochs=3, batch_size=20)
    state = new_state(Exploding(after=4), uniform(3), the_plan)  # three steps an epoch: the fifth is epoch 2, step 2
    with pytest.raises(TrainingError, match=r"epoch 2, step 2: .*still sound"):
        list(fit(state, images(60), images(9), Natural(), the_plan))
    assert state.epoch == 1


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (lambda: SmallCNN(3, 1).double(), r"cannot be trained on float32 images \(.*\): make it float\(\)"),
        (lambda: SmallCNN(3, 1).requires_grad_(False), "has nothing to train"),
        (lambda: nn.Sequential(SmallCNN(3, 1), nn.Softmax(1)), "returns probabilities: leave out its softmax"),
    ],
)
def test_a_model_that_cannot_learn_is_refused_before_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Callable[[], nn.Module], complaint: str
) -> None:
    monkeypatch.setattr("worstclass.runs.run.make_model", lambda *_, **__: model())
    with pytest.raises(UserError, match=complaint):
        train_run(tiny_config(data, epochs=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Masked(nn.Module):
    """Holds an infinity that is no weight: a mask, frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallCNN(3, 1)
        self.mask = nn.Parameter(torch.tensor([-torch.inf]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x)
        return logits


def test_a_frozen_infinity_is_saved_and_weights_that_are_not_finite_are_an_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worstclass.runs.run.make_model", lambda *_, **__: Masked())
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    assert (run.folder / LAST).is_file()
    assert (run.folder / SELECTED).is_file()
    state = new_state(Masked(), uniform(3), plan())
    saver = Saver(tmp_path, state, 0.0)
    with torch.no_grad():
        next(each for each in state.model.parameters() if each.requires_grad).fill_(torch.nan)
    saver.save_if_due()
    with pytest.raises(TrainingError, match="not finite at the end"):
        saver.save_if_due(at_once=True)
    assert not (tmp_path / LAST).exists()


class Noisy(nn.Module):
    """Draws in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_model("small-cnn", num_classes=3, in_channels=1, seed=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x + 0.1 * torch.randn_like(x))
        return logits


def test_a_model_that_draws_in_validation_trains_the_same_way_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worstclass.runs.run.make_model", lambda *_, **__: Noisy())
    for name in ("one", "other"):
        torch.rand(3 if name == "one" else 5)
        train_run(tiny_config(data, epochs=2), tmp_path / name)
    assert_same_run(tmp_path / "one", tmp_path / "other")


def test_a_run_that_breaks_leaves_its_last_good_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in the second epoch: the first epoch's files are there, untouched, and the run goes on once it is mended."""
    config = tiny_config(data)
    whole = train_run(config, tmp_path / "whole")
    monkeypatch.setattr("worstclass.runs.run.make_model", lambda *_, **__: Exploding(after=2 * 5 + 2))
    with pytest.raises(TrainingError, match="epoch 2, step 2"):
        train_run(config, tmp_path / "run", checkpoint_minutes=0)
    tensors, header = load_tensors(tmp_path / "run" / LAST)
    assert (header["epoch"], header["step"]) == (1, 1)
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert len(open_run(tmp_path / "run").log) == 1
    assert len(whole.log) == 3


def test_a_diverging_run_blames_the_rate(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, lr=1e12, epochs=3)
    with pytest.raises(TrainingError, match=r"epoch 1, step \d+: .*learning rate"):
        train_run(config, tmp_path / "run")
