"""TensorBoard and Weights & Biases get every number of the log, classes by name."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tiny import tiny_config, write_tiny_npz
from worstclass.cli.watched import train_with_progress
from worstclass.errors import UserError
from worstclass.integrations.trackers import BY_CLASS, epoch_scalars, tensorboard_writer, wandb_writer
from worstclass.runs.run import open_run

NAMES = ["row 0", "row 1", "row 2"]


def test_both_log_every_class_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights & Biases by a stand-in for its `init`; TensorBoard is the real one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    begun: list[dict[str, Any]] = []
    logged: list[tuple[int, dict[str, float]]] = []

    class Tracked:
        def log(self, numbers: dict[str, float], step: int) -> None:
            logged.append((step, numbers))

    def init(**given: Any) -> Tracked:
        begun.append(given)
        return Tracked()

    module = ModuleType("wandb")
    vars(module).update(init=init)
    monkeypatch.setitem(sys.modules, "wandb", module)
    config, folder = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=2), tmp_path / "run"
    records = [tensorboard_writer(folder, lambda: NAMES), wandb_writer(folder, lambda: NAMES, config.recipe())]
    train_with_progress(config, folder, device=torch.device("cpu"), on_record=records)
    log = open_run(folder).log
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for place, name in enumerate(NAMES):
        for key, tag in BY_CLASS.items():
            if key == "class_sampling":  # nothing is drawn by class here
                continue
            expected = [line[key][place] for line in log]
            assert [event.value for event in events.Scalars(f"{tag}/{name}")] == pytest.approx(expected)
            assert [numbers[f"{tag}/{name}"] for _, numbers in logged] == expected
    worst = [event.value for event in events.Scalars("valid/worst_robust_accuracy")]
    assert worst == pytest.approx([line["valid"]["worst_robust_accuracy"] for line in log])
    assert [step for step, _ in logged] == [1, 2]
    (given,) = begun
    assert (given["project"], given["name"], given["resume"]) == ("worstclass", "run", "allow")
    assert given["config"] == config.recipe()


def test_the_real_wandb_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our calls are those that it takes; in this mode it keeps nothing, so what arrives is not looked at."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    record = wandb_writer(tmp_path, lambda: NAMES, {"seed": 1})
    line = {"epoch": 1, "train": {"loss": 1.0}, "valid": {}, "class_weights": [0.2, 0.3, 0.5]}
    record(line)
    assert wandb.run is not None
    wandb.finish()
    assert epoch_scalars(line, NAMES) == {
        "train/loss": 1.0,
        "class_weight/row 0": 0.2,
        "class_weight/row 1": 0.3,
        "class_weight/row 2": 0.5,
    }


def test_missing_ones_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"--wandb needs wandb .*pip install 'worstclass\[wandb\]'"):
        wandb_writer(tmp_path, lambda: NAMES, {})
    with pytest.raises(UserError, match=r"pip install 'worstclass\[tensorboard\]'"):
        tensorboard_writer(tmp_path, lambda: NAMES)
