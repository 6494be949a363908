"""Options that several commands share, and how a shell completes them. Nothing here imports torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from worstclass.config.fields import parse_number
from worstclass.config.recipe import recipe_names
from worstclass.errors import UserError
from worstclass.inputs.names import MAX_SIZE, RECIPE, Norm, check_device_name, check_run_folder
from worstclass.inputs.radius import check_radius

PICKLED = (".pt", ".pth", ".ckpt", ".pkl", ".bin")


def complete_recipes(incomplete: str) -> list[str]:
    """Shipped recipes that begin so; the shell itself completes paths."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_runs(incomplete: str) -> Iterator[str]:
    """Run folders that begin so, in the folder typed so far and in `runs`."""
    typed = Path(incomplete if incomplete.endswith("/") else f"{incomplete}?").parent
    for parent in dict.fromkeys((typed, Path("runs"))):
        try:
            folders = sorted(entry for entry in parent.iterdir() if (entry / RECIPE).is_file())
        except OSError:
            continue
        yield from (str(folder) for folder in folders if str(folder).startswith(incomplete))


def check_given_run(folder: Path | None) -> Path | None:
    """The folder that an option was given, if any: it must be that of a run."""
    return None if folder is None else check_run_folder(folder)


ImageSize = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_SIZE,
        help="crop images of a folder or a library at the centre and resize them to so many pixels a side",
    ),
]
TestFraction = Annotated[
    float | None,
    typer.Option(help="fraction of each class for testing, of a folder without train/ and test/, as in the recipe"),
]
DataDir = Annotated[Path, typer.Option(help="where CIFAR's binary files are, or are downloaded to")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda", callback=check_device_name)]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="let a recipe or run import a model of your own")]
Search = Annotated[
    str | None,
    typer.Option(
        help="precision in which attacks search: fp32, tf32 or bf16; what they find is verified in fp32. "
        "Default on a GPU: bf16 for our networks, tf32 for a model of your own"
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="a run folder", callback=check_given_run, autocompletion=complete_runs)]
EvaluatedRuns = Annotated[list[Path], typer.Argument(help="folders of evaluated runs", autocompletion=complete_runs)]


def radius(text: str, norm: Norm = "linf") -> float:
    """`--eps`, such as 8/255."""
    try:
        value = float(str(parse_number(text)))
    except ValueError as error:
        raise UserError(f"--eps: {error}.") from None
    if not 0 < value < float("inf"):
        raise UserError(f"--eps must be a positive number, not {text}.")
    return check_radius(value, norm)


def check_weights(path: Path) -> Path:
    """`--weights`, if there is such a file and it is no pickle by its name."""
    if not path.is_file():
        raise UserError(f"there are no weights at {path}.")
    if path.suffix in PICKLED:
        raise UserError(
            f"{path} is a pickle by its name, and none is ever loaded: save the state_dict as safetensors, "
            "with safetensors.torch.save_file(model.state_dict(), PATH)."
        )
    return path


@contextmanager
def own_options() -> Iterator[None]:
    """Where a command without a recipe reads data: an error names its option, not the key of a recipe."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for key in ("image_size", "test_fraction"):
            option = "--" + key.replace("_", "-")
            text = text.replace(f"{key}, as in --set {key}=", f"{option} ")
        raise UserError(text) from None


def refuse(target: str, why: str, options: Mapping[str, object]) -> None:
    """Raise if one of the options was given that do not go with this target."""
    for option, value in options.items():
        if value is not None:
            raise UserError(f"{option} {why.format(target)}.")
