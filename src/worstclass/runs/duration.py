"""How long a training will take on a CPU, estimated from a few forward passes before its first step."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from worstclass.config.keys import Config
from worstclass.runs.base import base_epoch
from worstclass.runs.run import Run, build_model

FEW, PROBE, SECONDS = 2, 16, 0.2  # images of a measured pass, at least and at most, and about how long it may take
TIMES = 3  # the least of so many: other work on the machine makes passes longer
VALID_STEPS = 20


def expected_seconds(run: Run, done: int = 0) -> float:
    """Of the epochs after `done`, and of a base's, roughly, by the time of a forward pass on this CPU.

    An attack step is a forward and a backward to the image, which takes as long again; a training pass is three
    forwards.
    """
    config, about = run.config, run.about
    training = 3 if config.base_objective == "natural" else 2 * config.attack_steps + 7
    validating = 2 * VALID_STEPS + 2
    passes = training * about["train_images"] + validating * about["valid_images"] / config.valid_every
    epochs = config.epochs - done + (0 if config.base_start is None else config.epochs - base_epoch(config))
    return float(epochs * passes * _seconds_a_pass(config, about))


def with_model(run: Run, model: str) -> Run:
    """The same run with another network."""
    return replace(run, config=run.config.model_copy(update={"model": model}))


def _seconds_a_pass(config: Config, about: Mapping[str, Any]) -> float:
    """Forward time of an image."""
    model = build_model(config, about["num_classes"], about["in_channels"], None).eval()
    shape = (about["in_channels"], *about["image_size"])
    _time(model, torch.zeros(FEW, *shape))  # the first call sets things up
    few = _time(model, torch.zeros(FEW, *shape)) / FEW
    count = min(PROBE, int(SECONDS / max(few, 1e-6)))
    return few if count <= FEW else min(_time(model, torch.zeros(count, *shape)) for _ in range(TIMES)) / count


def _time(model: nn.Module, x: torch.Tensor) -> float:
    started = time.perf_counter()
    with torch.no_grad():
        model(x)
    return time.perf_counter() - started
