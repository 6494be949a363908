"""`worstclass adjust`: raise the weakest classes of a trained run by a bias for each class, chosen on validation."""

from pathlib import Path
from typing import Annotated

import typer

from worstclass.cli.console import say
from worstclass.cli.options import AllowCode, DataDir, Device, RunFolder


def adjust(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="folder of the adjusted run; default RUN-adjusted")] = None,
    budget: Annotated[
        float, typer.Option(min=0, max=1, help="how much of the average robust accuracy it may cost")
    ] = 0.05,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Adjust the logits of a run for its weakest classes.

    Adds a bias for each class to the last layer. Half of the attacked validation images choose it, the others accept
    it. Writes a run of its own; `--set adjust_budget=0.05` does the same at the end of training.
    """
    folder = out or run.resolve().with_name(f"{run.resolve().name}-adjusted")

    from worstclass.cli.progress import watch
    from worstclass.runs.adjust import adjust_run
    from worstclass.runs.devices import pick_device
    from worstclass.runs.run import consent, open_run

    with watch() as progress:
        adjusted = adjust_run(
            open_run(run),
            folder,
            budget=budget,
            data_dir=data_dir,
            device=pick_device(device),
            allow_code=allow_code,
            on_attack=lambda done, total: progress.count("adjusting the logits", done, total),
        )
    say(f"Logit adjustment: {adjusted.about['adjustment']['verdict']}")
    say(f"Run: {folder}. Evaluate it with: worstclass evaluate {folder}{consent(adjusted.config)}")
