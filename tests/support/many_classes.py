"""Evaluated runs of any number of classes, made up: folders that tables, reports and sweeps read, without training."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from worstclass.config.recipe import make_config, to_toml
from worstclass.evaluation.card import make_card
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.inputs.names import RECIPE
from worstclass.runs.saver import ABOUT, LOG

EPOCHS = 12
WORDS = ("stop", "yield", "speed limit", "no entry", "roundabout", "snow", "wild animals", "end of restriction", "turn")


def class_names(num_classes: int) -> list[str]:
    """Names as data sets have them: some short, some long."""
    return [f"{WORDS[k % len(WORDS)]} {k}" for k in range(num_classes)]


def made_up(folder: Path, num_classes: int, *, method: str = "trades", seed: int = 1, images: int = 30) -> Path:
    """A run whose classes are spread evenly, from 2% under attack (WAT: 8%) to 80%, in an order of their own."""
    rng = np.random.default_rng([num_classes, seed, len(method)])
    names, order = class_names(num_classes), np.random.default_rng(num_classes).permutation(num_classes)
    lowest = 0.02 if method == "trades" else 0.08
    robust = np.linspace(lowest, 0.8, num_classes)[order]
    labels = np.repeat(np.arange(num_classes), images)
    alike = np.random.default_rng(num_classes).random(len(labels))  # most images are as hard for one run as for another
    luck = np.where(rng.random(len(labels)) < 0.3, rng.random(len(labels)), alike)
    thief = (labels + 1 + (rng.random(len(labels)) < 0.3) * rng.integers(1, num_classes - 1, len(labels))) % num_classes
    natural = np.where(luck < (0.3 + 0.7 * robust)[labels], labels, thief)
    outcomes = Outcomes(labels, {"natural": natural, "pgd-20": np.where(luck < robust[labels], labels, thief)}, {})
    config = make_config(
        {"method": method, "seed": seed, "epochs": EPOCHS, "data": "npz:made-up.npz", "model": "small-cnn"}
    )
    folder.mkdir(parents=True)
    (folder / RECIPE).write_text(to_toml(config))
    engine = {"fast": False, "precision": "fp32", "device": "cpu"}
    about: dict[str, Any] = {
        "num_classes": num_classes,
        "class_names": names,
        "in_channels": 3,
        "image_size": [32, 32],
        "valid_images": 10 * num_classes,
        "data_digest": "0" * 64,
        "engine": engine,
    }
    (folder / ABOUT).write_text(json.dumps(about))
    (folder / LOG).write_text("".join(json.dumps(_line(epoch, robust, rng)) + "\n" for epoch in range(1, EPOCHS + 1)))
    outcomes.save(folder / OUTCOMES)
    evaluated = {
        "data": config.data,
        "part": "test",
        "images": "0" * 64,
        "weights": "1" * 64,
        "eps": config.eps,
        "norm": "linf",
        "seed": 0,
        "checkpoint": "selected",
        "epoch": EPOCHS,
    }
    (folder / CARD).write_text(json.dumps(make_card(outcomes, names, {}, about=evaluated)))
    return folder


def _line(epoch: int, robust: Any, rng: np.random.Generator) -> dict[str, Any]:
    accuracy = np.clip(robust * epoch / EPOCHS + 0.02 * rng.standard_normal(len(robust)), 0, 1)
    weights = np.exp(0.1 * epoch * (0.4 - robust))
    return {
        "epoch": epoch,
        "lr": 0.1,
        "seconds": 12.3,
        "train": {"loss": 1.5},
        "valid": {
            "natural_accuracy": 0.9,
            "robust_accuracy": float(accuracy.mean()),
            "worst_robust_accuracy": float(accuracy.min()),
        },
        "class_costs": [float(1 - accuracy.mean()), *(1 - accuracy).tolist()],
        "class_robust_accuracy": accuracy.tolist(),
        "expert_weights": [0.0, *(weights / weights.sum()).tolist()],
        "class_weights": (weights / weights.mean()).tolist(),
        "next_class_weights": (weights / weights.mean()).tolist(),
        "strategy": {},
        "selected": True,
    }
