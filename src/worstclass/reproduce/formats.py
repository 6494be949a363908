"""A table of the paper as text, Markdown, LaTeX or CSV."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from worstclass.report.markup import escape_latex, plain_text
from worstclass.report.results import attack_title
from worstclass.reproduce.tables import Block, Cell, Line, PaperTable

MEASURES = {"average": "avg.", "worst": "worst", "class_variance": "CV", "rho": "rho"}
DIGITS = {"average": 1, "worst": 1, "class_variance": 4, "rho": 3}
VALUES = ("ours", "std", "low", "high", "paper", "difference")
CAPTION = "Accuracies in percent, [95% interval]; under each of our rows the paper's, and ours less the paper's."
SEEDS = (
    "Of several seeds: mean ± standard deviation [interval for images and seeds]; below it each seed [images alone]."
)


def render(table: PaperTable, kind: str) -> str:
    """The table in one of `FORMATS`; what is missing is named below it, or as comments where there is room for none."""
    return _WRITERS[kind](table)


def _text(table: PaperTable) -> str:
    """For a terminal: the columns of each attack below those of the one before."""
    parts = [f"Table {table.number} of the paper: {table.title}. {_caption(table)}"]
    count = len(table.measures)
    for block in table.blocks:
        for start, attack in enumerate(table.attacks):
            shown = Table(title=f"{_name(block)}: {attack_title(attack)}", title_justify="left")
            for index, head in enumerate(("", "", *(MEASURES[measure] for measure in table.measures))):
                shown.add_column(head, justify="left" if index < 2 else "right", no_wrap=True)
            for line in block.lines:
                if not line.part:
                    shown.add_section()
                for row in _three(replace(line, cells=line.cells[start * count : (start + 1) * count])):
                    shown.add_row(*(Text(cell) for cell in row))
            parts.append(plain_text(shown))
    return "\n".join([*parts, *_remarks(table)]) + "\n"


def _markdown(table: PaperTable) -> str:
    lines = [f"**Table {table.number} of the paper: {table.title}.** {_caption(table)}"]
    for block in table.blocks:
        lines += ["", f"{_name(block)}:", ""] if len(table.blocks) > 1 else [""]
        lines.append("| | | " + " | ".join(_heads(table)) + " |")
        lines.append("|---|---|" + "---|" * len(_heads(table)))
        for line in block.lines:
            lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _three(line)]
    remarks = [f"- {remark}" for remark in _remarks(table)]
    return "\n".join([*lines, *([""] if remarks else []), *remarks]) + "\n"


def _latex(table: PaperTable) -> str:
    """With booktabs: one group of columns for each attack."""
    count = len(table.measures)
    groups = " & ".join(
        f"\\multicolumn{{{count}}}{{c}}{{{escape_latex(attack_title(attack))}}}" for attack in table.attacks
    )
    rules = "".join(f"\\cmidrule(lr){{{3 + i * count}-{2 + (i + 1) * count}}}" for i in range(len(table.attacks)))
    names = " & ".join({"rho": "$\\rho$"}.get(m, MEASURES[m]) for _ in table.attacks for m in table.measures)
    lines = [f"% {remark}" for remark in _remarks(table)]
    lines += ["\\begin{tabular}{ll" + "r" * (count * len(table.attacks)) + "}", "\\toprule"]
    for number, block in enumerate(table.blocks):
        lines += ["\\midrule"] if number else []
        lines += [
            f"\\multicolumn{{2}}{{l}}{{{escape_latex(_name(block))}}} & {groups} \\\\",
            rules,
            f" & & {names} \\\\",
        ]
        for line in block.lines:
            lines += [] if line.part else ["\\midrule"]
            lines += [" & ".join(map(escape_latex, row)) + " \\\\" for row in _three(line)]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _csv(table: PaperTable) -> str:
    """One line for each cell, in full precision."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["table", "data", "model", "method", "seeds", "run", "attack", "measure", *VALUES])
    for block in table.blocks:
        for line in block.lines:
            where = [table.number, block.data, block.model, line.title, line.seeds, line.run or ""]
            for c in line.cells:
                values = [getattr(c, name) for name in VALUES]
                shown = ["" if value is None else repr(float(value)) for value in values]
                writer.writerow([*where, c.attack, c.measure, *shown])
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[PaperTable], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}


def _caption(table: PaperTable) -> str:
    several = any(line.seeds > 1 for block in table.blocks for line in block.lines)
    return f"{CAPTION} {SEEDS}" if several else CAPTION


def _heads(table: PaperTable) -> list[str]:
    return [f"{attack_title(attack)} {MEASURES[m]}" for attack in table.attacks for m in table.measures]


def _name(block: Block) -> str:
    return f"{block.data}, {block.model}"


def _three(line: Line) -> list[list[str]]:
    """Ours, the paper's, and the difference; the last two only where the paper has the row, and below their mean for
    several seeds."""
    rows = [[line.title, "ours", *map(_ours, line.cells)]]
    if line.part:
        return rows
    if any(cell.paper is not None for cell in line.cells):
        rows.append(["", "paper", *("" if c.paper is None else f"{c.paper:g}" for c in line.cells)])
    if any(cell.difference is not None for cell in line.cells):
        rows.append(["", "difference", *(_signed(c) for c in line.cells)])
    return rows


def _ours(cell: Cell) -> str:
    digits = DIGITS[cell.measure]
    if cell.ours is None:
        return "-"
    ends = [("-inf", "inf")[i] if end is None else f"{end:.{digits}f}" for i, end in enumerate((cell.low, cell.high))]
    interval = "" if cell.low is None and cell.high is None else f" [{ends[0]}, {ends[1]}]"
    deviation = "" if cell.std is None else f" ± {cell.std:.{digits}f}"
    return f"{cell.ours:.{digits}f}{deviation}{interval}"


def _signed(cell: Cell) -> str:
    return "" if cell.difference is None else f"{cell.difference:+.{DIGITS[cell.measure]}f}"


def _remarks(table: PaperTable) -> list[str]:
    return [*(f"missing: {line}" for line in table.missing), *(f"note: {line}" for line in table.notes)]
