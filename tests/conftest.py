"""What several tests share: a data set and a recipe small enough to train on in a moment, and a robust network."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

from robust_cnn import load_cnn
from tiny import SEED
from worstclass.models import SmallCNN

hypothesis.settings.register_profile("everywhere alike", deadline=None, derandomize=True)
hypothesis.settings.load_profile("everywhere alike")
for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):  # what is captured is not a terminal, whoever says so
    os.environ.pop(name, None)
os.environ["WORSTCLASS_CACHE"] = ""  # no test leaves compiled code in a user's folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the slow guards too, with all their cases")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="slow: pytest --full"))


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether guards that count their cases go through all of them."""
    return bool(pytestconfig.getoption("--full"))


@pytest.fixture(autouse=True)
def _alike() -> Iterator[None]:
    """What a test draws from the global generators is the same in any order of the tests, and on any worker; and what
    it computes: a CPU without bfloat16 turns oneDNN off for good at the first matrix product in it."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = before


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, 8x8, 40 training and 10 test images each; every class is bright in rows of its own."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"class_names": np.array(["top", "middle", "bottom"])}
    for part, per_class in (("train", 40), ("test", 10)):
        labels = np.tile(np.arange(3), per_class)
        images = draw.integers(0, 120, (len(labels), 8, 8), dtype=np.uint8)
        for k in range(3):
            images[labels == k, 3 * k : 3 * k + 2] += 100
        arrays |= {f"x_{part}": images, f"y_{part}": labels}
    path = tmp_path_factory.mktemp("tiny") / "tiny.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def tiny_values(tiny_npz: Path) -> dict[str, Any]:
    """A recipe for it: one epoch of WAT with a small network."""
    return {
        "method": "wat",
        "seed": SEED,
        "data": f"npz:{tiny_npz}",
        "model": "small-cnn",
        "epochs": 1,
        "batch_size": 20,
        "lr": 0.05,
        "eps": 0.05,
        "attack_steps": 1,
        "attack_step_size": 0.05,
        "crop_padding": 0,
        "valid_fraction": 0.1,
        "valid_min": 0,
    }


@pytest.fixture(scope="session")
def robust() -> SmallCNN:
    """Trained against PGD; its weights ship with the tests."""
    return load_cnn("robust_cnn", 10)
