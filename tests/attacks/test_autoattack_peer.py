"""AutoAttack and its parts against the public attack core: the same steps, the same verdicts."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyautoattack
import pytest
import torch
from pyautoattack import AutoAttack as PeerAutoAttack
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from robust_cnn import EPS, RADIUS, batch, some
from tiny import tiny_config, write_tiny_npz
from worstclass.attacks import APGD, FAB, Ensemble, Square, active_set, autoattack
from worstclass.attacks.apgd import APGDLoss
from worstclass.attacks.ball import distance
from worstclass.attacks.losses import margin
from worstclass.attacks.square import HALVINGS, _bump
from worstclass.cli import main as cli
from worstclass.errors import UserError
from worstclass.evaluation.evaluate import evaluate
from worstclass.models import SmallCNN
from worstclass.rng import PerSample
from worstclass.runs.train import train_run
from worstclass.types import Norm

PEER_NORM = {"linf": "Linf", "l2": "L2"}


class Recorder(nn.Module):
    """The model, and every batch that it was asked about."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        logits: Tensor = self.model(x)
        return logits


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The public code casts to float here and there; in float64 two right programs agree to rounding."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["ce", "dlr", "targeted-dlr"])
def test_apgd_takes_the_same_steps_as_the_public_one(
    loss: APGDLoss, norm: Norm, robust: SmallCNN, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 101 iterates of 40 images, from the same start, in float64."""
    monkeypatch.setattr(active_set, "LOOK_EVERY", 1000)  # nobody leaves, so that the batches can be compared
    model = copy.deepcopy(robust).double()
    x, y = batch(60)
    x = x.double()
    right = model(x).argmax(1) == y
    x, y = x[right][:40], y[right][:40]
    eps = RADIUS[norm]
    ours, theirs = Recorder(model), Recorder(model)
    attack = APGD(eps=eps, norm=norm, loss=loss, targets=1)
    attack.breaks(ours, x, y, generator=PerSample(0, "apgd", range(len(x))), judge=model)
    settings: dict[str, Any] = {"eps": eps, "norm": PEER_NORM[norm], "device": "cpu", "n_iter": 100, "seed": 0}
    peer: Any
    if loss == "targeted-dlr":
        peer = APGDAttack_targeted(theirs, **settings)
        peer.y_target = model(x).sort(dim=1).indices[:, -2]
    else:
        peer = APGDAttack(theirs, loss=loss, **settings)
    peer.init_hyperparam(x)
    with torch.no_grad():
        peer.attack_single_run(x, y, x_init=ours.seen[0])
    assert len(ours.seen) == len(theirs.seen) == 101
    standing = torch.ones_like(y, dtype=torch.bool)
    for own, other in zip(ours.seen, theirs.seen, strict=True):
        assert torch.allclose(own[standing], other[standing], rtol=0, atol=1e-9)
        standing &= model(own).argmax(1) == y  # a broken sample leaves; past it DLR may be constant, its gradient noise
    assert standing.sum() > 10
    assert (ours.seen[-1] - ours.seen[0]).abs().max() > EPS / 2  # and it went somewhere


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fab_takes_the_same_steps_as_the_public_one(norm: Norm, robust: SmallCNN) -> None:
    """The nearest images after ten targeted steps, in float64; ours projects without a sort."""
    model = copy.deepcopy(robust).double()
    x, y = batch(60)
    x = x.double()
    sure = margin(model(x), y).argsort(descending=True)[:30]  # far from the boundary, so that each has a way to go
    x, y = x[sure], y[sure]
    ours, theirs = Recorder(model), Recorder(model)
    FAB(eps=1e-6, norm=norm, steps=10, targets=1).breaks(ours, x, y, judge=model)  # no success: every step is taken
    peer = FABAttack_PT(theirs, norm=PEER_NORM[norm], n_iter=10, eps=1e-6, targeted=True, device="cpu")
    peer.target_class = 2
    peer.attack_single_run(x, y, is_targeted=True)
    seen = theirs.seen[2:]  # two looks at x first
    assert len(ours.seen) == len(seen) == 20
    for own, other in zip(ours.seen, seen, strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-7)
    assert distance(ours.seen[-1] - x, norm).min() > 0.01


def test_square_has_the_published_schedule_and_patches() -> None:
    peer = SquareAttack(None, norm="L2", n_queries=10000, resc_schedule=False, p_init=0.8, device="cpu")
    for query in range(9000):
        assert 0.8 / 2 ** sum(query > bound for bound in HALVINGS) == pytest.approx(peer.p_selection(query))
    for side in (3, 5, 9, 13):
        theirs = peer.eta(side).double()
        assert any(torch.allclose(_bump(side, turned), theirs, atol=1e-6) for turned in (False, True))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_suite_breaks_what_the_public_one_breaks(norm: Norm, robust: SmallCNN) -> None:
    """200 images: 99% of the verdicts agree, and the robust accuracies differ by one sample at most."""
    x, y = batch(200)
    eps = RADIUS[norm]
    queries = {"linf": 5000, "l2": 1000}[norm]  # Square is what takes the time
    attacks = dict(autoattack(eps=eps, norm=norm).attacks) | {"square": Square(eps=eps, norm=norm, queries=queries)}
    outcomes = evaluate(robust, some(200), {"autoattack": Ensemble(attacks=attacks)}, batch_size=200)
    ours = outcomes.broken_by["autoattack"]
    theirs = np.full(200, "", dtype="U16")
    theirs[(robust(x).argmax(1) != y).numpy()] = "natural"
    for name in ("apgd-ce", "apgd-t", "fab-t", "square"):
        rows = torch.from_numpy(np.flatnonzero(theirs == ""))
        peer = PeerAutoAttack(robust, norm=PEER_NORM[norm], eps=eps, seed=0, version="custom", attacks=[name])
        peer.apgd.n_restarts, peer.square.n_queries = 1, queries
        _, predicted = peer.run_standard_evaluation(x[rows], y[rows], batch_size=200)
        theirs[rows[predicted != y[rows]].numpy()] = name
    for point in np.flatnonzero((ours == "") != (theirs == "")):
        print(f"point {point}: ours {ours[point] or 'stands'}, theirs {theirs[point] or 'stands'}")
    standing, their_standing = int((ours == "").sum()), int((theirs == "").sum())
    print(f"{norm}: standing {standing}, theirs {their_standing}")
    assert 60 <= standing <= 120  # the question was not trivial
    assert ((ours == "") == (theirs == "")).mean() >= 0.99
    assert abs(standing - their_standing) <= 1


def test_the_command_runs_both_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both programs on the same images, in one table; a small budget."""

    class Short(PeerAutoAttack):  # type: ignore[misc]
        def __init__(self, model: Any, **options: Any) -> None:
            super().__init__(model, version="custom", attacks=["apgd-ce"], **options)
            self.apgd.n_restarts = 1

    monkeypatch.setattr(pyautoattack, "AutoAttack", Short)
    ours = "worstclass.bench.autoattack.autoattack"
    monkeypatch.setattr(ours, lambda **ball: Ensemble(attacks={"apgd-ce": APGD(**ball)}))
    folder = tmp_path / "run"
    train_run(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1), folder)
    with pytest.raises(UserError, match="below ten classes"):
        cli.app(["bench", "autoattack", str(folder)], standalone_mode=False)
    folder = tmp_path / "ten"
    data = write_tiny_npz(tmp_path / "ten.npz", num_classes=10)
    train_run(tiny_config(data, epochs=3, method="natural"), folder)
    cli.app(["bench", "autoattack", str(folder), "--images", "30"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert printed.startswith("30 images, eps 0.05, search in fp32, on cpu")
    assert re.search(r"worstclass.*/30", printed)
    assert re.search(r"pyautoattack.*1\.00.*/30", printed)
    assert re.search(r"Same verdict on (9\d|100)\.\d% of the images", printed)
