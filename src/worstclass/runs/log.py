"""The log of a run: one line for each epoch."""

import json
import os
from pathlib import Path
from typing import Any

from worstclass.metrics.tail import worst_tenth
from worstclass.strategies.hedge import class_costs
from worstclass.training import EpochRecord


def describe(record: EpochRecord) -> dict[str, Any]:
    """A record as one line of the log."""
    drawn = {"class_sampling": record.weights.sampling, "class_quota": record.weights.quota}
    return {
        "epoch": record.epoch,
        "lr": record.lr,
        "seconds": round(record.seconds, 3),
        "train": {
            "loss": float(record.train.overall("natural_loss", "robust_loss")),
            "accuracy": float(record.train.overall("robust_correct")),  # on the images trained on: attacked, or clean
        },
        "valid": {
            "loss": float(record.valid.overall("natural_loss", "robust_loss")),
            "natural_accuracy": float(record.valid.overall("natural_correct")),
            "robust_accuracy": float(record.valid.overall("robust_correct")),
            "worst_natural_accuracy": float(record.valid.mean("natural_correct").min()),
            "worst_robust_accuracy": float(record.valid.mean("robust_correct").min()),
            "worst_tenth_robust_accuracy": worst_tenth(record.valid.mean("robust_correct").tolist()),
        },
        "class_train_accuracy": record.train.mean("robust_correct").tolist(),
        "class_costs": class_costs(record.valid).tolist(),
        "class_natural_accuracy": record.valid.mean("natural_correct").tolist(),
        "class_robust_accuracy": record.valid.mean("robust_correct").tolist(),
        "expert_weights": record.expert_weights.tolist(),
        "class_weights": (record.weights.natural * record.frequency).tolist(),
        "class_robust_weights": (record.weights.robust * record.frequency).tolist(),
        "class_radius_scales": record.weights.radius_scale.tolist(),
        **{name: share.tolist() for name, share in drawn.items() if share is not None},
        "strategy": {key: value.tolist() for key, value in record.strategy_before.items()},
        "next_class_weights": record.next_weights.tolist(),
        **({} if record.valid_epoch is None else {"valid_epoch": record.valid_epoch}),
        **({} if record.averaged_epochs is None else {"averaged_epochs": record.averaged_epochs}),
    }


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line, and have it on disk before training goes on."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
