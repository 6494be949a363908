"""NaN, by doing it: in the data, in weights, from a model, always or only under attack; never a number in a card."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tiny import tiny_config, write_tiny_npz
from worstclass.attacks import make_attack
from worstclass.data import Images, open_source
from worstclass.errors import TrainingError, UserError
from worstclass.evaluation.evaluate import evaluate
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.evaluation.targets import evaluate_target, model_target, run_target
from worstclass.models import SmallCNN
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST, SELECTED
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast


class Nothing(nn.Module):
    """NaN for every image."""

    def __init__(self, num_classes: int = 3, in_channels: int = 1) -> None:
        super().__init__()
        self.net = SmallCNN(num_classes, in_channels)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits * torch.nan


class OnTheGrid(Nothing):
    """NaN for every image that is not one of 0..255: for clean images it is sound."""

    def forward(self, x: Tensor) -> Tensor:
        moved = (255 * x - (255 * x).round()).abs().flatten(1).amax(1) > 1e-3
        logits: Tensor = self.net(x)
        return logits.masked_fill(moved[:, None], torch.nan)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("nan") / "tiny.npz")


@pytest.mark.parametrize("name", ["x_train", "y_train"])
def test_in_the_data(name: str, data: Path, tmp_path: Path) -> None:
    """Images are whole numbers and so are labels; where NaN could be, the array is refused."""
    with np.load(data) as archive:
        arrays = dict(archive)
    arrays[name] = arrays[name].astype(np.float32)
    arrays[name].flat[3] = np.nan
    np.savez(tmp_path / "nan.npz", **arrays)
    with pytest.raises(UserError, match=name):
        open_source(f"npz:{tmp_path / 'nan.npz'}").read("train")
    with pytest.raises(UserError, match=name):
        train_run(tiny_config(tmp_path / "nan.npz"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_from_a_model_in_training(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, and no checkpoint; with a sound model the same run goes on to what it would have been."""
    config = tiny_config(data, epochs=1)
    whole = train_run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("worstclass.runs.run.make_model", lambda *_, **__: Nothing())
        with pytest.raises(TrainingError, match=r"epoch 1, step 1: "):
            train_run(config, tmp_path / "run", checkpoint_minutes=0)
    assert not list((tmp_path / "run").glob("*.safetensors"))
    train_run(config, tmp_path / "run", resume=True)
    for name in (LAST, SELECTED):
        assert (tmp_path / "run" / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.parametrize(
    ("model", "attacks", "message"),
    [
        ("test_nan:Nothing", ["natural"], "not finite on clean images"),
        ("test_nan:OnTheGrid", ["pgd-2"], "NaN on images of 'pgd-2'"),
        ("test_nan:OnTheGrid", ["fgsm"], "NaN on images of 'fgsm'"),
        ("test_nan:OnTheGrid", ["square"], "NaN on images near the clean ones"),
        ("test_nan:OnTheGrid", ["apgd-ce"], "NaN on images near the clean ones"),
        ("test_nan:OnTheGrid", ["autoattack"], "NaN on images near the clean ones"),
    ],
)
def test_from_a_model_in_evaluation(model: str, attacks: list[str], message: str, data: Path, tmp_path: Path) -> None:
    save_file(Nothing().state_dict(), tmp_path / "w.safetensors")
    target = model_target(model, weights=tmp_path / "w.safetensors", data=f"npz:{data}", eps=0.05)
    with pytest.raises(UserError, match=message):
        evaluate_target(target, attacks, tmp_path / "out")
    assert not list((tmp_path / "out").glob("[!.]*"))


class Wary(nn.Module):
    """The brightness of three rows as logits, and NaN where two of them are close: only an attack finds that."""

    def forward(self, x: Tensor) -> Tensor:
        logits = 10 * x[:, 0, :3].mean(2)
        best, second = logits.topk(2).values.unbind(1)
        return logits.masked_fill((best - second < 1.5)[:, None], torch.nan)


@pytest.mark.parametrize("name", ["pgd-10", "apgd-ce", "fab-t", "square", "autoattack"])
def test_where_only_an_attack_comes(name: str) -> None:
    x = torch.full((30, 1, 4, 64), 100, dtype=torch.uint8)
    y = torch.arange(30) % 3
    x[torch.arange(30), 0, y] = 200
    attack = make_attack(name, eps=0.25, norm="linf")
    with pytest.raises(UserError, match=r"NaN on (attacked images|images of 'pgd-10')"):
        evaluate(Wary(), Images(x, y), {name: attack})


def test_in_weights(data: Path, tmp_path: Path) -> None:
    """An evaluation that was there stays as it was."""
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    evaluate_target(run_target(run), ["pgd-2"], run.folder)
    before = {name: (run.folder / name).read_bytes() for name in (CARD, OUTCOMES)}
    target = run_target(open_run(run.folder))
    with torch.no_grad():
        next(target.model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="not finite"):
        evaluate_target(target, ["pgd-3"], run.folder)
    assert {name: (run.folder / name).read_bytes() for name in (CARD, OUTCOMES)} == before
