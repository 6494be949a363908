"""`worstclass audit`: any model on any images, and a gate for continuous integration."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from worstclass.auditing.gate import parse_gate
from worstclass.cli.console import fail_line, say
from worstclass.cli.options import AllowCode, DataDir, Device, Search, check_weights, complete_runs, radius, refuse
from worstclass.errors import UserError, choose
from worstclass.names import (
    ATTACK_NAMES,
    DATA_NAMES,
    NATURAL,
    Norm,
    check_data_name,
    check_model_name,
    check_run_folder,
    factory_file,
    parse_attacks,
    runs_user_code,
)

if TYPE_CHECKING:
    from worstclass.evaluation.targets import Target

FAILED = 1  # exit code of a gate that did not hold; errors of use are 2


def audit(
    model: Annotated[
        str,
        typer.Argument(
            help="module.path:factory or path/to/file.py:factory of a model of yours, or a run folder",
            autocompletion=complete_runs,
        ),
    ],
    data: Annotated[str | None, typer.Option(help="test images: " + ", ".join(DATA_NAMES))] = None,
    weights: Annotated[
        Path | None, typer.Option(help="safetensors weights; default: those that the factory loads")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="number of images, a stratified sample; default: all")
    ] = None,
    attacks: Annotated[
        str, typer.Option(help="comma-separated: " + ", ".join([NATURAL, "quick", *ATTACK_NAMES]))
    ] = "autoattack",
    eps: Annotated[str | None, typer.Option(help="radius; default: 8/255, of a run its own")] = None,
    norm: Annotated[str | None, typer.Option(help="linf (default) or l2")] = None,
    mean: Annotated[
        str | None, typer.Option(help="of a model that expects normalised images, by channel: 0.49,0.48,0.45")
    ] = None,
    std: Annotated[str | None, typer.Option(help="of a model that expects normalised images, by channel")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for card.json and outcomes.npz; stopped, the same command goes on")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="also write an HTML page, its figures beside it")] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="exit with 1 if this is true, such as 'worst < 0.3'; average, worst, worst-tenth, on clean images "
            "natural-worst, an end of an interval worst.low; repeatable"
        ),
    ] = None,
    checks: Annotated[bool, typer.Option(help="look for common mistakes first; run checks of good practice")] = True,
    seed: Annotated[int, typer.Option(min=0, help="seed of the sample and of random starts")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="images at a time; default: 500, on a GPU as many as fit, up to 5000")
    ] = None,
    search: Search = None,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Audit a model class by class.

    Looks for common mistakes, attacks, and prints the accuracy of each class. With --fail-if it is a gate for
    continuous integration: exit code 0 passed, 1 failed, 2 wrong use.
    """
    names = parse_attacks(attacks)
    gates = [parse_gate(text) for text in fail_if or []]
    folder = Path(model)
    if runs_user_code(model) and not folder.exists():
        load = _own_model(model, data, weights, eps, norm, data_dir)
    elif not folder.is_dir():
        raise UserError(
            f"'{model}' is neither module.path:factory, path/to/file.py:factory, nor a run folder: "
            "a factory is a function that returns the model."
        )
    else:
        own = {"--data": data, "--weights": weights, "--eps": eps, "--norm": norm, "--mean": mean, "--std": std}
        refuse(model, "is for a model of your own; the run {} carries its own", own)
        load = _run(folder, data_dir, allow_code)
    channels = {"mean": _numbers("--mean", mean), "std": _numbers("--std", std)}

    from worstclass.auditing.audit import audit_target, normalised, sampled
    from worstclass.cli.watched import watched_attacks
    from worstclass.devices import pick_device, pick_search
    from worstclass.evaluation.targets import CARD, OUTCOMES
    from worstclass.runs.run import open_run

    chosen = pick_device(device)
    target = sampled(normalised(load(), channels["mean"], channels["std"]), limit, seed)
    ours = target.home is not None and not runs_user_code(open_run(target.home).config.model)
    with watched_attacks(out) as notify:
        result = audit_target(
            target,
            names,
            device=str(chosen),
            checks=checks,
            cache=out,
            batch_size=batch_size,
            seed=seed,
            precision=pick_search(search, chosen, ours=ours),
            notify=notify,
            on_note=lambda line: say(f"Note: {line}"),  # before the first attack; the result ends in them too
        )
    say(str(result))
    if out is not None:
        say(f"Card and outcomes: {out / CARD}, {out / OUTCOMES}")
    if report is not None:
        result.report(report)
        say(f"Report: {report}, its figures beside it.")
    failures = [line for gate in gates if (line := gate.failure(result.card, result.attack))]
    for line in failures:
        fail_line(line)
    if failures:
        raise typer.Exit(FAILED)
    if gates:
        say(f"Passed: {'; '.join(gate.text for gate in gates)} is not true under {result.attack}.")


def _own_model(
    name: str, data: str | None, weights: Path | None, eps: str | None, norm: str | None, data_dir: Path
) -> "Callable[[], Target]":
    """What loads a model of the user's own; what can be checked without it is checked now."""
    check_model_name(name)
    path = factory_file(name)
    if path is not None and not path.is_file():
        raise UserError(f"model '{name}': there is no file {path}.")
    if data is None:
        raise UserError(f"to audit '{name}', give --data too: {', '.join(DATA_NAMES)}.")
    check_data_name(data)
    ball: Norm = choose("norm", norm or "linf", get_args(Norm))
    if eps is None and ball == "l2":
        raise UserError("--norm l2 needs --eps too, such as 0.5: 8/255 is a radius for L-inf.")
    size = radius(eps or "8/255", ball)
    if weights is not None:
        check_weights(weights)

    def load() -> "Target":
        from worstclass.evaluation.targets import model_target

        return model_target(name, weights=weights, data=data, eps=size, norm=ball, data_dir=data_dir)

    return load


def _run(folder: Path, data_dir: Path, allow_code: bool) -> "Callable[[], Target]":
    check_run_folder(folder)

    def load() -> "Target":
        from worstclass.evaluation.targets import run_target
        from worstclass.runs.run import open_run

        return run_target(open_run(folder), data_dir=data_dir, allow_code=allow_code)

    return load


def _numbers(option: str, text: str | None) -> list[float] | None:
    """`0.49,0.48,0.45`."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} takes a number for each channel, such as 0.49,0.48,0.45, not {text!r}.") from None
