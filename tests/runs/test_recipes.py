"""The recipes that ship are what they are called, and recipes by path are read or refused in a line."""

import re
from pathlib import Path

import pytest
import torch

from worstclass.attacks import PGD, trades_attack
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, parse_settings, read_recipe, recipe_comment, recipe_names
from worstclass.data import Augment
from worstclass.errors import UserError
from worstclass.objectives import BAT, Madry, Natural, Trades

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


FAST = "cifar10-resnet18-fast"
PERTURBED = ("cifar10-resnet18-faal-published", "cifar10-resnet18-csr-published")


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_what_its_name_says(name: str) -> None:
    config = shipped(name)
    if name == "my-images":
        assert (config.method, config.data, config.flip) == ("guarded", "folder:my-images", False)
        return
    if name == FAST:
        assert (config.method, config.data, config.model, config.average) == ("wat", "cifar10", "resnet18", "ema")
        assert "candidate" in recipe_comment(name)  # until it was measured
        return
    front = "fashion-mini" if config.data == "fashion-mini" else f"{config.data}-{config.model}"
    suffixes = r"(-level)?(?:-(reference|eta[\d.]+|cat[\d.]+|published|ema|awp|long))?"
    rest = re.fullmatch(f"{front}-{config.method}{suffixes}", name)
    assert rest is not None
    variant = rest[2] or ""
    assert (config.dafa_level > 0) == bool(rest[1])
    assert config.variant == ("reference" if variant == "reference" else "paper")
    usual = 0.5 if name == "fashion-mini-wat" else 0.1  # few epochs need a larger one
    assert config.eta == (float(variant.removeprefix("eta")) if variant.startswith("eta") else usual)
    assert (config.average == "ema") == (variant in ("ema", "long"))
    assert (config.awp_gamma > 0) == (variant in ("awp", "long") or name in PERTURBED)
    assert variant != "long" or config.epochs == 200
    if config.method == "fixed":
        assert config.focus_class == 3  # the cat of CIFAR-10
        assert config.focus_weight == float(variant.removeprefix("cat"))
    assert re.match(r"[A-Z].{10,}\.$", recipe_comment(name))  # a sentence, not a key


OWN_SETTINGS = [FAST, *(name for name in recipe_names() if name.endswith(("-published", "-long")))]


@pytest.mark.parametrize(
    "name", [name for name in recipe_names() if name.startswith("cifar") and name not in OWN_SETTINGS]
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
    assert (config.objective, config.normalize, config.seed) == (None, False, 1)
    assert config.for_classes(100 if config.data == "cifar100" else 10).select == "worst-accuracy"
    plan = config.make_plan()
    rates = [plan.lr_at(epoch) for epoch in (1, 74, 75, 89, 90, 99, 100)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001, 0.0001])
    assert plan.valid_attack == PGD(eps=EPS, steps=20, step_size=EPS / 4)
    margin = config.model_copy(update={"valid_attack": "cw"}).make_plan()
    assert margin.valid_attack == PGD(eps=EPS, steps=20, step_size=EPS / 4, loss="cw")
    assert plan.augment == Augment(crop_padding=4, flip=True)
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
