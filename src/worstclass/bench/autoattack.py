"""Measured side by side, in one run: ours and the public code on the same model, images and device."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worstclass.attacks import autoattack
from worstclass.attacks.search_model import Passes
from worstclass.data import Images
from worstclass.errors import UserError
from worstclass.evaluation.evaluate import Notify, as_input, evaluate
from worstclass.evaluation.outcomes import STANDS
from worstclass.execution.backend import Precision, allow_tf32
from worstclass.types import Classifier, Norm

Standing = NDArray[np.bool_]


@dataclass(frozen=True)
class Timing:
    """One program on the images: seconds, images sent through the model, and which samples stand (N,)."""

    name: str
    seconds: float
    passes: Passes
    standing: Standing


def bench_autoattack(
    model: Classifier,
    images: Images,
    *,
    eps: float,
    norm: Norm = "linf",
    batch_size: int = 500,
    precision: Precision = "fp32",
    notify: Notify | None = None,
) -> list[Timing]:
    """AutoAttack `standard`, ours and the one of `pyautoattack` in strict float32, one after the other."""
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise UserError("the public attack core is missing: pip install pyautoattack.") from None
    model.eval()
    attack, passes = autoattack(eps=eps, norm=norm), Passes()

    def ours() -> Standing:
        outcomes = evaluate(
            model, images, {"aa": attack}, batch_size=batch_size, precision=precision, notify=notify, passes=passes
        )
        standing: Standing = outcomes.broken_by["aa"] == STANDS
        return standing

    def theirs() -> Standing:
        x, y = as_input(model, images)
        peer = AutoAttack(model, norm={"linf": "Linf", "l2": "L2"}[norm], eps=eps, seed=0, device=x.device)
        with allow_tf32(False):
            predicted = peer.run_standard_evaluation(x, y, batch_size=batch_size)[1]
        standing: Standing = (predicted == y).cpu().numpy()
        return standing

    first = _timed("worstclass", ours, passes)
    their_passes = Passes()
    hook = model.register_forward_pre_hook(lambda _, inputs: their_passes.count(inputs[0]))
    try:
        return [first, _timed("pyautoattack", theirs, their_passes)]
    finally:
        hook.remove()


def _timed(name: str, work: Callable[[], Standing], passes: Passes) -> Timing:
    """The verdicts come back to the host, so nothing is left running on the device."""
    started = time.perf_counter()
    standing = work()
    return Timing(name, time.perf_counter() - started, passes, standing)
