"""The report: one self-contained HTML file, and its figures as files beside it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import worstclass
from worstclass.checks import load_findings
from worstclass.config import to_toml
from worstclass.files import write_atomic
from worstclass.report import figures
from worstclass.report.results import Result, attack_title
from worstclass.report.tables import HEADER, rows


def headline(results: Sequence[Result]) -> list[str]:
    """What the numbers say, in sentences: the weakest class, and what each run gains and pays for it."""
    sentences = []
    shared = shared_attacks(results)
    attack = "pgd-100" if "pgd-100" in shared else shared[-1]  # natural is always there
    for result in results:
        column = result.columns[attack]
        average, worst = 100 * column["average"]["value"], 100 * column["worst"]["value"]
        sentences.append(
            f"{result.title}: {average:.1f}% on average under {attack_title(attack)}, "
            f"{worst:.1f}% for its weakest class, {column['worst']['class']}."
        )
        if against := column.get("against_base"):
            gain, change = against["worst_difference"], against["average_difference"]
            sure = "" if gain["low"] > 0 or gain["high"] < 0 else " (the interval of the change includes zero)"
            sentences.append(
                f"Against the vanilla run its weakest class changes by {100 * gain['value']:+.1f} points{sure} "
                f"and its average by {100 * change['value']:+.1f}."
            )
    return sentences


def write_report(results: Sequence[Result], out: Path) -> list[Path]:
    """Write the page and, in the same folder, each figure as SVG and PNG; returns what was written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = {f"classwise-{name}": figures.classwise(results, name) for name in shared_attacks(results)}
    drawn["training"] = figures.training(results)
    written = [out]
    for name, figure in drawn.items():
        for suffix in ("svg", "png"):
            path = out.with_name(f"{name}.{suffix}")
            with matplotlib.rc_context(figures.STYLE):
                figure.savefig(path, dpi=150, metadata={"Date": None} if suffix == "svg" else None)
            written.append(path)
    environment = Environment(
        loader=PackageLoader("worstclass.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("page.html.j2").render(
        version=worstclass.__version__,
        headline=headline(results),
        header=HEADER,
        rows=rows(results),
        figures={name: Markup(figures.to_svg(figure)) for name, figure in drawn.items()},  # made here, not input
        captions=_captions(results, drawn),
        results=results,
        findings=[load_findings(result.card) for result in results],
        recipes=[to_toml(result.run.config) for result in results],
    )
    write_atomic(out, page.encode())
    return written


def shared_attacks(results: Sequence[Result]) -> list[str]:
    """Attacks that every run was evaluated under."""
    return [name for name in results[0].columns if all(name in result.columns for result in results)]


def _captions(results: Sequence[Result], drawn: Iterable[str]) -> dict[str, str]:
    captions = {}
    for name in drawn:
        if name == "training":
            captions[name] = "Validation accuracy and class weights over the epochs, run by run."
            continue
        attack = name.removeprefix("classwise-")
        columns = [(result.title, result.columns[attack]["worst"]) for result in results]
        worst = "; ".join(f"{title}: weakest {w['class']}, {100 * w['value']:.1f}%" for title, w in columns)
        captions[name] = f"Accuracy of each class, {attack_title(attack)}. {worst}."
    return captions
