"""`worstclass leaderboard`: methods over their seeds, as a table and as a forest plot."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from worstclass.cli.console import say
from worstclass.cli.options import EvaluatedRuns, complete_runs
from worstclass.errors import UserError, choose
from worstclass.files import write_atomic
from worstclass.reproduce.specs import FORMATS
from worstclass.sweep.plan import RESULTS


def leaderboard(
    runs: EvaluatedRuns,
    attack: Annotated[
        str | None, typer.Option(help="an attack, or all, of the runs that have it; default: the strongest of all runs")
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(help="baseline run to compare with; default: the first one", autocompletion=complete_runs),
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="text, markdown, latex (booktabs) or csv")] = "text",
    out: Annotated[Path | None, typer.Option(help="file for the table")] = None,
    forest: Annotated[
        Path | None,
        typer.Option(
            help="file for the forest plot; its ending says the format (svg, pdf, png), without one it is all three"
        ),
    ] = None,
) -> None:
    """Rank methods over their seeds.

    Runs that differ in the seed alone are one row: mean and deviation of average and worst class, and the difference
    to the vanilla method, with intervals for images and seeds. The forest plot shows every seed, and the paper.
    """
    choose("format", kind, FORMATS)

    from worstclass.report import load_results
    from worstclass.report.figures import forest as draw
    from worstclass.report.figures import save_figure
    from worstclass.report.groups import group_results
    from worstclass.report.leaderboard import render_leaderboard
    from worstclass.report.results import all_attacks, strongest_attack

    results = load_results([run for run in runs if run.name != RESULTS], base)
    known = all_attacks(results)
    chosen = strongest_attack(results) if attack is None else choose("attack", attack, [*known, "all"])
    names = known if chosen == "all" else [chosen]
    groups = group_results(results, names)
    if not any(group.columns for group in groups):
        raise UserError(f"no method has all of its seeds evaluated under {chosen}.")
    text = render_leaderboard(groups, names, kind)
    if out is None:
        print(text, end="")
    else:
        write_atomic(out, text.encode())
        say(f"{out}")
    if forest is not None:
        for path in save_figure(draw(groups, strongest_attack(results) if chosen == "all" else chosen), forest):
            print(path, file=sys.stderr)  # the table may go to a file
