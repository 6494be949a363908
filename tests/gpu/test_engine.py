"""On a GPU: the fast engine computes what the eager one does. `pytest tests/gpu`; skipped without a GPU."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everything import Everything
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.attacks import pgd, trades_attack
from worstclass.attacks.conv_relu import fused_conv
from worstclass.config.recipe import make_config, to_toml
from worstclass.data import Images, to_float
from worstclass.execution.backend import no_waiting
from worstclass.models import make_model
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST, SELECTED
from worstclass.runs.train import train_run
from worstclass.stats import ClassStats
from worstclass.training.engine import Captured, Engine
from worstclass.training.prepare import Work, prepare
from worstclass.training.state import State, new_state

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler warns of its own imports
]
DEVICE = torch.device("cuda")
STEADY = ["natural", "pgd-at", "trades", "fixed"]  # their class weights stay
METHODS = [*STEADY, "wat", "frl-rw", "frl-rwrm", "csl"]
SUCCESSORS: dict[str, dict[str, Any]] = {
    "dafa": {"dafa_warmup": 1},
    "cfa": {"cfa_start": 1},
    "faal": {},
    "cfol": {"cfol_eta": 1e-3},
    "csr": {},
    "fair-tat": {},
    "trix": {},
    "bat": {},
}


def data(size: int = 512) -> Images:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(x, torch.randint(10, (size,), generator=generator)).to(DEVICE)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps in float64. In float32 a sign step turns the rounding of a tiny gradient into a whole step, and two right
    engines drift apart within a few steps; in float64 what is left is a difference in what they compute."""
    for module in ("step", "prepare"):
        monkeypatch.setattr(f"worstclass.training.{module}.to_float", lambda x: x.double() / 255)


def uneven(like: ClassStats) -> ClassStats:
    """A class table as after an epoch, each class worse than the one before, with the columns of another."""
    y = torch.arange(10, device=DEVICE).repeat_interleave(20)
    rank = torch.arange(20, device=DEVICE).repeat(10)
    stats = ClassStats(10, DEVICE, extra=like.columns[4:])
    correct = {"natural_correct": rank > y // 2, "robust_correct": rank > 2 * y}
    more = {name: torch.eye(10, device=DEVICE)[(y + (rank <= y)) % 10] for name in like.columns[4:]}
    more |= {"robust_margin": 0.1 * y}
    stats.add(y, natural_loss=0.1 * y, robust_loss=0.2 * y, **correct, **more)
    return stats


PARTS: dict[str, dict[str, Any]] = {
    "ema": {"average": "ema"},
    "awp": {"awp_gamma": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 1e-3, "clip_grad_norm": 1.0},
    "l2": {"norm": "l2", "eps": 0.5, "nesterov": True, "label_smoothing": 0.1},
    "augmented": {"crop": "shift", "color_shape": True, "erase": 0.5},
    "everything": {"average": "ema", "adr_share": [0.7, 0.95], "awp_gamma": 0.01, "radius_warmup": 2},
}


def prepared(method: str, engine: Engine, model: nn.Module) -> tuple[Work, State]:
    """`method` is one of the methods, or TRADES with one of the parts."""
    settings: dict[str, Any] = {"method": method, "lr": 1e-2, "batch_size": 32, "model": "resnet18"}
    if method in PARTS:
        settings |= {"method": "trades"} | PARTS[method]
    settings |= SUCCESSORS.get(method, {})
    if method == "fixed":
        settings |= {"focus_class": 3, "focus_weight": 0.25}
    config = make_config(settings)
    images, plan = data(), config.make_plan()
    strategy = Everything(10) if method == "everything" else config.make_strategy(images.class_counts(10).cpu())
    state = new_state(model, strategy, plan, DEVICE)
    return prepare(state, images, data(48), config.make_objective(), plan, engine), state


def steps(method: str, name: str, engine: Engine, count: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Weights after some steps, the class table of training, and that of validation with those weights. Halfway the
    learning rate falls, and the method sets class weights and radii anew."""
    model = make_model(name, num_classes=10, in_channels=3, seed=1).double()
    work, state = prepared(method, engine, model)
    take = work.take(work.plan.at(1))
    assert isinstance(take, Captured) == engine.fast
    work.step.health.reset()
    for stats, generator in (
        (work.step.stats, work.step.generator),
        (work.valid_step.stats, work.valid_step.generator),
    ):
        stats.reset()
        generator.manual_seed(5)
    for number in range(count):
        if number == count // 2:
            weights = work.step.strategy.weights
            before = weights.copy()
            state.strategy.update(uneven(state.table), uneven(state.table))
            moved = weights.copy()
            now = {name: bool((old != getattr(moved, name)).any()) for name, old in before.tensors().items()}
            if method in METHODS:
                steady = method in STEADY
                assert now == {"natural": not steady, "robust": not steady, "radius_scale": method == "frl-rwrm"}
            work.step.optimizer.lr.mul_(0.5)
        take(torch.arange(32 * number, 32 * number + 32, device=DEVICE) % 512)
    assert work.step.health.complaint() is None
    state.shipped.eval()
    work.validate(torch.arange(48, device=DEVICE))
    return [p.detach().clone() for p in state.shipped.parameters()], work.step.stats.table, work.valid_step.stats.table


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("method", "name"), [("trades", "resnet18"), *((method, "wrn10-1") for method in (*METHODS, *SUCCESSORS, *PARTS))]
)
def test_fast_is_eager(method: str, name: str) -> None:
    """Twenty steps, weight for weight; and the class tables, of validation too. Small networks compile sooner."""
    eager, *eager_tables = steps(method, name, Engine(), 20)
    fast, *fast_tables = steps(method, name, Engine(fast=True), 20)
    start = make_model(name, num_classes=10, in_channels=3, seed=1).double().to(DEVICE).parameters()
    moved = sum(float((a - s.detach()).norm() ** 2) for a, s in zip(eager, start, strict=True)) ** 0.5
    apart = sum(float((a - b).norm() ** 2) for a, b in zip(eager, fast, strict=True)) ** 0.5
    print(f"{method}, {name}: moved {moved:.4g}, apart {apart:.3g}")
    assert apart < 1e-5 * moved
    for one, other in zip(eager_tables, fast_tables, strict=True):
        assert torch.allclose(one, other, rtol=1e-6)


def test_the_rate_changes_without_a_new_capture_and_nothing_waits() -> None:
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1)
    work, _ = prepared("wat", Engine(fast=True, precision="bf16"), model)
    before = [p.detach().clone() for p in model.parameters()]
    index, few = torch.arange(32, device=DEVICE), torch.arange(48, device=DEVICE)
    for rate in (0.0, 0.1):
        work.step.optimizer.set_lr(rate)
        with no_waiting():
            work.take(work.plan.at(1))(index)
            work.validate(few)
        same = [torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert all(same) if rate == 0 else not any(same)


def test_a_step_alone_keeps_its_memory() -> None:
    """Of what was prepared the step is kept alone; what it writes to is not given to others."""
    model = make_model("wrn10-1", num_classes=10, in_channels=3, seed=1)
    work = prepared("natural", Engine(fast=True), model)[0]
    take = work.take(work.plan.at(1))
    del work
    assert isinstance(take, Captured)
    gc.collect()
    others = [torch.full((64,), 7, device=DEVICE) for _ in range(4096)]  # of the allocator's smallest blocks
    others += [torch.full((1 << power,), 7, device=DEVICE) for power in range(7, 20) for _ in range(64)]
    for number in range(3):
        take(torch.arange(32 * number, 32 * number + 32, device=DEVICE))
    assert all(bool((other == 7).all()) for other in others)


def test_attacks_compile_to_the_same_images() -> None:
    """Against the compiled view of a model, attacks end where they end against the model itself."""
    images = data(32)
    x, y = images.x.double() / 255, images.y
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1).double().to(DEVICE).eval()
    view = Engine(fast=True).attacked(model, x)
    for attack in (pgd(10, eps=8 / 255), trades_attack(eps=8 / 255)):
        generators = [torch.Generator(DEVICE).manual_seed(1) for _ in range(2)]
        one, other = (attack(m, x, y, generator=g) for m, g in zip((model, view()), generators, strict=True))
        assert ((one - other).abs() < 1e-9).double().mean() > 0.9999


def test_the_attack_in_bfloat16_takes_no_side() -> None:
    """As on a CPU (tests/training/test_unrounded.py), through the convolutions that only a GPU has."""
    images = data(512)
    x = to_float(images.x).contiguous(memory_format=torch.channels_last)
    model = make_model("resnet18", num_classes=10, in_channels=3, seed=1).to(DEVICE).eval()
    engine, attack = Engine(fast=True, precision="bf16"), trades_attack(eps=8 / 255)
    view = engine.attacked(model, x)
    brighter = {}
    for name, its, low in (("float32", model, False), ("rounded", model, True), ("seen", view(), True)):
        generator = torch.Generator(DEVICE).manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            moved = attack(its, x, images.y, generator=generator) - x
        brighter[name] = float((moved.mean((1, 2, 3)) > 0).float().mean())
    print(f"brighter: {brighter}")
    assert abs(brighter["seen"] - brighter["float32"]) < 0.1
    assert abs(brighter["rounded"] - brighter["float32"]) > 0.1


@pytest.mark.parametrize("way", ["compiled", "called"])
def test_the_gradient_to_images_is_the_convolutions(way: str) -> None:
    """In bfloat16, with as many channels as images have in two parts; float64 is the judge."""
    weight = torch.randn(64, 8, 3, 3, device=DEVICE).bfloat16().contiguous(memory_format=torch.channels_last)
    x = torch.rand(16, 8, 32, 32, device=DEVICE).bfloat16().contiguous(memory_format=torch.channels_last)
    x.requires_grad_()

    def out(x: Tensor) -> Tensor:
        return fused_conv(x, weight, weight.new_zeros(64), None, [1, 1], [1, 1], [1, 1], 1)

    shape = torch.randn(16, 64, 32, 32, device=DEVICE).bfloat16().contiguous(memory_format=torch.channels_last)
    (slope,) = torch.autograd.grad((torch.compile(out, dynamic=False) if way == "compiled" else out)(x), x, shape)
    masked = (shape * (out(x) > 0)).double()
    exact = F.conv_transpose2d(masked, weight.double(), padding=1)
    apart = float((slope.double() - exact).norm() / exact.norm())
    print(f"{way}: apart {apart:.2g}")
    assert apart < 0.01


@pytest.mark.parametrize("adds", [False, True])
def test_a_fused_convolution_reads_its_inputs_and_nothing_else(adds: bool) -> None:
    """Its result lies where NaN was before: torch hands cuDNN that memory as something to add, times zero."""
    weight = torch.randn(64, 64, 3, 3, device=DEVICE).bfloat16().contiguous(memory_format=torch.channels_last)
    x = torch.rand(16, 64, 32, 32, device=DEVICE).bfloat16().contiguous(memory_format=torch.channels_last)
    add = torch.randn_like(x) if adds else None
    wanted = F.conv2d(x.double(), weight.double(), padding=1).add(0 if add is None else add.double()).relu()
    left = torch.full_like(x, torch.nan)
    place = left.data_ptr()
    del left
    out = fused_conv(x, weight, weight.new_zeros(64), add, [1, 1], [1, 1], [1, 1], 1)
    assert out.data_ptr() == place
    assert float((out.double() - wanted).norm() / wanted.norm()) < 0.01


class Asking(nn.Module):
    """A model that looks at its images from the host: it cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_model("small-cnn", num_classes=10, in_channels=3, seed=1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits if float(x.detach().mean()) > 0 else -logits


def test_a_model_that_cannot_be_captured_trains_all_the_same() -> None:
    torch.manual_seed(0)
    model = Asking()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.warns(UserWarning, match="the fast engine cannot take this model"):
        work, _ = prepared("trades", Engine(fast=True), model)
    assert all(torch.equal(a, b.cpu()) for a, b in zip(before, model.parameters(), strict=True))
    take = work.take(work.plan.at(1))
    assert not isinstance(take, Captured)
    work.step.health.reset()
    take(torch.arange(32, device=DEVICE))
    assert work.step.health.complaint() is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_deterministic_run_in_pieces_is_one_run(precision: Any, tmp_path: Path) -> None:
    """Stopped within an epoch, and at its end: the same bits."""
    engine = Engine(fast=True, precision=precision, deterministic=True)
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=3, model="wrn10-1")
    options: dict[str, Any] = {"engine": engine, "device": "cuda", "checkpoint_minutes": 0}
    train_run(config, tmp_path / "whole", **options)

    def stop(*at: Any) -> None:
        if at[:2] == (2, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "pieces", on_step=stop, **options)
    train_run(config, tmp_path / "pieces", resume=True, **options)
    assert not torch.are_deterministic_algorithms_enabled()
    assert open_run(tmp_path / "pieces").about["resumed"][0]["engine"]["gpu"] == torch.cuda.get_device_name()
    assert open_run(tmp_path / "pieces").about["engine"]["fast"]
    for name in (LAST, SELECTED):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "pieces" / name).read_bytes(), name


def test_two_processes_make_the_same_deterministic_run(tmp_path: Path) -> None:
    """Of the network of the paper, in bfloat16; each compiles for itself."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        f"x_{part}": draw.integers(0, 256, (300, 32, 32, 3), dtype=np.uint8) for part in ("train", "test")
    }
    np.savez(tmp_path / "noise.npz", y_train=np.arange(300) % 10, y_test=np.arange(300) % 10, **arrays)
    config = tiny_config(tmp_path / "noise.npz", epochs=2, model="resnet18", batch_size=64)
    (tmp_path / "noise.toml").write_text(to_toml(config))
    command = [sys.executable, "-m", "worstclass", "train", str(tmp_path / "noise.toml"), "--deterministic"]
    for name in ("one", "other"):
        caches = {f"{tool}_CACHE_DIR": str(tmp_path / f"{tool} of {name}") for tool in ("TORCHINDUCTOR", "TRITON")}
        options = ["--engine", "fast", "--precision", "bf16", "--device", "cuda", "--out", str(tmp_path / name)]
        subprocess.run(command + options, check=True, env=os.environ | caches)
        assert open_run(tmp_path / name).about["engine"]["fast"]
    assert_same_run(tmp_path / "one", tmp_path / "other")


def test_a_second_run_finds_what_the_first_compiled(tmp_path: Path, tiny_values: dict[str, Any]) -> None:
    found = []
    for name in ("first", "second"):
        torch.compiler.reset()
        engine = Engine(fast=True, precision="bf16")
        run = train_run(
            make_config(tiny_values), tmp_path / name, device=DEVICE, engine=engine, compile_cache=tmp_path / "cache"
        )
        found.append(run.about["start"]["compile_cache"])
    assert found[1] == "hit"
    assert len(list((tmp_path / "cache").iterdir())) == 1
