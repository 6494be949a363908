"""`worstclass sweep`: many runs from one file."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from worstclass.cli.console import say
from worstclass.cli.options import AllowCode, DataDir
from worstclass.config.keys import Config
from worstclass.errors import UserError, choose, exit_code
from worstclass.files import locked, write_json
from worstclass.inputs.names import check_device_name, parse_attacks
from worstclass.sweep.plan import RESULTS, expand, read_sweep

SAME_TEST = ("data", "image_size", "test_fraction", "norm", "eps")
"""Keys in which runs agree that a report compares: its images and its ball are the same."""


def sweep(
    file: Annotated[Path, typer.Argument(help="a sweep file (TOML), see docs/sweep.md")],
    out: Annotated[Path | None, typer.Option(help="folder of the runs; default sweeps/NAME of the file")] = None,
    serial: Annotated[bool, typer.Option("--serial", help="one after another in this process, without Ray")] = False,
    address: Annotated[str | None, typer.Option(help="join this Ray cluster (auto: the one at hand)")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="maximum number of jobs at once (Ray)")] = None,
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="minutes between checkpoints of each run; its end is always saved")
    ] = 1.0,
    data_dir: DataDir = Path("data"),
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda; auto is a GPU for each job where there are any")
    ] = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Train and evaluate many runs from one file.

    Recipes x a grid of settings and seeds, on Ray if it is installed; the same command again goes on where it stopped.
    """
    plan = read_sweep(file)
    parse_attacks(plan.attacks)
    out = out or Path("sweeps") / file.name.removesuffix(".toml")
    jobs = expand(plan, out)
    check_device_name(device)

    from worstclass.cli.board import Board, print_results
    from worstclass.data import data_at_hand
    from worstclass.runs.devices import pick_device
    from worstclass.sweep import (
        Setup,
        check_jobs,
        collect_results,
        is_done,
        ray_cluster,
        ray_is_installed,
        run_on_ray,
        run_serially,
    )

    use_ray = not serial and ray_is_installed()
    for option, value in (("--address", address), ("--workers", workers)):
        if value is not None and not use_ray:
            hint = "drop --serial" if serial else "pip install 'worstclass[ray]'"
            raise UserError(f"{option} needs Ray: {hint}.")
    if use_ray:
        choose("device", device, ("auto", "cpu", "cuda"))
    else:
        pick_device(device)
    setup = Setup(plan.attack_names, data_dir, device, checkpoint_minutes, allow_code)
    for data in dict.fromkeys(job.config.data for job in jobs):
        if not data_at_hand(data, data_dir):
            say(f"{data} is not in {data_dir}: downloading it.")
    check_jobs(jobs, setup)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, "sweep"):
        left = [job for job in jobs if not is_done(job, setup.attacks)]
        count = f"{len(left)} of {len(jobs)} jobs to do"
        board = Board(jobs, {job.name for job in jobs if job not in left})
        try:
            if not left:
                say(f"All {len(jobs)} jobs are done already.")
            elif use_ray:
                with ray_cluster(address, device) as kind:
                    where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
                    each = "a GPU" if kind == "cuda" else "a core"
                    board.say(f"{count} on {where}, {each} each" + (f", {workers} at once." if workers else "."))
                    with board:
                        setup = replace(setup, device=kind)
                        run_on_ray(left, setup, board.finish, retries=plan.retries, workers=workers)
            else:
                why = "" if serial else " (Ray is not installed: pip install 'worstclass[ray]')"
                say(f"{count}, one after another in this process{why}.")
                with board:
                    run_serially(left, setup, board.finish, board.attack)
        except KeyboardInterrupt as stop:
            say("\nStopped. The same command goes on where it stopped.")
            raise typer.Exit(exit_code(stop)) from None
        results = collect_results(plan, jobs, board.failures)
        write_json(out / RESULTS, results)
    print_results(results)
    say(f"Results: {out / RESULTS}")
    if board.failures:
        say(f"{len(board.failures)} of {len(jobs)} jobs failed. The same command tries them again.")
        raise typer.Exit(1)
    if setup.attacks:
        say(report_line([job.config for job in jobs], out))
    if setup.attacks and any(job.config.data.startswith("cifar") for job in jobs):
        say(f"The paper's tables from these runs: worstclass reproduce table1 {out}/*")


def report_line(configs: Sequence[Config], out: Path) -> str:
    """How to compare the runs of a sweep: on one page, if they are tested on the same images in the same ball."""
    differ = [key for key in SAME_TEST if len({getattr(config, key) for config in configs}) > 1]
    if differ:
        return f"Compare runs that agree in {', '.join(differ)} on one page: worstclass report {out}/RUN ..."
    return f"Compare these runs on one page: worstclass report {out}/*"
