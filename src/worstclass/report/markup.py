"""A table of words and numbers as text, Markdown or LaTeX: the same code for `--format` and for the page's buttons."""

import io
from collections.abc import Collection, Sequence
from textwrap import fill

from rich.console import Console
from rich.table import Table

WIDEST = 1000  # characters of a table: nothing is cut
WIDTH = 160  # of a note below a Markdown table
LATEX = {
    "\\": "\\textbackslash{}",
    "{": "\\{",
    "}": "\\}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
} | {mark: f"\\{mark}" for mark in "&%#_$"}


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int], notes: Sequence[str] = ()
) -> str:
    """Columns in `words` are to the left, numbers to the right; the notes are below, in lines of up to `WIDTH`."""
    rule = ["---" if index in words else "---:" for index in range(len(header))]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (header, rule, *cells)]
    return "\n".join([*lines, *([""] if notes else []), *(fill(note, WIDTH) for note in notes)]) + "\n"


def latex_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int], notes: Sequence[str] = ()
) -> str:
    """With booktabs; a rule where the first cell changes. The notes are comments."""
    columns = "".join("l" if index in words else "r" for index in range(len(header)))
    lines = [f"% {note}" for note in notes]
    lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", " & ".join(map(escape_latex, header)) + " \\\\"]
    previous = ""
    for row in rows:
        lines += ["\\midrule"] if row[0] != previous else []
        lines.append(" & ".join(map(escape_latex, row)) + " \\\\")
        previous = row[0]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def plain_text(table: Table) -> str:
    """A table as lines of text, as wide as it needs to be. In a notebook too, where rich would show it elsewhere."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDEST, color_system=None, force_jupyter=False)
    console.width = console.measure(table).maximum
    console.print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()).strip("\n")


def escape_latex(text: str) -> str:
    """Text in which LaTeX finds no command."""
    return "".join(LATEX.get(mark, mark) for mark in text)
