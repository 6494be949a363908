"""The callbacks under a real trainer, of `lightning` and of `pytorch_lightning`, in a process of their own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, warnings
warnings.simplefilter("ignore")
import importlib
L = importlib.import_module(sys.argv[1])
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import worstclass
from worstclass.integrations.epoch_audit import EpochAudit
from worstclass.integrations.lightning import AuditCallback, GuardCallback

assert issubclass(GuardCallback, L.Callback)
generator = torch.Generator().manual_seed(0)
x, y = torch.rand(60, 1, 8, 8, generator=generator), torch.arange(60) % 3
x[torch.arange(60), 0, 2 * y] = 1.0
guard = worstclass.ClassGuard([20, 20, 20])

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, place):
        x, y = batch
        logits = self(x)
        return guard.weigh(F.cross_entropy(logits, y, reduction="none"), y, y != 2).mean()  # 2 is always wrong

    def validation_step(self, batch, place):
        x, y = batch
        return {"correct": y != 2, "group": y}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def trainer(epochs):
    look = EpochAudit((x, y), 0.02, attacks="pgd-2", every=2)
    callbacks = [GuardCallback(guard, ["a", "b", "c"]), AuditCallback(look)]
    options = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    return look, L.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=callbacks, **options)

data = TensorDataset(x, y)
look, fitted = trainer(4)
fitted.fit(Net(), DataLoader(data, batch_size=20), DataLoader(data, batch_size=25))
assert [epoch for epoch, _ in look.history] == [2, 4], look.history
assert int(guard.weights.argmax()) == 2, guard.weights
assert abs(float(fitted.callback_metrics["class_weight/c"]) - float(guard.weights[2])) < 1e-5
assert "audit/pgd-2/class/0" in fitted.callback_metrics, fitted.callback_metrics
fitted.save_checkpoint("net.ckpt")
known = guard.weights.clone()
fitted.validate(Net(), DataLoader(data, batch_size=25), verbose=False)  # a look, not an epoch
assert torch.equal(guard.weights, known), (guard.weights, known)
guard = worstclass.ClassGuard([20, 20, 20])
_, again = trainer(5)
seen = []
guard.update, update = (lambda *given: (seen.append(guard.weights.clone()), update(*given))), guard.update
again.fit(Net(), DataLoader(data, batch_size=20), DataLoader(data, batch_size=25), ckpt_path="net.ckpt")
assert torch.equal(seen[0], known), (seen, known)
print("fitted")
"""


@pytest.mark.parametrize("library", ["lightning.pytorch", "pytorch_lightning"])
def test_guard_and_audit_under_a_trainer(library: str, tmp_path: Path) -> None:
    """The weak class gains weight, the audit runs every second epoch, and a checkpoint restores the guard."""
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        pytest.skip(f"{library} is not installed")
    words = [sys.executable, "-c", PROGRAM, library]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "fitted"


def test_without_lightning_it_is_one_line() -> None:
    if any(importlib.util.find_spec(name) for name in ("lightning", "pytorch_lightning")):
        pytest.skip("Lightning is installed")
    code = "import worstclass.integrations.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "UserError: a callback for Lightning needs lightning" in done.stderr
    assert "pip install 'worstclass[lightning]'" in done.stderr
