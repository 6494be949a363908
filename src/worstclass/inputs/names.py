"""The names a user may write: data sets, models, attacks, devices, run folders. Checking one imports no torch."""

import os
import re
from pathlib import Path
from typing import Literal

from worstclass.errors import UserError, unknown

VERSION = "0.1.0"

Norm = Literal["linf", "l2"]
"""The norm of a ball around an image."""

Precision = Literal["fp32", "tf32", "bf16"]
"""The precision of matrix products and convolutions."""

NATURAL = "natural"
"""Clean images, where the name of an attack is expected."""

RECIPE = "recipe.toml"
"""The file that makes a folder a run folder."""

OWN_DATA = ("fashion-mini", "cifar10", "cifar100", "npz:PATH", "folder:PATH")
DATA_NAMES = (*OWN_DATA, "hf:NAME", "torchvision:NAME", "module.path:factory", "path/to/file.py:factory")
RESIZED = ("folder:PATH", "hf:NAME", "torchvision:NAME")
"""Data whose images may be of any size: `image_size` makes them of one."""
MAX_SIZE = 1024
"""Pixels of a side, at most, that images are resized to."""
VALIDATED = ("npz:PATH", "folder:PATH", "hf:NAME")
"""Data that may bring validation images."""
SPLIT = ("folder:PATH",)
"""Data that `test_fraction` may split."""

MODEL_NAMES = ("small-cnn", "resnet18", "preact-resnet18", "wrn34-10")
"""Any other `wrnD-W` with D = 6n + 4 works too, and all of `OTHER_MODELS`."""

OTHER_MODELS = ("module.path:factory", "path/to/file.py:factory", "timm:NAME", "hf-hub:ID")
FINISHED_MODELS = ("torchscript:PATH", "onnx:PATH", "robustbench:NAME")
"""Models that come with their weights: they can be audited and evaluated, not trained."""

LIBRARIES = tuple(each.partition(":")[0] for each in ("timm:NAME", "hf-hub:ID", *FINISHED_MODELS))
FINISHED = LIBRARIES[2:]

ATTACK_NAMES = (
    "fgsm",
    "pgd-N",
    "cw",
    "cw-N",
    "validation-pgd",
    "validation-cw",
    "apgd-ce",
    "apgd-dlr",
    "apgd-t",
    "fab",
    "fab-t",
    "square",
    "autoattack",
    "autoattack-plus",
    "autoattack-rand",
)

BLACK_BOX = ("square", NATURAL)
"""Attacks that need no gradients."""

QUICK = (NATURAL, "pgd-20", "apgd-t")
"""What `quick` stands for where attacks are listed. Whatever `apgd-t` breaks, AutoAttack breaks too."""


def check_data_name(name: str) -> str:
    """The name, if it is one of a known kind; nothing is read yet."""
    kind, _, path = name.partition(":")
    if kind in ("npz", "folder", "hf", "torchvision"):
        if not path:
            what = "path" if kind in ("npz", "folder") else "name"
            raise UserError(f"data '{name}' needs a {what}: {kind}:{what.upper()}.")
        try:
            path.encode()  # a recipe is UTF-8, and a path that is not cannot be written into one
        except UnicodeEncodeError as error:
            raise UserError(f"data {name!r}: {error}.") from error
    elif is_factory(name):
        return name
    elif name not in OWN_DATA:
        if os.path.exists(name):  # False, not an error, for a name longer than a file's may be
            kind = "folder" if os.path.isdir(name) else "npz"
            raise UserError(f"data {name!r} is a path: write {kind}:{name}.")
        raise unknown("data", name, DATA_NAMES)
    return name


def data_kind(name: str) -> str:
    """Which of `DATA_NAMES` a name is of: `folder:PATH` of `folder:photos`; a factory is itself."""
    kind = name.partition(":")[0]
    return next((each for each in DATA_NAMES if each.partition(":")[0] == kind), name)


def check_model_name(name: str) -> str:
    """The name, if a model of that name can be built and trained; nothing is imported yet."""
    wide = re.fullmatch(r"wrn(\d{1,3})-(\d{1,2})", name)
    if wide and (int(wide[1]) < 10 or (int(wide[1]) - 4) % 6 or int(wide[2]) < 1):
        raise UserError(f"model '{name}': a WideResNet's depth is 6n + 4 (10, 16, ..., 34), its width at least 1.")
    if model_kind(name) in FINISHED:
        raise UserError(f"model '{name}' is a finished one: audit or evaluate it; it cannot be trained.")
    if not (wide or name in MODEL_NAMES or is_factory(name) or model_kind(name)):
        raise unknown("model", name, [*MODEL_NAMES, "wrnD-W", *OTHER_MODELS])
    return name


def check_given_model(name: str) -> str:
    """The name of a model to audit or evaluate: one that can be built, or a finished one."""
    return name if model_kind(name) in FINISHED else check_model_name(name)


def model_kind(name: str) -> str | None:
    """The library that a model comes from, `timm` of `timm:resnet18`; None for ours and for factories."""
    kind, _, rest = name.partition(":")
    return kind if kind in LIBRARIES and rest and factory_file(name) is None else None


def is_factory(name: str) -> bool:
    """Whether it is `module.path:factory` or `path/to/file.py:factory`."""
    if factory_file(name):
        return True
    reserved = (*LIBRARIES, "npz", "folder", "hf", "torchvision")
    return bool(re.fullmatch(r"\w+(\.\w+)*:\w+", name)) and name.partition(":")[0] not in reserved


def factory_file(name: str) -> Path | None:
    """The file of `path/to/file.py:factory`, and None for any other name; whether it exists is not asked yet."""
    found = re.fullmatch(r"((?:[A-Za-z]:)?[^:\x00-\x1f]+\.py):\w+", name)  # a drive may come first
    return Path(found[1]) if found else None


def same_data(one: str, other: str) -> bool:
    """Whether two names are of one data set, however its path is written."""
    return _place(one) == _place(other)


def _place(name: str) -> tuple[str, Path] | str:
    kind, _, path = name.partition(":")
    if kind in ("npz", "folder"):
        return kind, Path(path).resolve()
    file = factory_file(name)
    return name if file is None else (name.rpartition(":")[2], file.resolve())


def runs_user_code(name: str) -> bool:
    """Whether building this model imports the user's own code, or a library beside torch."""
    return ":" in name


def data_runs_code(name: str) -> bool:
    """Whether reading these data does: whatever is not of `OWN_DATA`."""
    return ":" in name and name.partition(":")[0] not in ("npz", "folder")


def attack_steps(name: str) -> tuple[str, int | None]:
    """The family of an attack, and the number of steps where its name has one: `pgd-20` is ("pgd", 20)."""
    counted = re.fullmatch(r"(pgd|cw)-(\d+)", name)
    if counted:
        if int(counted[2]) == 0:
            raise UserError(f"attack '{name}' needs at least one step.")
        return counted[1], int(counted[2])
    if name == NATURAL:
        raise UserError("'natural' is no attack: `evaluate` measures clean images by itself.")
    if name == "pgd":
        raise UserError("attack 'pgd' needs its number of steps: pgd-20, pgd-100, pgd-N.")
    if name not in ATTACK_NAMES or name.endswith("-N"):
        raise unknown("attack", name, ["pgd-20", "pgd-100", NATURAL, "quick", *ATTACK_NAMES])
    return name, None


def parse_attacks(text: str) -> list[str]:
    """The attacks in a comma-separated list, each once, `natural` included; `quick` stands for several."""
    names: dict[str, None] = {}
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in (NATURAL, "quick"):
            attack_steps(name)
        names |= dict.fromkeys(QUICK if name == "quick" else (name,))
    return list(names)


def check_device_name(name: str) -> str:
    """The name, if it is that of a device; whether there is one is not asked yet."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise unknown("device", name, ("auto", "cpu", "cuda", "cuda:0"))
    return name


def check_run_folder(folder: Path) -> Path:
    """The folder, if it is that of a run."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a run folder: there is no such folder.")
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder} is not a run folder: it has no {RECIPE}.")
    return folder


def split_fork(text: str) -> tuple[Path, int]:
    """`RUN@70`: a run folder and an epoch of it."""
    folder, _, number = text.rpartition("@")
    if not folder or not number.isdecimal() or int(number) < 1:
        raise UserError(f"'{text}' is not a run folder and an epoch, such as runs/trades-seed1@70.")
    return Path(folder), int(number)
