"""`worstclass evaluate`: attack a run, or a model of your own."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from worstclass.attacks import NAMES
from worstclass.console import evaluate_with_progress, print_card, print_findings, say
from worstclass.errors import UserError, choose
from worstclass.models import runs_user_code
from worstclass.options import AllowCode, DataDir, Device, Search, pick_device, pick_search, radius
from worstclass.runs import open_run
from worstclass.subjects import CARD, OUTCOMES, Subject, model_subject, run_subject
from worstclass.team import joined
from worstclass.types import Norm

DEFAULT_ATTACKS = "natural,pgd-20,pgd-100,cw"


def evaluate(
    target: Annotated[str, typer.Argument(help="a run folder, or module.path:factory of a model of your own")],
    attacks: Annotated[str, typer.Option(help="comma-separated: " + ", ".join(NAMES))] = DEFAULT_ATTACKS,
    base: Annotated[Path | None, typer.Option(help="folder of an evaluated vanilla run, for rho")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="selected (default) or last (of a run)")] = None,
    part: Annotated[str | None, typer.Option(help="test (default) or valid (of a run)")] = None,
    weights: Annotated[Path | None, typer.Option(help="safetensors weights (of your own model)")] = None,
    data: Annotated[str | None, typer.Option(help="data set (of your own model)")] = None,
    eps: Annotated[str | None, typer.Option(help="radius, such as 8/255 (of your own model)")] = None,
    norm: Annotated[str | None, typer.Option(help="linf (default) or l2 (of your own model)")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for card.json and outcomes.npz; default: the run")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the attacks' random starts")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="images at a time; default: 500, on a GPU as many as fit, up to 5000")
    ] = None,
    search: Search = None,
    checks: Annotated[
        bool, typer.Option("--checks", help="also run checks of good practice, and end in one verdict")
    ] = False,
    transfer: Annotated[
        Path | None, typer.Option(help="with --checks: a run whose adversarial images are tried on this model")
    ] = None,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Attack a model class by class; write per-sample outcomes and a card with every measure."""
    names = [name.strip() for name in attacks.split(",") if name.strip()]
    chosen = pick_device(device)

    def subjects() -> tuple[Subject, Subject | None]:
        subject = _subject(
            target,
            checkpoint=checkpoint,
            part=part,
            weights=weights,
            data=data,
            eps=eps,
            norm=norm,
            out=out,
            data_dir=data_dir,
            allow_code=allow_code,
        )
        return subject, run_subject(open_run(transfer), data_dir=data_dir, allow_code=allow_code) if transfer else None

    folder = out or Path(target)
    if transfer is not None and not checks:
        raise UserError("--transfer is one of the checks: give --checks too.")
    with joined(chosen) as team:
        subject, other = team.first_here(subjects)
        ours = subject.home is not None and not runs_user_code(open_run(subject.home).config.model)
        card = evaluate_with_progress(
            subject,
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


def _subject(
    target: str,
    *,
    checkpoint: str | None,
    part: str | None,
    weights: Path | None,
    data: str | None,
    eps: str | None,
    norm: str | None,
    out: Path | None,
    data_dir: Path,
    allow_code: bool,
) -> Subject:
    """A run, or a model of the user's own; options of the one are refused for the other."""
    if runs_user_code(target) and not Path(target).exists():
        if weights is None or data is None or eps is None or out is None:
            raise UserError(f"to evaluate '{target}', give --weights, --data, --eps and --out.")
        for option, value in (("--checkpoint", checkpoint), ("--part", part)):
            if value is not None:
                raise UserError(f"{option} is for a run; {target} is a model of your own.")
        ball: Norm = choose("norm", norm or "linf", get_args(Norm))
        return model_subject(target, weights=weights, data=data, eps=radius(eps, ball), norm=ball, data_dir=data_dir)
    for option, given in (("--weights", weights), ("--data", data), ("--eps", eps), ("--norm", norm)):
        if given is not None:
            raise UserError(f"{option} is for a model of your own; the run {target} carries its own.")
    return run_subject(
        open_run(Path(target)),
        checkpoint=choose("checkpoint", checkpoint or "selected", ("selected", "last")),
        part=choose("part", part or "test", ("test", "valid")),
        data_dir=data_dir,
        allow_code=allow_code,
    )
