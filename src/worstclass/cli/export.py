"""`worstclass export`: a run as a folder for others, with a model card."""

from pathlib import Path
from typing import Annotated

import typer

from worstclass.cli.console import say
from worstclass.cli.options import AllowCode, RunFolder, complete_runs
from worstclass.errors import choose

FORMATS = ("safetensors", "onnx", "timm")


def export(
    run: RunFolder,
    to: Annotated[str, typer.Option(help="safetensors, onnx, or timm (of a run with model=timm:NAME)")] = "safetensors",
    out: Annotated[Path | None, typer.Option(help="a new folder; default exports/RUN-FORMAT")] = None,
    checkpoint: Annotated[str, typer.Option(help="selected or last")] = "selected",
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="folder with an evaluation of these weights; default: the run's", autocompletion=complete_runs
        ),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Write the network of a run for others.

    Weights, what rebuilds the network, and a model card (README.md, as the Hugging Face hub reads it) with the table
    by class.
    """
    kind = choose("format", to, FORMATS)
    which = choose("checkpoint", checkpoint, ("selected", "last"))
    folder = out or Path("exports") / f"{run.resolve().name}-{kind}"

    from worstclass.export import export_run
    from worstclass.runs.run import open_run

    written = export_run(open_run(run), folder, to=kind, checkpoint=which, evaluation=evaluation, allow_code=allow_code)
    say(f"Exported: {', '.join(map(str, written))}")
    if "Not measured:" in (folder / "README.md").read_text():
        say(f"Note: the card has no accuracies: run `worstclass evaluate {run}`, then export again.")
