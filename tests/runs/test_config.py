"""Recipes: what ships, what the paper's settings are, and what a mistake is told."""

import tomllib
from typing import Any, get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worstclass.config.differences import differing_keys
from worstclass.config.keys import DEFAULTS, Config, Select
from worstclass.config.owners import is_used
from worstclass.config.recipe import make_config, parse_settings, read_recipe, to_toml
from worstclass.errors import UserError

pytestmark = pytest.mark.fast


METHODS = ("natural", "pgd-at", "trades", "wat", "frl-rw", "frl-rwrm", "csl")


def shipped(name: str) -> Config:
    return make_config(read_recipe(name))


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
        "data": st.sampled_from(["fashion-mini", "cifar10", "cifar100"])
        | paths.map("npz:{}".format)
        | paths.map("folder:{}".format),
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
        "valid_attack": st.sampled_from(["pgd", "cw"]),
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
        "image_size": st.integers(1, 1024),
        "test_fraction": shares,
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


# --- mistakes ---

MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "key": ({"epoch": 3}, ["unknown key 'epoch'", "Did you mean 'epochs'?", "batch_size", "eta"]),
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
    "never DAFA": ({"method": "dafa", "epochs": 30, "dafa_warmup": 30}, ["dafa_warmup = 30 of 30 epochs", "never"]),
    "DAFA's mean": ({"method": "dafa", "dafa_weights": [0.5, 1.0]}, ["dafa_weights must have the mean 1, not 0.75"]),
    "DAFA's weights twice": (
        {"method": "dafa", "dafa_weights": [0.5, 1.5], "dafa_refresh": 0.9},
        ["in place of a confusion table"],
    ),
    "never CFA": ({"method": "cfa", "epochs": 5, "cfa_start": 10}, ["cfa_start = 10 of 5 epochs"]),
    "never AWP": ({"epochs": 5, "awp_gamma": 0.01, "awp_warmup": 5}, ["awp_warmup = 5 of 5 epochs"]),
    "never the rate": ({"epochs": 3, "lr_warmup": 100}, ["lr_warmup = 100 of 3 epochs: what begins after it never"]),
    "never the radius": ({"epochs": 3, "radius_warmup": 3.5}, ["radius_warmup = 3.5 of 3 epochs: eps is never"]),
    "never the steps": (
        {"epochs": 1, "early_attack_steps": [5], "attack_milestones": [0.5]},
        ["early_attack_steps in 1 epoch: what begins after them never would"],
    ),
    "Nesterov": ({"nesterov": True, "momentum": 0}, ["nesterov = true needs a momentum above 0"]),
    "no aim of FAIR-TAT": (
        {"method": "fair-tat", "objective": "bat"},
        ["method 'fair-tat' aims attacks at a class, and objective 'bat' cannot: take trades or pgd-at"],
    ),
    "no aim of TRIX": (
        {"method": "trix", "objective": "natural"},
        ["method 'trix' aims", "objective 'natural' cannot"],
    ),
    "smooth CSR": (
        {"method": "csr", "label_smoothing": 0.1},
        ["label_smoothing is not for method 'csr', whose loss takes hard labels: leave it out"],
    ),
    "soft CSR": ({"method": "csr", "average": "ema", "adr_share": [0.7, 0.9]}, ["adr_share is not for method 'csr'"]),
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


@pytest.mark.parametrize("key", ["lr_warmup", "radius_warmup", "awp_warmup"])
def test_a_warm_up_leaves_some_of_the_training(key: str) -> None:
    assert getattr(make_config({"epochs": 3, "awp_gamma": 0.01, key: 2}), key) == 2
    assert make_config({"epochs": 3, "radius_warmup": 3}).radius_warmup == 3  # as ACAT and others have it


@pytest.mark.parametrize(
    ("method", "key", "starts"), [("dafa", "dafa_warmup", (70, 28, 1)), ("cfa", "cfa_start", (10, 4, 1))]
)
def test_a_method_begins_in_short_runs_too(method: str, key: str, starts: tuple[int, ...]) -> None:
    """After a share of the epochs, unless the recipe says when; at once where another method trained before."""
    for epochs, start in zip((100, 40, 1), starts, strict=True):
        config = make_config({"method": method, "epochs": epochs})
        assert getattr(config.from_epoch(0), key) == start
        assert getattr(config.from_epoch(70), key) == 1
        assert make_config(config.from_epoch(0).recipe()) == config.from_epoch(0)  # a run can be opened again
        assert differing_keys(config, config.from_epoch(0)) == []
    said = make_config({"method": method, key: 3})
    assert said.from_epoch(70) == said
    assert make_config({"method": "wat"}).from_epoch(70) == make_config({"method": "wat"})


@pytest.mark.parametrize("counts", [[5, 5], [5, 5, 5, 5]])
def test_class_weights_of_another_number_of_classes(counts: list[int]) -> None:
    config = make_config({"method": "fixed", "class_weights": [0.5, 0.25, 0.25]})
    with pytest.raises(UserError, match=f"class_weights has 3 numbers, the data {len(counts)} classes"):
        config.make_strategy(torch.tensor(counts))
    config = make_config({"method": "dafa", "dafa_weights": [0.5, 1, 1.5]})
    with pytest.raises(UserError, match=f"dafa_weights has 3 numbers, the data {len(counts)} classes"):
        config.make_strategy(torch.tensor(counts))


def test_focus_on_a_class_that_is_not_there() -> None:
    config = make_config({"method": "fixed", "focus_class": 3, "focus_weight": 0.5})
    with pytest.raises(UserError, match=r"focus_class is 3, the data's classes are 0\.\.2"):
        config.make_strategy(torch.tensor([5, 5, 5]))


def test_a_title_says_that_the_base_may_ship() -> None:
    """Of a run whose base may take its place, the method alone would promise what was not kept."""
    titles = [
        make_config({"method": "guarded", "data": "fashion-mini"} | more).title
        for more in (
            {},
            {"base_start": 0.7},
            {"base_start": 0.7, "ship": "method"},
            {"base_start": 0.7, "average": "ema"},
        )
    ]
    assert titles == ["Guarded", "Guarded, with base", "Guarded", "Guarded, with base + EMA"]
