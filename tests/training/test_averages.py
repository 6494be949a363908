"""Averages of the weights: their recursion, their gate, and that they are what is validated, selected and shipped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tiny import tiny_config, tiny_run, write_tiny_npz
from worstclass import rng
from worstclass.attacks import PGD, trades_attack
from worstclass.cli.evaluate import raw_weights, weights_line
from worstclass.data import Images
from worstclass.evaluation.run_notes import run_notes
from worstclass.evaluation.targets import run_target
from worstclass.models import SmallCNN
from worstclass.objectives import Natural, Trades
from worstclass.runs.saver import KEPT, LAST, SELECTED
from worstclass.runs.train import train_run
from worstclass.stats import ClassStats
from worstclass.strategies import uniform
from worstclass.training import EMA, FAWA, Engine, Plan, State, fit, new_state, validate
from worstclass.training.averaging import Average, AverageRule
from worstclass.training.checkpoint import load_state, load_tensors, save_state, section
from worstclass.training.prepare import prepare
from worstclass.types import Classifier, Losses

Weights = dict[str, Tensor]
ATTACK = PGD(eps=0.1, steps=1, step_size=0.1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


def plan(average: AverageRule | None, epochs: int = 1, **changes: Any) -> Plan:
    return Plan(epochs=epochs, batch_size=16, lr=0.1, valid_attack=ATTACK, average=average, **changes)


def images(size: int = 48, seed: int = 0) -> Images:
    x = torch.randint(0, 256, (size, 1, 8, 8), generator=rng.generator(seed, "images"), dtype=torch.uint8)
    return Images(x, torch.arange(size) % 3)


def copied(weights: Any) -> Weights:
    return {name: value.clone() for name, value in weights.items()}


def fill(model: torch.nn.Module, value: float) -> None:
    """Every weight, statistic and counter."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


class Trained:
    """A state of double precision, trained; the weights before the first step, and after each one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, the_plan: Plan) -> None:
        for module in ("step", "prepare"):
            monkeypatch.setattr(f"worstclass.training.{module}.to_float", lambda x: x.double() / 255)
        self.state = new_state(SmallCNN(3, 1).double(), uniform(3), the_plan)
        self.weights = [copied(self.state.model.state_dict())]
        self.records = list(fit(self.state, images(), images(12), Natural(), the_plan, on_step=self._note))

    def _note(self, step: int, steps: int) -> None:
        self.weights.append(copied(self.state.model.state_dict()))


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_ema_is_its_recursion(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """a <- d a + (1 - d) w after each step, with d = min(decay, (1 + s) / (10 + s)); counters are the last ones."""
    trained = Trained(monkeypatch, plan(EMA(decay), epochs=2, recalibrate=False))
    assert len(trained.weights) == 1 + 2 * 3
    wanted = copied(trained.weights[0])
    for step, weights in enumerate(trained.weights[1:]):
        share = min(decay, (1 + step) / (10 + step))
        for name, value in weights.items():
            wanted[name] = share * wanted[name] + (1 - share) * value if value.is_floating_point() else value
    found = trained.state.shipped.state_dict()
    assert {"bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"} <= found.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found["bn1.running_mean"], trained.weights[-1]["bn1.running_mean"])


class Noting:
    """TRADES, with a note of the images that averaged weights see in training mode: plain and attacked."""

    def __init__(self, average: Average) -> None:
        self.average, self.seen = average, list[Tensor]()
        self._trades = Trades(beta=6.0, attack=trades_attack(eps=0.1, steps=2, step_size=0.1))
        self.perturb = self._trades.perturb

    def losses(self, model: Classifier, x: Tensor, x_adv: Tensor, y: Tensor) -> Losses:
        if model is self.average.model and model.training:
            self.seen = [x, x_adv]
        return self._trades.losses(model, x, x_adv, y)


@pytest.mark.parametrize("rule", [EMA(0.5), FAWA(0.5, 0.0)])
def test_statistics_are_those_of_the_averaged_weights(rule: AverageRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and variance of what the first layer computes of all images, plain and attacked; no weight is another."""
    for module in ("step", "prepare"):
        monkeypatch.setattr(f"worstclass.training.{module}.to_float", lambda x: x.double() / 255)
    shipped: list[Weights] = []
    for recalibrate in (True, False):
        the_plan = plan(rule, epochs=2, recalibrate=recalibrate)
        torch.manual_seed(0)
        state = new_state(SmallCNN(3, 1).double(), uniform(3), the_plan)
        assert state.average is not None
        objective = Noting(state.average)
        list(fit(state, images(), images(12), objective, the_plan))
        shipped.append(copied(state.shipped.state_dict()))
        assert [len(each) for each in objective.seen] == [48, 48] * recalibrate
        if recalibrate:
            assert (objective.seen[0] - objective.seen[1]).abs().max() > 0.05
            outputs = [state.shipped.conv1(x).detach() for x in objective.seen]  # type: ignore[operator]
            measured = {"mean": [each.mean((0, 2, 3)) for each in outputs], "var": [e.var((0, 2, 3)) for e in outputs]}
            for name, values in measured.items():
                wanted = torch.stack(values).mean(0)
                torch.testing.assert_close(shipped[0][f"bn1.running_{name}"], wanted, rtol=1e-9, atol=1e-12)
    for name, value in shipped[0].items():
        assert torch.equal(value, shipped[1][name]) == ("bn" not in name or name.endswith(("weight", "bias"))), name


class Frozen(SmallCNN):
    """Its first BatchNorm stays as it is, in training too."""

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.bn1.eval()
        return self


def test_statistics_that_no_pass_measures_stay() -> None:
    model = Frozen(3, 1)
    fill(model.bn1, 3.0)
    state = new_state(model, uniform(3), plan(EMA(0.5)))
    list(fit(state, images(), images(12), Natural(), plan(EMA(0.5))))
    shipped = state.shipped.state_dict()
    assert (shipped["bn1.running_mean"] == 3).all()
    assert (shipped["bn1.running_var"] == 3).all()
    assert (shipped["bn2.running_var"] != 1).any()


@pytest.mark.parametrize("rule", [EMA(0.5), FAWA(0.5, 0.0)])
def test_an_average_follows_weights_that_were_laid_out_anew(rule: AverageRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast engine's layout gives the convolutions new memory; nothing is captured here."""
    monkeypatch.setattr(Engine, "prepare", lambda self, work, *_, **__: work)
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    state = new_state(SmallCNN(3, 3), uniform(3), plan(rule))
    data = Images(images().x.expand(-1, 3, -1, -1), images().y)
    prepare(state, data, data, Natural(), plan(rule), Engine(fast=True), on_fallback=lambda _: None)
    assert state.average is not None
    table = ClassStats(3)
    for value in (2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0):
        fill(state.model, value)
        state.average.follow()
        state.average.end_epoch(table)
    for name, tensor in state.average.model.state_dict().items():
        assert (tensor.double() - 2).abs().max() < 0.1, name


@pytest.mark.parametrize("rule", [EMA(0.9), FAWA(0.5, 0.0)])
def test_an_average_round_trips(rule: AverageRule, tmp_path: Path) -> None:
    def new() -> State:
        return new_state(SmallCNN(3, 1), uniform(3), plan(rule, epochs=2))

    state, again = new(), new()
    list(fit(state, images(), images(12), Natural(), plan(rule, epochs=2)))
    save_state(tmp_path / "state.safetensors", state, {})
    storage = [tensor.data_ptr() for tensor in again.shipped.state_dict().values()]
    load_state(tmp_path / "state.safetensors", again)
    assert state.average is not None
    assert again.average is not None
    one, other = state.average.state_dict(), again.average.state_dict()
    assert int(one["steps"]) == (6 if isinstance(rule, EMA) else 2)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert storage == [tensor.data_ptr() for tensor in again.shipped.state_dict().values()]


def table(*robust: float) -> ClassStats:
    """Ten samples of each class, of which so many stand under attack."""
    stats = ClassStats(3)
    for label, share in enumerate(robust):
        stands = (torch.arange(10) < 10 * share).double()
        y, none = torch.full((10,), label), torch.zeros(10)
        stats.add(y, natural_loss=none, robust_loss=none, natural_correct=none + 1, robust_correct=stands)
    return stats


def test_fawa_counts_epochs_whose_worst_class_holds() -> None:
    """Until the first of them it is the raw weights, to the bit; that one begins it, and weaker ones leave it."""
    model = SmallCNN(3, 1).double()
    average = FAWA(0.75, 0.3).make(model)
    weak, good = table(1.0, 0.2, 1.0), table(0.3, 0.9, 0.9)
    epochs = [
        (weak, 0.1, 0.1, 0),
        (weak, 0.7, 0.7, 0),
        (good, 1.3, 1.3, 1),
        (weak, 90.0, 1.3, 1),
        (good, 5.3, 2.3, 2),
        (weak, 9.0, 2.3, 2),
    ]
    for raw, value, wanted, count in epochs:
        fill(model, value)
        average.follow()
        average.end_epoch(raw)
        assert getattr(average, "averaged_epochs") == count  # noqa: B009 (of an average over epochs alone)
        for name, tensor in average.model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if value == wanted:
                assert torch.equal(tensor, model.state_dict()[name]), name
            torch.testing.assert_close(tensor, torch.full_like(tensor, wanted), rtol=1e-12, atol=0)


def test_fawa_is_judged_by_the_raw_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gate sees their validation table, and the record has the average's."""
    the_plan = plan(FAWA(0.6, 0.0), epochs=3, recalibrate=False)
    state = new_state(SmallCNN(3, 1), uniform(3), the_plan)
    assert state.average is not None
    seen: list[ClassStats] = []
    usual = state.average.end_epoch

    def judged(raw: ClassStats) -> None:
        seen.append(raw)
        usual(raw)

    monkeypatch.setattr(state.average, "end_epoch", judged)
    wanted: Weights = {}
    valid = images(30, seed=1)
    for record in fit(state, images(), valid, Natural(), the_plan):
        raw = copied(state.model.state_dict())
        wanted = {n: 0.6 * wanted[n] + 0.4 * raw[n] for n in wanted} or {
            n: v for n, v in raw.items() if v.dtype.is_floating_point
        }
        for model, stats in ((state.model, seen[-1]), (state.shipped, record.valid)):
            again = validate(model.eval(), valid, Natural(), ATTACK, 3, seed=1, epoch=record.epoch, batch_size=64)
            assert torch.equal(again.table, stats.table)
        for name, value in wanted.items():
            torch.testing.assert_close(state.shipped.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(seen[-1].table, record.valid.table)


@pytest.mark.parametrize("settings", [{"average": "ema", "ema_decay": 0.9}, {"average": "fawa", "fawa_threshold": 0.0}])
def test_the_average_is_validated_selected_and_shipped(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, method="trades", epochs=3, **settings), tmp_path / "run", keep=(1, 2, 3))
    last = load_tensors(run.folder / LAST)[0]
    selected, header = load_tensors(run.folder / SELECTED)
    kept = load_tensors(run.folder / KEPT.format(header["epoch"]))[0]
    shipped = {"last": section(last, "average.model"), "selected": section(kept, "average.model")}
    assert section(selected, "model").keys() == shipped["selected"].keys()
    for which, wanted in shipped.items():
        model, epoch = run.load_model(which)
        assert epoch == (3 if which == "last" else header["epoch"])
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(last["average.model.linear.weight"], last["model.linear.weight"])
    assert [line["epoch"] for line in run.log if line["selected"]][-1] == header["epoch"]


@pytest.mark.parametrize(("threshold", "holds"), [(0.0, True), (1.0, False)])
def test_a_run_says_where_nothing_was_averaged(threshold: float, holds: bool, data: Path, tmp_path: Path) -> None:
    """`train` at its end, and `evaluate` of its weights."""
    config = tiny_config(data, method="trades", epochs=2, average="fawa", fawa_threshold=threshold)
    run = train_run(config, tmp_path / "run")
    assert [line["averaged_epochs"] for line in run.log] == ([1, 2] if holds else [0, 0])
    last = load_tensors(run.folder / LAST)[0]
    same = torch.equal(last["average.model.linear.weight"], last["model.linear.weight"])
    target = run_target(run)
    line = weights_line(target.about, raw=raw_weights(target))
    said = [note for note in run_notes(run) if "averaged" in note]
    if holds:
        assert not same
        assert said == []
        assert line.endswith(", averaged over the epochs that held (FAWA)")
    else:
        assert same
        assert said == ["no epoch held: nothing was averaged, these are the raw weights; lower fawa_threshold."]
        assert line.endswith(", raw weights: no epoch had held (FAWA)")
    assert all("averaged_epochs" not in line for line in tiny_run(tmp_path, "plain", epochs=1).log)
