"""`export_run`: a trained run in, a folder that others can load and read out."""

from pathlib import Path
from typing import Any, Literal

from worstclass.errors import UserError, choose
from worstclass.evaluation.saved import CARD, load_card
from worstclass.export.formats import WRITERS, describe
from worstclass.export.model_card import model_card
from worstclass.files import write_atomic
from worstclass.inputs.names import VERSION
from worstclass.runs.run import Run
from worstclass.training.checkpoint import digest

README = "README.md"


def export_run(
    run: Run,
    out: Path,
    *,
    to: Literal["safetensors", "onnx", "timm"],
    checkpoint: Literal["selected", "last"] = "selected",
    evaluation: Path | None = None,
    allow_code: bool = False,
) -> list[Path]:
    """Write the network of a run and its model card into a new folder; returns what was written.

    The card holds the evaluation in the folder `evaluation`, or else the run's own, if it is of these weights.
    """
    choose("format", to, list(WRITERS))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: choose another --out.")
    model, epoch = run.load_model(checkpoint, allow_code=allow_code)
    weights = digest(dict(model.state_dict()))
    card = _card(run, weights, evaluation)
    about = {"checkpoint": checkpoint, "epoch": epoch, "weights": weights, "version": VERSION}
    config = describe(run, about)
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        written = WRITERS[to](model.cpu(), config, out)
    except BaseException:  # half an export is none
        for path in out.iterdir():
            path.unlink()
        if made:
            out.rmdir()
        raise
    write_atomic(out / README, model_card(run, config, card, to).encode())
    return [*written, out / README]


def _card(run: Run, weights: str, evaluation: Path | None) -> dict[str, Any] | None:
    """The evaluation of these very weights; None where there is none and none was asked for."""
    folder = run.folder if evaluation is None else evaluation
    card = load_card(folder) if evaluation is not None or (folder / CARD).is_file() else None
    if card is None or card["about"].get("weights") == weights:
        return card
    if evaluation is not None:
        raise UserError(f"{folder} holds the evaluation of other weights: the card would speak of another network.")
    return None
