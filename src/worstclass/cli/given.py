"""A model that the user names, for `audit` and `evaluate`: what can be checked without torch is checked at once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from worstclass.cli.options import check_weights, own_options, radius
from worstclass.errors import UserError, choose
from worstclass.inputs.names import (
    DATA_NAMES,
    FINISHED,
    Norm,
    check_data_name,
    check_given_model,
    factory_file,
    model_kind,
)

if TYPE_CHECKING:
    from worstclass.evaluation.targets import Target


def given_model(
    name: str,
    verb: str,
    data: str | None,
    weights: Path | None,
    eps: str,
    norm: str | None,
    image_size: int | None,
    test_fraction: float | None,
    data_dir: Path,
    allow_code: bool,
) -> "Callable[[], Target]":
    """What loads a model by name, on data by name."""
    check_given_model(name)
    kind, _, path = name.partition(":")
    file = factory_file(name) or (Path(path) if kind in ("torchscript", "onnx") else None)
    if file is not None and not file.is_file():
        raise UserError(f"model '{name}': there is no file {file}.")
    if data is None:
        raise UserError(f"to {verb} '{name}', give --data too: {', '.join(DATA_NAMES)}.")
    check_data_name(data)
    ball: Norm = choose("norm", norm or "linf", get_args(Norm))
    size = radius(eps, ball)
    if weights is not None:
        if model_kind(name) in FINISHED:
            raise UserError(f"model '{name}' brings its weights: leave out --weights.")
        check_weights(weights)

    def load() -> "Target":
        from worstclass.evaluation.targets import model_target

        with own_options():
            return model_target(
                name,
                weights=weights,
                data=data,
                eps=size,
                norm=ball,
                image_size=image_size,
                test_fraction=test_fraction,
                data_dir=data_dir,
                allow_code=allow_code,
            )

    return load


def default_radius(norm: str | None) -> str:
    """8/255, which is a radius for L-inf alone."""
    if norm == "l2":
        raise UserError("--norm l2 needs --eps too, such as 0.5: 8/255 is a radius for L-inf.")
    return "8/255"


def refuse_normalisation(name: str, weights: Path | None, options: Mapping[str, object]) -> None:
    """A pretrained model of timm has its normalisation inside: a second one would be a wrong number."""
    if model_kind(name) not in ("timm", "hf-hub") or weights is not None:
        return
    for option, value in options.items():
        if value is not None:
            raise UserError(f"model '{name}' normalises as its configuration says: leave out {option}.")
