"""Recipes: what ships, what the paper's settings are, and what a mistake is told."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worstclass.attacks import PGD, trades_attack
from worstclass.config import (
    DEFAULTS,
    Config,
    Select,
    differing_keys,
    load_config,
    make_config,
    merge,
    parse_settings,
    read_recipe,
    recipe_comment,
    recipe_names,
    to_toml,
)
from worstclass.errors import UserError
from worstclass.methods import METHOD_KEYS, Method
from worstclass.methods import METHODS as REGISTERED
from worstclass.objectives import BAT, Madry, Natural, Trades
from worstclass.owners import OWNERS, is_used, owners_of
from worstclass.strategies import uniform

pytestmark = pytest.mark.fast

METHODS = ("natural", "pgd-at", "trades", "wat", "frl-rw", "frl-rwrm", "csl")
EPS = 8 / 255


def shipped(name: str) -> Config:
    return make_config(read_recipe(name))


# --- what ships ---


def test_the_papers_recipes_and_the_demos_ship() -> None:
    wanted = {f"{data}-resnet18-{method}" for data in ("cifar10", "cifar100") for method in METHODS}
    wanted |= {f"cifar10-wrn34-10-{method}" for method in METHODS}
    wanted |= {f"{front}-wat-reference" for front in ("cifar10-resnet18", "cifar10-wrn34-10", "cifar100-resnet18")}
    wanted |= {f"cifar10-resnet18-wat-eta{eta}" for eta in ("0.01", "0.05", "0.1", "0.5")}
    wanted |= {f"cifar10-resnet18-fixed-cat{weight}" for weight in ("0.05", "0.1", "0.15", "0.2", "0.25")}
    wanted |= {"fashion-mini-trades", "fashion-mini-wat"}
    assert wanted <= set(recipe_names())


PERTURBED = ("cifar10-resnet18-faal-published", "cifar10-resnet18-csr-published")


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_what_its_name_says(name: str) -> None:
    config = shipped(name)
    if name == "my-images":
        assert (config.method, config.data, config.flip) == ("guarded", "folder:my-images", False)
        return
    front = "fashion-mini" if config.data == "fashion-mini" else f"{config.data}-{config.model}"
    suffixes = r"(-level)?(?:-(reference|eta[\d.]+|cat[\d.]+|published|ema|awp))?"
    rest = re.fullmatch(f"{front}-{config.method}{suffixes}", name)
    assert rest is not None
    variant = rest[2] or ""
    assert (config.dafa_level > 0) == bool(rest[1])
    assert config.variant == ("reference" if variant == "reference" else "paper")
    usual = 0.5 if name == "fashion-mini-wat" else 0.1  # few epochs need a larger one
    assert config.eta == (float(variant.removeprefix("eta")) if variant.startswith("eta") else usual)
    assert (config.average == "ema") == (variant == "ema")
    assert (config.awp_gamma > 0) == (variant == "awp" or name in PERTURBED)
    if config.method == "fixed":
        assert config.focus_class == 3  # the cat of CIFAR-10
        assert config.focus_weight == float(variant.removeprefix("cat"))
    assert re.match(r"[A-Z].{10,}\.$", recipe_comment(name))  # a sentence, not a key


@pytest.mark.parametrize(
    "name", [name for name in recipe_names() if name.startswith("cifar") and not name.endswith("-published")]
)
def test_the_papers_settings(name: str) -> None:
    config = shipped(name)
    assert config.eps == EPS
    assert (config.epochs, config.batch_size, config.lr, config.momentum) == (100, 128, 0.1, 0.9)
    assert (config.weight_decay, config.lr_milestones, config.lr_decay) == (2e-4, (0.75, 0.9, 1.0), 0.1)
    assert (config.beta, config.attack_steps, config.attack_step_size) == (
        6.0,
        10,
        None,
    )  # the method's own
    assert config.valid_min == 20
    assert (config.valid_fraction, config.crop_padding, config.flip) == (0.06, 4, True)
    assert (config.frl_tau, config.frl_rate, config.frl_margin_rate, config.csl_rate) == (0.05, 0.05, 0.2, 0.05)
    assert (config.objective, config.normalize, config.select, config.seed) == (None, False, "worst-accuracy", 1)
    plan = config.make_plan()
    rates = [plan.lr_at(epoch) for epoch in (1, 74, 75, 89, 90, 99, 100)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001])
    assert plan.valid_attack == PGD(eps=EPS, steps=20, step_size=EPS / 4)
    assert plan.augment.crop_padding == 4
    assert plan.augment.flip
    objective = config.make_objective()
    if config.method == "natural":
        assert objective == Natural()
    elif config.method == "pgd-at":
        assert objective == Madry(attack=PGD(eps=EPS, steps=10, step_size=0.007))
    elif config.method == "bat":
        assert objective == BAT(beta=6.0, attack=trades_attack(eps=EPS, steps=10, step_size=0.007))
    else:
        step = EPS / 4 if config.method == "frl-rwrm" else 0.007
        assert objective == Trades(beta=6.0, attack=trades_attack(eps=EPS, steps=10, step_size=step))


@pytest.mark.parametrize("method", ["pgd-at", "trades", "wat", "frl-rwrm"])
@pytest.mark.parametrize("eps", ["1/255", "8/255", 0.1, 0.3, 1])
def test_the_training_attack_reaches_its_radius(method: str, eps: float | str) -> None:
    """The default step grows with eps: with 0.007 at eps = 0.3 ten steps would reach 0.07."""
    config = make_config({"method": method, "eps": eps})
    attack = config.make_objective().attack  # type: ignore[attr-defined]
    assert attack.steps * attack.step_size > 2 * config.eps
    assert attack.step_size / config.eps == pytest.approx(1 / 4 if method == "frl-rwrm" else 0.007 / EPS)


def test_steps_that_just_reach_the_radius() -> None:
    for eps, steps, step in ((0.7, 7, 0.1), (0.3, 3, 0.1), (8 / 255, 4, 2 / 255), (1 / 3, 1, 1 / 3)):
        make_config({"eps": eps, "attack_steps": steps, "attack_step_size": step})


def test_milestones_of_fewer_epochs() -> None:
    plan = make_config(read_recipe("cifar10-resnet18-wat") | parse_settings(["epochs=30"])).make_plan()
    assert [plan.lr_at(epoch) for epoch in (22, 23, 27, 30)] == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    plan = make_config(parse_settings(["epochs=12", "lr_milestones=[2/3, 11/12]"])).make_plan()
    assert [plan.lr_at(epoch) for epoch in (7, 8, 10, 11)] == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_fixed_weights_of_figure_3() -> None:
    strategy = shipped("cifar10-resnet18-fixed-cat0.25").make_strategy(torch.full((10,), 4700))
    weights = strategy.weights.natural.double() / 10
    expected = torch.full((10,), 0.75 / 9, dtype=torch.float64)
    expected[3] = 0.25
    assert torch.allclose(weights, expected, atol=1e-7)


# --- numbers and settings ---


@pytest.mark.parametrize(
    ("text", "value"),
    [("8/255", 8 / 255), (" 8 / 255 ", 8 / 255), ("1/11", 1 / 11), ("0.031", 0.031), ("1e-3", 1e-3), ("0.5/4", 0.125)],
)
def test_numbers_are_exact(text: str, value: float) -> None:
    assert make_config({"eps": text}).eps == value
    assert make_config(parse_settings([f"eps={text}"])).eps == value


def test_settings() -> None:
    given_settings = ["method=wat", "epochs=3", "lr = 1e-2", "flip=false", "lr_milestones=[2, 3]", "eps=8/255"]
    given_settings += ["data=npz:/some/where=else.npz", 'model="wrn10-1"', "seed=1", "seed=2"]
    assert parse_settings(given_settings) == {
        "method": "wat",
        "epochs": 3,
        "lr": 0.01,
        "flip": False,
        "lr_milestones": [2, 3],
        "eps": "8/255",
        "data": "npz:/some/where=else.npz",
        "model": "wrn10-1",
        "seed": 2,
    }
    assert parse_settings([]) == {}
    assert parse_settings(["lr_milestones=[2/3, 0.9]"]) == {"lr_milestones": ["2/3", "0.9"]}
    assert parse_settings(["lr_milestones=['2/3', 0.9]"]) == {"lr_milestones": ["2/3", 0.9]}


@pytest.mark.parametrize("setting", ["epochs", "", "=3", "--epochs"])
def test_settings_that_are_none(setting: str) -> None:
    with pytest.raises(UserError, match=f"'{setting}' is not a setting of the form key=value"):
        parse_settings(["seed=1", setting])


# --- a configuration as a file ---

numbers = st.floats(1e-300, 1e300)
shares = st.floats(1e-6, 1 - 1e-6)
paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)  # file names of any kind
values = st.fixed_dictionaries(
    {},
    optional={
        "data": st.sampled_from(["fashion-mini", "cifar10", "cifar100"]) | paths.map("npz:{}".format),
        "model": st.sampled_from(["small-cnn", "resnet18", "preact-resnet18", "wrn34-10", "wrn10-3", "my.nets:build"]),
        "normalize": st.booleans(),
        "epochs": st.integers(1, 10**6),
        "batch_size": st.integers(1, 10**6),
        "lr": numbers,
        "lr_milestones": st.lists(shares | st.just(1) | st.just("2/3")),
        "momentum": st.just(0) | shares,
        "weight_decay": st.just(0.0) | numbers,
        "flip": st.booleans(),
        "valid_fraction": shares,
        "valid_min": st.integers(0, 10**6),
        "eps": shares | st.just(1) | st.just("8/255"),
        "select": st.sampled_from(get_args(Select)),
        "seed": st.integers(0, 2**70),
    },
)
owned = st.fixed_dictionaries(
    {},
    optional={
        "attack_steps": st.integers(5, 99),
        "beta": numbers,
        "eta": numbers,
        "variant": st.sampled_from(["paper", "reference"]),
        "frl_tau": numbers,
        "frl_margin_rate": numbers,
        "csl_rate": numbers,
    },
)
methods = st.one_of(
    st.sampled_from([method for method in METHODS if method != "fixed"]).map(lambda method: {"method": method}),
    st.builds(lambda k, w: {"method": "fixed", "focus_class": k, "focus_weight": w}, st.integers(0, 99), shares),
    st.lists(st.integers(1, 99), min_size=2).map(
        lambda weights: {"method": "fixed", "class_weights": [w / sum(weights) for w in weights]}
    ),
    st.sampled_from(["natural", "pgd-at", "trades"]).map(lambda name: {"method": "wat", "objective": name}),
)


@settings(max_examples=150)
@given(values=values, method=methods, owned=owned)
@example(values={"data": 'npz:C:\\new "data"\t\r\n\x00\x1f\x7f\x85\u2028'}, method={"method": "wat"}, owned={})
def test_to_toml_reads_back(values: dict[str, Any], method: dict[str, Any], owned: dict[str, Any]) -> None:
    given_values = values | method
    given_values |= {key: value for key, value in owned.items() if is_used(key, given_values, DEFAULTS)}
    config = make_config(given_values)
    read = tomllib.loads(to_toml(config))
    assert make_config(read) == make_config(config.recipe()) == config
    assert set(given_values) <= set(read) <= set(config.used_keys)
    assert {key for key in config.used_keys if key not in read} == {
        key for key in config.used_keys if getattr(config, key) is None
    }
    assert all(not isinstance(value, dict) for value in read.values())  # flat


def test_a_config_cannot_change() -> None:
    config = make_config({})
    with pytest.raises(ValueError, match="frozen"):
        config.eps = 0.5


# --- whose key it is ---


@pytest.mark.parametrize("method", REGISTERED)
def test_a_key_of_another_method_is_an_error_that_names_its_owner(method: str) -> None:
    """Whatever its value, its default included; and the method's own keys, and every recipe's, are taken."""
    base: dict[str, Any] = {"method": method} | ({"focus_class": 0, "focus_weight": 0.5} if method == "fixed" else {})
    for key, default in DEFAULTS.items():
        owners = [name for name, other in REGISTERED.items() if key in other.keys]
        if key in METHOD_KEYS and method not in owners:
            with pytest.raises(UserError) as caught:
                make_config(base | {key: default})
            assert str(caught.value).startswith(f"{key} belongs to method '{owners[0]}'")
            assert all(repr(owner) in str(caught.value) for owner in owners)
            assert str(caught.value).endswith(f"; the method here is '{method}'.")
        elif key not in base and is_used(key, base, DEFAULTS):
            assert getattr(make_config(base | {key: default}), key) == default


def test_one_line_for_one_owner_and_for_several() -> None:
    for values, line in (
        ({"method": "trades", "eta": 0.1}, "eta belongs to method 'wat'; the method here is 'trades'."),
        ({"frl_tau": 0}, "frl_tau belongs to method 'frl-rw' or 'frl-rwrm'; the method here is 'wat'."),
        (
            {"objective": "pgd-at", "beta": 1},
            "beta belongs to objective 'trades' or 'bat'; the objective here is 'pgd-at'.",
        ),
        (
            {"schedule": "cosine", "lr_decay": 1},
            "lr_decay belongs to schedule 'piecewise'; the schedule here is 'cosine'.",
        ),
        ({"optimizer": "adamw", "momentum": 0}, "momentum belongs to optimizer 'sgd'; the optimizer here is 'adamw'."),
        (
            {"method": "natural", "attack_steps": 9},
            "attack_steps belongs to objective 'pgd-at', 'trades' or 'bat'; the objective here is 'natural'.",
        ),
    ):
        with pytest.raises(UserError) as caught:
            make_config(values)
        assert str(caught.value) == line


def test_a_file_says_only_what_its_method_knows() -> None:
    keys = {method: set(tomllib.loads(to_toml(make_config({"method": method})))) for method in METHODS}
    assert keys["trades"] - keys["pgd-at"] == {"beta"}
    attacked = {"attack_steps", "early_attack_steps", "attack_milestones", "radius_warmup"}
    assert keys["pgd-at"] - keys["natural"] == attacked  # the step size is left to the method
    assert keys["wat"] - keys["trades"] == {"eta", "variant"}
    assert keys["frl-rwrm"] - keys["trades"] == {"frl_tau", "frl_rate", "frl_margin_rate"}
    assert all(keys["natural"] <= its for its in keys.values())


def test_owners_are_keys_and_so_is_what_they_own() -> None:
    assert set(METHOD_KEYS) | set(OWNERS) <= set(DEFAULTS)
    assert {owner for key in DEFAULTS for owner, _ in owners_of(key)} <= set(DEFAULTS)


@pytest.mark.parametrize(("value", "on"), [(0, False), (0.0, False), ("0", False), (0.005, True), ("1/200", True)])
def test_a_key_that_belongs_to_a_switch(value: object, on: bool) -> None:
    assert is_used("awp_warmup", {"awp_gamma": value}, DEFAULTS) == on
    if on:
        assert make_config({"awp_gamma": value, "awp_warmup": 5}).awp_warmup == 5
    else:
        with pytest.raises(UserError, match=r"^awp_warmup belongs to awp_gamma; the awp_gamma here is 0\.0\.$"):
            make_config({"awp_gamma": value, "awp_warmup": 5})


def test_what_belongs_to_a_foreign_key_is_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the foreign key's default would own it."""
    monkeypatch.setitem(OWNERS, "flip", ("variant", ("reference",)))
    assert "flip" in make_config({"variant": "reference"}).used_keys
    assert "flip" not in make_config({}).used_keys
    assert not is_used("flip", {"method": "trades", "variant": "reference"}, DEFAULTS)


def test_a_setting_that_replaces_the_method() -> None:
    recipe = {"method": "wat", "eta": 0.5, "objective": "pgd-at", "attack_steps": 9, "lr": 0.3}
    assert merge(recipe, {"method": "trades"}) == {"method": "trades", "attack_steps": 9, "lr": 0.3}
    assert merge(recipe, {"method": "natural"}) == {"method": "natural", "lr": 0.3}
    assert merge(recipe, {"objective": "natural"}) == {"method": "wat", "eta": 0.5, "objective": "natural", "lr": 0.3}
    assert merge(recipe, {"method": "csl"}) == {"method": "csl", "objective": "pgd-at", "attack_steps": 9, "lr": 0.3}
    assert merge(recipe, {"method": "wat", "eta": 1}) == recipe | {"eta": 1}
    assert load_config("cifar10-resnet18-wat", method="trades") == shipped("cifar10-resnet18-trades")
    assert load_config("fashion-mini-trades", method="natural").method == "natural"
    with pytest.raises(UserError, match=r"^eta belongs to method 'wat'; the method here is 'trades'\.$"):
        load_config("cifar10-resnet18-wat", method="trades", eta=0.5)
    with pytest.raises(UserError, match="unknown key 'recipe'"):
        load_config("cifar10-resnet18-wat", recipe="mine")


def test_a_setting_that_replaces_another_owner() -> None:
    recipe = {"lr_milestones": [0.5], "average": "ema", "ema_decay": 0.99, "awp_gamma": 0.005, "awp_warmup": 3}
    settings = {"schedule": "cosine", "average": "fawa", "awp_gamma": 0}
    assert merge(recipe, settings) == settings
    with pytest.raises(UserError, match=r"^ema_decay belongs to average 'ema'; the average here is 'fawa'\.$"):
        make_config(merge(recipe, settings | {"ema_decay": 0.9}))


def test_a_recipe_with_a_foreign_key_stays_wrong(tmp_path: Path) -> None:
    """Another method of the setting does not hide the recipe's own mistake."""
    (tmp_path / "mine.toml").write_text('method = "trades"\neta = 0.5')
    changes: list[dict[str, Any]] = [{}, {"seed": 2}, {"method": "csl"}]
    for change in changes:
        with pytest.raises(UserError, match="eta belongs to method 'wat'"):
            load_config(str(tmp_path / "mine.toml"), **change)


def test_configurations_differ_in_what_they_use() -> None:
    wat, trades = make_config({"eta": 0.5}), make_config({"method": "trades"})
    assert differing_keys(wat, trades) == ["method"]
    assert differing_keys(wat, make_config({"eta": 0.1}), trades) == ["method", "eta"]
    assert differing_keys(trades, make_config({"method": "trades", "seed": 2})) == ["seed"]
    assert load_config("cifar10-resnet18-wat", method="trades").eta == make_config({}).eta  # comparing works


def test_a_method_of_ones_own_names_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(keys: tuple[str, ...]) -> Method:
        return Method("Mine", lambda config, counts: uniform(len(counts)), keys=keys)

    monkeypatch.setitem(REGISTERED, "mine", make(("objective", "eta", "lr")))
    assert make_config({"method": "mine", "eta": 0.3, "objective": "pgd-at"}).eta == 0.3
    assert make_config({"method": "trades", "lr": 0.3}).lr == 0.3  # every recipe's, whoever names it
    with pytest.raises(UserError, match=r"^eta belongs to method 'wat' or 'mine'; the method here is 'csl'"):
        make_config({"method": "csl", "eta": 0.3})
    with pytest.raises(UserError, match=r"^csl_rate belongs to method 'csl'; the method here is 'mine'"):
        make_config({"method": "mine", "csl_rate": 0.3})
    monkeypatch.setitem(REGISTERED, "mine", make(("etta",)))
    with pytest.raises(UserError, match=r"^unknown key of method 'mine' 'etta'\. Did you mean 'eta'\?"):
        make_config({"method": "mine"})


# --- mistakes ---

MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "key": ({"epoch": 3}, ["unknown key 'epoch'", "Did you mean 'epochs'?", "batch_size", "csl_rate"]),
    "method": ({"method": "wta"}, ["unknown method 'wta'", "Did you mean 'wat'?", *METHODS]),
    "objective": ({"objective": "tradse"}, ["unknown objective 'tradse'", "'trades'?", "natural, pgd-at, trades"]),
    "variant": ({"variant": "refrence"}, ["unknown variant 'refrence'", "'reference'?", "paper"]),
    "select": ({"select": "worst-acc"}, ["unknown select 'worst-acc'", "'worst-accuracy'?", *get_args(Select)]),
    "data": ({"data": "cifar-10"}, ["unknown data 'cifar-10'", "'cifar10'?", "fashion-mini", "npz:PATH"]),
    "data path": ({"data": "npz:"}, ["data 'npz:' needs a path: npz:PATH"]),
    "model": ({"model": "resnet-18"}, ["unknown model 'resnet-18'", "'resnet18'?", "small-cnn", "wrnD-W"]),
    "model depth": ({"model": "wrn11-1"}, ["model 'wrn11-1'", "6n + 4"]),
    "eps 0": ({"eps": 0}, ["eps = 0", "greater than 0"]),
    "eps in 0..255": ({"eps": 8}, ["eps = 8", "did you mean 8/255? Pixels"]),
    "eps words": ({"eps": "8/255ths"}, ["eps: '8/255ths' is not a number such as 0.1, 1e-3 or 8/255"]),
    "eps half": ({"eps": "8/"}, ["eps: '8/' is not a number"]),
    "eps by 0": ({"eps": "8/0"}, ["eps: '8/0' is not a number"]),
    "eps nan": ({"eps": float("nan")}, ["eps = nan", "finite"]),
    "eta": ({"eta": "beta"}, ["eta: 'beta' is not a number"]),
    "eta -1": ({"eta": -1}, ["eta = -1", "greater than 0"]),
    "lr inf": ({"lr": "1e999"}, ["lr = '1e999'", "finite"]),
    "beta": ({"beta": -0.5}, ["beta = -0.5", "greater than or equal to 0"]),
    "momentum": ({"momentum": 1}, ["momentum = 1", "less than 1"]),
    "epochs": ({"epochs": 0}, ["epochs = 0", "greater than or equal to 1"]),
    "epochs 1.5": ({"epochs": 1.5}, ["epochs = 1.5", "integer"]),
    "batch_size": ({"batch_size": "many"}, ["batch_size = 'many'", "integer"]),
    "seed": ({"seed": -1}, ["seed = -1", "greater than or equal to 0"]),
    "valid_fraction": ({"valid_fraction": 1}, ["valid_fraction = 1", "less than 1"]),
    "flip": ({"flip": "perhaps"}, ["flip = 'perhaps'", "boolean"]),
    "milestones": ({"lr_milestones": 75}, ["lr_milestones: 75 is not a list such as [0.75, 0.9]"]),
    "milestone in epochs": (
        {"epochs": 30, "lr_milestones": [20, 25]},
        ["lr_milestones are shares of the epochs, in (0, 1], not 20", 'epoch 20 of 30 is "20/30"'],
    ),
    "milestone beyond": ({"epochs": 30, "lr_milestones": [75]}, ["not 75", 'epoch 75 of 100 is "75/100"']),
    "milestone 0": ({"lr_milestones": [0, 0.5]}, ["lr_milestones = 0", "greater than 0"]),
    "milestone words": ({"lr_milestones": ["late"]}, ["lr_milestones: 'late' is not a number"]),
    "short steps": (
        {"eps": 0.3, "attack_step_size": 0.007},
        ["attack_steps = 10 of attack_step_size = 0.007 reach 0.07, less than eps = 0.3", "at least 0.03"],
    ),
    "few steps": ({"attack_steps": 4}, ["reach 0.028, less than eps = 0.0314", "at least 0.00785."]),
    "few steps of FRL": ({"method": "frl-rwrm", "attack_steps": 3}, ["reach 0.0235, less than eps = 0.0314"]),
    "fixed alone": ({"method": "fixed"}, ["'fixed' needs either class_weights, or focus_class and focus_weight"]),
    "fixed twice": (
        {"method": "fixed", "class_weights": [0.5, 0.5], "focus_class": 0, "focus_weight": 0.5},
        ["'fixed' needs either"],
    ),
    "fixed sum": ({"method": "fixed", "class_weights": [0.5, 0.6]}, ["class_weights must sum to 1, not 1.1"]),
    "weights without fixed": ({"focus_class": 3}, ["focus_class belongs to method 'fixed'"]),
    "contradiction": (
        {"method": "trades", "objective": "natural"},
        ["objective belongs to method 'fixed', 'wat', ", "or 'trix'; the method here is 'trades'"],
    ),
    "two lines": ({"method": "a\nb"}, ["unknown method 'a\\nb'"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_in_one_line(case: str) -> None:
    values, fragments = MISTAKES[case]
    with pytest.raises(UserError) as caught:
        make_config(values, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ")
    assert "\n" not in message
    assert message.endswith(".")
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize("counts", [[5, 5], [5, 5, 5, 5]])
def test_class_weights_of_another_number_of_classes(counts: list[int]) -> None:
    config = make_config({"method": "fixed", "class_weights": [0.5, 0.25, 0.25]})
    with pytest.raises(UserError, match=f"class_weights has 3 numbers, the data {len(counts)} classes"):
        config.make_strategy(torch.tensor(counts))


def test_focus_on_a_class_that_is_not_there() -> None:
    config = make_config({"method": "fixed", "focus_class": 3, "focus_weight": 0.5})
    with pytest.raises(UserError, match=r"focus_class is 3, the data's classes are 0\.\.2"):
        config.make_strategy(torch.tensor([5, 5, 5]))


# --- reading a recipe ---


def test_a_recipe_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('method = "trades"\neps = "8/255"\n')
    config = shipped(str(path))
    assert (config.method, config.eps) == ("trades", EPS)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"method = trades", "mine.toml is not valid TOML"), (b'method = "\xff"', "cannot read .*mine.toml")],
)
def test_a_recipe_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_recipe(str(tmp_path / "mine.toml"))


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"unknown recipe 'cifar10-resnet18-wta'\. Did you mean 'cifar10-resnet18-wat'"):
        read_recipe("cifar10-resnet18-wta")
    with pytest.raises(UserError, match=r"no recipe at nowhere/mine\.toml"):
        read_recipe("nowhere/mine.toml")
    with pytest.raises(UserError, match="unknown recipe 'xxx"):
        read_recipe("x" * 5000)  # longer than a file name may be


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("-published")])
def test_a_published_recipe_has_the_radius_of_all(name: str) -> None:
    """Papers that have 0.031 are trained with 8/255 here: their rows can be compared."""
    config = shipped(name)
    assert (config.eps, config.norm, config.model, config.batch_size) == (EPS, "linf", "resnet18", 128)
    assert shipped(name.removesuffix("-published")).method == config.method


def test_dafa_as_published() -> None:
    """110 epochs, the rate falls at 100 and 105, Nesterov's momentum, and the table of epoch 70."""
    config = shipped("cifar10-resnet18-dafa-published")
    plan = config.make_plan()
    assert [plan.lr_at(epoch) for epoch in (99, 100, 104, 105)] == pytest.approx([0.1, 0.01, 0.01, 0.001])
    assert (config.nesterov, config.weight_decay, config.dafa_warmup, config.select) == (True, 5e-4, 70, "last")
