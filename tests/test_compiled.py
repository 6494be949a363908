"""What the compiler makes of a model: one graph, for many runs, and found again by the next process."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from worstclass.attacks import fused
from worstclass.attacks.folding import fold
from worstclass.models import SmallCNN, make_model
from worstclass.models.normalization import Head
from worstclass.train import engine
from worstclass.train.engine import Engine, OneGraph

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
    Engine(fast=True).set_up(torch.device("cpu"))
    x = pictures(6)
    for seed in range(10):
        folded = fold(make_model("small-cnn", num_classes=3, in_channels=1, seed=seed).eval(), x)
        assert folded is not None
        torch.compile(folded, backend="eager", fullgraph=True, dynamic=False)(x)


@needs_compiler
@pytest.mark.filterwarnings("default")
def test_what_was_traced_is_found_again_unless_our_operations_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head leaves autocast, and torch by itself keeps no graph that does. Of our operations it compares the names."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.ones(4, 1, 3, 3)), Head(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(
                fused.fused_conv(x, self.weight, x.new_zeros(4), None, [1, 1], [1, 1], [1, 1], 1)
            )
            return logits

    def compile_anew() -> tuple[dict[str, int], Tensor]:
        """By a new process, as far as the compiler is concerned."""
        torch._dynamo.reset()
        counters.clear()
        Engine(fast=True).set_up(torch.device("cpu"))
        torch.manual_seed(1)
        x = pictures(2).requires_grad_()
        (slope,) = torch.autograd.grad(torch.compile(Small(), dynamic=False)(x).square().sum(), x)
        return {name: number for name, number in counters["aot_autograd"].items() if "cache" in name}, slope

    with fresh_cache():
        first, slope = compile_anew()
        again, same = compile_anew()
        monkeypatch.setattr(engine, "OPERATIONS", (fused,))  # other code
        changed, _ = compile_anew()
    assert first == changed == {"autograd_cache_miss": 1, "autograd_cache_saved": 1}
    assert again == {"autograd_cache_hit": 1}
    assert torch.equal(slope, same)
