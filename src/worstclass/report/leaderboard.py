"""The table of methods: mean and standard deviation over seeds, as text, Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from worstclass.errors import visible
from worstclass.metrics.percentages import percent, percent_interval
from worstclass.report.groups import Group, by_worst
from worstclass.report.markup import latex_table, markdown_table, plain_text
from worstclass.report.results import attack_title
from worstclass.report.tables import TENTH, TENTH_NOTE, near_zero_notes, number

WORDS = (0, 1, 6)  # columns that are not numbers
MANY = 3  # lines on settings that differ, at most
SMALL = 10  # degrees of freedom below which a spread over seeds is itself uncertain


def leaderboard_header(groups: Sequence[Group]) -> tuple[str, ...]:
    """The names of the columns; with many classes the worst tenth is one of them."""
    tenth, gap = ([TENTH], ["Worst tenth - base"]) if groups[0].many else ([], [])
    accuracies = ("Average %", "Worst class %", "Pooled worst %", "", *tenth)
    return ("Attack", "Method", "Seeds", *accuracies, "Average - base", "Worst - base", *gap, "rho")


def leaderboard_rows(groups: Sequence[Group], attacks: Iterable[str]) -> list[tuple[str, ...]]:
    """The cells of the table, as text: for each attack a row for each method, the best worst class first."""
    rows = []
    for attack in attacks:
        for group in by_worst(groups, attack):
            column = group.columns[attack]
            against = column.get("against_base", {})
            gaps = [
                signed(against[key]) if key in against else "base" if group.is_base else "" for key in group.differences
            ]
            rows.append(
                (
                    attack_title(attack),
                    group.title,
                    str(len(group.results)),
                    with_deviation(column["average"]),
                    with_deviation(column["worst"]),
                    percent_interval(column["pooled_worst"]),
                    str(column["pooled_worst"]["class"]),
                    *([with_deviation(column["worst_tenth"])] if group.many else []),
                    *gaps,
                    _rho(column["rho"], len(group.results)) if not group.is_base else "base",
                )
            )
    return rows


def with_deviation(mean: Mapping[str, Any]) -> str:
    """`47.9 ± 0.4 [46.8, 49.1]`: mean, standard deviation over seeds if there are two, interval."""
    deviation = "" if mean["std"] is None else f" ± {percent(mean['std'])}"
    return f"{percent(mean['value'])}{deviation} [{percent(mean['low'])}, {percent(mean['high'])}]"


def signed(gap: Mapping[str, Any]) -> str:
    """A difference in points: `+7.0 [+3.6, +11.3]`."""
    return percent_interval(gap, sign=True)


def _rho(rho: dict[str, Any] | None, seeds: int) -> str:
    if rho is None:
        return ""
    if seeds == 1:
        return number(rho, 2, sign=True)
    return f"{rho['value']:+.2f}" + ("" if rho["std"] is None else f" ± {rho['std']:.2f}")


def leaderboard_notes(groups: Sequence[Group]) -> list[str]:
    """What the numbers mean, and what they leave out."""
    by_attack = {attack: column["degrees"] for group in groups for attack, column in group.columns.items()}
    weak = near_zero_notes((group.title, group.results, group.columns) for group in groups)
    degrees = min((found for found in by_attack.values() if found), default=0)
    tenth = [TENTH_NOTE] if groups[0].many else []
    unpaired = [(r.title, n) for group in groups for r in group.results for n in r.notes if "is compared with" in n]
    if degrees == 0:
        alone = "[95% interval], for the draw of images alone: no method has two seeds, so seeds are not accounted for."
        told = [note for _, note in unpaired] + _without(groups) + weak
        return [alone, *tenth, *told, *_unlike(groups), *_left_out(groups)]
    small = ": a small sample, read the intervals with care" if degrees < SMALL else ""
    freedom = "degree of freedom" if degrees == 1 else "degrees of freedom"
    lines = [
        "Mean ± standard deviation over seeds [95% interval, for the draw of images and of seeds].",
        f"The spread over seeds is that of all methods together, {degrees} {freedom}{small}.",
        "Worst class: mean of each seed's own. Pooled: the class that is lowest over all seeds [for images alone].",
        *tenth,
    ]
    if any(group.columns[attack]["rho"] for group in groups for attack in group.columns):
        lines.append("rho: mean over seeds, each against the base of its own seed; of one seed [for images alone].")
        lines += [f"rho of {title} is against the base of another seed." for title, _ in unpaired]
        if len({frozenset(group.seeds) for group in groups if not group.is_base}) > 1:
            lines.append("Rows of other seeds have other bases: compare rho among rows of the same seeds alone.")
    if single := [attack_title(attack) for attack, found in by_attack.items() if not found]:
        lines.append(f"Under {', '.join(single)} no method has two seeds: intervals there are for images alone.")
    return lines + _without(groups) + weak + _unlike(groups) + _left_out(groups) + _of_one_start(groups)


def _without(groups: Sequence[Group]) -> list[str]:
    """Where there is no rho, or a mean of rho is not over all seeds."""
    lines = []
    for group in groups:
        for attack, column in group.columns.items():
            cells = [run.columns[attack].get("against_base", {}).get("rho") for run in group.results]
            undefined = sum(rho is not None and rho["value"] is None for rho in cells)
            if undefined and column["rho"] is None:
                lines.append(f"rho of {group.title} under {attack} is undefined: the worst class of its base is at 0.")
            elif undefined:
                lines.append(
                    f"rho of {group.title} under {attack} leaves out {undefined} of {len(group.results)} seeds: "
                    "the worst class of their base is at 0."
                )
    return lines


def _left_out(groups: Sequence[Group]) -> list[str]:
    """Methods without a row under an attack that others have."""
    lines = []
    for attack in dict.fromkeys(attack for group in groups for attack in group.columns):
        for group in groups:
            lacking = [run for run in group.results if attack not in run.columns]
            if lacking and len(lacking) < len(group.results):
                count = f"{len(lacking)} of its {len(group.results)} seeds have"
                lines.append(f"{group.title} has no row under {attack}: {count} not been evaluated under it.")
            elif lacking:
                lines.append(f"{group.title} has not been evaluated under {attack}.")
    return lines


def _of_one_start(groups: Sequence[Group]) -> list[str]:
    """Methods whose seeds went on from one checkpoint."""
    lines = []
    for group in groups:
        starts = [run.run.about["fork"]["weights"] for run in group.results if run.run and run.run.about.get("fork")]
        if len(set(starts)) < len(starts):
            lines.append(f"{group.title}: seeds that went on from one checkpoint vary less than whole runs would.")
    return lines


def _unlike(groups: Sequence[Group]) -> list[str]:
    """Where methods are not compared like with like: other settings, one line for those that share them, or one in all
    where these are many; and attacks that the base lacks."""
    titles: dict[str, dict[str, None]] = {}
    lacking: dict[str, dict[str, None]] = {}
    for group in groups:
        for result in group.results:
            if result.unlike:
                titles.setdefault(result.unlike, {})[group.title] = None
            for attack in group.columns if result.base else ():
                if "against_base" not in result.columns[attack]:
                    lacking.setdefault(result.base, {})[attack] = None
    lines = [
        f"{'; '.join(who)} {'differs' if len(who) == 1 else 'differ'} from the base in more than the method: {what}."
        for what, who in titles.items()
    ]
    if len(lines) > MANY:
        keys = dict.fromkeys(key for what in titles for key in re.findall(r"(?:^|, )([^(,]+) \(", what))
        count = len({title for who in titles.values() for title in who})
        lines = [
            f"{count} of {len(groups)} rows differ from the base in more than the method ({', '.join(keys)}): "
            "the CSV says which in what, column `unlike`."
        ]
    return lines + [
        f"{base} has not been evaluated under {', '.join(it)}: no rho there." for base, it in lacking.items()
    ]


def leaderboard_table(groups: Sequence[Group], attacks: Sequence[str], title: str) -> Table:
    """For the terminal."""
    caption = Text(visible("\n".join(leaderboard_notes(groups))))
    table = Table(title=Text(title), title_justify="left", caption=caption, caption_justify="left")
    for index, name in enumerate(leaderboard_header(groups)):
        table.add_column(name, justify="left" if index in WORDS else "right", no_wrap=True)
    previous = ""
    for row in leaderboard_rows(groups, attacks):
        if previous and row[0] != previous:
            table.add_section()
        first = "" if row[0] == previous else row[0]
        table.add_row(*(Text(visible(cell)) for cell in (first, *row[1:])))  # names are not markup
        previous = row[0]
    return table


def render_leaderboard(groups: Sequence[Group], attacks: Sequence[str], kind: str) -> str:
    """The table as `text`, `markdown`, `latex` or `csv`; the notes are below it, or comments."""
    return _WRITERS[kind](groups, attacks)


def _text(groups: Sequence[Group], attacks: Sequence[str]) -> str:
    return plain_text(leaderboard_table(groups, attacks, "Over seeds")) + "\n"


def _markdown(groups: Sequence[Group], attacks: Sequence[str]) -> str:
    return markdown_table(
        leaderboard_header(groups), leaderboard_rows(groups, attacks), WORDS, leaderboard_notes(groups)
    )


def _latex(groups: Sequence[Group], attacks: Sequence[str]) -> str:
    return latex_table(leaderboard_header(groups), leaderboard_rows(groups, attacks), WORDS, leaderboard_notes(groups))


def _csv(groups: Sequence[Group], attacks: Sequence[str]) -> str:
    """One line for each number, in full precision; accuracies are fractions, `seeds` the value of each seed, `unlike`
    the settings in which the row is not the base's."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["attack", "method", "runs", "measure", "mean", "std", "low", "high", "paper", "seeds", "unlike"])
    for attack in attacks:
        for group in by_worst(groups, attack):
            column = group.columns[attack]
            tenth = ("worst_tenth",) if group.many else ()
            keys = ("average", "worst", "pooled_worst", *tenth, "rho")
            cells = {key: column[key] for key in keys if column[key]}
            cells |= {key: column["against_base"][key] for key in group.differences if "against_base" in column}
            unlike = "; ".join(dict.fromkeys(result.unlike for result in group.results if result.unlike))
            for measure, cell in cells.items():
                paper = (column["paper"] or {}).get(measure)
                values = [cell["value"], cell.get("std"), cell["low"], cell["high"], paper]
                shown = ["" if value is None else repr(float(value)) for value in values]
                seeds = " ".join(repr(float(value)) for value in cell.get("seeds", []))
                writer.writerow([attack, group.title, len(group.results), measure, *shown, seeds, unlike])
    return buffer.getvalue()


_WRITERS: dict[str, Callable[[Sequence[Group], Sequence[str]], str]] = {
    "text": _text,
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
}
