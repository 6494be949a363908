"""`worstclass audit`: any model on any images, and a gate for continuous integration."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from worstclass.auditing.gate import parse_gate
from worstclass.cli.console import fail_line, say
from worstclass.cli.given import default_radius, given_model, refuse_normalisation
from worstclass.cli.options import AllowCode, DataDir, Device, ImageSize, Search, TestFraction, complete_runs, refuse
from worstclass.errors import UserError
from worstclass.inputs.names import (
    ATTACK_NAMES,
    DATA_NAMES,
    FINISHED_MODELS,
    NATURAL,
    OTHER_MODELS,
    check_run_folder,
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
            help="a run folder, or a model: " + ", ".join((*OTHER_MODELS, *FINISHED_MODELS)),
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
    image_size: ImageSize = None,
    test_fraction: TestFraction = None,
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
        radius = eps or default_radius(norm)
        load = given_model(model, "audit", data, weights, radius, norm, image_size, test_fraction, data_dir, allow_code)
        refuse_normalisation(model, weights, {"--mean": mean, "--std": std})
    elif not folder.is_dir():
        raise UserError(
            f"'{model}' is neither module.path:factory, path/to/file.py:factory, nor a run folder: "
            f"a factory is a function that returns the model. Or {', '.join((*OTHER_MODELS[2:], *FINISHED_MODELS))}."
        )
    else:
        own = {"--data": data, "--weights": weights, "--image-size": image_size, "--test-fraction": test_fraction}
        own |= {"--eps": eps, "--norm": norm, "--mean": mean, "--std": std}
        check_run_folder(folder)
        refuse(model, "is for a model of your own; the run {} carries its own", own)
        load = _run(folder, data_dir, allow_code)
    channels = {"mean": _numbers("--mean", mean), "std": _numbers("--std", std)}

    from worstclass.auditing.audit import audit_target, normalised, sampled
    from worstclass.cli.watched import watched_attacks
    from worstclass.evaluation.saved import CARD, OUTCOMES
    from worstclass.runs.devices import pick_device, pick_search
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


def _run(folder: Path, data_dir: Path, allow_code: bool) -> "Callable[[], Target]":
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
