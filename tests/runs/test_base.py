"""A base beside a run: which of the two ships, and that neither a stop nor a team changes it."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tiny import tiny_config, write_tiny_npz
from worstclass.attacks import PGD
from worstclass.cli import main as cli
from worstclass.config.keys import Config
from worstclass.config.methods import METHODS, ObjectiveName
from worstclass.config.recipe import make_config, merge
from worstclass.data import Images
from worstclass.errors import UserError
from worstclass.evaluation.targets import run_target
from worstclass.runs.base import (
    BASE,
    MIXES,
    PRICE,
    Reading,
    base_config,
    base_epoch,
    choose,
    mixed,
    predictions,
    standard_error,
    verdict,
)
from worstclass.runs.finished import is_trained
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import ABOUT, LAST, SELECTED
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork
from worstclass.strategies.guarded import PRIOR
from worstclass.training.checkpoint import SELECTED_PART, load_tensors, section, weights_of

MODES = ("sample", "weight")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


def config_of(data: Path, **settings: Any) -> Config:
    return tiny_config(data, **{"method": "guarded", "epochs": 4, "base_start": 0.5} | settings)


@pytest.fixture(scope="module")
def run(data: Path) -> Run:
    return train_run(config_of(data), data.parent / "run")


def own_weights(folder: Path) -> dict[str, torch.Tensor]:
    return section(load_tensors(folder / LAST)[0], SELECTED_PART)


accuracies = st.floats(0, 1)


@pytest.mark.fast
@given(
    rows=st.lists(st.tuples(accuracies, accuracies, st.floats(0, 0.1)), min_size=len(MIXES), max_size=len(MIXES)),
    budget=st.floats(0, 1),
)
def test_what_ships_is_within_the_budget_and_its_price(rows: list[tuple[float, float, float]], budget: float) -> None:
    readings = [Reading(mix, *row) for mix, row in zip(MIXES, rows, strict=True)]
    base, shipped = readings[0], choose(readings, budget)

    def allowed(reading: Reading) -> bool:
        given_up = base.average - reading.average
        return max(given_up, 0) - reading.error <= budget and reading.tail - base.tail >= PRICE * max(given_up, 0)

    assert shipped is base or allowed(shipped)
    assert shipped.tail >= base.tail
    assert all(each.tail <= shipped.tail for each in readings[1:] if allowed(each))


@pytest.mark.fast
def test_a_run_that_only_costs_is_not_shipped() -> None:
    assert choose([Reading(0.0, 0.5, 0.2), Reading(1.0, 0.4, 0.2)], 1.0).mix == 0
    assert choose([Reading(0.0, 0.5, 0.2), Reading(1.0, 0.46, 0.27)], 1.0).mix == 0  # 4 points buy 7
    assert choose([Reading(0.0, 0.5, 0.2), Reading(1.0, 0.46, 0.29)], 1.0).mix == 1
    assert choose([Reading(0.0, 0.5, 0.2), Reading(1.0, 0.46, 0.29)], 0.03).mix == 0


@pytest.mark.fast
def test_the_budget_is_held_as_far_as_validation_can_tell() -> None:
    """Four points and a half are over a budget of 3 with an error of 1, and not shown to be with one of 2."""
    readings = [Reading(0.0, 0.5, 0.2), Reading(1.0, 0.455, 0.4, 0.01)]
    assert choose(readings, 0.03).mix == 0
    assert choose([readings[0], readings[1]._replace(error=0.02)], 0.03).mix == 1


@pytest.mark.fast
def test_the_error_is_that_of_repeated_validation() -> None:
    """Images are drawn again and again; each network is right with its own chance, whatever the other does."""
    draw, images = torch.Generator().manual_seed(0), torch.tensor([5, 20, 200])
    y = torch.repeat_interleave(torch.arange(3), images)
    shrink = images / (images + PRIOR)
    gaps, errors = [], []
    for _ in range(2000):
        right = torch.rand(2, len(y), generator=draw) < 0.5
        found = torch.where(right, y, 3)
        by_class = torch.stack([(right[0].double() - right[1].double())[y == k].mean() for k in range(3)])
        gaps.append((shrink * by_class).mean())
        errors.append(standard_error(y, found[0], found[1], 3))
    assert float(torch.stack(gaps).std()) == pytest.approx(sum(errors) / len(errors), rel=0.05)


@pytest.mark.fast
def test_between_two_networks() -> None:
    one = {"w": torch.tensor([0.0, 4.0]), "steps": torch.tensor(3)}
    other = {"w": torch.tensor([1.0, 0.0]), "steps": torch.tensor(5)}
    assert mixed(one, other, 0.0) is one
    assert mixed(one, other, 1.0) is other
    between = mixed(one, other, 0.25)
    assert between["w"].tolist() == [0.25, 3.0]
    assert int(between["steps"]) == 5


@pytest.mark.fast
@pytest.mark.parametrize(
    ("right", "base_right", "mix", "word"),
    [
        (90, 10, 1.0, "better"),
        (10, 90, 1.0, "worse"),
        (50, 50, 1.0, "no significant difference"),
        (50, 50, 0.0, "base is kept"),
    ],
)
def test_the_verdict(right: int, base_right: int, mix: float, word: str) -> None:
    """Class 1 decides, of which so many of 100 are right."""
    y = torch.arange(200) % 2
    place = torch.arange(200) // 2
    ours, base = (torch.where((y == 1) & (place >= count), 0, y) for count in (right, base_right))
    said = verdict(y, ours, base, 2, mix)
    assert word in said["verdict"]
    assert said["worst_difference"][0] == pytest.approx((right - base_right) / 100)


@pytest.mark.fast
def test_the_average_of_a_verdict_counts_all_classes_alike() -> None:
    """As `budget` does: 100 of 1000 images lost and 5 of 10 gained are 20 points gained."""
    y = torch.cat([torch.zeros(1000), torch.ones(10)]).long()
    ours, base = y.clone(), y.clone()
    ours[:100], base[-5:] = 1, 0
    value, low, high = verdict(y, ours, base, 2, 1.0)["average_difference"]
    error = (105 / 1010 * (1 / 1000 + 1 / 10)) ** 0.5 / 2
    assert (value, low, high) == pytest.approx((0.2, 0.2 - 1.96 * error, 0.2 + 1.96 * error))


@pytest.mark.fast
def test_of_many_classes_the_worst_tenth_decides() -> None:
    """Of 40 classes one is at 0 in both networks; three more are at 90% instead of 10%."""
    y = torch.arange(4000) % 40
    place = torch.arange(4000) // 40
    right = torch.full((40,), 95)
    ours, base = right.clone(), right.clone()
    ours[:4], base[:4] = torch.tensor([0, 90, 90, 90]), torch.tensor([0, 10, 10, 10])
    predicted = [torch.where(place < each[y], y, (y + 1) % 40) for each in (ours, base)]
    said = verdict(y, predicted[0], predicted[1], 40, 1.0)
    assert said["verdict"].startswith("better than the base: worst tenth +60.0 [")
    assert said["worst_difference"][0] == 0
    assert said["worst_tenth_difference"][0] == pytest.approx(0.6)


def test_a_base_goes_on_from_the_run_without_class_weights(run: Run) -> None:
    base = open_run(run.folder / BASE)
    assert (base.config.method, base.config.class_weights) == ("fixed", "balanced")
    assert base.config.base_start is None
    assert base.about["fork"]["epoch"] == base_epoch(run.config) == 2
    assert len(base.log) == len(run.log) == 4
    timeless = [[{**line, "seconds": 0} for line in each.log[:2]] for each in (run, base)]
    assert timeless[0] == timeless[1]
    assert base.log[-1]["class_weights"] == [1.0] * 3


def test_the_selected_weights_are_those_that_the_rule_chose(run: Run) -> None:
    record = run.about["base"]
    assert open_run(run.folder).about["base"] == record
    shipped = choose([Reading(**reading) for reading in record["readings"]], run.config.budget)
    assert record["shipped"] == shipped.mix
    expected = mixed(own_weights(run.folder / BASE), own_weights(run.folder), shipped.mix)
    found = weights_of(run.load_model()[0])
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_method_ships_where_told(data: Path) -> None:
    run = train_run(config_of(data, ship="method"), data.parent / "told")
    assert run.about["base"]["shipped"] == 1
    own, found = own_weights(run.folder), weights_of(run.load_model()[0])
    assert all(torch.equal(found[name], tensor) for name, tensor in own.items())


def test_predictions_are_under_attack() -> None:
    """Of a network that tells two grey levels apart: all are right, and none once they may be moved past the middle."""
    last = nn.Linear(4, 2)
    last.load_state_dict({"weight": torch.tensor([[-1.0] * 4, [1.0] * 4]), "bias": torch.tensor([2.0, -2.0])})
    model = nn.Sequential(nn.Flatten(), last)
    y = torch.arange(6) % 2
    images = Images((0.45 + 0.1 * y)[:, None, None, None].expand(6, 1, 2, 2).contiguous(), y)
    near, far = (PGD(eps=eps, steps=4, step_size=eps) for eps in (0.01, 0.1))
    assert torch.equal(predictions(model, images, near, seed=1), y)
    assert torch.equal(predictions(model, images, far, seed=1), 1 - y)


@pytest.mark.parametrize("where", ["before the base", "in the base", "at the end"])
def test_a_stop_changes_nothing(run: Run, data: Path, tmp_path: Path, where: str) -> None:
    out, begun, steps = tmp_path / "run", False, 0

    def on_base() -> None:
        nonlocal begun
        begun = True
        if where == "before the base":
            raise KeyboardInterrupt

    def on_step(*_: int) -> None:
        nonlocal steps
        steps += begun
        if begun and steps == 3 and where == "in the base":
            raise KeyboardInterrupt

    if where == "at the end":
        train_run(config_of(data), out)
    else:
        with pytest.raises(KeyboardInterrupt):
            train_run(config_of(data), out, on_base=on_base, on_step=on_step)
        assert not is_trained(open_run(out))  # a sweep would evaluate weights that do not ship
        (note,) = run_target(open_run(out)).notes
        assert note.startswith(f"{out} has not been compared with its base yet")
    heard: list[tuple[int, int]] = []
    again = train_run(config_of(data), out, resume=True, on_compare=lambda *at: heard.append(at))
    assert is_trained(again)
    assert heard == ([] if where == "at the end" else [(done, len(MIXES)) for done in range(len(MIXES) + 1)])
    assert not run_target(again).notes
    assert again.about["base"] == run.about["base"]
    assert (out / SELECTED).read_bytes() == (run.folder / SELECTED).read_bytes()


def test_a_fork_has_its_base_later(run: Run, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must have it later"):
        train_run(config_of(data), tmp_path / "late", fork=parse_fork(f"{run.folder}@2"))


def test_a_plain_method_has_no_base(data: Path) -> None:
    with pytest.raises(UserError, match="method 'trades' has none"):
        config_of(data, method="trades")
    with pytest.raises(UserError, match="budget belongs to base_start"):
        tiny_config(data, method="guarded", budget=0.1)
    with pytest.raises(UserError, match="two epochs or more"):
        config_of(data, epochs=1)


@pytest.mark.parametrize("objective", ["trades", "pgd-at"])
@pytest.mark.parametrize(
    ("settings", "balanced"),
    [
        ({"method": "guarded", "guarded_radius": 0.2}, "sample"),
        ({"method": "guarded", "guarded_mode": "weight"}, "weight"),
        ({"method": "guarded", "guarded_base": "data"}, None),
        ({"method": "wat"}, "weight"),
        ({"method": "wat", "variant": "reference"}, None),
        ({"method": "cfol"}, "sample"),
        ({"method": "cfol", "cfol_mode": "weight"}, None),
        ({"method": "frl-rw"}, None),
        ({"method": "dafa"}, None),
    ],
)
def test_the_recipe_of_a_base(data: Path, objective: str, settings: dict[str, Any], balanced: str | None) -> None:
    """The run's, but for what it learns: methods that start from balanced classes are compared with these."""
    config = config_of(data, objective=objective, average="ema", **settings)
    base = base_config(config)
    assert (base.method, base.class_weights) == (("fixed", "balanced") if balanced else (objective, None))
    assert base.base_objective == objective
    assert balanced in (None, base.fixed_mode)
    how = {None: "", "weight": ", balanced", "sample": ", balanced by sampling"}[balanced]
    assert base.title == f"{METHODS[objective].title}{how} + EMA"
    kept = {"average", "epochs", "eps", "data", "seed", "lr", "attack_steps", "valid_fraction"}
    assert {key: getattr(base, key) for key in kept} == {key: getattr(config, key) for key in kept}


@pytest.mark.parametrize("name", sorted({*METHODS} - {"fixed", *get_args(ObjectiveName)}))
def test_a_method_balances_if_it_starts_so(data: Path, name: str) -> None:
    """By the share of the loss that a class has before anything is learned."""
    settings: dict[str, list[dict[str, Any]]] = {
        "wat": [{}, {"variant": "reference"}],
        "guarded": [{"guarded_base": base, "guarded_mode": mode} for base in ("balanced", "data") for mode in MODES],
        "cfol": [{"cfol_mode": mode} for mode in MODES],
    }
    counts = torch.tensor([90, 9, 45])
    plain, even = counts / counts.sum(), torch.full((3,), 1 / 3)
    for its in settings.get(name, [{}]):
        config = config_of(data, method=name, **its)
        weights = config.make_strategy(counts).weights
        drawn = next((each for each in (weights.quota, weights.sampling) if each is not None), None)
        share = weights.natural * (plain if drawn is None else drawn)
        share = share / share.sum()
        nearer = float((share - even).abs().sum()) < float((share - plain).abs().sum())
        assert METHODS[name].balanced(config) == (None if not nearer else "weight" if drawn is None else "sample"), its


def test_a_base_goes_on_as_it_began(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an older version had another recipe: two of them in one training would be neither."""
    config, trained = config_of(data), 0
    plain = make_config(merge(base_config(config).recipe(), {"method": "trades"}))

    def stop(line: dict[str, Any]) -> None:
        nonlocal trained
        trained += 1
        if trained == config.epochs + 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as older:
        older.setattr("worstclass.runs.train.base_config", lambda _: plain)
        with pytest.raises(KeyboardInterrupt):
            train_run(config, tmp_path / "run", on_epoch=stop)
    assert open_run(tmp_path / "run" / BASE).config.method == "trades"
    run = train_run(config, tmp_path / "run", resume=True)
    assert run.about["base"]["title"] == "TRADES"
    log = open_run(run.folder / BASE).log
    assert [line["class_weights"] for line in log[2:]] == [[1.0] * 3] * 2


def test_a_base_is_attacked_in_the_same_steps(data: Path) -> None:
    """Those of frl-rwrm are longer: as many of the default length would not reach the radius."""
    config = config_of(data, method="frl-rwrm", attack_steps=4, attack_step_size=None)
    assert base_config(config).make_objective() == config.make_objective()
    assert base_config(config_of(data, attack_step_size=None, attack_steps=10)).attack_step_size is None


def test_the_command_ends_with_a_sentence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine.toml"
    values = tiny_config(data, method="wat", epochs=2).recipe()
    recipe.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    command = ["worstclass", "train", str(recipe), "--with-base", "--out", "run", "--device", "cpu"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "The base: TRADES, balanced, from epoch 1 on." in printed
    assert "comparing with the base: 0/8\n" in printed
    assert f"compared with its base: {json.loads((tmp_path / 'run' / ABOUT).read_text())['base']['verdict']}" in printed
