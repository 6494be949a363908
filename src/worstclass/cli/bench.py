"""`worstclass bench`: speed, side by side in one run."""

from pathlib import Path
from typing import Annotated

import typer

from worstclass.bench.ways import PARTS, PUBLIC, WAYS
from worstclass.cli.console import print_steps, print_timings, say
from worstclass.cli.options import AllowCode, DataDir, Device, RunFolder, Search
from worstclass.errors import UserError, choose
from worstclass.names import check_model_name, runs_user_code

bench = typer.Typer(rich_markup_mode=None, help="Measure speed, side by side in one run.")


@bench.command("autoattack")
def bench_autoattack_command(
    run: RunFolder,
    images: Annotated[int, typer.Option(min=1, help="the first so many test images")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="images at a time")] = 500,
    search: Search = None,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """AutoAttack: ours and pyautoattack's on the same model, images and device, one after the other."""
    import torch

    from worstclass.bench import bench_autoattack
    from worstclass.cli.progress import watch
    from worstclass.devices import pick_device, pick_search
    from worstclass.evaluation.targets import run_target
    from worstclass.runs.run import open_run

    chosen = pick_device(device)
    target = run_target(open_run(run), data_dir=data_dir, allow_code=allow_code)
    if len(target.class_names) < 10:
        raise UserError("pyautoattack, the peer, crashes below ten classes: there is nothing to compare with.")
    precision = pick_search(search, chosen, ours=not runs_user_code(open_run(run).config.model))
    say(f"{min(images, len(target.images))} images, eps {target.eps:.4g}, search in {precision}, on {chosen}")
    with watch() as progress:
        timings = bench_autoattack(
            target.model.to(chosen),
            target.images.select(torch.arange(len(target.images))[:images]),
            eps=target.eps,
            norm=target.norm,
            batch_size=batch_size,
            precision=precision,
            notify=progress.attack,
        )
    print_timings(timings)


@bench.command("train")
def bench_training_command(
    models: Annotated[str, typer.Option("--model", help="networks, comma-separated: resnet18, wrn34-10")] = "resnet18",
    batch_size: Annotated[int, typer.Option(min=1, max=2048, help="images a step")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="steps to time, after a warm-up")] = 50,
    ways: Annotated[
        str | None,
        typer.Option(
            help=f"comma-separated: {', '.join([PUBLIC, *WAYS])}, each with ' + ' and one of {', '.join(PARTS)}; "
            "default: all that run here, without"
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """A step of TRADES: as public code writes it, tidy, and captured, on random images, one after the other."""
    names = [_check_way(name.strip()) for name in ways.split(",")] if ways else []
    networks = [check_model_name(name.strip()) for name in models.split(",")]

    from worstclass.bench import bench_training, matrix_ceiling
    from worstclass.bench.training import possible
    from worstclass.devices import pick_device

    chosen = pick_device(device)
    here = [PUBLIC, *possible(chosen)]
    for name in names:
        if name.split(" + ")[0] not in here:
            raise UserError(f"way '{name}' does not run on {chosen}; these do: {', '.join(here)}.")
    names = names or here
    ceiling = matrix_ceiling(chosen)
    for network in networks:
        times = bench_training(names, model=network, batch_size=batch_size, steps=steps, device=chosen)
        print_steps(list(times), ceiling, f"{network}, batch {batch_size}, {steps} steps", chosen)


def _check_way(name: str) -> str:
    way, *parts = name.split(" + ")
    choose("way", way, [PUBLIC, *WAYS])
    for part in parts:
        choose("part", part, PARTS)
    return name


@bench.command("classes")
def bench_classes_command(
    classes: Annotated[str, typer.Option(help="comma-separated numbers of classes")] = "10,1000",
    model: Annotated[str, typer.Option(help="network: small-cnn, resnet18, ...")] = "small-cnn",
    batch_size: Annotated[int, typer.Option(min=1, help="images a step")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="steps to time")] = 5,
    device: Device = "auto",
) -> None:
    """What the bookkeeping by class costs, as a share of a step of WAT in the same run."""
    check_model_name(model)
    numbers = [number.strip() for number in classes.split(",")]
    for number in numbers:
        if not number.isdecimal() or int(number) < 2:
            raise UserError(f"--classes: '{number}' is not a number of classes, two or more.")

    from worstclass.bench import bench_classes
    from worstclass.devices import pick_device

    chosen = pick_device(device)
    for number in numbers:
        books = bench_classes(int(number), model=model, batch_size=batch_size, steps=steps, device=chosen)
        say(
            f"{books.classes} classes, {model}, batch {batch_size}: {1e3 * books.books:.3f} ms of a step of "
            f"{1e3 * books.step:.1f} ms, {books.share:.2%}"
        )
