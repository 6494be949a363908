"""The comparison table: one row for each attack and run, every figure with its 95% interval."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from worstclass.errors import visible
from worstclass.evaluation.card import near_zero
from worstclass.metrics.percentages import percent, percent_interval
from worstclass.metrics.tail import has_many
from worstclass.report.markup import latex_table, markdown_table
from worstclass.report.results import Result, attack_title

WORDS = (0, 1, 4)  # columns that are not numbers
INTERVAL = "[95% interval]"
TENTH = "Worst tenth %"
TENTH_NOTE = "Worst tenth: the mean accuracy of the 10% of the classes that are lowest."


def header(results: Sequence[Result]) -> tuple[str, ...]:
    """The names of the columns; with many classes the worst tenth is one of them."""
    tenth = [TENTH] if _many(results) else []
    return ("Attack", "Method", "Average %", "Worst class %", "", *tenth, "Class variance", "rho")


def _many(results: Sequence[Result]) -> bool:
    return has_many(len(results[0].class_names))


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The cells of the table, as text."""
    attacks = list(dict.fromkeys(name for result in results for name in result.columns))
    table: list[tuple[str, ...]] = []
    for attack in attacks:
        for result in results:
            if attack not in result.columns:
                continue
            column = result.columns[attack]
            against = column.get("against_base")
            table.append(
                (
                    attack_title(attack),
                    result.title,
                    percent_interval(column["average"]),
                    percent_interval(column["worst"]),
                    weakest(column),
                    *([percent_interval(column["worst_tenth"])] if _many(results) else []),
                    number(column["class_variance"], 4),
                    number(against["rho"], 2, sign=True) if against else "base" if result.is_base else "",
                )
            )
    return table


def number(measure: dict[str, Any], digits: int, *, sign: bool = False) -> str:
    """A value with its interval; an unbounded end is shown as infinity."""
    plus = "+" if sign else ""
    value, low, high = (measure[key] for key in ("value", "low", "high"))
    if value is None:
        return "undefined"  # of rho: the worst class of the base is at 0
    shown = f"{value:{plus}.{digits}f}"
    low_text = "-inf" if low is None else f"{low:{plus}.{digits}f}"
    high_text = "inf" if high is None else f"{high:{plus}.{digits}f}"
    return f"{shown} [{low_text}, {high_text}]"


def notes(results: Sequence[Result]) -> list[str]:
    """What to know about the comparison, below the table: with what, and where it is not like with like."""
    lines = [TENTH_NOTE] if _many(results) else []
    named = {result.title for result in results if result.is_base}
    bases = list(dict.fromkeys([*named, *(result.base for result in results if result.base)]))
    if len(bases) > 1:
        lines.append("rho compares each run with the base of its own seed.")
    lines += [f"rho is against {base}." for base in bases if base not in named]
    if any(
        c["against_base"]["rho"]["value"] is None for r in results for c in r.columns.values() if "against_base" in c
    ):
        lines.append("rho is undefined where the worst class of the base is at 0.0%: a gain is relative to it.")
    weak = near_zero_notes((result.title, [result], result.columns) for result in results)
    return lines + weak + [note for result in results for note in result.notes]


def near_zero_notes(methods: Iterable[tuple[str, Sequence[Result], Collection[str]]]) -> list[str]:
    """Where rho says little: of methods by title, with their runs and the attacks they are shown under; one line for
    those that share attack and base."""
    found: dict[tuple[str, float], list[str]] = {}
    for title, runs, attacks in methods:
        for attack in attacks:
            bases = [run.against for run in runs if run.against and "against_base" in run.columns[attack]]
            worst = [near_zero(base, attack, len(runs[0].class_names)) for base in bases]
            if low := [value for value in worst if value is not None]:
                found.setdefault((attack, min(low)), []).append(title)
    return [
        f"rho of {'; '.join(who)} under {attack_title(attack)} says little: "
        f"the worst class of {'its' if len(who) == 1 else 'their'} base is at {percent(worst)}%."
        for (attack, worst), who in found.items()
    ]


def weakest(column: Mapping[str, Any]) -> str:
    """The name of the worst class; where several are equally bad, how many."""
    worst = column["worst"]
    return str(worst["class"]) if worst["ties"] == 1 else f"{worst['ties']} classes"


def base_name(base: Mapping[str, Any]) -> str:
    """How a card's base is called: `trades-seed1 (trades, seed 1)`."""
    made = f"{base['recipe']['method']}, seed {base['seed']}" if "recipe" in base else base.get("model", "")
    return f"{base['folder']} ({made})" if made else str(base["folder"])


def render_table(results: Sequence[Result], kind: str) -> str:
    """The table as `markdown` or `latex`, its notes with it."""
    write = {"markdown": markdown_table, "latex": latex_table}[kind]
    return write(header(results), rows(results), WORDS, [INTERVAL, *notes(results)])


def rich_table(results: Sequence[Result], title: str) -> Table:
    """For the terminal."""
    caption = Text(visible("\n".join([INTERVAL, *notes(results)])))
    table = Table(title=Text(title), title_justify="left", caption=caption, caption_justify="left")
    for index, name in enumerate(header(results)):
        table.add_column(name, justify="left" if index in WORDS else "right", no_wrap=True)
    previous = ""
    for row in rows(results):
        if previous and row[0] != previous:
            table.add_section()
        table.add_row(
            Text(visible(row[0]) if row[0] != previous else ""), *(Text(visible(cell)) for cell in row[1:])
        )  # names are not markup
        previous = row[0]
    return table
