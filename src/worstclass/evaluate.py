"""From attacks to per-sample outcomes, checked as they run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worstclass import metrics
from worstclass.attacks import PGD
from worstclass.data import Images, to_float
from worstclass.data.arrays import open_npz, read_array
from worstclass.errors import AttackError, UserError
from worstclass.files import write_npz
from worstclass.rng import PerSample
from worstclass.types import Classifier

TOLERANCE = 1e-6  # of float32 at 1, with room
NATURAL = "natural"
ANY = "/any"  # suffix of an attack's name for its any-iterate convention

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Outcomes:
    """Labels (N,) and, for `natural` and each attack, predictions (N,): all that any measure needs."""

    labels: Ints
    predictions: dict[str, Ints]

    def save(self, path: Path) -> None:
        """One compressed .npz, written atomically."""
        arrays = {f"predictions/{name}": values.astype(np.int16) for name, values in self.predictions.items()}
        write_npz(path, {"labels": self.labels.astype(np.int16)} | arrays)

    @classmethod
    def load(cls, path: Path) -> "Outcomes":
        with open_npz(path) as archive:
            arrays = {name: read_array(archive, path, name).astype(np.int64) for name in archive.files}
        if "labels" not in arrays:
            raise UserError(f"{path} holds no outcomes: it has no labels.")
        prefix = "predictions/"
        predictions = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        return cls(arrays["labels"], predictions)


def evaluate(
    model: Classifier,
    images: Images,
    attacks: Mapping[str, PGD],
    *,
    seed: int = 0,
    batch_size: int = 500,
    on_batch: Callable[[str, int, int], None] | None = None,
) -> Outcomes:
    """Predictions on clean images and under each attack, in evaluation mode.

    Random starts are a function of (seed, sample), so the answer does not depend on the batch size. An attack that
    leaves its ball or [0, 1], or after which the model is right more often than before, is an `AttackError`.
    """
    model.eval()
    predictions = {NATURAL: _predict_all(model, images, batch_size)}
    labels = images.y.cpu().numpy()
    for name, attack in attacks.items():
        last, first = _attack_all(model, images, name, attack, seed, batch_size, on_batch)
        for label, predicted in ((name, last), (name + ANY, first)):
            predictions[label] = predicted
            _check_no_help(labels, predicted, predictions[NATURAL], label)
    return Outcomes(labels, predictions)


@torch.no_grad()
def _predict_all(model: Classifier, images: Images, batch_size: int) -> Ints:
    device = next(model.parameters()).device
    logits = [model(to_float(x.to(device))).cpu() for x in images.x.split(batch_size)]
    if not all(bool(batch.isfinite().all()) for batch in logits):
        raise UserError("the model returns logits that are not finite on clean images: there is nothing to measure.")
    return np.asarray(torch.cat(logits).argmax(1).numpy(), dtype=np.int64)


def _attack_all(
    model: Classifier,
    images: Images,
    name: str,
    attack: PGD,
    seed: int,
    batch_size: int,
    on_batch: Callable[[str, int, int], None] | None,
) -> tuple[Ints, Ints]:
    """Predictions on the last iterate and on the first fooling one."""
    device = next(model.parameters()).device
    last, first = [], []
    for start in range(0, len(images), batch_size):
        stop = min(start + batch_size, len(images))
        x, y = to_float(images.x[start:stop].to(device)), images.y[start:stop].to(device)
        found = attack.search(model, x, y, generator=PerSample(seed, "evaluate", range(start, stop)))
        check_inside(x, found.last, attack, name)
        check_inside(x, found.any, attack, name)
        with torch.no_grad():
            last.append(model(found.last).argmax(1).cpu())
            first.append(model(found.any).argmax(1).cpu())
        if on_batch:
            on_batch(name, stop, len(images))
    return torch.cat(last).numpy(), torch.cat(first).numpy()


def check_inside(x: Tensor, x_adv: Tensor, attack: PGD, name: str) -> None:
    """Raise unless every image is inside the attack's ball and inside [0, 1]."""
    delta = (x_adv - x).flatten(1)
    distance = float((delta.abs().amax(1) if attack.norm == "linf" else delta.norm(dim=1)).max())
    if not distance <= attack.eps + TOLERANCE * (1 if attack.norm == "linf" else 10):
        raise AttackError(
            f"attack '{name}' left its {attack.norm} ball: distance {distance:.6g}, eps {attack.eps:.6g}."
        )
    low, high = float(x_adv.min()), float(x_adv.max())
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        raise AttackError(f"attack '{name}' left the image range [0, 1]: {low:.6g}..{high:.6g}.")


def _check_no_help(labels: Ints, predicted: Ints, natural: Ints, name: str) -> None:
    attacked, clean = metrics.average_accuracy(labels, predicted), metrics.average_accuracy(labels, natural)
    if attacked > clean:
        raise AttackError(
            f"attack '{name}' helps the model: accuracy {attacked:.4f} under attack, {clean:.4f} without. "
            "The gradients are likely masked, or the radius is too small to matter."
        )
