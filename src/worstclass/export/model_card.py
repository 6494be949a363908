"""The model card of an export: Markdown with YAML front matter, as the Hugging Face hub reads it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worstclass.config.recipe import make_config, to_toml
from worstclass.errors import visible
from worstclass.evaluation.checks import load_findings, verdict
from worstclass.inputs.names import NATURAL, factory_file
from worstclass.inputs.radius import show_radii, show_radius
from worstclass.metrics.percentages import percent_interval
from worstclass.report.results import attack_title, upper_bound
from worstclass.report.tables import weakest
from worstclass.runs.run import Run
from worstclass.runs.shipped import shipped, shipped_note, shipped_title

HUB = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
"""Data sets under the names that the hub knows them by."""
NORMS = {"linf": "L-inf", "l2": "L2"}
PATHS = ("npz", "folder")
USE = {
    "safetensors": """```python
from worstclass.export import load_export

model = load_export("FOLDER")  # images (B, C, H, W) in [0, 1] in, logits out{consent}
```""",
    "onnx": """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(logits,) = session.run(["logits"], {{"images": images}})  # float32 (B, C, H, W) in [0, 1]
```""",
    "timm": """```python
import timm

model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # or "hf-hub:USER/NAME"
logits = model((images - mean) / std)  # mean and std are in config.json, under pretrained_cfg
```""",
}


def model_card(run: Run, config: Mapping[str, Any], card: Mapping[str, Any] | None, to: str) -> str:
    """README.md of an export: front matter, accuracy by class, what was measured, limits, use and recipe."""
    data, config = public_name(run.config.data), {**config, "model": public_name(config["model"])}
    ball = f"{NORMS[run.config.norm]} radius {show_radius(run.config.eps)}"
    kept = shipped(run.about, config["checkpoint"])
    title = f"{_text(config['model'])}, {_text(shipped_title(run.config, kept))}, on {_text(data)}"
    made = f"Trained on `{_code(data)}` with worstclass {config['version']}, method `{run.config.method}`, "
    made += (
        f"seed {run.config.seed}, to hold in an {ball}. Weights of epoch {config['epoch']} ({config['checkpoint']})."
    )
    if note := _text(shipped_note(run.config, kept)):
        made += f" {note[0].upper()}{note[1:]}."
    consent = "; its network is built by code or a library: add allow_code=True" if ":" in config["model"] else ""
    parts = [
        f"# {title}",
        made,
        *(_measured(card) if card else _unmeasured()),
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(run, card)),
        "## Use\n\n" + USE[to].format(consent=consent),
        _inputs(run),
        "## Recipe\n\n```toml\n" + _recipe(run) + "```",
    ]
    return front_matter(run, config, card, to) + "\n" + "\n\n".join(parts) + "\n"


def _inputs(run: Run) -> str:
    """What the images were that it was trained on, and how photos became such."""
    channels, (height, width) = run.about["in_channels"], run.about["image_size"]
    line = f"Trained on images of {channels} x {height} x {width} (C x H x W)"
    if run.config.image_size is None:
        return f"{line}."
    return (
        f"{line}, made of images of any size: turned as EXIF says, cropped at the centre to a square, and resized "
        "by Pillow's bilinear filter, which antialiases."
    )


def front_matter(run: Run, config: Mapping[str, Any], card: Mapping[str, Any] | None, to: str) -> str:
    """YAML between two rules. Values are written as JSON, which is YAML; names in them cannot break out.

    No licence is claimed: that is for whoever publishes the weights.
    """
    data = run.config.data
    values: dict[str, Any] = {
        "library_name": {"timm": "timm", "onnx": "onnx"}.get(to, "worstclass"),
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "adversarial-robustness", "worst-class", "worstclass"],
        "metrics": ["accuracy"],
    }
    if data in HUB:
        values["datasets"] = [HUB[data]]
    if card is not None:
        dataset = {"name": public_name(data), "type": HUB.get(data, public_name(data)), "split": card["about"]["part"]}
        results = {"task": {"type": "image-classification"}, "dataset": dataset, "metrics": _metrics(card)}
        method = shipped_title(run.config, shipped(run.about, config["checkpoint"]))
        values["model-index"] = [{"name": f"{config['model']} {method}", "results": [results]}]
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---", ""])


def _metrics(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    ball = f"{NORMS[card['about']['norm']]} {show_radius(card['about']['eps'])}"
    for name, column in card["columns"].items():
        where = "clean images" if name == NATURAL else f"{attack_title(name)}, {ball}"
        for key, what in (("average", "Accuracy"), ("worst", "Worst-class accuracy")):
            found.append({"type": "accuracy", "value": round(column[key]["value"], 4), "name": f"{what} ({where})"})
    return found


def _measured(card: Mapping[str, Any]) -> list[str]:
    about, columns = card["about"], card["columns"]
    ball = f"{NORMS[about['norm']]} radius {show_radius(about['eps'])}"
    titles = [_text(attack_title(name)) for name in columns]
    rows = [["Attack", "Average %", "Worst class %", "Which"]]
    for title, column in zip(titles, columns.values(), strict=True):
        rows.append(
            [title, percent_interval(column["average"]), percent_interval(column["worst"]), _text(weakest(column))]
        )
    by_class = [["Class", "Images", *(f"{title} %" for title in titles)]]
    for k, name in enumerate(card["class_names"]):
        its = [column["classes"][k] for column in columns.values()]
        cells = ["" if each["value"] is None else percent_interval(each) for each in its]
        by_class.append([_text(name), str(its[0]["images"]), *cells])
    attacks = [
        f"- {title}: `{_code(show_radii(column['attack']))}`"
        for title, column in zip(titles, columns.values(), strict=True)
        if "attack" in column
    ]
    part = {"test": "test images", "valid": "validation images, which also chose the epoch"}[about["part"]]
    said = f"Measured on {card['images']} {part} of `{_code(public_name(about['data']))}`, {ball}; "
    said += (
        f"95% intervals in brackets; worstclass {card['versions']['worstclass']}, torch {card['versions']['torch']}."
    )
    return [
        "## Accuracy\n\n" + _table(rows),
        said,
        "## Accuracy by class\n\n" + _table(by_class),
        "## Attacks\n\n" + ("\n".join(attacks) or "- None: clean images alone were measured."),
        _text(_trust(card)),
    ]


def _trust(card: Mapping[str, Any]) -> str:
    """What the checks found; without one of how strong the attacks are, no word of trust."""
    findings, bound = load_findings(card), upper_bound(card)
    said = [] if bound and all(finding.passed for finding in findings) else [verdict(findings)]
    return " ".join([*said, bound]).rstrip()


def _unmeasured() -> list[str]:
    return [
        "## Accuracy\n\nNot measured: these weights have not been evaluated. "
        "Run `worstclass evaluate RUN` and export again."
    ]


def _limits(run: Run, card: Mapping[str, Any] | None) -> list[str]:
    ball = f"{NORMS[run.config.norm]} radius {show_radius(run.config.eps)}"
    lines = [
        f"Trained for one ball, {ball}: nothing is known of other norms and larger radii.",
        "Accuracy under attack is an upper bound: a stronger attack may break more. It is no certificate.",
        "The average hides the weakest class: look at the table by class before relying on one of them.",
        "Measured on images like those it was trained on: other cameras, blur or another population were not tested.",
        "No licence is stated here: whoever publishes the weights adds one, with regard to that of the data.",
    ]
    if card is not None and all(name == NATURAL for name in card["columns"]):
        lines.insert(1, "No attack was run: robustness was not measured at all.")
    return lines


def public_name(name: str) -> str:
    """The name of a data set or of a model without the folders of the machine it was on."""
    if (file := factory_file(name)) is not None:
        return f"{file.name}:{name.rpartition(':')[2]}"
    kind, colon, path = name.partition(":")
    if kind in PATHS or (kind == "hf" and Path(path).is_absolute()):
        return kind + colon + Path(path).name
    return name


def _recipe(run: Run) -> str:
    """The recipe, with paths of this machine cut to their names. Nothing in it can close the block of code."""
    values = run.config.recipe()
    values |= {key: public_name(str(values[key])) for key in ("data", "model")}
    if "init" in values:
        values["init"] = Path(str(values["init"])).name
    return visible(to_toml(make_config(values))).replace("```", "'''")


def _table(rows: list[list[str]]) -> str:
    head, *body = [" | ".join(row) for row in rows]
    return "\n".join([f"| {head} |", "|" + "---|" * len(rows[0]), *(f"| {row} |" for row in body)])


def _text(text: str) -> str:
    """A name as Markdown shows it, with nothing in it a mark."""
    flat = visible(text).replace("\n", " ")
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", flat)


def _code(text: str) -> str:
    return visible(text).replace("\n", " ").replace("`", "'")
