"""One job of a sweep: train or go on, then evaluate; what is there already is not made again."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from worstclass.attacks import make_attack
from worstclass.config.differences import differing_keys
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, stored_recipe
from worstclass.data.sources import Notify
from worstclass.errors import AttackError, TrainingError, UserError, what_failed
from worstclass.evaluation.evaluate import Event
from worstclass.evaluation.outcomes import NATURAL
from worstclass.evaluation.saved import CARD, load_card
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.execution.compile_cache import cache_folder
from worstclass.inputs.names import RECIPE, runs_user_code
from worstclass.runs.devices import as_started, pick_device, pick_engine, pick_search
from worstclass.runs.finished import is_trained
from worstclass.runs.run import Run, open_data, open_run, refuse_code
from worstclass.runs.saver import SELECTED
from worstclass.runs.train import train_run
from worstclass.sweep.plan import Job
from worstclass.training.checkpoint import load_header

OnAttack = Callable[[Event], None]


@dataclass(frozen=True)
class Setup:
    """What all jobs of a sweep share: attacks and where they run."""

    attacks: tuple[str, ...] = ()
    data_dir: Path = Path("data")
    device: str = "auto"
    checkpoint_minutes: float = 1.0
    allow_code: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a job has failed; the traceback is of an error that nobody foresaw."""

    reason: str
    traceback: str = ""


def check_jobs(jobs: Sequence[Job], setup: Setup, notify: Notify | None = None) -> None:
    """Raise what can be known before anything starts; data that is not there is downloaded, once for all jobs."""
    for job in jobs:
        refuse_code(job.config, setup.allow_code)
        if (job.folder / RECIPE).is_file():
            refuse_other_recipe(open_run(job.folder), job.config)
        for name in setup.attacks:
            if name != NATURAL:
                make_attack(name, eps=job.config.eps, norm=job.config.norm)
    read = {(its.data, its.image_size, its.test_fraction): its for its in (job.config for job in jobs)}
    for config in read.values():
        open_data(config, allow_code=setup.allow_code, data_dir=setup.data_dir, notify=notify)


def refuse_other_recipe(run: Run, config: Config) -> None:
    """Raise if the folder holds a run of another recipe."""
    changed = [
        f"{key} = {getattr(run.config, key)}, here {getattr(config, key)}" for key in differing_keys(run.config, config)
    ]
    if changed:
        raise UserError(f"{run.folder} holds a run with another recipe ({'; '.join(changed)}); choose another --out.")


def attacks_left(run: Run, names: Sequence[str]) -> list[str]:
    """The attacks that the card of a run lacks; all of them where it is of another epoch or recipe."""
    if not (run.folder / CARD).is_file():
        return list(names)
    card = load_card(run.folder)
    about = {key: card["about"].get(key) for key in ("checkpoint", "epoch", "part", "seed")}
    epoch = load_header(run.folder / SELECTED).get("epoch")
    recipe = make_config(stored_recipe(card["about"].get("recipe", {})), str(run.folder / CARD))
    if recipe != run.config or about != {"checkpoint": "selected", "epoch": epoch, "part": "test", "seed": 0}:
        return list(names)
    return [name for name in names if name not in card["columns"]]


def is_done(job: Job, attacks: Sequence[str]) -> bool:
    """Whether nothing is left to do for a job."""
    if not (job.folder / RECIPE).is_file():
        return False
    run = open_run(job.folder)
    return is_trained(run) and not attacks_left(run, attacks)


def run_job(config: Config, folder: Path, setup: Setup, on_attack: OnAttack | None = None) -> None:
    """Train, or go on with, the run in a folder, and evaluate it; what is there already is not made again.

    `on_attack(event)` hears how far each attack is.
    """
    device = pick_device(setup.device)
    if device.type == "cuda":
        torch.compiler.reset()  # what was compiled for the jobs before counts against a limit of the compiler
    ours = not runs_user_code(config.model)
    run = open_run(folder) if (folder / RECIPE).is_file() else None
    if run is not None:
        refuse_other_recipe(run, config)
    if run is None or not is_trained(run):
        engine, precision, deterministic = (None, None, False) if run is None else as_started(run.about)
        run = train_run(
            config,
            folder,
            resume=run is not None,
            data_dir=setup.data_dir,
            device=device,
            engine=pick_engine(engine, precision, device, ours=ours, deterministic=deterministic),
            checkpoint_minutes=setup.checkpoint_minutes,
            allow_code=setup.allow_code,
            compile_cache=cache_folder(),
        )
    names = attacks_left(run, setup.attacks)
    if names:
        target = run_target(run, data_dir=setup.data_dir, allow_code=setup.allow_code)
        search = pick_search(None, device, ours=ours)
        evaluate_target(target, names, folder, device=device, precision=search, notify=on_attack)


def attempt(config: Config, folder: Path, setup: Setup, on_attack: OnAttack | None = None) -> Failure | None:
    """Run a job; an error is returned, so that the others go on."""
    try:
        run_job(config, folder, setup, on_attack)
    except (UserError, TrainingError, AttackError) as error:
        return Failure(str(error))
    except OSError as error:
        return Failure(what_failed(error))
    except Exception as error:  # a bug, or a device that gave up: one job of many
        return Failure(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", traceback.format_exc())
    return None
