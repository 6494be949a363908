"""What a run says of itself in run.json: its images, what trains it, and what is kept of it."""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from worstclass.data import Images, Source, exact_duplicates, mirror_pairs, validation_shift
from worstclass.errors import UserError
from worstclass.execution.distributed import Team
from worstclass.execution.versions import versions
from worstclass.files import write_json
from worstclass.runs.run import Learned
from worstclass.runs.saver import ABOUT
from worstclass.runs.seen import MAX_COMPARED
from worstclass.training.engine import Engine


def describe_run(source: Source, learned: Learned, engine: Engine, device: torch.device, team: Team) -> dict[str, Any]:
    """A run that is about to start on these images."""
    images, train, valid = learned.images, learned.train, learned.valid
    parts = {"train": train, "valid": valid}
    return {
        "num_classes": source.num_classes,
        "class_names": list(source.class_names),
        "in_channels": images.x.shape[1],
        "image_size": list(images.x.shape[2:]),
        "train_images": len(train),
        "valid_images": len(valid),
        "own_validation": learned.border is not None,
        "class_counts": {name: part.class_counts(source.num_classes).tolist() for name, part in parts.items()},
        **_compare(train, valid, source.num_classes),
        **_test_shape(source),
        "data_notes": source.notes("train"),
        "data_digest": learned.digest,
        "versions": versions(),
        "engine": asdict(engine) | _describe_device(device) | {"processes": team.size},
    }


def last_process(about: dict[str, Any]) -> dict[str, Any]:
    """What is said of the process that trains a run, or trained it last: its engine, its versions, its start."""
    process: dict[str, Any] = [about, *about.get("resumed", [])][-1]
    return process


def note(out: Path, about: dict[str, Any], engine: dict[str, Any], **beside: Any) -> None:
    """Write down what is found out of the process that trains the run in the folder `out`."""
    process = last_process(about)
    process["engine"].update(engine)
    process.update(beside)
    write_json(out / ABOUT, about)


def refuse_past(keep: Collection[int], epoch: int) -> None:
    """Raise if an epoch is to be kept that a run, which goes on from this one, does not make."""
    early = min(keep, default=epoch + 1)
    if early <= epoch:
        raise UserError(f"epoch {early} cannot be kept: the run goes on from epoch {epoch}.")


def _test_shape(source: Source) -> dict[str, Any]:
    """The shape of a test image, where it is known without its pixels; what is wrong with that part is for later."""
    try:
        shape = source.test_shape()
    except UserError:
        return {}
    return {} if shape is None else {"test_shape": list(shape)}


def _compare(train: Images, valid: Images, num_classes: int) -> dict[str, Any]:
    """How many validation images are training images too, and how unlike theirs those of each class are. Of data so
    large that this takes long, nothing."""
    if train.x.nbytes + valid.x.nbytes > MAX_COMPARED:
        return {}
    copies = exact_duplicates({"train": train, "valid": valid})[0]["train", "valid"]
    shift = [round(each, 3) for each in validation_shift(train, valid, num_classes)]
    mirrored = [list(pair) for pair in mirror_pairs(train, num_classes)]
    return {"valid_in_train": copies, "valid_shift": shift, "mirrored": mirrored}


def _describe_device(device: torch.device) -> dict[str, Any]:
    """What a run was trained on."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {"device": str(device), "threads": torch.get_num_threads(), **gpu}
