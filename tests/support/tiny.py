"""A data set and settings small enough to train on in a second, and a network for it that ships with the tests."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from robust_cnn import load_cnn
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, merge
from worstclass.runs.run import Run
from worstclass.runs.saver import LAST, LOG, SELECTED
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import load_tensors, save_tensors

SEED = int(os.environ.get("WORSTCLASS_TEST_SEED", "1"))
"""Of all that tests train: what they assert holds for any seed."""

SIZE = 8
GREY = np.random.default_rng(0).integers(0, 256, (12, 8, 9), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (12, 8, 9, 3), dtype=np.uint8)


def write_tiny_npz(path: Path, *, num_classes: int = 3, per_class: int = 40, seed: int = 0) -> Path:
    """Noisy bars: class k is a bright row; the last class is the faintest, so it is the weakest."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for part, count in (("train", per_class), ("test", per_class // 2)):
        y = np.arange(num_classes * count) % num_classes
        x = rng.normal(90, 35, size=(len(y), SIZE, SIZE))
        brightness = np.linspace(90, 30, num_classes)
        x[np.arange(len(y)), 2 * y % SIZE, :] += brightness[y][:, None]
        arrays[f"x_{part}"], arrays[f"y_{part}"] = np.clip(x, 0, 255).astype(np.uint8), y
    np.savez(path, class_names=np.array([f"row {k}" for k in range(num_classes)]), **arrays)
    return path


def tiny_config(data: Path, **settings: object) -> Config:
    values: dict[str, object] = {
        "method": "wat",
        "seed": SEED,
        "data": f"npz:{data}",
        "model": "small-cnn",
        "epochs": 3,
        "batch_size": 16,
        "valid_fraction": 0.25,
        "crop_padding": 1,
        "eps": 0.05,
        "attack_steps": 2,
        "attack_step_size": 0.03,
        "lr_milestones": [1.0],
    }
    return make_config(merge(values, settings))


def tiny_run(folder: Path, name: str = "run", **settings: object) -> Run:
    """A run of TRADES on the tiny data, in folder/name, whose selected weights are those of tests/weights.

    Right about every image, and broken by attacks with eps 0.05 on every fifth or more.
    """
    data = write_tiny_npz(folder / "tiny.npz")
    run = train_run(tiny_config(data, **{"method": "trades", "epochs": 1} | settings), folder / name)
    put_weights(run, load_cnn("tiny_cnn", 3))
    return run


def put_weights(run: Run, model: nn.Module) -> None:
    """As if these had been selected in training."""
    _, header = load_tensors(run.folder / SELECTED)
    save_tensors(run.folder / SELECTED, {f"model.{name}": its for name, its in model.state_dict().items()}, header)


def picture(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def assert_same_run(one: Path, other: Path) -> None:
    for name in (LAST, SELECTED):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name

    def log(folder: Path) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    assert log(one) == log(other)
