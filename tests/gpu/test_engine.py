"""On a GPU: the fast engine computes what the eager one does. `pytest tests/gpu`; skipped without a GPU."""

from typing import Any

import pytest
import torch

from worstclass.attacks import pgd, trades_attack
from worstclass.config import Method, make_config
from worstclass.data import Images
from worstclass.models import make_model
from worstclass.train.engine import Engine
from worstclass.train.loop import new_state, prepare_step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler warns of its own imports
]
DEVICE = torch.device("cuda")


def data(size: int = 512) -> Images:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(x, torch.randint(10, (size,), generator=generator)).to(DEVICE)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps in float64. In float32 a sign step turns the rounding of a tiny gradient into a whole step, and two right
    engines drift apart within a few steps; in float64 what is left is a difference in what they compute."""
    monkeypatch.setattr("worstclass.train.step.to_float", lambda x: x.double() / 255)


def steps(method: Method, engine: Engine, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Weights and class table after some steps."""
    settings: dict[str, Any] = {"method": method, "lr": 1e-2, "batch_size": 32, "model": "resnet18"}
    if method == "fixed":
        settings |= {"focus_class": 3, "focus_weight": 0.25}
    config = make_config(settings)
    images = data()
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1).double()
    state = new_state(model, config.make_strategy(images.class_counts(10).cpu()), config.make_plan(), DEVICE)
    step, take = prepare_step(state, images, config.make_objective(), config.make_plan(), engine)
    step.stats.reset()
    step.health.reset()
    step.generator.manual_seed(5)
    for number in range(count):
        take(torch.arange(32 * number, 32 * number + 32, device=DEVICE) % len(images))
    assert step.health.complaint() is None
    return [p.detach().clone() for p in state.model.parameters()], step.stats.table.clone()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["natural", "pgd-at", "trades", "fixed", "wat", "frl-rw", "frl-rwrm", "csl"])
def test_fast_is_eager(method: Method) -> None:
    """Twenty steps, weight for weight."""
    eager, eager_table = steps(method, Engine(), 20)
    fast, fast_table = steps(method, Engine(fast=True), 20)
    start = make_model("resnet18", num_classes=10, in_channels=3, seed=1).double().to(DEVICE).parameters()
    moved = sum(float((a - s.detach()).norm() ** 2) for a, s in zip(eager, start, strict=True)) ** 0.5
    apart = sum(float((a - b).norm() ** 2) for a, b in zip(eager, fast, strict=True)) ** 0.5
    print(f"{method}: moved {moved:.4g}, apart {apart:.3g}")
    assert apart < 1e-5 * moved
    assert torch.allclose(eager_table, fast_table, rtol=1e-6)


def test_weights_and_rate_change_without_a_new_capture() -> None:
    config = make_config({"method": "wat", "batch_size": 64})
    images = data()
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1)
    plan = config.make_plan()
    state = new_state(model, config.make_strategy(images.class_counts(10).cpu()), plan, DEVICE)
    _, take = prepare_step(state, images, config.make_objective(), plan, Engine(fast=True, precision="bf16"))
    before = [p.detach().clone() for p in state.model.parameters()]
    for group in state.optimizer.param_groups:
        group["lr"].fill_(0.0)
    take(torch.arange(64, device=DEVICE))
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    for group in state.optimizer.param_groups:
        group["lr"].fill_(0.1)
    take(torch.arange(64, device=DEVICE))
    assert not any(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))


def test_attacks_compile_to_the_same_images() -> None:
    """Against the compiled view of a model, attacks end where they end against the model itself."""
    images = data(32)
    x, y = images.x.double() / 255, images.y
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1).double().to(DEVICE).eval()
    _, attacked = Engine(fast=True).forwards(model)
    for attack in (pgd(10, eps=8 / 255), trades_attack(eps=8 / 255)):
        generators = [torch.Generator(DEVICE).manual_seed(1) for _ in range(2)]
        one, other = (attack(m, x, y, generator=g) for m, g in zip((model, attacked), generators, strict=True))
        assert ((one - other).abs() < 1e-9).double().mean() > 0.9999
