"""What RobustBench publishes of a model: its average under AutoAttack, to stand beside ours of each class."""

import importlib.util
import re
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any

from worstclass.errors import UserError, choose
from worstclass.files import read_json

NORMS = {"Linf": "linf", "L2": "l2"}  # its threat models, and our names of the norms
PREFIX = "robustbench:"


def entry(name: str) -> tuple[str, str, str]:
    """Data set, threat model and model of `robustbench:NAME` (of CIFAR-10, in L-inf) or `robustbench:DATA/THREAT/NAME`,
    as its leaderboards are called."""
    rest = name.removeprefix(PREFIX)
    dataset, threat, model = rest.split("/") if rest.count("/") == 2 else ("cifar10", "Linf", rest)
    return dataset, choose(f"threat model of '{name}'", threat, list(NORMS)), model


def published(name: str) -> dict[str, Any] | None:
    """Average accuracy, clean and robust, as shares, with data, norm, radius and attack; None where nothing is known.

    From model_info/, which a clone of RobustBench has, here or beside the package; else from the tables in the
    description of the installed package, whose robust accuracies are the lowest known, by AutoAttack or otherwise.
    """
    if not name.startswith(PREFIX):
        return None
    dataset, threat, model = entry(name)
    found = _from_folder(dataset, threat, model) or _from_description(dataset, threat, model)
    if found is None:
        return None
    with suppress(ValueError, ZeroDivisionError, TypeError):
        eps = float(Fraction(found["eps"]))
        clean, robust = (float(found[key]) / 100 for key in ("clean", "robust"))
        if eps > 0 and 0 <= robust <= 1 and 0 <= clean <= 1:
            threat_model = {"data": dataset, "norm": NORMS[threat], "eps": eps, "attack": found["attack"]}
            return {**threat_model, "clean": clean, "robust": robust}
    return None


def _from_folder(dataset: str, threat: str, model: str) -> dict[str, str] | None:
    if not all(re.fullmatch(r"\w[\w.+-]*", part) for part in (dataset, model)):  # no path that leads elsewhere
        return None
    for folder in _folders():
        with suppress(UserError, KeyError, TypeError):
            record = read_json(folder / dataset / threat / f"{model}.json")
            eps, clean, robust = (str(record[key]) for key in ("eps", "clean_acc", "autoattack_acc"))
            return {"eps": eps, "clean": clean, "robust": robust, "attack": "AutoAttack"}
    return None


def _folders() -> Iterator[Path]:
    yield Path("model_info")  # where RobustBench itself looks
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("robustbench")
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parents[1] / "model_info"


def _from_description(dataset: str, threat: str, model: str) -> dict[str, str] | None:
    """A row of the tables, below `### CIFAR-10` and `#### Linf, eps=8/255`."""
    with suppress(metadata.PackageNotFoundError):
        text = metadata.distribution("robustbench").read_text("METADATA") or ""
        here, eps, columns = "", "", [""]
        for line in text.splitlines():
            if heading := re.match(r"###\s+([\w-]+)\s*$", line):
                here, eps = heading[1].replace("-", "").lower(), ""
            elif line.startswith("####"):
                radius = re.match(rf"####\s+{threat}, eps=([\d./]+)\s*$", line)
                eps = radius[1] if radius else ""
            elif here == dataset and eps and line.startswith("|"):
                cells = [re.sub(r"</?su[bp]>|[*%]", "", cell).strip() for cell in line.split("|")]
                columns = cells if "Model ID" in cells else columns
                row = dict(zip(columns, cells, strict=False))
                if row.get("Model ID") == model:
                    clean, robust = row.get("Clean accuracy", ""), row.get("Robust accuracy", "")
                    return {"eps": eps, "clean": clean, "robust": robust, "attack": "the strongest attack known to it"}
    return None
