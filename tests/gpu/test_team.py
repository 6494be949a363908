"""On one GPU: a team of one over NCCL takes the steps that a process alone takes, captured too. Several GPUs were not
at hand; what several processes do is tested over gloo, in tests/training/test_distributed.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tiny import tiny_config, write_tiny_npz
from worstclass.execution.distributed import ALONE, Team
from worstclass.runs.saver import LAST
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import load_tensors
from worstclass.training.engine import Engine

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler warns of its own imports
]


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    device = torch.device("cuda:0")
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, device_id=device)
    yield Team(device=device, alone=False)
    dist.destroy_process_group()


@pytest.mark.parametrize("fast", [False, True])
def test_a_team_of_one_is_a_process_alone(team: Team, fast: bool, tmp_path: Path) -> None:
    """In float64: in float32 the sign steps of the attack turn rounding into other weights within an epoch."""
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), model="team_models:residual", epochs=2)
    engine = Engine(fast=fast)
    weights = {}
    for name, its in (("alone", ALONE), ("team", team)):
        notes: list[str] = []
        out = tmp_path / name
        train_run(config, out, device="cuda:0", engine=engine, team=its, on_fallback=notes.append, allow_code=True)
        assert notes == []  # the fast engine took it
        tensors, _ = load_tensors(out / LAST)
        weights[name] = {key: tensor for key, tensor in tensors.items() if ".unused." not in key}  # decays in a team
    apart = {name: float((weights["team"][name] - tensor).abs().max()) for name, tensor in weights["alone"].items()}
    print("furthest apart", sorted(apart.items(), key=lambda item: -item[1])[:3])
    for name, tensor in weights["alone"].items():
        torch.testing.assert_close(weights["team"][name], tensor, rtol=1e-7, atol=1e-9)
