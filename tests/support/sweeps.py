"""Sweeps small enough for tests, and what each of their jobs comes to by hand."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.keys import Config
from worstclass.config.recipe import to_toml
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.inputs.names import RECIPE
from worstclass.runs.train import train_run

ATTACKS = ("natural", "fgsm")


def write_sweep(path: Path, head: str, **settings: object) -> Path:
    """A sweep file over the tiny data beside it; `head` is all of it but [set]."""
    if not (path.parent / "tiny.npz").is_file():
        write_tiny_npz(path.parent / "tiny.npz")
    base = tiny_config(Path("tiny.npz"), **{"epochs": 1} | settings)
    lines = [line for line in to_toml(base).splitlines() if not re.match(r"(seed|eta|variant|method) = ", line)]
    path.write_text("\n".join([head, "[set]", *lines]) + "\n")
    return path


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def by_hand(config: Config, folder: Path) -> None:
    run = train_run(config, folder)
    evaluate_target(run_target(run), list(ATTACKS), folder)


def assert_same_job(one: Path, other: Path) -> None:
    assert_same_run(one, other)
    for name in (RECIPE, CARD, OUTCOMES):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def sweep_in(folder: Path, *options: str) -> Any:
    with working_in(folder):
        return cli.app(["sweep", "sweep.toml", "--serial", "--out", "out", *options], standalone_mode=False)
