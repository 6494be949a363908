"""Images of the weakest class of a run: as they are, the perturbation magnified, and what the model makes of both."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from worstclass.attacks import PGD, make_attack, pgd
from worstclass.attacks.active_set import predict
from worstclass.data import data_at_hand, to_float
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import NATURAL
from worstclass.evaluation.targets import run_target
from worstclass.metrics.percentages import percent
from worstclass.report.results import Result
from worstclass.rng import PerSample
from worstclass.runs.saver import LAST, SELECTED

SHOWN = 4


@dataclass(frozen=True)
class Picture:
    """An image, its perturbation and the sum, as data for a page; and what each is taken for."""

    clean: str
    perturbation: str
    adversarial: str
    clean_prediction: str
    adversarial_prediction: str


@dataclass(frozen=True)
class Gallery:
    """Pictures of the weakest class of a run, or a line that says why there are none."""

    title: str
    weakest: str
    note: str
    pictures: tuple[Picture, ...] = ()


def make_gallery(
    result: Result, attack: str, *, data_dir: Path | str = Path("data"), allow_code: bool = False
) -> Gallery:
    """The first images of the weakest class that `attack` broke, broken again: by it if it is PGD, by PGD-20 if not."""
    worst = result.columns[attack]["worst"]
    weakest = str(worst["class"])
    names = result.class_names
    if result.run is None:
        return Gallery(result.title, weakest, f"{result.folder} holds the evaluation alone, without a model: no images")
    if not any((result.folder / name).is_file() for name in (SELECTED, LAST)):
        return Gallery(result.title, weakest, f"{result.folder} has no weights: no images can be made")
    about = result.card["about"]
    if not data_at_hand(about["data"], Path(data_dir)):
        return Gallery(result.title, weakest, f"{about['data']} is not in {data_dir}: no images can be made")
    try:
        target = run_target(
            result.run,
            checkpoint=about["checkpoint"],
            part=about["part"],
            data_dir=data_dir,
            allow_code=allow_code,
        )
    except UserError as error:
        return Gallery(result.title, weakest, str(error).rstrip("."))
    if any(target.about[key] != about[key] for key in ("weights", "images")):
        return Gallery(result.title, weakest, "the weights or the images are no longer those that were evaluated")
    outcomes = result.outcomes
    hit = (outcomes.labels == names.index(weakest)) & (outcomes.predictions[NATURAL] == outcomes.labels)
    rows = np.flatnonzero(hit & (outcomes.predictions[attack] != outcomes.labels))[:SHOWN]
    if len(rows) == 0:
        return Gallery(result.title, weakest, "no image of it was right when clean and wrong under attack")
    images = target.images.select(torch.from_numpy(rows))
    x, y = to_float(images.x), images.y
    search = make_attack(attack, eps=target.eps, norm=target.norm)
    if not isinstance(search, PGD):
        search = pgd(20, eps=target.eps, norm=target.norm)
    model = target.model.eval()
    seed = int(about["seed"])  # the same starts as in the evaluation
    x_adv = search.search(model, x, y, generator=PerSample(seed, "evaluate", rows.tolist())).any
    before, after = (predict(model, each).argmax(1).tolist() for each in (x, x_adv))
    factor = 0.5 / float((x_adv - x).abs().max().clamp_min(1e-12))
    magnified = (0.5 + factor * (x_adv - x)).clamp(0, 1)
    pictures = [
        Picture(_png(x[i]), _png(magnified[i]), _png(x_adv[i]), names[before[i]], names[after[i]])
        for i in range(len(rows))
    ]
    note = (
        f"perturbations magnified {0.5 / target.eps:.0f} times" if target.norm == "linf" else "perturbations magnified"
    )
    if worst["ties"] > 1:
        note += f"; {weakest} is the first of {worst['ties']} classes at {percent(worst['value'])}%"
    return Gallery(result.title, weakest, note, tuple(pictures))


def _png(image: Tensor) -> str:
    """A data URI."""
    pixels = (255 * image).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
