"""Draw docs/diagrams/*.svg: the rooms of the package, and the life of a training step.

Text stands in filled boxes and lines are grey, so that both are readable on a light and on a dark page.
Run it after a change here: python tools/draw_diagrams.py. tests/docs/test_site.py compares LAYERS with the imports.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "diagrams"
FILL = {"room": "#3f51b5", "file": "#00695c", "step": "#3f51b5", "epoch": "#6a3d9a"}
LINE = "#8a90a0"


@dataclass(frozen=True)
class Room:
    """A box of the picture: its name, what it does, and the folders or files of the package in it."""

    title: str
    text: str
    members: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.members or (self.title,)


GROUND = "ground files"
# From the top down: a room imports rooms of its own row or of rows below it.
LAYERS: tuple[tuple[Room, ...], ...] = (
    (Room("cli", "the command: options, progress, exit codes"),),
    (
        Room("integrations", "Lightning"),
        Room("auditing", "one call"),
        Room("export", "model card"),
        Room("sweep", "many runs"),
        Room("reproduce", "paper"),
        Room("bench", "timing"),
    ),
    (Room("theory", "the paper's theorems on a run"), Room("report", "page, leaderboard, figures, watch")),
    (Room("evaluation", "attack the test images; outcomes, checks, card, seeds"),),
    (Room("runs", "a run on disk: train, resume, select the epoch"),),
    (Room("config", "the keys of a recipe, their owners, the methods by name"),),
    (Room("training", "one step, the loop, checkpoints, schedules, averages, AWP"),),
    (Room("attacks", "PGD, AutoAttack"), Room("strategies", "WAT, FRL, guarded, ...")),
    (
        Room("nouns", "types, stats, objectives", ("types", "stats", "objectives", "records")),
        Room("data", "sources, sampling"),
        Room("models", "by name or factory"),
    ),
    (
        Room("execution", "precision, processes"),
        Room("inputs", "names, radii, images"),
        Room("metrics", "measures, intervals"),
    ),
    (Room(GROUND, "files, errors, randomness"),),
)
# What a row (by its first room) writes, and the row that reads it.
FILES = (
    ("runs", "run folder", "recipe, log, checkpoints", "evaluation"),
    ("evaluation", "card.json, outcomes.npz", "each image's prediction", "report"),
    ("report", "report.html", "leaderboard, figures", None),
)


def box(x: float, y: float, width: float, height: float, kind: str, title: str, *lines: str) -> str:
    """A filled box with a bold title and lines of text."""
    middle, first = x + width / 2, y + height / 2 + 5 - 8 * len(lines)
    rows = [f'<text x="{middle:g}" y="{first:g}" font-weight="bold" font-size="13">{escape(title)}</text>']
    rows += [
        f'<text x="{middle:g}" y="{first + 17 * (i + 1):g}" font-size="12">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{FILL[kind]}"/>'
    return "\n".join([shape, *rows])


def arrow(*points: tuple[float, float]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="2" marker-end="url(#head)"/>'


def picture(width: float, height: float, title: str, parts: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" font-family="system-ui, sans-serif" fill="white" text-anchor="middle">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{LINE}"/></marker></defs>',
            *parts,
            "</svg>\n",
        ]
    )


def draw_architecture() -> str:
    """Rows of rooms, arrows in the direction of imports; beside them the files that rows write and read."""
    width, height, gap, space, left, right = 640.0, 46.0, 20.0, 8.0, 720.0, 210.0
    top = {room.title: row * (height + gap) for row, layer in enumerate(LAYERS) for room in layer}
    parts = []
    for row, layer in enumerate(LAYERS):
        y, each = row * (height + gap), (width - space * (len(layer) - 1)) / len(layer)
        parts += [
            box(i * (each + space), y, each, height, "room", room.title, room.text) for i, room in enumerate(layer)
        ]
        if row + 1 < len(LAYERS):
            parts.append(arrow((width / 2, y + height + 1), (width / 2, y + height + gap - 2)))
    for writer, title, text, reader in FILES:
        y = top[writer]
        parts.append(box(left, y, right, height, "file", title, text))
        parts.append(arrow((width + 2, y + height / 2), (left - 2, y + height / 2)))
        if reader:  # out of the top of the file, into the side of the row that reads it
            corner, middle = top[reader] + height - 8, left - 36
            parts.append(
                arrow((left + 20, y - 1), (left + 20, y - 10), (middle, y - 10), (middle, corner), (width + 2, corner))
            )
    return picture(left + right, len(LAYERS) * (height + gap) - gap, "Rooms of the package and their imports", parts)


STEPS = (
    ("draw", "a batch of images", "class shares: quota,", "sampling; augment"),
    ("perturb", "attack each image", "radius_scale by class,", "targets"),
    ("losses", "clean and attacked", "one of each", "for every sample"),
    ("reduce", "to one number", "class weights: natural,", "robust, pair"),
    ("descend", "gradient, optimizer", "all-reduce over ranks;", "AWP around it"),
    ("follow", "average the weights", "EMA or FAWA;", "count by class"),
)
EPOCH = (
    ("update", "strategy.update(train, valid)", "writes the class weights in place"),
    ("validate", "attack the validation images", "with the weights that will ship"),
)


def draw_step() -> str:
    """The parts of a step in their order; below, what happens once an epoch and sets the class weights."""
    width, height, gap, low = 150.0, 86.0, 22.0, 150.0
    total = 6 * width + 5 * gap
    left = [i * (width + gap) for i in range(6)]
    parts = [box(x, 0, width, height, "step", *words) for x, words in zip(left, STEPS, strict=True)]
    parts += [arrow((x + width + 1, height / 2), (x + width + gap - 2, height / 2)) for x in left[:-1]]
    (update, *what), (validate, *how) = EPOCH
    wide = 2 * width + gap
    parts.append(box(left[0], low, left[3] + width, 70, "epoch", f"{update}, once an epoch", *what))
    parts.append(box(left[4], low, wide, 70, "epoch", f"{validate}, once an epoch", *how))
    parts.append(arrow((left[5] + width / 2, height + 1), (left[5] + width / 2, low - 2)))
    parts.append(arrow((left[4] - 1, low + 35), (left[3] + width + 2, low + 35)))
    for x in (left[0], left[1], left[3]):  # the parts that read class weights
        parts.append(arrow((x + width / 2, low - 1), (x + width / 2, height + 2)))
    return picture(total, low + 70, "The life of a training step", parts)


DRAWINGS = {"architecture.svg": draw_architecture, "step.svg": draw_step}


def main() -> None:
    """Write every drawing."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
