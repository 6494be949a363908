"""The engine that a run gets, and that a compiled run is the eager one."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import everything
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.config.methods import METHODS
from worstclass.data import open_source, split_validation
from worstclass.models import make_model
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run
from worstclass.training import fit, new_state
from worstclass.training.checkpoint import take_state
from worstclass.training.engine import Engine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


def test_a_model_that_the_fast_engine_cannot_take_is_left_to_the_eager_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says so, the run remembers it, and the result is the eager engine's."""
    eager = train_run(tiny_config(data, epochs=1), tmp_path / "eager")

    def fail(self: Engine, *arguments: Any, **_: Any) -> Any:
        if self.fast:
            raise RuntimeError("called a synchronizing operation.\nAnd much more.")
        return arguments[0]

    monkeypatch.setattr(Engine, "prepare", fail)
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    lines: list[str] = []
    fast = train_run(tiny_config(data, epochs=1), tmp_path / "fast", engine=Engine(fast=True), on_fallback=lines.append)
    assert lines == [
        "the fast engine cannot take this model (called a synchronizing operation): going on with the eager one."
    ]
    assert open_run(fast.folder).about["engine"]["fast"] is False
    assert open_run(fast.folder).about["engine"]["notes"] == lines
    assert_same_run(eager.folder, fast.folder)


def test_a_note_is_not_another_engine(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose attacks compute outside of bfloat16 says so, and is trained by the fast engine all the same."""
    usual = Engine.attacked

    def noting(self: Engine, *arguments: Any, on_fallback: Any) -> Any:
        on_fallback("a note")
        return usual(self, *arguments, on_fallback=on_fallback)

    monkeypatch.setattr(Engine, "attacked", noting)
    monkeypatch.setattr(Engine, "prepare", lambda self, work, *_: work)
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    lines: list[str] = []
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run", engine=Engine(fast=True), on_fallback=lines.append)
    assert lines == ["a note"]
    how = open_run(run.folder).about["engine"]
    assert how["fast"]
    assert how["notes"] == lines


PARTS: dict[str, dict[str, Any]] = {
    "ema and awp": {"average": "ema", "ema_decay": 0.9, "awp_gamma": 0.02, "awp_warmup": 1},
    "everything": {
        "average": "ema",
        "adr_share": [0.7, 0.9],
        "awp_gamma": 0.02,
        "nesterov": True,
        "clip_grad_norm": 2.0,
        "radius_warmup": 1,
        "attack_steps": 3,
        "early_attack_steps": [2],
        "attack_milestones": [0.9],
    },
}


@pytest.mark.filterwarnings("default")  # the compiler warns of what it does itself
@pytest.mark.parametrize(
    "method",
    [
        "pgd-at",
        "frl-rwrm",
        "everything",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("trades", "ema and awp")),
    ],
)
def test_compiled_a_run_is_the_same(method: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast engine's step without its capture, which needs a GPU: folded, fused and traced by the compiler, in
    float64, weight for weight; of TRADES with each of the parts too."""
    monkeypatch.setitem(METHODS, "everything", everything.METHOD)
    for module in ("step", "prepare"):
        monkeypatch.setattr(f"worstclass.training.{module}.to_float", lambda x: x.double() / 255)
    monkeypatch.setattr(Engine, "prepare", lambda self, work, *_, **__: work)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.utils.counters.clear()
    name = method if method in METHODS else "trades"
    config = tiny_config(data, method=name, epochs=2, **PARTS.get(method, {}))
    train, valid = split_validation(open_source(config.data).read("train"), 3, 0.25)
    states, records = [], []
    for engine in (Engine(), Engine(fast=True)):
        strategy = config.make_strategy(train.class_counts(3))
        model = make_model("small-cnn", num_classes=3, in_channels=1, seed=1).double()
        state = new_state(model, strategy, config.make_plan())
        records.append(list(fit(state, train, valid, config.make_objective(), config.make_plan(), engine=engine)))
        states.append(take_state(state)[0])
    assert not torch._dynamo.utils.counters["graph_break"]
    assert any(key.startswith("average.") for key in states[0]) == (method in PARTS)
    for key, tensor in states[0].items():
        assert torch.allclose(tensor, states[1][key], atol=1e-9), key
    for one, other in zip(*records, strict=True):
        assert torch.allclose(one.train.table, other.train.table, rtol=1e-9)
        assert torch.allclose(one.valid.table, other.valid.table, rtol=1e-9)
