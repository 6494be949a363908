"""The command: train, evaluate, report, demo, recipes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import torch
import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import worstclass
from worstclass.attacks.pgd import Norm
from worstclass.config import (
    Config,
    make_config,
    parse_number,
    parse_settings,
    read_recipe,
    recipe_comment,
    recipe_names,
)
from worstclass.data import open_source
from worstclass.errors import AttackError, TrainingError, UserError, unknown
from worstclass.models import runs_user_code
from worstclass.report import Result, headline, load_results, rich_table, write_report
from worstclass.report.results import attack_title
from worstclass.report.tables import number, percent
from worstclass.runs import Run, open_run, train_run
from worstclass.subjects import CARD, OUTCOMES, Subject, evaluate_subject, model_subject, run_subject

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
console = Console()

DataDir = Annotated[Path, typer.Option(help="where CIFAR's binary files are, or are downloaded to")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="let a recipe or run import a model of your own")]
DEFAULT_ATTACKS = "natural,pgd-20,pgd-100,cw"


def say(text: RenderableType) -> None:
    """Print as it is: no colour guessing, no wrapping of long lines."""
    console.print(text, highlight=False, soft_wrap=True)


def recipe_help() -> str:
    """Every key of a recipe with its default."""
    lines = ["Recipe keys and their defaults:", ""]
    for key, field in Config.model_fields.items():
        default = "" if field.default is None else f" = {str(field.default).replace(repr(8 / 255), '8/255')}"
        lines.append(f"  {key}{default}: {field.description}")
    return "\b\n" + "\n".join(lines)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    """Train, attack and measure classifiers whose weakest class must hold."""
    if version:
        say(worstclass.__version__)
        raise typer.Exit


@app.command(epilog=recipe_help())
def train(
    recipe: Annotated[str | None, typer.Argument(help="a path, or the name of a shipped recipe")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the recipe; repeatable")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; default runs/RECIPE-seedSEED")] = None,
    resume: Annotated[Path | None, typer.Option(help="continue the run in this folder")] = None,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also log to RUN/tensorboard")] = False,
) -> None:
    """Train a classifier by a recipe, or continue a run."""
    if (recipe is None) == (resume is None):
        raise UserError("give a recipe, or --resume with a run folder, and not both.")
    chosen = parse_settings(settings or [])
    if resume is not None:
        if chosen or out:
            raise UserError("--resume continues a run as it was started: it takes no --set and no --out.")
        config, folder = open_run(resume).config, resume
    else:
        assert recipe is not None
        config = make_config(read_recipe(recipe) | chosen, "" if chosen else recipe)
        folder = out or Path("runs") / f"{Path(recipe).name.removesuffix('.toml')}-seed{config.seed}"
    allow_code = allow_code or "model" in chosen  # typed by the user, not read from a file
    with _tensorboard(folder, tensorboard) as watch:
        train_with_progress(
            config,
            folder,
            resume=resume is not None,
            data_dir=data_dir,
            device=device,
            allow_code=allow_code,
            watch=watch,
        )
    say(f"Run: {folder}. Evaluate it with: worstclass evaluate {folder}")


def train_with_progress(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    data_dir: Path = Path("data"),
    device: str = "auto",
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
            say(epoch_line(line, config, names))
            if line["epoch"] < config.epochs:
                progress.reset(bar)
            if watch:
                watch(line)

        names = open_source(config.data, data_dir=data_dir, notify=notify).class_names
        try:
            return train_run(
                config,
                folder,
                resume=resume,
                data_dir=data_dir,
                device=pick_device(device),
                allow_code=allow_code,
                on_step=on_step,
                on_epoch=on_epoch,
            )
        except KeyboardInterrupt:
            progress.stop()
            say(f"\nStopped. Continue with: worstclass train --resume {folder}")
            raise typer.Exit(130) from None


def epoch_line(line: dict[str, Any], config: Config, names: tuple[str, ...]) -> str:
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
        + (f"  {line['seconds']:.1f}s, {int(left // 60)}:{int(left % 60):02d} left")
    )


@app.command()
def evaluate(
    target: Annotated[str, typer.Argument(help="a run folder, or module.path:factory of a model of your own")],
    attacks: Annotated[str, typer.Option(help="comma-separated: natural, fgsm, pgd-N, cw, cw-N")] = DEFAULT_ATTACKS,
    base: Annotated[Path | None, typer.Option(help="folder of an evaluated vanilla run, for rho")] = None,
    checkpoint: Annotated[str, typer.Option(help="selected or last (of a run)")] = "selected",
    part: Annotated[str, typer.Option(help="test or valid (of a run)")] = "test",
    weights: Annotated[Path | None, typer.Option(help="safetensors weights (of your own model)")] = None,
    data: Annotated[str | None, typer.Option(help="data set (of your own model)")] = None,
    eps: Annotated[str | None, typer.Option(help="radius, such as 8/255 (of your own model)")] = None,
    norm: Annotated[str, typer.Option(help="linf or l2 (of your own model)")] = "linf",
    out: Annotated[Path | None, typer.Option(help="folder for card.json and outcomes.npz; default: the run")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the attacks' random starts")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="images at a time")] = 500,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    allow_code: AllowCode = False,
) -> None:
    """Attack a model class by class; write per-sample outcomes and a card with every measure."""
    names = [name.strip() for name in attacks.split(",") if name.strip()]
    chosen = pick_device(device)
    if runs_user_code(target) and not Path(target).exists():
        if weights is None or data is None or eps is None or out is None:
            raise UserError(f"to evaluate '{target}', give --weights, --data, --eps and --out.")
        subject = model_subject(
            target,
            weights=weights,
            data=data,
            eps=_radius(eps),
            norm=choose("norm", norm, get_args(Norm)),
            data_dir=data_dir,
        )
    else:
        for option, value in (("--weights", weights), ("--data", data), ("--eps", eps)):
            if value is not None:
                raise UserError(f"{option} is for a model of your own; the run {target} carries its own.")
        subject = run_subject(
            open_run(Path(target)),
            checkpoint=choose("checkpoint", checkpoint, ("selected", "last")),
            part=choose("part", part, ("test", "valid")),
            data_dir=data_dir,
            allow_code=allow_code,
        )
    folder = out or Path(target)
    card = evaluate_with_progress(subject, names, folder, base=base, device=chosen, seed=seed, batch_size=batch_size)
    print_card(card)
    say(f"Card and outcomes: {folder / CARD}, {folder / OUTCOMES}")


def evaluate_with_progress(subject: Subject, names: list[str], folder: Path, **options: Any) -> dict[str, Any]:
    """Evaluate with a bar for each attack."""
    with _progress() as progress:
        bars: dict[str, Any] = {}

        def on_batch(name: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(f"attack {name}", total=total)
            progress.update(bars[name], completed=done)

        return evaluate_subject(subject, names, folder, on_batch=on_batch, **options)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of evaluated runs")],
    out: Annotated[Path, typer.Option(help="the page; its figures go beside it")] = Path("report.html"),
    base: Annotated[Path | None, typer.Option(help="vanilla run for rho; default: the first one among RUNS")] = None,
) -> None:
    """Compare evaluated runs: a table, figures, and one self-contained page."""
    results = load_results(runs, base)
    print_table(results)
    write_report(results, out)
    say(f"Report: {out}, its figures beside it.")


@app.command()
def recipes() -> None:
    """List the recipes that ship with the package."""
    for name in recipe_names():
        say(f"{name:34s} {recipe_comment(name)}")


@app.command()
def demo(out: Annotated[Path, typer.Option(help="folder of the demo")] = Path("demo"), device: Device = "auto") -> None:
    """TRADES and WAT on the data that ships with the package: trained, attacked, compared. A few minutes on a CPU."""
    folders = []
    for recipe in ("fashion-mini-trades", "fashion-mini-wat"):
        folder = out / recipe
        resume = (folder / "recipe.toml").is_file()
        config = open_run(folder).config if resume else make_config(read_recipe(recipe))
        console.rule(f"{recipe}: " + ("continuing" if resume else "training"), align="left")
        train_with_progress(config, folder, resume=resume, device=device)
        folders.append(folder)
    console.rule("attacking both on the test images", align="left")
    for folder in folders:
        if not (folder / CARD).is_file():
            say(f"{folder.name}")
            subject = run_subject(open_run(folder))
            evaluate_with_progress(subject, ["pgd-100", "cw"], folder, device=pick_device(device))
    results = load_results(folders)
    print_table(results)
    for sentence in headline(results):
        say(sentence)
    write_report(results, out / "report.html")
    say(f"\nReport: {out / 'report.html'}; figures beside it; runs: {', '.join(map(str, folders))}.")
    say(f"Delete {out} to run the demo afresh.")


def print_card(card: dict[str, Any]) -> None:
    """The card's main measures as a table."""
    table = Table("Attack", "Average %", "Worst class %", "", "CV", caption="[95% interval]", caption_justify="left")
    for name, column in card["columns"].items():
        worst, variance = column["worst"], column["class_variance"]
        table.add_row(
            attack_title(name), percent(column["average"]), percent(worst), worst["class"], number(variance, 4)
        )
    say(table)


def print_table(results: list[Result]) -> None:
    """The comparison; on a narrow terminal it is wide rather than cut."""
    config = results[0].run.config
    title = f"{config.data}, {config.model}, L-inf radius {config.eps:.4g}, {len(results[0].outcomes.labels)} images"
    Console(width=max(console.width, 130)).print(rich_table(results, title))


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if choose("device", name.split(":")[0], ("auto", "cpu", "cuda")) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but torch sees no GPU here.")
    return torch.device(name)


def choose(what: str, given: str, allowed: Sequence[str]) -> Any:
    """`given`, if it is allowed."""
    if given not in allowed:
        raise unknown(what, given, allowed)
    return given


def _radius(text: str) -> float:
    try:
        value = float(str(parse_number(text)))
    except ValueError as error:
        raise UserError(f"--eps: {error}.") from None
    if not 0 < value < float("inf"):
        raise UserError(f"--eps must be a positive number, not {text}.")
    return value


class _Rate(ProgressColumn):
    """Steps (or images) a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


@contextmanager
def _tensorboard(folder: Path, wanted: bool) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """A watcher that writes each epoch's scalars, if asked for."""
    if not wanted:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the extra: pip install 'worstclass[tensorboard]'.") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def watch(line: dict[str, Any]) -> None:
        for group in ("train", "valid"):
            for name, value in line[group].items():
                writer.add_scalar(f"{group}/{name}", value, line["epoch"])
        for k, weight in enumerate(line["class_weights"]):
            writer.add_scalar(f"class_weight/{k}", weight, line["epoch"])

    try:
        yield watch
    finally:
        writer.close()


def main() -> None:
    """Run the command; what the user can put right is one line on standard error and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except (TrainingError, AttackError) as error:
        _fail(str(error), 1)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
