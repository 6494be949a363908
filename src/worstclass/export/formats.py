"""The three formats of an export: what is written beside the model card, and how it is read back."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from worstclass.data.arrays import CHANNELS
from worstclass.errors import UserError
from worstclass.files import clean_errors, read_json, write_atomic, write_json
from worstclass.inputs.factories import need
from worstclass.inputs.names import model_kind, runs_user_code
from worstclass.models import Normalized, make_model
from worstclass.models.libraries import OnnxModel
from worstclass.records import ClassNames, Count, Record, check_record
from worstclass.runs.run import Run
from worstclass.training.checkpoint import load_tensors, load_weights, weights_of

WEIGHTS, ONNX, CONFIG = "model.safetensors", "model.onnx", "config.json"
TOLERANCE = 1e-4  # between the logits of ONNX and of torch, as a share of the largest
TRIED = 4  # images


class ExportRecord(Record):
    """config.json of an export as safetensors or ONNX."""

    model: str
    num_classes: Count
    in_channels: Count
    image_size: list[Count]
    class_names: ClassNames
    normalize: bool


def describe(run: Run, about: dict[str, Any]) -> dict[str, Any]:
    """config.json: what builds the network, and what it was made for."""
    config = run.config
    return {
        "library": "worstclass",
        "model": config.model,
        "num_classes": run.about["num_classes"],
        "in_channels": run.about["in_channels"],
        "image_size": list(run.about["image_size"]),
        "class_names": run.class_names,
        "normalize": config.normalize,
        "eps": config.eps,
        "norm": config.norm,
        **about,
    }


def write_safetensors(model: nn.Module, config: dict[str, Any], out: Path) -> list[Path]:
    """The network's `state_dict`, normalisation included, and what rebuilds the network."""
    write_atomic(out / WEIGHTS, save(weights_of(model)))
    write_json(out / CONFIG, config)
    return [out / WEIGHTS, out / CONFIG]


def load_export(folder: Path | str, *, allow_code: bool = False) -> nn.Module:
    """The network of a folder that was exported as safetensors, in evaluation mode; it takes images in [0, 1].

    A network of the user's own, or of another library, is built with consent only.
    """
    folder = Path(folder)
    config = check_record(ExportRecord, read_json(folder / CONFIG), folder / CONFIG)
    name, channels = config["model"], config["in_channels"]
    if config["num_classes"] != len(config["class_names"]) or channels not in CHANNELS:  # what is built has a size
        raise UserError(f"{folder / CONFIG} is damaged: its classes or channels are not those of a network of ours.")
    if runs_user_code(name) and not allow_code:
        raise UserError(f"model '{name}' runs code of your own; pass allow_code=True if you trust it.")
    model = make_model(name, num_classes=config["num_classes"], in_channels=channels)
    if config["normalize"]:
        model = Normalized(model, [0.0] * channels, [1.0] * channels)
    tensors, _ = load_tensors(folder / WEIGHTS, ours=False)
    load_weights(model, tensors, folder / WEIGHTS)
    model.exported_shape = (channels, *config["image_size"])  # type: ignore[assignment]  # for the preflight
    return model.eval()


def write_timm(model: nn.Module, config: dict[str, Any], out: Path) -> list[Path]:
    """A folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads, and from the hub `hf-hub:ID`.

    timm knows architectures by name, so only a network of timm can be written. It leaves normalisation to the data
    loader: mean and standard deviation go to the configuration.
    """
    name = config["model"]
    if model_kind(name) != "timm" or name.count(":") > 1:
        raise UserError(
            f"timm has no architecture for model '{name}': --to timm is for a run trained with model=timm:NAME. "
            "--to safetensors and --to onnx take any run."
        )
    inner: Any = model.model if isinstance(model, Normalized) else model
    channels = config["in_channels"]
    mean, std = [0.0] * channels, [1.0] * channels
    if isinstance(model, Normalized):
        mean, std = model.mean.flatten().tolist(), model.std.flatten().tolist()
    known = dict(inner.pretrained_cfg)
    size = [channels, *config["image_size"]]
    expected = {
        "input_size": size,
        "fixed_input_size": bool(known.get("fixed_input_size", False)),
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": mean,
        "std": std,
        "num_classes": config["num_classes"],
        "label_names": config["class_names"],
        **{key: known[key] for key in ("first_conv", "classifier") if key in known},
    }
    write_atomic(out / WEIGHTS, save(weights_of(inner)))
    timm_config = {
        "architecture": name.partition(":")[2].partition(".")[0],  # what follows the dot is a tag of weights
        "num_classes": config["num_classes"],
        "num_features": getattr(inner, "num_features", None),
        "model_args": {"in_chans": channels},
        "pretrained_cfg": expected,
        "worstclass": config,
    }
    write_json(out / CONFIG, timm_config)
    return [out / WEIGHTS, out / CONFIG]


def write_onnx(model: nn.Module, config: dict[str, Any], out: Path) -> list[Path]:
    """One ONNX file for any batch size, images in [0, 1] in, logits out, tried against torch."""
    what = "an export as ONNX"
    for library in ("onnx", "onnxscript", "onnxruntime"):
        need(library, what, "onnx")
    x = torch.rand(TRIED, config["in_channels"], *config["image_size"], generator=torch.Generator().manual_seed(0))
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with clean_errors("the network cannot be written as ONNX"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, on its own future
            program = torch.onnx.export(
                model,
                (x,),
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=["images"],
                output_names=["logits"],
                verbose=False,
            )
            assert program is not None
            program.save(str(out / ONNX))
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    _try_onnx(model, x, out / ONNX)
    write_json(out / CONFIG, config)
    return [out / ONNX, out / CONFIG]


def _try_onnx(model: nn.Module, x: torch.Tensor, path: Path) -> None:
    """Raise unless the file gives the logits of the network, for two batch sizes."""
    other = OnnxModel(path)
    for some in (x, x[:1]):
        with torch.no_grad():
            expected, found = model(some).numpy(), other(some).numpy()
        apart = float(np.abs(expected - found).max() / np.abs(expected).max().clip(1e-12))
        if not apart <= TOLERANCE:
            raise UserError(f"{path} gives other logits than the network ({apart:.2g} of the largest): not exported.")


WRITERS = {"safetensors": write_safetensors, "onnx": write_onnx, "timm": write_timm}
