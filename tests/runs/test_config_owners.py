"""Each key belongs to a method or to the value of another key, and is an error elsewhere."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from worstclass.config.differences import differing_keys
from worstclass.config.keys import DEFAULTS, Config
from worstclass.config.methods import METHOD_KEYS, Method
from worstclass.config.methods import METHODS as REGISTERED
from worstclass.config.owners import OWNERS, is_used, owners_of
from worstclass.config.recipe import load_config, make_config, merge, read_recipe, to_toml
from worstclass.errors import UserError
from worstclass.strategies import uniform

pytestmark = pytest.mark.fast


METHODS = ("natural", "pgd-at", "trades", "wat", "frl-rw", "frl-rwrm", "csl")


def shipped(name: str) -> Config:
    return make_config(read_recipe(name))


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


def test_a_setting_that_leaves_no_room_for_a_base() -> None:
    """A method without class weights, or a single epoch; what is set oneself stays, and is wrong."""
    recipe = {"method": "guarded", "base_start": 0.7, "budget": 0.1, "ship": "method", "epochs": 4}
    assert merge(recipe, {"method": "trades"}) == {"method": "trades", "epochs": 4}
    assert merge(recipe, {"epochs": 1}) == {"method": "guarded", "epochs": 1}
    assert merge(recipe, {"method": "wat"}) == recipe | {"method": "wat"}
    assert merge(recipe | {"epochs": 1}, {"seed": 2})["base_start"] == 0.7
    for settings in ({"method": "trades"}, {"epochs": 1}):
        assert load_config("my-images", **settings).base_start is None
        with pytest.raises(
            UserError, match=r"^base_start is for a run with .*: leave it out, or set base_start=none\.$"
        ):
            load_config("my-images", base_start=0.5, **settings)


def test_none_leaves_a_key_out() -> None:
    assert merge({"base_start": 0.7, "budget": 0.1, "lr": 0.3}, {"base_start": "none"}) == {"lr": 0.3}
    assert load_config("my-images", base_start="none", clip_grad_norm="none").base_start is None
    assert load_config("my-images", average="none").average == "none"
    with pytest.raises(UserError, match="'none' is not a number"):
        load_config("my-images", lr="none")


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
