"""`worstclass data`: what to know of a data set before training on it."""

from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from worstclass.cli.console import print_wide, say
from worstclass.cli.options import DataDir, ImageSize, TestFraction, own_options
from worstclass.errors import UserError, visible
from worstclass.inputs.names import check_data_name

ROWS = 30  # classes that are shown one by one
WEAK = 0.4  # of a class's images that the simple classifier takes for others: then they are hard, not mislabelled


def data_command(
    data: Annotated[str, typer.Argument(help="a data set: cifar10, npz:PATH, folder:PATH, ...")],
    valid_fraction: Annotated[
        float, typer.Option(min=0, max=1, help="fraction of each class for validation, as in the recipe")
    ] = 0.06,
    valid_min: Annotated[
        int,
        typer.Option(min=0, help="least number of validation images of a class, up to a fifth, as in the recipe"),
    ] = 20,
    image_size: ImageSize = None,
    test_fraction: TestFraction = None,
    data_dir: DataDir = Path("data"),
) -> None:
    """Check a data set: images of each class, duplicates, blank images, disputed labels."""
    check_data_name(data)
    if not 0 < valid_fraction < 1:
        raise UserError("--valid-fraction must be between 0 and 1.")

    from worstclass.data import open_source, split_validation
    from worstclass.evaluation.data_check import check_data, split_note
    from worstclass.runs.run import own_validation

    with own_options():
        source = open_source(data, image_size=image_size, test_fraction=test_fraction, data_dir=data_dir)
        names, train, test = source.class_names, source.read("train"), source.read("test")
        if source.has_validation:
            valid = own_validation(source, train)
        else:
            train, valid = split_validation(train, len(names), valid_fraction, valid_min, class_names=names)
    own = source.has_validation
    found = check_data({"train": train, "valid": valid, "test": test}, source.class_names, own_validation=own)
    table = Table("Class", "Training", "Validation", "", "Test", "Disputed %", title=Text(visible(data)))
    order = sorted(range(source.num_classes), key=lambda k: found.counts["train"][k])
    for k in order if len(order) <= ROWS else order[:ROWS]:
        table.add_row(
            Text(visible(source.class_names[k])),
            *(str(found.counts[part][k]) for part in ("train", "valid")),
            f"+-{100 * found.half_width[k]:.0f}",
            str(found.counts["test"][k]),
            f"{100 * found.disputed[k]:.0f}",
        )
    print_wide(table)
    if len(order) > ROWS:
        say(f"The {ROWS} smallest of {len(order)} classes.")
    say("+-: half-width of the 95% interval of an accuracy of 50% on the validation images.")
    usual = median(found.disputed)
    weak = f" Here {100 * usual:.0f}% of a typical class: too hard for it to tell wrong labels." if usual > WEAK else ""
    say(f"Disputed: training images that a simple classifier assigns to other classes.{weak}")
    notes = source.notes() + split_note(found.counts, valid_fraction, own=own) + found.notes
    for line in notes:
        say(f"Note: {line}")
    if not notes:
        say("Nothing stands out.")
