"""Models of other libraries by name: timm, the Hugging Face hub through timm, TorchScript, ONNX, RobustBench."""

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from worstclass.errors import UserError
from worstclass.files import clean_errors
from worstclass.inputs.factories import need
from worstclass.models.normalization import Normalized
from worstclass.models.robustbench import entry

NUMBERS = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}


class OnnxModel(nn.Module):
    """An ONNX file on the CPU, through onnxruntime. It has no gradients: only black-box attacks can be used.

    A file of a fixed batch size is given its images in parts of that size. The SHA-256 of the file is a buffer, so that
    two files are two models.
    """

    gradient_free = True

    def __init__(self, path: Path) -> None:
        super().__init__()
        runtime = need("onnxruntime", f"model 'onnx:{path}'", "onnx")
        content = _read(path)
        with clean_errors(f"{path} is not a readable ONNX file"):
            self._session: Any = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in NUMBERS or len(inputs[0].shape) != 4:
            found = ", ".join(f"{each.type} {each.shape}" for each in inputs)
            raise UserError(f"{path} must take one batch of images (B, C, H, W) of floats, not {found or 'nothing'}.")
        self._input, self._dtype, batch = inputs[0].name, NUMBERS[inputs[0].type], inputs[0].shape[0]
        self._batch = batch if isinstance(batch, int) and batch > 0 else None
        self._output = self._session.get_outputs()[0].name
        self.register_buffer("sha256", torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        given = x.detach().cpu().numpy().astype(self._dtype)
        parts = [self._run(part) for part in np.split(given, range(self._size(x), len(x), self._size(x)))]
        return torch.from_numpy(np.concatenate(parts)).to(x)

    def _size(self, x: Tensor) -> int:
        return self._batch or max(len(x), 1)

    def _run(self, part: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        missing = (self._batch or len(part)) - len(part)  # the last part of a fixed batch size is filled up
        padded = np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]) if missing else part
        (logits,) = self._session.run([self._output], {self._input: padded})
        return np.asarray(logits)[: len(part)]


def library_model(name: str, *, num_classes: int, in_channels: int, pretrained: bool) -> nn.Module:
    """`timm:NAME`, `hf-hub:ID`, and where `pretrained` also `torchscript:PATH`, `onnx:PATH`, `robustbench:NAME`.

    A pretrained model has its own classes, channels and normalisation. Any other is as many classes and channels as
    asked for, and takes images as they are.
    """
    kind, _, rest = name.partition(":")
    if kind == "torchscript":
        return _torchscript(Path(rest))
    if kind == "onnx":
        return OnnxModel(Path(rest))
    if kind == "robustbench":
        return _robustbench(name)
    timm = need("timm", f"model '{name}'", "timm")
    given: dict[str, Any] = (
        {"pretrained": True} if pretrained else {"num_classes": num_classes, "in_chans": in_channels}
    )
    with clean_errors(f"model '{name}'"):
        model: nn.Module = timm.create_model(rest if kind == "timm" else name, **given)
    if not pretrained:
        return model
    expected: Any = model.pretrained_cfg
    return Normalized(model, list(expected["mean"]), list(expected["std"]))


def _torchscript(path: Path) -> nn.Module:
    """TorchScript is code; consent was asked for before."""
    _read(path)
    with clean_errors(f"{path} is not a readable TorchScript file"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: nn.Module = torch.jit.load(str(path), map_location="cpu")
    return module


def _robustbench(name: str) -> nn.Module:
    dataset, threat, model_name = entry(name)
    utils = need("robustbench.utils", f"model '{name}'", "robustbench")
    with clean_errors(f"model '{name}'"):
        model: nn.Module = utils.load_model(model_name=model_name, dataset=dataset, threat_model=threat)
    return model


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    return path.read_bytes()
