"""What a person at the terminal sees: progress bars, a line for each epoch, tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from worstclass.bench import StepTime, Timing
from worstclass.checks import load_findings, verdict
from worstclass.config import Config
from worstclass.errors import UserError, visible
from worstclass.evaluate import Event, Notify
from worstclass.radius import show_radius
from worstclass.report import Result, rich_table
from worstclass.report.results import attack_title
from worstclass.report.tables import base_name, number, percent, weakest
from worstclass.runs import RECIPE, Run, open_run, train_run
from worstclass.subjects import PART, PROGRESS, Subject, evaluate_subject
from worstclass.team import ALONE, Team, follows
from worstclass.train.engine import Engine

WIDEST_TABLE = 200  # characters; a reason why a run failed may be longer
console = Console(quiet=follows())


def say(text: RenderableType, where: Console | None = None) -> None:
    """Print as it is: no colour guessing, no wrapping of long lines."""
    (where or console).print(
        visible(text) if isinstance(text, str) else text, highlight=False, soft_wrap=True, markup=False
    )


def rule(title: str) -> None:
    """A line with a title, between the parts of a longer job."""
    console.rule(title, align="left")


def train_with_progress(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    data_dir: Path = Path("data"),
    device: torch.device,
    engine: Engine | None = None,
    checkpoint_minutes: float = 1.0,
    allow_code: bool = False,
    team: Team = ALONE,
    data_limit: int | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Train with a bar for each epoch and a line after it; Ctrl-C says how to go on."""
    if device.type == "cuda":
        engine = engine or Engine()
        kind = "fast engine (compiled, one CUDA graph a step)" if engine.fast else "eager engine"
        exact = ", deterministic" if engine.deterministic else ""
        many = f"{team.size} processes, the first on " if team.size > 1 else ""
        say(f"{many}{torch.cuda.get_device_name(device)}: {kind}, {engine.precision}{exact}")
    elif team.size > 1:
        say(f"{team.size} processes on CPUs")
    with _progress() as progress:
        bar = progress.add_task(f"{config.method} epoch", total=None)
        download: list[Any] = []

        def notify(what: str, done: int, total: int) -> None:
            if not download:
                download.append(progress.add_task(what, total=total))
            progress.update(download[0], completed=done)

        def on_step(epoch: int, step: int, steps: int) -> None:
            text = f"{config.method} epoch {epoch}/{config.epochs}"
            progress.update(bar, description=text, completed=step, total=steps)

        def on_epoch(line: dict[str, Any]) -> None:
            say(epoch_line(line, config, open_run(folder).class_names))
            if line["epoch"] < config.epochs:
                progress.reset(bar)
            if watch:
                watch(line)

        try:
            return train_run(
                config,
                folder,
                resume=resume,
                data_dir=data_dir,
                device=device,
                engine=engine,
                checkpoint_minutes=checkpoint_minutes,
                allow_code=allow_code,
                team=team,
                data_limit=data_limit,
                notify=notify,
                on_step=on_step,
                on_epoch=on_epoch,
                on_fallback=lambda line: say(f"Note: {line}"),
            )
        except KeyboardInterrupt:
            progress.stop()
            started = (folder / RECIPE).is_file()
            say(f"\nStopped. Continue with: worstclass train --resume {folder}" if started else "\nStopped.")
            raise typer.Exit(130) from None


def epoch_line(line: dict[str, Any], config: Config, names: Sequence[str]) -> str:
    """One epoch in one line: average and worst validation accuracy, and the class that now weighs most."""
    valid, weights = line["valid"], line["next_class_weights"]
    worst = min(range(len(names)), key=lambda k: line["class_robust_accuracy"][k])
    heaviest = max(range(len(names)), key=lambda k: weights[k])
    moving = max(weights) - min(weights) > 1e-6
    left = line["seconds"] * (config.epochs - line["epoch"])
    return (
        f"{line['epoch']:3d}/{config.epochs}  loss {line['train']['loss']:.3f}  "
        f"natural {100 * valid['natural_accuracy']:.1f}  validation PGD {100 * valid['robust_accuracy']:.1f}, "
        f"worst {100 * valid['worst_robust_accuracy']:.1f} {names[worst]}"
        + (f"  heaviest {names[heaviest]} {weights[heaviest]:.2f}" if moving else "")
        + ("  kept" if line["selected"] and config.select != "last" else "")
        + f"  {line['seconds']:.1f}s, {int(left // 60)}:{int(left % 60):02d} left"
    )


def evaluate_with_progress(subject: Subject, names: list[str], folder: Path, **options: Any) -> dict[str, Any]:
    """Evaluate with a bar for each attack; Ctrl-C says how to go on."""
    try:
        with attack_progress() as notify:
            return evaluate_subject(
                subject, names, folder, notify=notify, on_note=lambda line: say(f"Note: {line}"), **options
            )
    except KeyboardInterrupt:
        kept = f" The same command goes on from {folder / PROGRESS}." if (folder / PROGRESS).is_file() else ""
        kept = " The same command goes on where it was." if list(folder.glob(PART.format("*", "*"))) else kept
        say(f"\nStopped.{kept}")
        raise typer.Exit(130) from None


@contextmanager
def attack_progress() -> Iterator[Notify]:
    """A bar for each attack: which part of it runs, how many samples stand, and the time left."""
    with _progress() as progress:
        bars: dict[str, Any] = {}

        def notify(event: Event) -> None:
            name = event.attack.partition(":")[0]
            if name not in bars:
                bars[name] = progress.add_task("", total=event.total, percent=event.standing is not None)
            standing = "" if event.standing is None else f", {event.standing} standing"
            progress.update(bars[name], description=f"{event.attack}{standing}", completed=event.done)

        yield notify


def print_timings(timings: Sequence[Timing]) -> None:
    """Programs side by side, each with its time as a ratio to the last."""
    table = Table("", "Seconds", "Faster by", "Forward passes", "Backward passes", "Standing", "It alone breaks")
    for timing in timings:
        alone = sum(int((~timing.standing & other.standing).sum()) for other in timings)
        table.add_row(
            timing.name,
            f"{timing.seconds:.1f}",
            f"{timings[-1].seconds / timing.seconds:.2f}",
            f"{timing.passes.forward:,}",
            f"{timing.passes.backward:,}",
            f"{int(timing.standing.sum())}/{len(timing.standing)}",
            f"{alone}",
        )
    print_wide(table)
    same = (timings[0].standing == timings[-1].standing).mean()
    say(f"Same verdict on {100 * same:.1f}% of the images.")


def print_steps(times: Sequence[StepTime], ceiling: float, title: str, device: torch.device) -> None:
    """Ways to take a training step, each with its speed as a ratio to the first."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    table = Table("", "ms a step", "Faster by", "Images/s", "TFLOP/s", "Of ceiling", "Peak GiB", "Start s", title=title)
    for each in times:
        table.add_row(
            each.name,
            f"{1e3 * each.seconds:.2f}",
            f"{times[0].seconds / each.seconds:.2f}",
            f"{each.images:.0f}",
            f"{each.flops / 1e12:.2f}",
            f"{each.flops / ceiling:.1%}",
            f"{each.memory / 2**30:.2f}" if each.memory else "",
            f"{each.start:.1f}",
        )
    print_wide(table)
    say(f"Ceiling: a large matrix product on this {where} in this run, {ceiling / 1e12:.2f} TFLOP/s.")


def print_card(card: dict[str, Any]) -> None:
    """The card's main measures as a table; with rho, and against what, where there is a base."""
    base = card.get("base")
    heads = ["Attack", "Average %", "Worst class %", "", "Class variance", *(["rho"] if base else [])]
    caption = "[95% interval]" + (f"; rho is against {base_name(base)}" if base else "")
    table = Table(*heads, caption=Text(visible(caption)), caption_justify="left")
    for name, column in card["columns"].items():
        cells = [attack_title(name), percent(column["average"]), percent(column["worst"])]
        cells += [weakest(column), number(column["class_variance"], 4)]
        if base:
            cells.append(number(column["against_base"]["rho"], 2, sign=True) if "against_base" in column else "")
        table.add_row(*(Text(visible(cell)) for cell in cells))  # names are not markup
    print_wide(table)


def print_findings(card: dict[str, Any], *, every: bool) -> None:
    """What the checks found: all of it with a verdict, or only what needs attention."""
    findings = load_findings(card)
    for finding in findings:
        if every or not finding.passed:
            state = "passed" if finding.passed else "FAILED"
            say(f"{state}  {finding.name}: {finding.seen}. {finding.advice}".rstrip())
    if every:
        say(verdict(findings))


def print_table(results: list[Result]) -> None:
    """The comparison; on a narrow terminal it is wide rather than cut."""
    about = results[0].card["about"]
    norm = {"linf": "L-inf", "l2": "L2"}[about["norm"]]
    title = f"{about['data']}, {norm} radius {show_radius(about['eps'])}, {len(results[0].outcomes.labels)} images"
    print_wide(rich_table(results, visible(title)))


def print_wide(table: Table) -> None:
    """A table with room for what it holds: on a narrow terminal a line that wraps is better than a cut number."""
    width = Console(width=WIDEST_TABLE).measure(table).maximum
    Console(width=max(console.width, width), quiet=follows()).print(table)


def tensorboard_writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    """A watcher that writes each epoch's scalars to FOLDER/tensorboard, from the first epoch on."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the extra: pip install 'worstclass[tensorboard]'.") from None

    def watch(line: dict[str, Any]) -> None:
        with SummaryWriter(str(folder / "tensorboard")) as writer:  # a file for each epoch: none is lost to a kill
            for group in ("train", "valid"):
                for name, value in line[group].items():
                    writer.add_scalar(f"{group}/{name}", value, line["epoch"])
            for k, weight in enumerate(line["class_weights"]):
                writer.add_scalar(f"class_weight/{k}", weight, line["epoch"])

    return watch


class _Done(ProgressColumn):
    """How much is done: so many of so many, or a percentage where the units are of no interest."""

    def render(self, task: Task) -> Text:
        if task.fields.get("percent"):
            return Text(f"{task.percentage:.0f}%")
        return Text(f"{int(task.completed)}/{'?' if task.total is None else int(task.total)}")


class _Rate(ProgressColumn):
    """Steps (or images) a second."""

    def render(self, task: Task) -> Text:
        unknown = task.speed is None or task.fields.get("percent")
        return Text("" if unknown else f"{task.speed:.1f}/s")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), _Done(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
