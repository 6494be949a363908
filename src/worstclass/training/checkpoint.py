"""Checkpoints: one safetensors file with a JSON header, written atomically and checked by digest. No pickle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from worstclass.errors import UserError
from worstclass.files import clean_errors, parse_json, write_atomic
from worstclass.records import Count, Finite, Record, check_record
from worstclass.training.state import State, as_given, as_tensors
from worstclass.types import Stateful

SELECTED_PART = "selected"  # the weights of the selected epoch, beside the parts of the state
WRAPPERS = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
HEADER = "worstclass"  # one key only: the header then has one order, and equal states give equal bytes


class BestRecord(Record):
    """The epoch that is kept so far, and its score."""

    epoch: Count
    score: list[Finite]


class HeaderRecord(Record):
    """The header of a checkpoint."""

    epoch: Count
    step: Count = 0
    seconds: Finite = 0.0
    best: BestRecord | None = None


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Save named tensors and a JSON header; equal input gives equal bytes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = header | {"digest": digest(tensors, header)}
    write_atomic(path, save(tensors, metadata={HEADER: json.dumps(header, sort_keys=True)}))


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights of a model, and what else its `state_dict` has, copied to the host."""
    return to_host(as_tensors(model.state_dict(), type(model).__name__))


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the host's memory, which no step will change; tied weights become two."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def load_tensors(path: Path, *, ours: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a file; one that is damaged is an error that says so.

    A file of `ours` must carry a header and match its digest; anybody else's has no header to check.
    """
    with clean_errors(f"{path} is not a readable safetensors file"):
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a file.")
        with safe_open(path, framework="pt") as file:
            # copies: a mapped file cannot be replaced on Windows, and what replaces it elsewhere would show through
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = file.metadata() or {}
    if not ours:
        return tensors, {}
    header = parse_json(metadata.get(HEADER, "{}"), f"the header of {path}")
    written = header.pop("digest", None) if isinstance(header, dict) else None
    if written != digest(tensors, header):
        raise UserError(f"{path} is damaged: its content does not match its digest.")
    return tensors, check_record(HeaderRecord, header, path)


def load_header(path: Path) -> dict[str, Any]:
    """The header of a file of ours, without its tensors and unchecked; empty where there is none to read."""
    try:
        with clean_errors(f"{path} is not a readable safetensors file"), safe_open(path, framework="pt") as file:
            header = parse_json((file.metadata() or {}).get(HEADER, "{}"), f"the header of {path}")
    except UserError:
        return {}
    return header if isinstance(header, dict) else {}


def save_state(path: Path, state: State, header: dict[str, Any]) -> None:
    """Every part of a state and how far the run is, in one file."""
    tensors, progress = take_state(state)
    save_tensors(path, tensors, header | progress)


def take_state(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a state, copied to the host, and the header that says how far it is."""
    tensors = {f"{name}.{key}": value for name, part in _tensors_of(state).items() for key, value in part.items()}
    progress: dict[str, Any] = {"epoch": state.epoch}
    if state.step:
        progress |= {"step": state.step, "seconds": state.seconds}
    return to_host(tensors), progress


def load_state(path: Path, state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Restore a state saved by `save_state`, in place; returns all tensors of the file, and its header."""
    tensors, header = load_tensors(path)
    own = _tensors_of(state)
    _check_weights(state.model, section(tensors, "model"), path)
    for name, part in own.items():
        found = section(tensors, name)
        if found.keys() != part.keys():
            what = "method" if name == "strategy" else name
            raise UserError(f"{path} is not the checkpoint of this run's {what}: nothing was changed.")
        problems = misfits(found, part)
        if problems:
            raise UserError(f"{path} is not a checkpoint of this run: {problems[0]}; nothing was changed.")
    strange = {name.partition(".")[0] for name in tensors} - {*own, SELECTED_PART}
    if strange:
        raise UserError(f"{path} is not a checkpoint of this run: it has a part '{min(strange)}'; nothing was changed.")
    with clean_errors(f"{path} cannot be put into this model"):
        for name, thing in state.parts().items():
            thing.load_state_dict(as_given(section(tensors, name), thing.state_dict()))
    state.epoch, state.step, state.seconds = header["epoch"], header.get("step", 0), header.get("seconds", 0.0)
    return tensors, header


def _tensors_of(state: State) -> dict[str, dict[str, Tensor]]:
    return {name: as_tensors(part.state_dict(), type(part).__name__) for name, part in state.parts().items()}


def load_part(part: Stateful, tensors: dict[str, Tensor]) -> bool:
    """Put the tensors of a section into a part, if they fit it; whether they did."""
    given = part.state_dict()
    if not tensors or misfits(tensors, as_tensors(given, type(part).__name__)):
        return False
    part.load_state_dict(as_given(tensors, given))
    return True


def unwrapped(weights: dict[str, Tensor], model: torch.nn.Module) -> dict[str, Tensor]:
    """Weights that were saved from a wrapper around the model, by the names that they have in the model itself."""
    own = model.state_dict()
    for prefix in WRAPPERS * 2:  # one may be around the other
        if weights and all(name.startswith(prefix) and name not in own for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights


def load_weights(model: torch.nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Put weights into a model of the same architecture, or say what does not fit."""
    _check_weights(model, weights, path)
    with clean_errors(f"{path} cannot be put into this model"):
        model.load_state_dict(as_given(weights, model.state_dict()))


def _check_weights(model: torch.nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    problems = misfits(weights, as_tensors(model.state_dict(), type(model).__name__))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{path} is a checkpoint of another architecture: {problems[0]}{more}.")


def misfits(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Where the names, the shapes or the kinds of number differ from those of one's own."""
    problems = [f"no '{name}'" for name in own if name not in found]
    problems += [f"unexpected '{name}'" for name in found if name not in own]
    for name in (name for name in own if name in found):
        if found[name].shape != own[name].shape:
            problems.append(f"'{name}' is {tuple(found[name].shape)}, the model's is {tuple(own[name].shape)}")
        elif found[name].is_floating_point() != own[name].is_floating_point():
            problems.append(f"'{name}' is {found[name].dtype}, the model's is {own[name].dtype}")
    return problems


def section(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one part of a checkpoint."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def digest(tensors: dict[str, Tensor], header: Any = None) -> str:
    """SHA-256 over the header, and over names, types, shapes and bytes in the order of the names."""
    result = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].cpu().contiguous()
        result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return result.hexdigest()
