"""`audit`: a model in memory and test images in, accuracy of each class under attack out."""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from torch import nn

from worstclass.attacks.active_set import predict
from worstclass.auditing.data import read_data, sample
from worstclass.auditing.preflight import check_classes, likely_causes, preflight, standardised, try_model
from worstclass.auditing.result import AuditResult
from worstclass.config.fields import parse_number
from worstclass.data.images import check_class_names
from worstclass.errors import UserError, choose, shown
from worstclass.evaluation.checks import CHECKED_IMAGES, STRONG
from worstclass.evaluation.evaluate import Notify, as_input, batch_that_fits, evaluation_mode
from worstclass.evaluation.outcomes import NATURAL, Outcomes
from worstclass.evaluation.saved import earlier_outcomes, load_card, load_evaluation
from worstclass.evaluation.targets import Target, beside, check_black_box, evaluate_target, rename_classes
from worstclass.execution.backend import Precision
from worstclass.inputs.images import tensor_of
from worstclass.inputs.names import parse_attacks
from worstclass.inputs.radius import check_radius
from worstclass.models import Normalized
from worstclass.runs.devices import pick_device, pick_search
from worstclass.runs.run import fingerprint
from worstclass.training.checkpoint import digest, weights_of
from worstclass.types import Norm

Numbers = float | Sequence[float]
OTHERS = 0.01  # of the predictions; more than that is another model
TRAINING = "the model is in training mode: it is audited in evaluation mode, and put back afterwards."


def audit(
    model: nn.Module,
    data: Any,
    eps: float | str = 8 / 255,
    *,
    norm: Norm = "linf",
    attacks: str | Sequence[str] = "autoattack",
    limit: int | None = None,
    class_names: Sequence[str] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    device: torch.device | str = "auto",
    checks: bool = True,
    cache: Path | str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    name: str | None = None,
    image_size: int | None = None,
    test_fraction: float | None = None,
    data_dir: Path | str = Path("data"),
    notify: Notify | None = None,
    on_note: Callable[[str], None] = warnings.warn,
) -> AuditResult:
    """Attack a model in the ball of radius `eps` around each test image, and measure every class.

    `eps`: a number, or a text such as "8/255".
    `data`: a DataLoader, a Dataset, a pair (images, labels) of tensors or arrays, or the name of a data set, of which
    the test part is taken. Images are uint8, or floats in [0, 1]; for a model that expects normalised ones give their
    `mean` and `std`. `attacks`: `autoattack`, `quick` (PGD-20 and APGD-T, an upper bound), or any names, in a list or
    comma-separated. `limit`: so many images, drawn by class. `checks`: look for common mistakes before the first
    attack, and add checks of good practice. `cache`: a folder; stopped, the same call goes on from there.
    `image_size`: pictures of a folder or a library, named in `data`, are cropped at the centre and resized to it.
    `test_fraction`: of a folder without train/ and test/, the fraction that a recipe with this key keeps for testing.
    `name`: of the model, in tables; with `robustbench:NAME` the result also shows what RobustBench publishes of it.
    `on_note(line)` hears warnings. The model is left in its mode and on its device.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"audit takes a torch.nn.Module, not {type(model).__name__}.")
    choose("norm", norm, get_args(Norm))
    try:
        given_radius = parse_number(eps)
    except ValueError as error:
        raise UserError(f"eps: {error}.") from None
    if not (radius := check_radius(given_radius, norm)) > 0:
        raise UserError("eps must be above 0: attacks='natural' measures clean images alone.")
    names = attack_names(attacks)
    reading: dict[str, Any] = {"image_size": image_size, "test_fraction": test_fraction}
    read = read_data(data, limit=limit, seed=seed, data_dir=Path(data_dir), **reading)
    images = read.images.to("cpu")
    with evaluation_mode(model):
        num_classes = try_model(with_normalisation(model, mean, std, images.x.shape[1]), images, "the model")
    given, whose = (read.class_names, read.name) if class_names is None else (class_names, "class_names")
    known = None if given is None else check_class_names(list(given), whose)
    check_classes(images, num_classes, known, f"{whose} has")
    about = {
        "model": type(model).__name__ if name is None else name,
        "architecture": hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(model)).encode()).hexdigest()[:16],
        "data": read.name,
        "part": "test",
        "images": fingerprint(images),
        "weights": digest(weights_of(model)),
        **beside(name or ""),
        **{key: value for key, value in reading.items() if value is not None},
    }
    names_shown = known or tuple(map(str, range(num_classes)))
    target = Target(model, images, names_shown, radius, norm, about | _limited(limit), notes=read.notes)
    return audit_target(
        normalised(target, mean, std),
        names,
        device=device,
        checks=checks,
        cache=cache,
        batch_size=batch_size,
        seed=seed,
        notify=notify,
        on_note=on_note,
    )


def audit_target(
    target: Target,
    attacks: str | Sequence[str] = "autoattack",
    *,
    device: torch.device | str = "auto",
    checks: bool = True,
    cache: Path | str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    precision: Precision | None = None,
    notify: Notify | None = None,
    on_note: Callable[[str], None] = warnings.warn,
) -> AuditResult:
    """The same for a target: a run of ours, or a model that a factory built."""
    names, model, notes = attack_names(attacks), target.model, []
    if batch_size is not None and not (isinstance(batch_size, int) and batch_size >= 1):
        raise UserError(f"batch_size must be a whole number, at least 1, not {shown(batch_size)}.")

    def note(line: str) -> None:
        notes.append(line)
        on_note(line)

    for unread in target.notes:
        note(unread)
    if any(module.training for module in model.modules()):
        note(TRAINING)
    check_black_box(model, names, str(target.about.get("model", "")))
    with evaluation_mode(model), _on_device(model, str(device)) as chosen:
        batch_size = batch_that_fits(model, target.images) if batch_size is None else batch_size
        if checks:
            lines = preflight(
                model,
                target.images,
                num_classes=len(target.class_names),
                eps=target.eps,
                norm=target.norm,
                attacks=names,
                batch_size=batch_size,
            )
            if lines and lines[0].error:
                causes = "".join(f" {line.text[0].upper()}{line.text[1:]}" for line in likely_causes(lines))
                raise UserError(f"{lines[0].text}{causes} (Without checks the audit goes on all the same.)")
            for line in lines:
                note(line.text)
        with _folder(cache) as out:
            left = _attacks_left(target, names, out, seed=seed, checks=checks, batch_size=batch_size)
            if left is not None:
                evaluate_target(
                    target,
                    left,
                    out,
                    device=chosen,
                    seed=seed,
                    batch_size=batch_size,
                    precision=precision or pick_search(None, chosen, ours=False),
                    checks=checks,
                    notify=notify,
                )
            return AuditResult(*load_evaluation(out), tuple(notes))


def attack_names(attacks: str | Sequence[str]) -> list[str]:
    """Attacks as a list of names, from one name, several, or a comma-separated list; `quick` stands for several."""
    given = [attacks] if isinstance(attacks, str) else list(attacks)
    for name in given:
        if not isinstance(name, str):
            raise UserError(f"attacks are names such as 'pgd-20', not {shown(name)}.")
    return parse_attacks(",".join(given)) or [NATURAL]


def sampled(target: Target, limit: int | None, seed: int) -> Target:
    """A target on a sample of its images, drawn by class; itself without a limit."""
    images = sample(target.images, limit, seed)
    if images is target.images:
        return target
    return replace(target, images=images, about={**target.about, "images": fingerprint(images)} | _limited(limit))


def normalised(target: Target, mean: Numbers | None, std: Numbers | None) -> Target:
    """A target whose model is given normalised images; attacks stay in [0, 1]. Itself without mean and std."""
    wrapped = with_normalisation(target.model, mean, std, target.images.x.shape[1])
    if not isinstance(wrapped, Normalized) or wrapped is target.model:
        return target
    applied = {"mean": wrapped.mean.flatten().tolist(), "std": wrapped.std.flatten().tolist()}
    return replace(target, model=wrapped, about={**target.about, **applied})


def with_normalisation(model: nn.Module, mean: Numbers | None, std: Numbers | None, channels: int) -> nn.Module:
    """The model behind (x - mean) / std, channel by channel; itself without the two."""
    if mean is None and std is None:
        return model
    if mean is None or std is None:
        raise UserError(f"mean and std go together: {'mean' if mean is None else 'std'} is missing.")
    both = []
    for name, values in (("mean", mean), ("std", std)):
        try:
            given = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
        except (TypeError, ValueError, RuntimeError):
            raise UserError(f"{name} must be a number for each channel, not {shown(values)}.") from None
        given = given * channels if len(given) == 1 else given
        if len(given) != channels:
            raise UserError(f"{name} has {len(given)} numbers, images have {channels} channels.")
        both.append(given)
    if not all(value > 0 for value in both[1]):
        raise UserError(f"std must be above 0, not {both[1]}.")
    if max(both[1]) > 1 or max(map(abs, both[0])) > 1:
        raise UserError(f"mean {both[0]} and std {both[1]} are of images in 0..255: divide them by 255.")
    own = tensor_of(model)
    return standardised(model, both[0], both[1], torch.zeros(()) if own is None else own)


def _limited(limit: int | None) -> dict[str, int]:
    return {} if limit is None else {"limit": limit}


@contextmanager
def _on_device(model: nn.Module, device: str) -> Iterator[torch.device]:
    """The model on the device asked for; `auto` leaves one that is on a GPU there. Afterwards it is where it was."""
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())} or {torch.device("cpu")}
    if len(homes) > 1:
        raise UserError(f"the model is on several devices ({', '.join(sorted(map(str, homes)))}): move it to one.")
    (home,) = homes
    chosen = home if device == "auto" and home.type != "cpu" else pick_device(device)
    try:
        model.to(chosen)
        yield chosen
    finally:
        model.to(home)


@contextmanager
def _folder(cache: Path | str | None) -> Iterator[Path]:
    if cache is not None:
        yield Path(cache)
        return
    with TemporaryDirectory(prefix="worstclass-audit-") as folder:
        yield Path(folder)


def _attacks_left(
    target: Target, names: Sequence[str], out: Path, *, seed: int, checks: bool, batch_size: int
) -> list[str] | None:
    """The attacks that a folder does not hold yet; None where there is nothing left to do in it."""
    about = {**target.about, "eps": target.eps, "norm": target.norm, "seed": seed}
    earlier = earlier_outcomes(out, about, target.home, instead="folder")
    if earlier is None:
        return list(names)
    card = load_card(out)
    _check_same_model(target, out, earlier, batch_size)
    if any(name not in earlier.predictions for name in card["columns"]):  # they leave the card too
        return [name for name in names if name not in earlier.predictions]
    if card["class_names"] != list(target.class_names):
        rename_classes(target, out)
    left = [name for name in names if name not in card["columns"]]
    checked = any(finding["name"] == STRONG for finding in card.get("findings", []))
    return None if not left and (checked or not checks) else left


def _check_same_model(target: Target, out: Path, earlier: Outcomes, batch_size: int) -> None:
    """Weights do not tell everything: a model that predicts otherwise than the one in the folder is another."""
    rows = np.arange(min(len(target.images), batch_size, CHECKED_IMAGES))
    x, _ = as_input(target.model, target.images.select(torch.from_numpy(rows)))
    found = predict(target.model, x).argmax(1).cpu().numpy()
    before = earlier.predictions[NATURAL][rows]
    if float(np.mean(found != before)) > OTHERS:
        raise UserError(f"{out} holds the audit of another model, with the same weights: choose another folder.")
