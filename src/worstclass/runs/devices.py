"""What options come to on this machine: a device, an engine, a precision to search in."""

import os
from collections.abc import Mapping
from typing import Any, get_args

import torch

from worstclass.errors import UserError, choose
from worstclass.execution.torchrun import team_size
from worstclass.inputs.names import Precision, check_device_name
from worstclass.training.engine import NOT_SUPPORTED, Engine


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one; of several processes on a machine, each has its own."""
    check_device_name(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if team_size() > 1 and name.startswith("cuda"):
        if ":" in name:
            raise UserError(f"each process has a GPU of its own: ask for --device cuda, without the ':{name[5:]}'.")
        name += ":" + os.environ.get("LOCAL_RANK", "0")
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= torch.cuda.device_count():
        raise UserError(f"device '{name}' was asked for, but torch sees {torch.cuda.device_count()} GPUs here.")
    return torch.device(name)


def pick_engine(
    engine: str | None, precision: str | None, device: torch.device, *, ours: bool, deterministic: bool = False
) -> Engine:
    """The engine asked for; left open, the fast one on a GPU that has bfloat16, and bfloat16 for our own networks,
    which keep their last layer in full precision under it."""
    on_gpu = device.type == "cuda"
    able = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    name = choose("engine", engine or "auto", ("auto", "eager", "fast"))
    fast = able and Engine(fast=True, deterministic=deterministic).supported if name == "auto" else name == "fast"
    if fast and not on_gpu:
        raise UserError("engine 'fast' needs a GPU.")
    kind = choose("precision", precision or "auto", ("auto", *get_args(Precision)))
    if kind == "auto":
        kind = "bf16" if fast and able and ours else "tf32" if on_gpu else "fp32"
    if kind != "fp32" and not on_gpu:
        raise UserError(f"precision '{kind}' needs a GPU; a CPU trains in fp32.")
    picked = Engine(fast=fast, precision=kind, deterministic=deterministic)
    if not picked.supported:
        raise UserError(NOT_SUPPORTED)
    return picked


def as_started(about: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Engine, precision and whether deterministic, as a run was trained so far: what `pick_engine` takes."""
    how = about["engine"]
    return "fast" if how["fast"] else "eager", how["precision"], how.get("deterministic", False)


def pick_search(given: str | None, device: torch.device, *, ours: bool) -> Precision:
    """The precision to search in. Our own networks keep their last layer in full precision under bfloat16."""
    on_gpu = device.type == "cuda"
    kind: Precision = choose(
        "search precision", given or (("bf16" if ours else "tf32") if on_gpu else "fp32"), get_args(Precision)
    )
    if kind != "fp32" and not on_gpu:
        raise UserError(f"search in '{kind}' needs a GPU; a CPU searches in fp32.")
    return kind
