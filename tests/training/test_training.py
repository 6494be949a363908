"""The trainer: every method runs and is its formula; a run that is stopped or killed is the run that was not."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from short_plans import images, plan
from tiny import SEED, tiny_config, write_tiny_npz
from worstclass import rng
from worstclass.attacks import PGD, trades_attack
from worstclass.config.keys import Config
from worstclass.config.methods import METHODS
from worstclass.data import Augment, Images, epoch_order, open_source, split_validation, to_float
from worstclass.errors import UserError
from worstclass.models import SmallCNN, make_model
from worstclass.objectives import Natural, Trades
from worstclass.runs.log import describe
from worstclass.runs.saver import LAST
from worstclass.runs.train import train_run
from worstclass.stats import ClassStats
from worstclass.strategies import WAT, uniform
from worstclass.training import SGD, Piecewise, fit, new_state
from worstclass.training.checkpoint import load_state, save_state
from worstclass.types import ClassWeights


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


FREE = ("guarded", "dafa", "cfa", "cfol", "trix")  # their weights may stay: classes alike, or too few epochs


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str, data: Path, tmp_path: Path) -> None:
    settings = {"focus_class": 1, "focus_weight": 0.4} if method == "fixed" else {}
    settings |= {"frl_tau": 0.0} if method.startswith("frl") else {}
    config = tiny_config(data, method=method, **settings)
    run = train_run(config, tmp_path / "run")
    assert [line["epoch"] for line in run.log] == [1, 2, 3]
    assert all(math.isfinite(line["train"]["loss"]) for line in run.log)
    weights = torch.tensor([line["class_weights"] for line in run.log])
    moved = bool((weights[0] != weights[-1]).any())
    assert moved if method in ("wat", "frl-rw", "frl-rwrm", "csl") else not moved or method in FREE
    assert run.log[-1]["lr"] == pytest.approx(0.01)
    model, _ = run.load_model("last")
    start = make_model("small-cnn", num_classes=3, in_channels=1, seed=config.seed)
    for (name, parameter), first in zip(model.named_parameters(), start.parameters(), strict=True):
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, first), name


def test_small_steps_with_all_images_go_down(data: Path, tmp_path: Path) -> None:
    """Gradient descent proper: without attack, augmentation or momentum, each epoch's loss is below the last one's."""
    settings = {"method": "natural", "batch_size": 90, "lr": 1e-3, "momentum": 0.0, "flip": False, "crop_padding": 0}
    run = train_run(tiny_config(data, epochs=4, lr_milestones=[1.0], **settings), tmp_path / "run")
    assert run.about["train_images"] == 90
    losses = [line["train"]["loss"] for line in run.log]
    assert all(later < before for before, later in itertools.pairwise(losses))


def test_a_step_is_trades_with_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    """One epoch of the trainer equals a transcription of it in plain PyTorch. In float64: a sign step turns a
    rounding error of a tiny gradient into a whole step."""
    monkeypatch.setattr("worstclass.training.step.to_float", lambda x: x.double() / 255)
    monkeypatch.setattr("worstclass.training.prepare.to_float", lambda x: x.double() / 255)
    train, valid = images(48), images(9, seed=1)
    torch.manual_seed(0)
    ours, theirs = SmallCNN(3, 1).double(), SmallCNN(3, 1).double()
    theirs.load_state_dict(ours.state_dict())
    strategy = WAT(torch.tensor([16, 16, 16]), eta=0.1)
    strategy.weights.set(natural=torch.tensor([0.5, 1.0, 2.0]), robust=torch.tensor([0.5, 1.0, 2.0]))
    attack = trades_attack(eps=0.1, steps=3, step_size=0.05)
    augment = Augment(crop_padding=1, flip=True)
    the_plan = plan(augment=augment, seed=7)
    for _ in fit(new_state(ours, strategy, the_plan), train, valid, Trades(beta=6.0, attack=attack), the_plan):
        pass
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    for number, index in enumerate(epoch_order(48, seed=7, epoch=1).split(16), start=1):
        generator = rng.generator(7, "train", 1, number)
        x, y = augment(train.x[index], generator).double() / 255, train.y[index]
        theirs.eval()
        clean = theirs(x).softmax(1).detach()
        x_adv = (x + 0.001 * torch.randn(x.shape, generator=generator, dtype=x.dtype)).clamp(0, 1)
        for _ in range(3):
            x_adv.requires_grad_()
            divergence = F.kl_div(theirs(x_adv).log_softmax(1), clean, reduction="sum")
            (grad,) = torch.autograd.grad(divergence, x_adv)
            x_adv = (x_adv.detach() + 0.05 * grad.sign()).clamp(x - 0.1, x + 0.1).clamp(0, 1)
        theirs.train()
        logits, adversarial = theirs(x), theirs(x_adv)
        robust = F.kl_div(adversarial.log_softmax(1), logits.softmax(1), reduction="none").sum(1)
        loss = (torch.tensor([0.5, 1.0, 2.0])[y] * (F.cross_entropy(logits, y, reduction="none") + 6 * robust)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-7), name


def test_learning_rate_schedule() -> None:
    schedule = plan(epochs=100, lr=0.1, schedule=Piecewise((0.75, 0.9, 1.0)))
    rates = [schedule.lr_at(epoch) for epoch in (1, 74, 75, 89, 90, 99, 100)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001])


@pytest.mark.parametrize(
    ("epochs", "shares", "drops"),
    [
        (100, (0.75, 0.9, 1.0), [75, 90, 100]),
        (30, (0.75, 0.9, 1.0), [23, 27, 30]),
        (10, (0.7, 0.9), [7, 9]),
        (12, (2 / 3, 11 / 12), [8, 11]),
        (2, (0.75, 0.9), [2, 2]),
        (1, (0.75, 0.9, 1.0), []),  # a trial of one epoch learns at the full rate
    ],
)
def test_milestones_follow_the_number_of_epochs(epochs: int, shares: tuple[float, ...], drops: list[int]) -> None:
    schedule = plan(epochs=epochs, lr=1.0, schedule=Piecewise(shares, 0.5))
    wanted = [0.5 ** sum(epoch >= drop for drop in drops) for epoch in range(1, epochs + 1)]
    assert [schedule.lr_at(epoch) for epoch in range(1, epochs + 1)] == wanted


@given(epochs=st.integers(2, 500), data=st.data())
def test_every_epoch_can_be_a_milestone(epochs: int, data: st.DataObject) -> None:
    """However a share is rounded, m / epochs is epoch m."""
    epoch = data.draw(st.integers(2, epochs))
    schedule = plan(epochs=epochs, lr=1.0, schedule=Piecewise((epoch / epochs,), 0.5))
    assert (schedule.lr_at(epoch - 1), schedule.lr_at(epoch)) == (1.0, 0.5)


class Counting:
    """A strategy whose state is plain numbers, and a tensor."""

    def __init__(self, **state: Any) -> None:
        self.weights = ClassWeights.uniform(3)
        self.state: dict[str, Any] = {"rounds": 0, "rate": 0.5, "begun": False, "sum": torch.zeros(3)} | state

    def update(self, train: ClassStats, valid: ClassStats) -> None:
        self.state["rounds"] += 1
        self.state["rate"] *= 0.1
        self.state |= {"begun": True, "sum": self.state["sum"] + valid.mean("robust_correct").cpu()}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_plain_numbers_in_a_state_are_kept(tmp_path: Path) -> None:
    strategy, objective = Counting(), Natural()
    state = new_state(SmallCNN(3, 1), strategy, plan(epochs=2))
    records = list(fit(state, images(), images(), objective, plan(epochs=2)))
    assert [record.strategy_before["rounds"].item() for record in records] == [0, 1]
    assert [describe(record)["strategy"]["begun"] for record in records] == [False, True]
    save_state(tmp_path / "state.safetensors", state, {})
    again = new_state(SmallCNN(3, 1), Counting(), plan(epochs=2))
    load_state(tmp_path / "state.safetensors", again)
    read = again.strategy.state_dict()
    assert {key: type(value) for key, value in read.items()} == {
        "rounds": int,
        "rate": float,
        "begun": bool,
        "sum": torch.Tensor,
    }
    assert (read["rounds"], read["rate"], read["begun"]) == (2, strategy.state["rate"], True)
    assert torch.equal(read["sum"], strategy.state["sum"])


@pytest.mark.parametrize("value", [[1, 2], "text", None, 2**63, {"a": 1}, torch.Generator()])
def test_what_no_checkpoint_can_hold_is_told_before_training(value: Any) -> None:
    with pytest.raises(UserError, match=r"Counting\.state_dict\(\)\['rounds'\] .* tensors and plain numbers"):
        new_state(SmallCNN(3, 1), Counting(rounds=value), plan())


class WithExtra(SmallCNN):
    """A network that keeps a number beside its weights."""

    steps = 0

    def get_extra_state(self) -> int:
        return self.steps

    def set_extra_state(self, state: int) -> None:
        self.steps = state + 0


def test_a_number_that_a_model_keeps(tmp_path: Path) -> None:
    model = WithExtra(3, 1)
    model.steps = 7
    save_state(tmp_path / "state.safetensors", new_state(model, uniform(3), plan(optimizer=SGD(momentum=0.0))), {})
    again = WithExtra(3, 1)
    load_state(tmp_path / "state.safetensors", new_state(again, uniform(3), plan(optimizer=SGD(momentum=0.0))))
    assert (type(again.steps), again.steps) == (int, 7)


@pytest.mark.parametrize("share", [75, 0, -0.5, float("nan")])
def test_a_milestone_that_is_no_share(share: float) -> None:
    with pytest.raises(UserError, match="shares of the epochs"):
        Piecewise((share,))


def test_unbalanced_data_and_a_batch_without_a_class(tmp_path: Path) -> None:
    """A class rarer than a batch trains on, and its weight makes up for its rarity."""
    y = torch.tensor([0] * 40 + [1] * 18 + [2] * 2)
    train = Images(images(60).x, y)
    strategy = WAT(train.class_counts(3), eta=0.1)
    assert strategy.weights.natural[2] == pytest.approx(0.25 + 0.25 * 30)
    the_plan = plan(epochs=2)
    state = new_state(SmallCNN(3, 1), strategy, the_plan)
    records = list(fit(state, train, images(9), Trades(beta=1.0, attack=trades_attack(eps=0.1)), the_plan))
    assert records[-1].train.table.isfinite().all()
    assert records[-1].train.counts.sum() == 48  # three whole batches of 16; the last partial one is left out


@pytest.mark.parametrize(("batch_size", "largest"), [(5, 20), (200, 500)])
def test_a_smaller_batch_makes_that_of_validation_smaller(batch_size: int, largest: int) -> None:
    """Where memory is short, it is the one thing to turn."""
    the_plan, sizes = plan(epochs=1, batch_size=batch_size), list[int]()
    state = new_state(SmallCNN(3, 1), uniform(3), the_plan)
    state.model.register_forward_pre_hook(lambda model, inputs: sizes.append(0 if model.training else len(inputs[0])))
    list(fit(state, images(200), images(501), Natural(), the_plan))
    assert max(sizes) == largest


def test_validation_measures_what_it_says() -> None:
    """Losses under the objective's attack, accuracy under PGD, weights and BatchNorm statistics untouched."""
    from worstclass.training import validate

    model, valid = SmallCNN(3, 1), images(30)
    objective = Trades(beta=6.0, attack=trades_attack(eps=0.1))
    attack = PGD(eps=0.1, steps=5, step_size=0.03)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.eval()
    stats = validate(model, valid, objective, attack, 3, seed=1, epoch=4)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    generator = rng.generator(1, "valid", 4)
    x, y = to_float(valid.x), valid.y
    x_adv = objective.perturb(model, x, y, generator=generator)
    attacked = attack(model, x, y, generator=generator)
    losses = objective.losses(model, x, x_adv, y)
    for k in range(3):
        assert stats.mean("natural_loss")[k].item() == pytest.approx(losses.natural[y == k].mean().item(), rel=1e-5)
        assert stats.mean("robust_loss")[k].item() == pytest.approx(losses.robust[y == k].mean().item(), rel=1e-5)
        right = (model(attacked).argmax(1) == y)[y == k].double().mean().item()
        assert stats.mean("robust_correct")[k].item() == pytest.approx(right)


def test_normalisation_is_inside_the_model(data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, normalize=True, epochs=1), tmp_path / "run")
    model, _ = run.load_model()
    pixels = to_float(Images(*_train_part(data)).x)
    assert torch.allclose(model.get_buffer("mean").flatten(), pixels.mean().float(), atol=1e-4)


def _train_part(data: Path) -> tuple[torch.Tensor, torch.Tensor]:

    train, _ = split_validation(open_source(f"npz:{data}").read("train"), 3, 0.25)
    return train.x, train.y


def test_same_seed_same_run_other_seed_other_run(data: Path, tmp_path: Path) -> None:
    def weights(config: Config, name: str) -> bytes:
        train_run(config, tmp_path / name)
        return (tmp_path / name / LAST).read_bytes()

    first = weights(tiny_config(data, epochs=1), "a")
    torch.manual_seed(123)
    torch.rand(5)
    assert first == weights(tiny_config(data, epochs=1), "b")
    assert first != weights(tiny_config(data, epochs=1, seed=SEED + 1), "c")
