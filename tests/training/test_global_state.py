"""What torch and Python keep globally is the caller's: it is changed for as long as it is needed, and put back."""

import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from worstclass import rng
from worstclass.attacks import PGD
from worstclass.data import Images
from worstclass.execution.backend import allow_tf32
from worstclass.models import make_model
from worstclass.objectives import Madry
from worstclass.strategies import uniform
from worstclass.training import Plan, fit, new_state
from worstclass.training.engine import Engine, determinism


def tiny_fit(epochs: int) -> tuple[Any, ...]:
    """What `fit` takes: one step an epoch."""
    x = torch.randint(0, 256, (8, 1, 8, 8), generator=rng.generator(0, "images"), dtype=torch.uint8)
    images, attack = Images(x, torch.arange(8) % 2), PGD(eps=0.1, steps=1, step_size=0.1)
    plan = Plan(epochs=epochs, batch_size=8, lr=0.1, valid_attack=attack)
    state = new_state(make_model("small-cnn", num_classes=2, in_channels=1), uniform(2), plan)
    return state, images, images, Madry(attack=attack), plan


# --- random numbers ---


def test_only_generators_that_are_used_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` would seed every GPU, now or when it is first used, and for good."""

    def refuse(seed: int) -> None:
        raise AssertionError("a GPU was seeded")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    before = torch.get_rng_state()
    for _ in fit(*tiny_fit(epochs=1)):
        pass
    assert torch.equal(torch.get_rng_state(), before)


FACTORY = """
from torch import nn

def make(num_classes, in_channels):
    from sibling import WIDTH
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(WIDTH), nn.Linear(WIDTH, num_classes))
"""


def test_a_model_of_the_users_own_leaves_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder can be imported from while the model is built, in the factory too."""
    (tmp_path / "own_factory.py").write_text(FACTORY)
    (tmp_path / "sibling.py").write_text("WIDTH = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    try:
        make_model("own_factory:make", num_classes=2, in_channels=1)
    finally:
        for name in ("own_factory", "sibling"):
            sys.modules.pop(name, None)
    assert sys.path == before


# --- settings of torch ---


def test_determinism_is_set_and_put_back() -> None:
    import torch._inductor.config as compiler

    def state() -> tuple[bool, ...]:
        settings = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
        return (*settings, getattr(compiler, "deterministic", settings[0]), "CUBLAS_WORKSPACE_CONFIG" in os.environ)

    before = state()
    with determinism():
        assert state() == (True,) * 4
    assert state() == before == (False,) * 4


def test_what_somebody_has_set_for_determinism_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with determinism():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        torch.use_deterministic_algorithms(False)


def test_settings_hold_for_the_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two epochs of `fit`, and after it, torch is as it was."""
    log: list[str] = []

    @contextmanager
    def watched(self: Engine, device: torch.device) -> Iterator[None]:
        log.append("on")
        yield
        log.append("off")

    monkeypatch.setattr(Engine, "settings", watched)
    for _ in fit(*tiny_fit(epochs=2), on_step=lambda step, steps: log.append("step")):
        log.append("record")
    assert log == ["on", "off", *["on", "step", "off", "record"] * 2]


Switches = tuple[object, ...]


def switches() -> Switches:
    """torch's switches for TF32, old and new; None where reading one raises."""

    def read(one: Callable[[], object]) -> object:
        try:
            return one()
        except RuntimeError:
            return None

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    parts: list[Any] = [matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)]
    old = [read(lambda: matmul.allow_tf32), read(lambda: cudnn.allow_tf32), read(torch.get_float32_matmul_precision)]
    return (*old, *(getattr(part, "fp32_precision", "") for part in parts))


def set_new(part: str, value: str) -> None:
    owner = operator.attrgetter(part)(torch.backends)
    owner.fp32_precision = value


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    "before",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
        lambda: set_new("cuda.matmul", "tf32"),
        lambda: set_new("cudnn.conv", "ieee"),
        lambda: set_new("cudnn.conv", "none"),
    ],
    ids=["default", "medium", "matmul", "cudnn", "new matmul", "new conv", "none of its own"],
)
def test_the_switches_of_tf32_can_be_read_and_are_put_back(before: Callable[[], None], allowed: bool) -> None:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision") and "set_new" in before.__code__.co_names:
        pytest.skip("torch before 2.9 has the old switches alone")
    with allow_tf32(False):  # whatever is changed is put back
        before()
        was = switches()
        with allow_tf32(allowed):
            assert switches()[:2] == (allowed, allowed)
            assert set(switches()[3:]) <= {"tf32" if allowed else "ieee", ""}
        assert switches() == was
