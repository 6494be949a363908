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

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = torch.device("cuda")


def data(size: int = 512) -> Images:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(x, torch.randint(10, (size,), generator=generator)).to(DEVICE)


def steps(method: Method, engine: Engine, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Weights and class table after some steps with a learning rate small enough that rounding stays rounding."""
    settings: dict[str, Any] = {"method": method, "lr": 1e-3, "batch_size": 64, "model": "resnet18"}
    if method == "fixed":
        settings |= {"focus_class": 3, "focus_weight": 0.25}
    config = make_config(settings)
    images = data()
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1)
    state = new_state(model, config.make_strategy(images.class_counts(10).cpu()), config.make_plan(), DEVICE)
    step, take = prepare_step(state, images, config.make_objective(), config.make_plan(), engine)
    step.stats.reset()
    step.health.reset()
    step.generator.manual_seed(5)
    for number in range(count):
        take(torch.arange(64 * number, 64 * number + 64, device=DEVICE) % len(images))
    assert step.health.complaint() is None
    return [p.detach().clone() for p in state.model.parameters()], step.stats.table.clone()


@pytest.mark.parametrize("method", ["natural", "pgd-at", "trades", "fixed", "wat", "frl-rw", "frl-rwrm", "csl"])
def test_fast_fp32_is_eager_fp32(method: Method) -> None:
    eager, eager_table = steps(method, Engine(), 20)
    fast, fast_table = steps(method, Engine(fast=True), 20)
    start = [p.detach() for p in make_model("resnet18", num_classes=10, in_channels=3, seed=1).to(DEVICE).parameters()]
    moved = sum(float((a - s).norm() ** 2) for a, s in zip(eager, start, strict=True)) ** 0.5
    apart = sum(float((a - b).norm() ** 2) for a, b in zip(eager, fast, strict=True)) ** 0.5
    print(f"{method}: moved {moved:.4g}, apart {apart:.3g}, ratio {apart / moved:.2%}")
    assert apart < 0.03 * moved
    assert torch.equal(eager_table[:, 0], fast_table[:, 0])
    assert torch.allclose(eager_table[:, 1:3], fast_table[:, 1:3], rtol=0.01)


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
    images = data(64)
    x, y = images.x.float() / 255, images.y
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1).to(DEVICE).eval()
    Engine().set_up(DEVICE)
    _, attacked = Engine(fast=True).forwards(model)
    for attack in (pgd(10, eps=8 / 255), trades_attack(eps=8 / 255)):
        generators = [torch.Generator(DEVICE).manual_seed(1) for _ in range(2)]
        one, other = (attack(m, x, y, generator=g) for m, g in zip((model, attacked), generators, strict=True))
        same = (one - other).abs() < 1e-5
        assert same.float().mean() > 0.99  # a sign step turns a rounding of a tiny gradient into a whole step
