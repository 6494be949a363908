"""Options that several commands share, and what they come to: a device, an engine, a precision, a radius."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from worstclass.config import parse_number
from worstclass.errors import UserError, choose, unknown
from worstclass.execution import Precision
from worstclass.inputs import check_radius
from worstclass.team import team_size
from worstclass.train.engine import NOT_SUPPORTED, Engine
from worstclass.types import Norm

DataDir = Annotated[Path, typer.Option(help="where CIFAR's binary files are, or are downloaded to")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="let a recipe or run import a model of your own")]
Search = Annotated[
    str | None,
    typer.Option(
        help="precision in which attacks search: fp32, tf32 or bf16; what they find is judged in fp32. "
        "Default on a GPU: bf16 for our networks, tf32 for a model of your own"
    ),
]


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one; of several processes on a machine, each has its own."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:0"))
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


def radius(text: str, norm: Norm = "linf") -> float:
    """`--eps`, such as 8/255."""
    try:
        value = float(str(parse_number(text)))
    except ValueError as error:
        raise UserError(f"--eps: {error}.") from None
    if not 0 < value < float("inf"):
        raise UserError(f"--eps must be a positive number, not {text}.")
    return check_radius(value, norm)
