"""On a GPU: the plug-in learners weigh and tally without waiting for the device, and learn what they learn on a CPU."""

import pytest
import torch

import worstclass as wc

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
    pytest.mark.filterwarnings("ignore:group .* of what weigh saw"),  # drawn evenly, by no counts
]


def test_a_step_does_not_wait_and_learns_the_same() -> None:
    draw = torch.Generator().manual_seed(0)
    losses, group = torch.rand(3, 64, generator=draw), torch.randint(4, (3, 64), generator=draw)
    correct = torch.rand(3, 64, generator=draw) < 0.2 + 0.2 * group
    guards = {device: wc.ClassGuard([10, 20, 30, 40]) for device in ("cpu", "cuda")}
    hedges = {device: wc.ClassHedge(4) for device in guards}
    for epoch in range(3):
        means = {}
        for device, guard in guards.items():
            batch = [each[epoch].to(device) for each in (losses, group, correct)]
            guard.weigh(*batch)  # the first call moves what it needs to the device
            hedges[device].weigh(*batch[:2])
            torch.cuda.set_sync_debug_mode("error")
            try:
                weighed = guard.weigh(*batch).mean() + hedges[device].weigh(*batch[:2]).mean()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            means[device] = float(weighed)
            guard.update(batch[2], batch[1])
            hedges[device].update(*batch[:2])
        assert means["cuda"] == pytest.approx(means["cpu"], rel=1e-5)
        assert torch.equal(guards["cpu"].weights, guards["cuda"].weights)
