"""Measured side by side, in one run: ours and the public code on the same model, images and device."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from worstclass.attacks import autoattack
from worstclass.attacks.view import Passes, SearchPrecision, allow_tf32
from worstclass.data import Images, to_float
from worstclass.errors import UserError
from worstclass.evaluate import Notify, evaluate
from worstclass.types import Classifier, Norm

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing:
    """One program on the images: seconds, images sent through the model, and which samples stand (N,)."""

    name: str
    seconds: float
    passes: Passes
    standing: "np.ndarray[tuple[int], np.dtype[np.bool_]]"


class _Counted(nn.Module):
    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model, self.passes = model, Passes()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.count(x)
        logits: Tensor = self.model(x)
        return logits


def bench_autoattack(
    model: Classifier,
    images: Images,
    *,
    eps: float,
    norm: Norm = "linf",
    batch_size: int = 500,
    precision: SearchPrecision = "fp32",
    notify: Notify | None = None,
) -> list[Timing]:
    """AutoAttack `standard`, ours and the one of `pyautoattack` in strict float32, one after the other."""
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise UserError("the public attack core is missing: pip install pyautoattack.") from None
    device = next(model.parameters(), torch.zeros(())).device
    model.eval()
    attack = autoattack(eps=eps, norm=norm)
    passes = Passes()
    mine = {"batch_size": batch_size, "precision": precision, "notify": notify, "passes": passes}
    seconds, outcomes = _timed(lambda: evaluate(model, images, {"aa": attack}, **mine), device)  # type: ignore[arg-type]
    ours = Timing("worstclass", seconds, passes, outcomes.broken_by["aa"] == "")
    counted = _Counted(model)
    norms = {"linf": "Linf", "l2": "L2"}
    peer = AutoAttack(counted, norm=norms[norm], eps=eps, seed=0, device=device)
    x, y = to_float(images.x.to(device)), images.y.to(device)

    def run() -> Tensor:
        with allow_tf32(False):
            predicted: Tensor = peer.run_standard_evaluation(x, y, batch_size=batch_size)[1]
            return predicted

    seconds, predicted = _timed(run, device)
    return [ours, Timing("pyautoattack", seconds, counted.passes, (predicted == y).cpu().numpy())]


def _timed(work: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    started = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, result
