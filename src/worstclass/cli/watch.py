"""`worstclass watch`: a local page of runs in training."""

from pathlib import Path
from typing import Annotated

import typer

from worstclass.cli.console import say
from worstclass.cli.options import complete_runs


def watch(
    run: Annotated[
        Path, typer.Argument(help="a run folder, or a folder of runs such as a sweep's", autocompletion=complete_runs)
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of 127.0.0.1; 0: a free one")] = 0,
) -> None:
    """Watch runs while they train.

    Serves a page on this machine alone: accuracy and weight of each class over the epochs, as the log grows.
    """
    from worstclass.report.watch import make_server

    with make_server(run, port) as server:
        try:
            say(f"Watching {run} at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped watching; the runs go on.")
