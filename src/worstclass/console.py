"""What a person at the terminal sees: progress bars, a line for each epoch, tables."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from worstclass.config import Config
from worstclass.errors import UserError
from worstclass.report import Result, rich_table
from worstclass.report.results import attack_title
from worstclass.report.tables import number, percent
from worstclass.runs import RECIPE, Run, open_run, train_run
from worstclass.subjects import Subject, evaluate_subject
from worstclass.train.engine import Engine

console = Console()


def say(text: RenderableType) -> None:
    """Print as it is: no colour guessing, no wrapping of long lines."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)


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
    allow_code: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Train with a bar for each epoch and a line after it; Ctrl-C says how to go on."""
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
                allow_code=allow_code,
                notify=notify,
                on_step=on_step,
                on_epoch=on_epoch,
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
        f"natural {100 * valid['natural_accuracy']:.1f}  PGD-20 {100 * valid['robust_accuracy']:.1f}, "
        f"worst {100 * valid['worst_robust_accuracy']:.1f} {names[worst]}"
        + (f"  heaviest {names[heaviest]} {weights[heaviest]:.2f}" if moving else "")
        + ("  kept" if line["selected"] and config.select != "last" else "")
        + f"  {line['seconds']:.1f}s, {int(left // 60)}:{int(left % 60):02d} left"
    )


def evaluate_with_progress(subject: Subject, names: list[str], folder: Path, **options: Any) -> dict[str, Any]:
    """Evaluate with a bar for each attack."""
    with _progress() as progress:
        bars: dict[str, Any] = {}

        def on_batch(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(f"attack {name}", total=total)
            progress.update(bars[name], completed=done)

        return evaluate_subject(subject, names, folder, on_batch=on_batch, **options)


def print_card(card: dict[str, Any]) -> None:
    """The card's main measures as a table."""
    table = Table("Attack", "Average %", "Worst class %", "", "CV", caption="[95% interval]", caption_justify="left")
    for name, column in card["columns"].items():
        worst, variance = column["worst"], column["class_variance"]
        cells = (attack_title(name), percent(column["average"]), percent(worst), worst["class"], number(variance, 4))
        table.add_row(*(Text(cell) for cell in cells))  # names are not markup
    wide_console().print(table)


def print_table(results: list[Result]) -> None:
    """The comparison; on a narrow terminal it is wide rather than cut."""
    config = results[0].run.config
    title = f"{config.data}, {config.model}, L-inf radius {config.eps:.4g}, {len(results[0].outcomes.labels)} images"
    wide_console().print(rich_table(results, title))


def wide_console() -> Console:
    """Wide enough for a table: on a narrow terminal a line that wraps is better than a number that is cut."""
    return Console(width=max(console.width, 130))


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


class _Rate(ProgressColumn):
    """Steps (or images) a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
