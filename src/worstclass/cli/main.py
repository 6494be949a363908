"""The command: data, train, sweep, watch, adjust, evaluate, audit, export, report, leaderboard, bench and more."""

import os
import sys
from pathlib import Path
from typing import Annotated, get_args

import typer

from worstclass.cli.adjust import adjust
from worstclass.cli.audit import audit
from worstclass.cli.bench import bench
from worstclass.cli.console import print_table, rule, say, show_log
from worstclass.cli.data import data_command
from worstclass.cli.evaluate import evaluate
from worstclass.cli.export import export
from worstclass.cli.guard import guarded
from worstclass.cli.leaderboard import leaderboard
from worstclass.cli.options import (
    AllowCode,
    DataDir,
    Device,
    EvaluatedRuns,
    RunFolder,
    complete_recipes,
    complete_runs,
)
from worstclass.cli.sweep import sweep
from worstclass.cli.watch import watch
from worstclass.config.keys import Config
from worstclass.config.owners import describe_owners
from worstclass.config.recipe import (
    load_config,
    make_config,
    merge,
    parse_settings,
    read_stored,
    recipe_comment,
    recipe_names,
)
from worstclass.errors import (
    UserError,
    choose,
)
from worstclass.execution.torchrun import team_size
from worstclass.files import write_atomic, write_json
from worstclass.inputs.names import VERSION, check_run_folder, runs_user_code, split_fork
from worstclass.reproduce.specs import FIGURES, FORMATS, TABLES
from worstclass.sweep.plan import RESULTS

BASE_START = 0.7
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

app.add_typer(bench, name="bench")


def recipe_help() -> str:
    """Every key of a recipe with its default and its owner, one a line."""
    lines = ["Recipe keys and their defaults; [in brackets]: what a key belongs to, an error elsewhere:", "", "\b"]
    for key, field in Config.model_fields.items():
        default = "" if field.default is None else f" = {str(field.default).replace(repr(8 / 255), '8/255')}"
        choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
        allowed = f" ({', '.join(choices)})" if choices else ""
        owners = describe_owners(key).replace("'", "")
        lines.append(f"  {key}{default}: {field.description}{allowed}" + (f" [{owners}]" if owners else ""))
    return "\n".join(lines)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    """Train image classifiers against adversarial attacks, and measure robustness class by class."""
    if team_size() > 1 and context.invoked_subcommand not in ("train", "evaluate"):
        raise UserError("several processes can train and evaluate together, and nothing else: leave torchrun out.")
    if version:
        say(VERSION)
    elif context.invoked_subcommand is None:
        say(context.get_help())


@app.command(epilog=recipe_help())
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="a path, or the name of a shipped recipe", autocompletion=complete_recipes),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the recipe; repeatable")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; default runs/RECIPE-seedSEED")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="continue the run in this folder", autocompletion=complete_runs),
    ] = None,
    fork: Annotated[
        str | None, typer.Option(metavar="RUN@EPOCH", help="continue from an epoch of a run, with its recipe and --set")
    ] = None,
    keep: Annotated[
        list[int] | None, typer.Option(min=1, help="keep the checkpoint of this epoch, for --fork; repeatable")
    ] = None,
    with_base: Annotated[
        bool,
        typer.Option(
            "--with-base",
            help=f"also train a baseline that learns no class weights, after {BASE_START:g} of the epochs",
        ),
    ] = False,
    data_dir: DataDir = Path("data"),
    device: Device = "auto",
    engine: Annotated[
        str | None, typer.Option(help="auto (default: fast on a GPU), eager, or fast (compiled, one CUDA graph a step)")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="auto, fp32, tf32 or bf16. Default on a GPU: bf16 for our networks under the fast engine, else tf32"
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="bit-identical results on the same kind of machine; ResNet-18 is a tenth slower on an H200",
        ),
    ] = False,
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="minutes between checkpoints; the end of the run is always saved")
    ] = 1.0,
    data_gib: Annotated[
        float | None,
        typer.Option(
            min=0, help="larger training sets (in GiB) stay in host memory; default: half of the free GPU memory"
        ),
    ] = None,
    compile_cache: Annotated[
        Path | None,
        typer.Option(
            help="folder of what was compiled before (code: a folder that only you write to); "
            "default: WORSTCLASS_CACHE, or worstclass in your cache folder"
        ),
    ] = None,
    allow_code: AllowCode = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also log to RUN/tensorboard")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="also log to Weights & Biases")] = False,
) -> None:
    """Train a classifier by a recipe, or continue a run."""
    if (recipe is not None) + (resume is not None) + (fork is not None) != 1:
        raise UserError("give a recipe, --resume with a run folder, or --fork with an epoch of one: one of the three.")
    chosen = parse_settings(settings or [])
    if resume is not None and (chosen or out or with_base):
        raise UserError("--resume continues a run as it was started: it takes no --set, --out or --with-base.")
    if resume is not None:
        check_run_folder(resume)
    config = None if recipe is None else load_config(recipe, **chosen)
    if fork is not None:
        config = make_config(merge(read_stored(check_run_folder(split_fork(fork)[0])), chosen))
    if config is not None and with_base and config.base_start is None:
        config = make_config(config.recipe() | {"base_start": BASE_START})

    from worstclass.cli.watched import train_with_progress
    from worstclass.execution.compile_cache import cache_folder
    from worstclass.execution.distributed import joined
    from worstclass.integrations.trackers import tensorboard_writer, wandb_writer
    from worstclass.runs.devices import as_started, pick_device, pick_engine
    from worstclass.runs.run import code_of, consent, open_run
    from worstclass.runs.warm_start import parse_fork

    origin = None if fork is None else parse_fork(fork)
    if config is None:
        assert resume is not None
        run = open_run(resume)
        config, folder = run.config, resume
        was_engine, was_precision, was_deterministic = as_started(run.about)
        engine, precision = engine or was_engine, precision or was_precision
        deterministic = deterministic or was_deterministic
    else:
        name = Path(recipe or "").name.removesuffix(".toml")
        if origin is not None:
            name = f"{config.method}-from-{origin.run.folder.resolve().name}-epoch{origin.epoch}"
        folder = out or Path("runs") / f"{name}-seed{config.seed}"
    allow_code = allow_code or code_of(config).keys() <= chosen.keys()  # all typed by the user, none read from a file
    chosen_device = pick_device(device)

    def names() -> list[str]:
        return open_run(folder).class_names

    records = [tensorboard_writer(folder, names)] if tensorboard else []
    records += [wandb_writer(folder, names, config.recipe())] if wandb else []
    with joined(chosen_device) as team:
        train_with_progress(
            config,
            folder,
            resume=resume is not None,
            fork=origin,
            keep=keep or (),
            data_dir=data_dir,
            device=chosen_device,
            engine=pick_engine(
                engine, precision, chosen_device, ours=not runs_user_code(config.model), deterministic=deterministic
            ),
            checkpoint_minutes=checkpoint_minutes,
            allow_code=allow_code,
            team=team,
            data_limit=None if data_gib is None else int(data_gib * 2**30),
            compile_cache=compile_cache or cache_folder(),
            on_record=records,
        )
    say(f"Run: {folder}. Evaluate it with: worstclass evaluate {folder}{consent(config)}")


app.command("data")(data_command)
app.command()(sweep)
app.command()(watch)
app.command()(adjust)
app.command()(evaluate)
app.command()(audit)
app.command()(export)


def reproduce_help() -> str:
    """Which table and figure is which."""
    lines = ["The paper's tables and figures, counted as it does:", "", "\b"]
    lines += [f"  {name}: {spec.title}" for name, spec in (TABLES | FIGURES).items()]
    return "\n".join([*lines, "  (Figure 1 is a drawing of the idea, without data.)"])


@app.command(epilog=reproduce_help())
def reproduce(
    what: Annotated[str, typer.Argument(help="table1 to table5, figure2 to figure6")],
    runs: EvaluatedRuns,
    kind: Annotated[str, typer.Option("--format", help="of a table: text, markdown, latex (booktabs) or csv")] = "text",
    out: Annotated[
        Path | None,
        typer.Option(help="file; a figure's ending says its format (svg, pdf, png), and without one it is all three"),
    ] = None,
) -> None:
    """Make a table or figure of the paper from runs.

    Each cell has our value with its interval, the paper's, and the difference.
    """
    name = choose("table or figure", what, [*TABLES, *FIGURES])
    choose("format", kind, FORMATS)
    runs = [run for run in runs if run.name != RESULTS]  # OUT/* of a sweep has it beside the runs

    from worstclass.report.figures import save_figure
    from worstclass.reproduce import draw_figure, make_table, render

    if name in FIGURES:
        if kind != "text":
            raise UserError("--format is for tables; a figure's format is the ending of --out.")
        figure, remarks = draw_figure(name, runs)
        for path in save_figure(figure, out or Path(name)):
            say(f"{path}")
        for remark in remarks:
            say(remark)
        return
    table = make_table(name, runs)
    text = render(table, kind)
    if out is None:
        print(text, end="")
    else:
        write_atomic(out, text.encode())
        say(f"{out}")
    if kind == "csv" or out is not None:  # elsewhere they are part of the table
        for remark in [f"missing: {line}" for line in table.missing] + [f"note: {line}" for line in table.notes]:
            print(remark, file=sys.stderr)


@app.command()
def certify(
    run: RunFolder,
    also: Annotated[
        list[Path] | None,
        typer.Option(help="folder with an evaluation of another classifier, say of the last epoch; repeatable"),
    ] = None,
    delta: Annotated[
        float, typer.Option(min=1e-12, max=0.999, help="the bounds hold with probability 1 - delta")
    ] = 0.05,
    gamma: Annotated[float, typer.Option(min=1e-12, help="margin of theorem 3, for linear models")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="also write the certificates as JSON")] = None,
    data_dir: DataDir = Path("data"),
    allow_code: AllowCode = False,
) -> None:
    """Compute the paper's theorems on a run.

    Both sides of each, and whether its assumptions hold.
    """
    from worstclass.runs.run import open_run
    from worstclass.theory.certify import certify_run
    from worstclass.theory.theorems import certificate_lines

    certificates = certify_run(
        open_run(run), others=also or (), delta=delta, gamma=gamma, data_dir=data_dir, allow_code=allow_code
    )
    for line in certificate_lines(certificates):
        say(line)
    if out:
        write_json(out, [certificate.as_dict() for certificate in certificates])


@app.command()
def report(
    runs: EvaluatedRuns,
    out: Annotated[Path, typer.Option(help="the page; its figures go beside it")] = Path("report.html"),
    base: Annotated[
        Path | None,
        typer.Option(help="vanilla run for rho; default: the first one among RUNS", autocompletion=complete_runs),
    ] = None,
    gallery: Annotated[
        bool, typer.Option(help="attacked images of the weakest class; they need weights and data")
    ] = True,
    hourly_price: Annotated[float | None, typer.Option(min=0, help="price of an hour of the machine")] = None,
    data_dir: DataDir = Path("data"),
    allow_code: AllowCode = False,
) -> None:
    """Compare evaluated runs on one page.

    Prints a table, and writes figures and a self-contained HTML page; runs of one recipe are grouped over seeds.
    """
    from worstclass.report import group_results, load_results, write_report

    results = load_results([run for run in runs if run.name != RESULTS], base)
    groups = group_results(results)
    print_table(results, groups)
    write_report(
        results,
        out,
        groups=groups,
        data_dir=data_dir,
        allow_code=allow_code,
        gallery=gallery,
        hourly_price=hourly_price,
    )
    say(f"Report: {out}, its figures beside it.")


app.command()(leaderboard)


@app.command()
def recipes() -> None:
    """List the recipes that ship with the package."""
    for name in recipe_names():
        say(f"{name:34s} {recipe_comment(name)}")


@app.command()
def demo(out: Annotated[Path, typer.Option(help="folder of the demo")] = Path("demo"), device: Device = "auto") -> None:
    """Train, attack and compare TRADES and WAT.

    On the data that ships with the package; a few minutes on a CPU.
    """
    from worstclass.cli.demo import RECIPES, train_and_attack
    from worstclass.report import group_results, headline, load_results, write_report
    from worstclass.report.results import strongest_attack

    folders = [out / Path(recipe).stem for recipe in RECIPES]
    rule("TRADES and WAT, side by side: training, then attacks on the test images")
    train_and_attack(RECIPES, folders, device)
    results = load_results(folders)
    print_table(results)
    groups = group_results(results)
    for sentence in headline(groups, strongest_attack(results)):
        say(sentence)
    write_report(results, out / "report.html", groups=groups)
    say(f"\nReport: {out / 'report.html'}; figures beside it; runs: {', '.join(map(str, folders))}.")
    say(f"Delete {out} to run the demo afresh.")


def main() -> None:
    """Run the command; what the user can put right is one line on standard error and exit code 2."""
    os.environ["MPLBACKEND"] = "agg"  # figures go to files; a notebook's backend, inherited, may not be installed here
    with guarded():
        show_log()
        sys.exit(app(standalone_mode=False) or 0)


if __name__ == "__main__":
    main()
