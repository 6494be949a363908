"""What a person at the terminal reads: lines and tables."""

import logging
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from worstclass.errors import visible
from worstclass.execution.torchrun import follows
from worstclass.inputs.radius import show_radius
from worstclass.metrics.percentages import percent, percent_interval

if TYPE_CHECKING:  # to print a line needs no torch
    import torch

    from worstclass.bench import Curve, StepTime, Timing
    from worstclass.report import Group, Result

WIDEST_TABLE = 260  # characters; a reason why a run failed may be longer
console = Console(quiet=follows())


def say(text: RenderableType, where: Console | None = None) -> None:
    """Print as it is: no colour guessing, no wrapping of long lines."""
    (where or console).print(
        visible(text) if isinstance(text, str) else text, highlight=False, soft_wrap=True, markup=False, emoji=False
    )


def show_log() -> None:
    """What the library logs, how far a long reading is, goes to standard error."""
    log = logging.getLogger("worstclass")
    log.setLevel(logging.WARNING if follows() else logging.INFO)
    if not log.handlers:
        log.addHandler(logging.StreamHandler())


def fail_line(text: str) -> None:
    """One line on standard error."""
    print(f"failed: {visible(text)}", file=sys.stderr)


def fold(line: str, width: int) -> str:
    """A line of parts that are two spaces apart, over as many lines as a narrow terminal needs: no number is cut."""
    lines = [""]
    for part in re.split(r"(?<=\S)  (?=\S)", line):
        if lines[-1] and len(lines[-1]) + 2 + len(part) > width:
            lines.append(" " * 4 + part)
        else:
            lines[-1] += f"  {part}" if lines[-1] else part
    return "\n".join(lines)


def short(name: str, longest: int = 20) -> str:
    """A class's name that leaves room for numbers: of a long one, both ends."""
    return name if len(name) <= longest else f"{name[: longest // 2]}\u2026{name[1 - longest // 2 :]}"


def rule(title: str) -> None:
    """A line with a title, between the parts of a longer job."""
    console.rule(title, align="left")


def print_timings(timings: "Sequence[Timing]") -> None:
    """Programs side by side, each with its time as a ratio to the last."""
    table = Table("", "Seconds", "Faster by", "Forward passes", "Backward passes", "Standing", "It alone breaks")
    for timing in timings:
        alone = sum(int((~timing.standing & other.standing).sum()) for other in timings)
        table.add_row(
            timing.name,
            f"{timing.seconds:.1f}",
            f"{timings[-1].seconds / timing.seconds:.2f}",
            f"{timing.passes.forward:,}",
            f"{timing.passes.backward:,}",
            f"{int(timing.standing.sum())}/{len(timing.standing)}",
            f"{alone}",
        )
    print_wide(table)
    same = (timings[0].standing == timings[-1].standing).mean()
    say(f"Same verdict on {percent(same)}% of the images.")


def print_steps(times: "Sequence[StepTime]", ceiling: float, title: str, device: "torch.device") -> None:
    """Ways to take a training step, each with its speed as a ratio to the first."""
    import torch

    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    table = Table(
        "", "ms a step", "Faster by", "Images/s", "TFLOP/s", "Of ceiling", "Peak GiB", "Start s", title=Text(title)
    )
    for each in times:
        table.add_row(
            each.name,
            f"{1e3 * each.seconds:.2f}",
            f"{times[0].seconds / each.seconds:.2f}",
            f"{each.images:.0f}",
            f"{each.flops / 1e12:.2f}",
            f"{each.flops / ceiling:.1%}",
            f"{each.memory / 2**30:.2f}" if each.memory else "",
            f"{each.start:.1f}",
        )
    print_wide(table)
    say(f"Ceiling: a large matrix product on this {where} in this run, {ceiling / 1e12:.2f} TFLOP/s.")


def print_curves(curves: "Sequence[Curve]", trained: "Sequence[Curve]") -> None:
    """Runs by the clock, one a row; of those `trained` now their epochs too, as far as they were validated."""
    from worstclass.bench.robustness import shared_attack
    from worstclass.report.results import attack_title

    for curve in trained:
        table = Table("Epoch", "Seconds", "Average %", "Worst class %", "", title=Text(visible(curve.name)))
        for point in curve.points:
            accuracy = percent(point.average), percent(point.worst)
            table.add_row(f"{point.epoch}", f"{point.seconds:.1f}", *accuracy, "kept" if point == curve.kept else "")
        print_wide(table)
    attack = shared_attack(curves)
    tested = [f"{attack_title(attack)}, test %", "Worst class %"] if attack else []
    kinds = {curve.valid_attack.upper() for curve in curves}
    measured = f"Validation {'/'.join(sorted(kinds))} %"
    table = Table("", "Seconds", "Compile s", "Kept epoch", measured, "Worst class %", *tested)
    for curve in curves:
        kept, compiled = curve.kept, "" if curve.prepare is None else f"{curve.prepare:.1f}"
        cells = [curve.name, f"{curve.seconds:.1f}", compiled, f"{kept.epoch}"]
        attacked = f" {curve.valid_attack.upper()}" if len(kinds) > 1 else ""
        cells += [percent(kept.average) + attacked, percent(kept.worst) + attacked]
        cells += [percent(curve.test[attack][key]["value"]) for key in ("average", "worst")] if attack else []
        table.add_row(*(Text(visible(cell)) for cell in cells))
    print_wide(table)
    for curve in trained:
        took = f"{curve.seconds:.1f} s from the start of the process to selected weights"
        say(f"{visible(curve.name)}: {took}, on {curve.machine}.")


def print_card(card: dict[str, Any]) -> None:
    """The card's main measures as a table; with rho, and against what, where there is a base."""
    from worstclass.metrics.tail import has_many
    from worstclass.report.results import attack_title
    from worstclass.report.tables import TENTH, TENTH_NOTE, base_name, number, weakest

    base, many = card.get("base"), has_many(len(card["class_names"]))
    tenth, rho = [TENTH] if many else [], ["rho"] if base else []
    heads = ["Attack", "Average %", "Worst class %", "", *tenth, "Class variance", *rho]
    caption = "[95% interval]" + (f"; rho is against {base_name(base)}" if base else "")
    caption += f"\n{TENTH_NOTE}" if many else ""
    table = Table(*heads, caption=Text(visible(caption)), caption_justify="left")
    for name, column in card["columns"].items():
        cells = [attack_title(name), percent_interval(column["average"]), percent_interval(column["worst"])]
        cells += [weakest(column), *([percent_interval(column["worst_tenth"])] if many else [])]
        cells.append(number(column["class_variance"], 4))
        if base:
            cells.append(number(column["against_base"]["rho"], 2, sign=True) if "against_base" in column else "")
        table.add_row(*(Text(visible(cell)) for cell in cells))  # names are not markup
    print_wide(table)


def print_findings(card: dict[str, Any], *, every: bool) -> None:
    """What the checks found: all of it with a verdict, or only what needs attention."""
    from worstclass.evaluation.checks import load_findings, verdict

    findings = load_findings(card)
    for finding in findings:
        if every or not finding.passed:
            state = "passed" if finding.passed else "FAILED"
            say(f"{state}  {finding.name}: {finding.seen}. {finding.advice}".rstrip())
    if every:
        say(verdict(findings))


def print_table(results: "list[Result]", groups: "Sequence[Group]" = ()) -> None:
    """The comparison, and methods over their seeds where one has several; on a narrow terminal wide rather than cut."""
    from worstclass.report import rich_table
    from worstclass.report.groups import has_seeds
    from worstclass.report.leaderboard import leaderboard_table

    about = results[0].card["about"]
    norm = {"linf": "L-inf", "l2": "L2"}[about["norm"]]
    title = f"{about['data']}, {norm} radius {show_radius(about['eps'])}, {len(results[0].outcomes.labels)} images"
    print_wide(rich_table(results, visible(title)))
    if has_seeds(groups):
        print_wide(leaderboard_table(groups, list(groups[0].columns), "Over seeds"))


def print_wide(table: Table) -> None:
    """A table with room for what it holds: on a narrow terminal a line that wraps is better than a cut number."""
    width = Console(width=WIDEST_TABLE).measure(table).maximum
    Console(width=max(console.width, width), quiet=follows()).print(table)
