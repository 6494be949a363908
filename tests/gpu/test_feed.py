"""On a GPU: images fetched from host memory a batch ahead are the images, and a run from them is the same run."""

from pathlib import Path

import pytest
import torch

from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.data import Images, Streamed
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run
from worstclass.training.engine import Engine

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler warns of its own imports
]


def test_batches_are_whole_although_the_next_is_on_its_way() -> None:
    device = torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (4096, 3, 64, 64), dtype=torch.uint8, generator=generator)
    images = Images(x, torch.arange(4096))
    order = torch.randperm(4096, generator=generator)
    feed = Streamed(images, device, window=256)
    seen = []
    for index in feed.batches(order, 256):
        busy = torch.randn(2048, 2048, device=device)
        for _ in range(20):  # the device is slower than the host
            busy = busy @ busy / 2048
        seen.append((feed.images.x[index].clone(), feed.images.y[index].clone()))
    assert torch.equal(torch.cat([y for _, y in seen]).cpu(), order)
    assert torch.equal(torch.cat([x for x, _ in seen]).cpu(), x[order])


def test_a_run_from_host_memory_is_the_same_run(tmp_path: Path) -> None:
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), model="wrn10-1", epochs=2)
    engine, said = Engine(fast=True, precision="bf16", deterministic=True), list[str]()
    train_run(config, tmp_path / "device", device="cuda", engine=engine)
    train_run(config, tmp_path / "host", device="cuda", engine=engine, data_limit=0, on_fallback=said.append)
    assert ["stay in host memory" in line for line in said] == [True]
    assert all(open_run(tmp_path / name).about["engine"]["fast"] for name in ("device", "host"))
    assert_same_run(tmp_path / "device", tmp_path / "host")
