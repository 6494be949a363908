"""Whom to evaluate: a run of ours, or anybody's model; from here on they are treated alike."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from worstclass.attacks import PGD, Ensemble, FirstSuccess, make_attack
from worstclass.data import Images, Source, open_source
from worstclass.errors import UserError
from worstclass.evaluation.card import make_card, near_zero
from worstclass.evaluation.checks import (
    CHECKED_IMAGES,
    STRONG,
    Finding,
    check_attacks,
    check_model,
    check_outcomes,
    check_strength,
    check_unseen,
    load_findings,
    merge,
    some_of,
)
from worstclass.evaluation.data_check import empty_note
from worstclass.evaluation.evaluate import Notify, as_input, batch_that_fits, evaluate
from worstclass.evaluation.outcomes import ANY, NATURAL, Outcomes, Progress
from worstclass.evaluation.saved import (
    CARD,
    OUTCOMES,
    Origin,
    earlier_outcomes,
    load_base,
    load_card,
    load_evaluation,
    merge_cards,
    other_settings,
    same_outcomes,
)
from worstclass.execution.backend import Precision
from worstclass.execution.distributed import ALONE, Team
from worstclass.execution.versions import versions
from worstclass.files import locked, write_json
from worstclass.inputs.names import BLACK_BOX
from worstclass.metrics.percentages import percent
from worstclass.models import make_model
from worstclass.models.robustbench import published
from worstclass.runs.finished import is_settled
from worstclass.runs.run import (
    Run,
    check_classifier,
    consent,
    fingerprint,
    learned_images,
    open_data,
    open_run,
    refuse_script,
    valid_images,
)
from worstclass.runs.seen import count_seen
from worstclass.runs.shipped import shipped
from worstclass.training.checkpoint import digest, load_tensors, load_weights, unwrapped, weights_of
from worstclass.types import BallAttack, Norm

PROGRESS = "progress.npz"
PART = "progress-{}of{}.npz"  # of one process of several


@dataclass(frozen=True)
class Target:
    """A model in evaluation mode, the images to judge it on, and the ball it must hold in.

    `about` says what it is, `home` is the folder of the run it comes from, and `notes` what of the data is not read.
    """

    model: nn.Module
    images: Images
    class_names: Sequence[str]
    eps: float
    norm: Norm
    about: Mapping[str, Any]
    home: Path | None = None
    notes: tuple[str, ...] = ()


def run_target(
    run: Run | Path | str,
    *,
    checkpoint: Literal["selected", "last"] = "selected",
    part: Literal["test", "valid"] = "test",
    data_dir: Path | str = Path("data"),
    allow_code: bool = False,
) -> Target:
    """A run's selected (or last) epoch on the test set (or on the images it was validated with)."""
    run = run if isinstance(run, Run) else open_run(run)
    model, epoch = run.load_model(checkpoint, allow_code=allow_code)
    source = open_data(run.config, allow_code=allow_code, data_dir=data_dir)
    if list(source.class_names) != run.class_names:
        raise UserError(f"{run.folder} was trained on other classes than {run.config.data} has here.")
    images = source.read("test") if part == "test" else valid_images(run, source)
    shape = [run.about["in_channels"], *run.about["image_size"]]
    if list(images.x.shape[1:]) != shape:
        found = list(images.x.shape[1:])
        raise UserError(f"{run.folder} was trained on images of {shape}; {run.config.data} has {found} here.")
    about = {
        "recipe": run.config.recipe(),
        "checkpoint": checkpoint,
        "epoch": epoch,
        "data": run.config.data,
        "part": part,
        "images": fingerprint(images),
        "weights": digest(dict(model.state_dict())),
        **shipped(run.about, checkpoint),
    }
    notes = (
        *(_pending_note(run) if checkpoint == "selected" else []),
        *source.notes("test" if part == "test" else "train"),
        *(_renamed_note(run, source) if part == "test" else []),
    )
    return Target(model, images, run.class_names, run.config.eps, run.config.norm, about, run.folder, notes)


def _pending_note(run: Run) -> list[str]:
    """A line if what ships is yet to be chosen: the weights of a run are then its own, whatever its base is worth."""
    if run.config.base_start is None or is_settled(run.folder):
        return []
    return [
        f"{run.folder} has not been compared with its base yet, and these weights may not be those that ship: "
        f"worstclass train --resume {run.folder}{consent(run.config)} goes on."
    ]


def _renamed_note(run: Run, source: Source) -> list[str]:
    """A line if images may have been renamed since a run was trained: where the names decide the parts, that makes
    test images of training images."""
    if run.config.test_fraction is None:
        return []
    try:
        if learned_images(run.config, source).digest == run.about["data_digest"]:
            return []
    except UserError:  # they cannot be read any more
        pass
    return [
        f"the training images of {run.config.data} are no longer those of {run.folder}: a training image that was "
        "renamed since may be a test image now."
    ]


def model_target(
    name: str,
    *,
    weights: Path | str | None,
    data: str,
    eps: float,
    norm: Norm = "linf",
    image_size: int | None = None,
    test_fraction: float | None = None,
    data_dir: Path | str = Path("data"),
    allow_code: bool = False,
) -> Target:
    """A model by name, with safetensors weights, on the test part of a data set.

    `module.path:factory` and `path/to/file.py:factory` run the user's code; without weights it is the model as its
    factory returns it. `timm:NAME` and `hf-hub:ID` without weights are pretrained, their normalisation inside.
    `onnx:PATH`, `robustbench:NAME` and `torchscript:PATH` bring their weights; the last is code: with consent only.
    `image_size` and `test_fraction` are those of `open_source`.
    """
    refuse_script(name, allow_code)
    reading: dict[str, Any] = {"image_size": image_size, "test_fraction": test_fraction}
    source = open_source(data, data_dir=data_dir, **reading)
    images = source.read("test")
    channels = images.x.shape[1]
    model = make_model(name, num_classes=source.num_classes, in_channels=channels, pretrained=weights is None)
    check_classifier(model, images, source.num_classes, name)
    if weights is None:
        tensors = weights_of(model)
    else:
        tensors = unwrapped(load_tensors(Path(weights), ours=False)[0], model)
        load_weights(model, tensors, Path(weights))
    about = {"model": name, "data": data, "part": "test", "images": fingerprint(images), "weights": digest(tensors)}
    about |= beside(name) | {key: value for key, value in reading.items() if value is not None}
    notes = tuple(source.notes("test"))
    return Target(model.eval(), images, source.class_names, eps, norm, about, notes=notes)


def beside(name: str) -> dict[str, Any]:
    """For `about`: what RobustBench publishes of a model of its own, which is not measured here."""
    known = published(name)
    return {} if known is None else {"robustbench": known}


def check_black_box(model: nn.Module, attacks: Sequence[str], name: str) -> None:
    """Raise if a model without gradients is to be attacked by them: what they cannot move would count as robust."""
    if not any(getattr(module, "gradient_free", False) for module in model.modules()):
        return
    if white := [attack for attack in attacks if attack not in BLACK_BOX]:
        raise UserError(
            f"model '{name}' has no gradients, which {white[0]} needs: attack with {BLACK_BOX[0]}, a black-box attack. "
            "Its accuracy is an upper bound."
        )


def evaluate_target(
    target: Target,
    attack_names: Sequence[str],
    out: Path | str,
    *,
    base: Path | str | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    batch_size: int | None = None,
    precision: Precision = "fp32",
    checks: bool = False,
    transfer: Target | None = None,
    team: Team = ALONE,
    notify: Notify | None = None,
    on_note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Attack, measure, and write outcomes and card into the folder `out`; returns the card.

    `natural` is always measured. `base` is the folder of an evaluated vanilla run, for rho in the columns that both
    have; a card has one base, and another replaces it. An earlier evaluation of the same weights on the same images is
    added to; a folder that holds anything else is refused. One that was stopped is continued. `on_note(line)` hears,
    before anything is attacked, where there will be no rho, what of the data is not read, and which classes have no
    images. The card's findings say what the numbers are worth; `checks` adds those that take attacks of their own,
    among them one by images made for the model `transfer`. Every process of a `team` calls this with the same
    arguments; the leader writes, and the others, once they have attacked their part, return an empty card.
    """
    out = Path(out)
    about = dict(target.about) | {"eps": target.eps, "norm": target.norm, "seed": seed}
    # A folder that holds something else, or a base that is none, is refused before anything runs.
    known = earlier_outcomes(out, about, target.home) if team.leads else None
    check_black_box(target.model, attack_names, str(target.about.get("model", "")))
    attacks = _attacks(target, attack_names)
    against = load_base(Path(base), about, attacks) if base else None
    if against is not None and on_note is not None:
        lacking = against.lacks(dict.fromkeys([*attacks, *(known.predictions if known else ())]))
        if lacking:
            on_note(f"{base} has not been evaluated under {', '.join(lacking)}: no rho there.")
        for name in dict.fromkeys([NATURAL, *attacks]):
            worst = None if against.lacks([name]) else near_zero(against.outcomes, name, len(target.class_names))
            if worst is not None:
                on_note(f"rho under {name} says little: the worst class of {base} is at {percent(worst)}%.")
        if settings := other_settings(Origin.read(about, target.home), Origin.read(against.about, against.folder)):
            on_note(f"this evaluation differs from {base} in more than the method: {settings}.")
    unseen = _unseen(target)
    if on_note is not None:
        for finding in unseen:
            if not finding.passed:
                on_note(f"{finding.seen}. {finding.advice}")
        counts = target.images.class_counts(len(target.class_names)).tolist()
        for line in (*target.notes, *empty_note(target.class_names, counts, "")):
            on_note(line)
    if transfer:
        _check_transfer(target, transfer)
    model = target.model.to(device).eval()
    batch_size = batch_that_fits(model, target.images) if batch_size is None else batch_size
    team.check_same(json.dumps([about, list(attacks), precision]), "the processes were not started alike.")

    def attack_all() -> tuple[Outcomes, Progress]:
        name, part = (PROGRESS, []) if team.alone else (PART.format(team.rank, team.size), [team.rank, team.size])
        progress = Progress(out / name, json.dumps([about, precision, versions(), *part]))
        outcomes = evaluate(
            model,
            target.images,
            attacks,
            seed=seed,
            batch_size=batch_size,
            precision=precision,
            progress=progress,
            notify=notify,
            team=team,
        )
        return outcomes, progress

    if not team.leads:
        _, progress = attack_all()
        team.barrier()  # until the leader has written it down
        progress.clear()
        return {}
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "evaluate"):
        earlier = earlier_outcomes(out, about, target.home)
        outcomes, progress = attack_all()
        searched = [name for name, attack in attacks.items() if isinstance(attack, PGD | FirstSuccess | Ensemble)]
        if earlier is not None:
            predictions, broken_by = earlier.predictions | outcomes.predictions, earlier.broken_by | outcomes.broken_by
            outcomes = Outcomes(outcomes.labels, predictions, broken_by)
            attacks = _attacks(target, [name for name in outcomes.predictions if not name.endswith(ANY)])
        x, y = as_input(model, some_of(target.images, min(batch_size, CHECKED_IMAGES)).to(device))
        findings = check_model(model, x, y) + unseen
        findings += check_outcomes(outcomes, attacks)
        card = make_card(outcomes, target.class_names, attacks, about=about, base=against)
        for name in searched:
            card["columns"][name] |= {"search_precision": precision, "batch_size": batch_size}
        if earlier is not None:
            before = load_card(out)
            findings = merge(load_findings(before), findings)
            if STRONG in [finding.name for finding in findings]:  # of the attacks of then
                findings = merge(findings, [check_strength(attacks)])
            card = merge_cards(before, card, [n for n in earlier.predictions if same_outcomes(earlier, outcomes, n)])
        outcomes.save(out / OUTCOMES)
        card["findings"] = [finding.as_dict() for finding in findings]
        write_json(out / CARD, card)
        team.barrier()
        progress.clear()
        ours = {PART.format(rank, team.size) for rank in range(team.size)}
        for left in out.glob(PART.format("*", "*")):  # by another number of processes, which was stopped
            if left.name not in ours:
                left.unlink(missing_ok=True)
        if checks:  # what has been measured is on disk by now
            checked = check_attacks(
                model,
                target.images,
                num_classes=len(target.class_names),
                eps=target.eps,
                norm=target.norm,
                seed=seed,
                batch_size=batch_size,
                other=transfer.model.to(device).eval() if transfer else None,
            )
            findings = merge(findings, [check_strength(attacks), *checked])
            card["findings"] = [finding.as_dict() for finding in findings]
            write_json(out / CARD, card)
        return card


def _unseen(target: Target) -> list[Finding]:
    """Whether a run is judged on test images that it has not learned from, where it knows."""
    if target.home is None or target.about["part"] != "test":
        return []
    count = count_seen(target.home, target.images)
    return [] if count is None else [check_unseen(count, len(target.images))]


def _check_transfer(target: Target, transfer: Target) -> None:
    shapes = [list(each.images.x.shape[1:]) for each in (target, transfer)]
    if shapes[0] != shapes[1] or len(target.class_names) != len(transfer.class_names):
        raise UserError(
            f"images of {shapes[1]} in {len(transfer.class_names)} classes cannot be tried on a model "
            f"for images of {shapes[0]} in {len(target.class_names)}."
        )


def _attacks(target: Target, names: Sequence[str]) -> dict[str, BallAttack]:
    return {name: make_attack(name, eps=target.eps, norm=target.norm) for name in names if name != NATURAL}


def rename_classes(target: Target, out: Path) -> None:
    """Write the card of an evaluation of the target anew, with the target's class names; nothing is attacked."""
    with locked(out, "evaluate"):
        before, outcomes = load_evaluation(out)
        attacks = _attacks(target, [name for name in outcomes.predictions if not name.endswith(ANY)])
        card = make_card(outcomes, target.class_names, attacks, about=before["about"])
        card = merge_cards(before, card, list(outcomes.predictions))
        write_json(out / CARD, before | card | {"versions": before["versions"]})
