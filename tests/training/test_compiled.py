"""What the compiler makes of a model: one graph, for many runs, and found again by the next process."""

import importlib
import inspect
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import worstclass
from worstclass.attacks import conv_relu
from worstclass.attacks.folding import fold
from worstclass.bench.training import possible
from worstclass.errors import UserError
from worstclass.execution.backend import allow_tf32
from worstclass.models import SmallCNN, make_model
from worstclass.models.normalization import Head
from worstclass.objectives import Natural
from worstclass.runs.devices import pick_engine
from worstclass.training import engine as engine_module
from worstclass.training.engine import OPERATIONS, Captured, Engine, OneGraph, keep_traces

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")


def pictures(size: int) -> Tensor:
    return torch.rand(size, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_a_compiled_model_is_one_graph_with_and_without_gradients() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    network = SmallCNN(3, 1).eval().requires_grad_(False)
    x = pictures(6)
    model = OneGraph(torch.compile(network, backend=backend, dynamic=False))
    with torch.no_grad():
        plain = model(x)
    asked = x.clone().requires_grad_()
    (ours,) = torch.autograd.grad(model(asked).logsumexp(1).sum(), asked)
    (theirs,) = torch.autograd.grad(network(asked).logsumexp(1).sum(), asked)
    assert len(graphs) == 1
    assert not any(tensor.requires_grad for tensor in (plain, model(x), x))
    assert torch.equal(plain, network(x))
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("default")
def test_one_process_compiles_for_many_runs() -> None:
    """By itself torch compiles eight versions of a function and goes on without, which a whole graph may not."""
    x = pictures(6)
    with Engine(fast=True).settings(x.device):
        for seed in range(10):
            folded = fold(make_model("small-cnn", num_classes=3, in_channels=1, seed=seed).eval(), x)
            assert folded is not None
            torch.compile(folded, backend="eager", fullgraph=True, dynamic=False)(x)


class Small(nn.Module):
    """An operation of ours, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(4, 1, 3, 3)), Head(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = conv_relu.fused_conv(x, self.weight, x.new_zeros(4), None, [1, 1], [1, 1], [1, 1], 1)
        logits: Tensor = self.head(features)
        return logits


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("default", "ignore:.torch.jit.script_method")
def test_what_was_traced_is_found_again_unless_our_operations_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head leaves autocast, and torch by itself keeps no such graph from 2.12 on. Of our operations it compares the
    names."""
    import torch._inductor.config as compiler
    from torch._dynamo.utils import counters

    if not hasattr(compiler, "unsafe_marked_cacheable_functions"):
        pytest.skip("before torch 2.8 no graph is kept")
    from torch._inductor.utils import fresh_cache

    def compile_anew(module: str, keep: Callable[..., None] = keep_traces) -> tuple[dict[str, int], Tensor]:
        """By a new process, as far as the compiler is concerned."""
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(1)
        x, model = pictures(2).requires_grad_(), Small()
        monkeypatch.setattr(Small, "__module__", module)
        keep(model, Natural())
        (slope,) = torch.autograd.grad(torch.compile(model, dynamic=False)(x).square().sum(), x)
        return {name: number for name, number in counters["aot_autograd"].items() if "cache" in name}, slope

    with compiler.patch(unsafe_marked_cacheable_functions={}), fresh_cache():
        by_itself, _ = compile_anew("theirs", keep=lambda *_: None)  # until 2.11 torch keeps it, later it does not
        first, slope = compile_anew("worstclass.small")
        again, same = compile_anew("worstclass.small")
        foreign, _ = compile_anew("theirs")  # with operations that we do not know of, perhaps
        source = inspect.getsource
        monkeypatch.setattr(inspect, "getsource", lambda part: source(part) + "# another line")
        changed, _ = compile_anew("worstclass.small")
    assert first == changed == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}
    assert again == {"autograd_cache_hit": 1}
    assert torch.equal(slope, same)
    assert foreign == by_itself


@pytest.mark.parametrize("missing", ["source", "key"])
def test_no_graph_is_kept_where_our_code_cannot_be_in_the_key(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._functorch.config as tracing

    def no_source(_: object) -> str:
        raise OSError

    compiler = SimpleNamespace(fx_graph_cache=True)
    if missing == "source":
        compiler.unsafe_marked_cacheable_functions = {}
        monkeypatch.setattr(inspect, "getsource", no_source)
    monkeypatch.setattr(engine_module, "_compiler", lambda: compiler)
    with tracing.patch(enable_autograd_cache=True):
        keep_traces(Small(), Natural())
        assert not tracing.enable_autograd_cache
    assert not compiler.fx_graph_cache


def test_all_our_operations_are_in_the_key() -> None:
    package = Path(worstclass.__file__).parent
    defining = {path for path in package.rglob("*.py") if "library.custom_op(" in path.read_text(encoding="utf-8")}
    assert defining == {Path(str(module.__file__)) for module in OPERATIONS}


@pytest.mark.parametrize("deterministic", [False, True])
def test_convolutions_are_measured_for_the_captured_work_alone(
    deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(engine_module, "Captured", lambda *_: seen.append(torch.backends.cudnn.benchmark))
    there: Any = SimpleNamespace(device=torch.device("cuda"))
    Engine(fast=True, deterministic=deterministic).prepare(lambda _: None, [1], [], there)
    assert seen == [not deterministic]
    assert not torch.backends.cudnn.benchmark


REMARKABLE = """
import sys
from types import SimpleNamespace
import torch
from worstclass.training import engine

class Asking(torch.nn.Module):
    def forward(self, x):
        return x if float(x.mean()) > 0 else -x

engine.Captured = lambda work, *_: work(torch.ones(2))
model = torch.compile(Asking(), backend="eager")
if sys.argv[1] == "prepared":
    engine.Engine(fast=True).prepare(model, [2], [], SimpleNamespace(device=torch.device("cuda")))
else:
    model(torch.ones(2))
"""


@pytest.mark.parametrize(
    ("way", "asked", "said"),
    [
        ("prepared", "", 0),
        pytest.param("alone", "", 1, marks=pytest.mark.slow),
        pytest.param("prepared", "+dynamo", 1, marks=pytest.mark.slow),
    ],
)
def test_the_compiler_remarks_on_a_model_only_if_asked_to(way: str, asked: str, said: int) -> None:
    """A model that cannot be captured costs one line of ours, and not twenty of torch's."""
    environment = os.environ | ({"TORCH_LOGS": asked} if asked else {})
    done = subprocess.run(
        [sys.executable, "-c", REMARKABLE, way], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("Graph break from `Tensor.item()`") == said
    assert asked or said or not done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler warns of its own imports
def test_the_compiler_gives_no_advice_on_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    advise = importlib.import_module("torch._inductor.compile_fx")._warn_tf32_disabled.__wrapped__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(engine_module, "Captured", lambda *_: advise())
    there: Any = SimpleNamespace(device=torch.device("cuda"))
    with allow_tf32(False):
        with pytest.warns(UserWarning, match="TensorFloat32"):
            advise()
        Engine(fast=True).prepare(lambda _: None, [1], [], there)


def test_a_capture_keeps_what_it_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph knows addresses alone: what lay there must live as long."""
    monkeypatch.setattr(Captured, "_record", staticmethod(lambda *_: None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def count(table: Tensor, index: Tensor) -> None:
        table[index] += 1

    table = torch.zeros(3)
    kept = weakref.ref(table)
    captured = Captured(partial(count, table), [1], [], torch.Generator())
    del table
    assert kept() is not None
    del captured
    assert kept() is None


def test_before_torch_2_10_the_eager_engine_alone_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_compiler", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    gpu = torch.device("cuda")
    assert "fast bf16" in possible(gpu)
    assert "fast bf16 deterministic" not in possible(gpu)
    assert pick_engine(None, None, gpu, ours=True).fast
    assert pick_engine(None, None, gpu, ours=True, deterministic=True) == Engine(precision="tf32", deterministic=True)
    with pytest.raises(UserError, match="--engine eager"):
        pick_engine("fast", None, gpu, ours=True, deterministic=True)
    with pytest.raises(UserError, match="--engine eager"), Engine(fast=True, deterministic=True).settings(gpu):
        pass
