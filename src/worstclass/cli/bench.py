"""`worstclass bench`: speed, side by side in one run."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from worstclass.bench.ways import PARTS, PUBLIC, WAYS
from worstclass.cli.console import print_steps, print_timings, say
from worstclass.cli.options import AllowCode, DataDir, Device, RunFolder, Search, complete_recipes
from worstclass.config.recipe import load_config, parse_settings
from worstclass.errors import UserError, choose
from worstclass.files import write_json
from worstclass.inputs.names import RECIPE, check_model_name, parse_attacks, runs_user_code

FAST = "cifar10-resnet18-fast"

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
    from worstclass.evaluation.targets import run_target
    from worstclass.runs.devices import pick_device, pick_search
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
    from worstclass.runs.devices import pick_device

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


@bench.command("robustness")
def bench_robustness_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"recipes to train, and folders of runs to read; default: {FAST}", autocompletion=complete_recipes
        ),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, over each recipe; repeatable")] = None,
    attacks: Annotated[
        str | None, typer.Option(help="also attack the test images of what is trained: autoattack, ...")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder of the runs, robustness.json and the pictures")] = Path(
        "bench-robustness"
    ),
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Time to robustness: from the start of a process to selected weights, and what they withstand.

    Trains each recipe in a process of its own. Runs that are there already are read: their logs have the times.
    """
    words, trained = what or [FAST], []
    chosen = parse_settings(settings or [])
    if attacks is not None:
        parse_attacks(attacks)
    given = ["--data-dir", str(data_dir), "--device", device, *(["--allow-code"] if allow_code else [])]
    folders: dict[Path, list[str]] = {}  # and the command that makes it, for a recipe
    for word in words:
        if (Path(word) / RECIPE).is_file():
            folders[Path(word)] = []
            continue
        config = load_config(word, **chosen)
        folder = out / f"{Path(word).name.removesuffix('.toml')}-seed{config.seed}"
        folders[folder] = ["train", word, "--out", str(folder), *given]
        folders[folder] += [part for setting in settings or [] for part in ("--set", setting)]
    if chosen and not any(folders.values()):
        raise UserError("--set is for recipes, and all of these are runs.")

    from worstclass.bench.robustness import draw_front, read_curve, time_command
    from worstclass.cli.console import print_curves
    from worstclass.report.figures import save_figure

    curves = []
    for folder, command in folders.items():
        try:
            wall = time_command(*command) if command else None
            if command and attacks is not None:
                time_command("evaluate", str(folder), "--attacks", attacks, *given)
        except subprocess.CalledProcessError as error:  # it has said why
            raise typer.Exit(error.returncode) from None
        curves.append(read_curve(folder, wall))
        trained += [curves[-1]] if command else []
    print_curves(curves, trained)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "robustness.json", [curve.as_dict() for curve in curves])
    written = [path for kind in ("svg", "png") for path in save_figure(draw_front(curves), out / f"robustness.{kind}")]
    say(f"Written: {', '.join(map(str, [out / 'robustness.json', *written]))}")


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
    from worstclass.runs.devices import pick_device

    chosen = pick_device(device)
    for number in numbers:
        books = bench_classes(int(number), model=model, batch_size=batch_size, steps=steps, device=chosen)
        say(
            f"{books.classes} classes, {model}, batch {batch_size}: {1e3 * books.books:.3f} ms of a step of "
            f"{1e3 * books.step:.1f} ms, {books.share:.2%}"
        )
