"""`worstclass evaluate`: attack a run, or a model of your own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from worstclass.cli.console import print_card, print_findings, say
from worstclass.cli.given import given_model
from worstclass.cli.options import (
    AllowCode,
    DataDir,
    Device,
    ImageSize,
    Search,
    TestFraction,
    check_given_run,
    complete_runs,
    refuse,
)
from worstclass.errors import UserError, choose
from worstclass.inputs.names import (
    ATTACK_NAMES,
    FINISHED_MODELS,
    NATURAL,
    OTHER_MODELS,
    check_run_folder,
    parse_attacks,
    runs_user_code,
)

if TYPE_CHECKING:
    import torch

    from worstclass.evaluation.targets import Target

DEFAULT_ATTACKS = "natural,pgd-20,pgd-100,cw"
NORMALISATION = {"normalisation", "scale"}  # lines of the preflight that a mean and a std mend


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            help="a run folder, or a model of your own: " + ", ".join((*OTHER_MODELS, *FINISHED_MODELS)),
            autocompletion=complete_runs,
        ),
    ],
    attacks: Annotated[
        str, typer.Option(help="comma-separated: " + ", ".join([NATURAL, "quick", *ATTACK_NAMES]))
    ] = DEFAULT_ATTACKS,
    base: Annotated[
        Path | None, typer.Option(help="folder of an evaluated baseline run, for rho", autocompletion=complete_runs)
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="selected (default) or last (of a run)")] = None,
    part: Annotated[str | None, typer.Option(help="test (default) or valid (of a run)")] = None,
    weights: Annotated[Path | None, typer.Option(help="safetensors weights (of your own model)")] = None,
    data: Annotated[str | None, typer.Option(help="data set (of your own model)")] = None,
    image_size: ImageSize = None,
    test_fraction: TestFraction = None,
    eps: Annotated[str | None, typer.Option(help="radius, such as 8/255 (of your own model)")] = None,
    norm: Annotated[str | None, typer.Option(help="linf (default) or l2 (of your own model)")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for card.json and outcomes.npz; default: the run")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the attacks' random starts")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="batch size; default: 500, on a GPU as many as fit, up to 5000")
    ] = None,
    search: Search = None,
    checks: Annotated[bool, typer.Option("--checks", help="also run sanity checks, and end in one verdict")] = False,
    transfer: Annotated[
        Path | None,
        typer.Option(
            help="with --checks: a run whose adversarial images are tried on this model",
            callback=check_given_run,
            autocompletion=complete_runs,
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Attack a run, or a model of your own, class by class.

    Writes the outcome of each image and a card with every measure. Stopped, the same command goes on.
    """
    names = parse_attacks(attacks)
    if transfer is not None and not checks:
        raise UserError("--transfer is one of the checks: give --checks too.")
    if runs_user_code(target) and not Path(target).exists():
        refuse(target, "is for a run; {} is a model of your own", {"--checkpoint": checkpoint, "--part": part})
        needed = {"--data": data, "--eps": eps, "--out": out}
        if missing := [option for option, value in needed.items() if value is None]:
            listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
            raise UserError(f"to evaluate '{target}', give {listed} too.")
        reading = (image_size, test_fraction, data_dir)
        load = given_model(target, "evaluate", data, weights, str(eps), norm, *reading, allow_code)
    elif not Path(target).is_dir() and (weights or data or image_size or test_fraction or eps or norm):
        raise UserError(f"'{target}' is neither a run folder nor module.path:factory, a model of your own.")
    else:
        own = {"--weights": weights, "--data": data, "--image-size": image_size, "--test-fraction": test_fraction}
        own |= {"--eps": eps, "--norm": norm}
        check_run_folder(Path(target))
        refuse(target, "is for a model of your own; the run {} carries its own", own)
        load = _run(Path(target), checkpoint, part, data_dir, allow_code)
    folder = out or Path(target)
    if base is not None and not base.is_dir():
        raise UserError(f"--base: there is no folder {base}.")

    from worstclass.cli.watched import evaluate_with_progress
    from worstclass.evaluation.saved import CARD, OUTCOMES
    from worstclass.evaluation.targets import run_target
    from worstclass.execution.distributed import joined
    from worstclass.runs.devices import pick_device, pick_search
    from worstclass.runs.run import open_run

    def targets() -> "tuple[Target, Target | None]":
        other = run_target(open_run(transfer), data_dir=data_dir, allow_code=allow_code) if transfer else None
        return load(), other

    chosen = pick_device(device)
    with joined(chosen) as team:
        attacked, other = team.leader_first(targets)
        ours = attacked.home is not None and not runs_user_code(open_run(attacked.home).config.model)
        if attacked.home is not None:
            say(f"{attacked.home}: {weights_line(attacked.about, raw=raw_weights(attacked))}")
        elif team.leads:
            for line in looked_at(attacked, names, chosen):
                say(f"Note: {line}")
        card = evaluate_with_progress(
            attacked,
            names,
            folder,
            base=base,
            device=chosen,
            seed=seed,
            batch_size=batch_size,
            precision=pick_search(search, chosen, ours=ours),
            checks=checks,
            transfer=other,
            team=team,
        )
    if team.leads:
        print_card(card)
        print_findings(card, every=checks)
    say(f"Card and outcomes: {folder / CARD}, {folder / OUTCOMES}")


def looked_at(target: "Target", attacks: Sequence[str], device: "torch.device") -> list[str]:
    """What an audit would say of a model before it attacks."""
    from worstclass.auditing.preflight import preflight

    lines = preflight(
        target.model.to(device),
        target.images,
        num_classes=len(target.class_names),
        eps=target.eps,
        norm=target.norm,
        attacks=attacks,
    )
    more = ["worstclass audit takes --mean and --std."] if {line.name for line in lines} & NORMALISATION else []
    return [line.text for line in lines] + more


def raw_weights(target: "Target") -> bool:
    """Whether the weights of a run, or of its base, are the raw ones though it averages over epochs."""
    from worstclass.inputs.names import RECIPE
    from worstclass.runs.base import BASE
    from worstclass.runs.notes import is_raw
    from worstclass.runs.run import open_run
    from worstclass.runs.saver import LOG

    if target.home is None or target.about["recipe"].get("average") != "fawa":
        return False
    folder = target.home if target.about.get("mix", 1.0) else target.home / BASE
    known = all((folder / name).is_file() for name in (RECIPE, LOG))  # of published weights there may be no more
    return known and is_raw(open_run(folder).log, target.about["epoch"])


def weights_line(about: Mapping[str, Any], *, raw: bool = False) -> str:
    """Which weights of a run are evaluated, in words; `raw` of an average in which no epoch has held."""
    average = {"ema": ", averaged over the steps (EMA)", "fawa": ", averaged over the epochs that held (FAWA)"}
    kind = ", raw weights: no epoch had held (FAWA)" if raw else average.get(about["recipe"].get("average", ""), "")
    mix = about.get("mix", 1.0)
    between = f", {100 * mix:.0f}% of the way from its base" if mix < 1 else ""
    adjusted = ", logits adjusted" if about.get("adjusted") else ""
    return f"the {about['checkpoint']} epoch, {about['epoch']}{kind}{between if mix else ' of its base'}{adjusted}"


def _run(
    folder: Path, checkpoint: str | None, part: str | None, data_dir: Path, allow_code: bool
) -> "Callable[[], Target]":
    """What loads a run; what can be checked without it is checked now."""
    which = choose("checkpoint", checkpoint or "selected", ("selected", "last"))
    where = choose("part", part or "test", ("test", "valid"))

    def load() -> "Target":
        from worstclass.evaluation.targets import run_target
        from worstclass.runs.run import open_run

        return run_target(open_run(folder), checkpoint=which, part=where, data_dir=data_dir, allow_code=allow_code)

    return load
