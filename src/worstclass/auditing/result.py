"""What an audit returns: it prints and shows itself, and plots, compares, saves and reports."""

import html
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from worstclass.errors import UserError, choose, visible
from worstclass.evaluation.card import compare_with_base
from worstclass.evaluation.checks import Finding, is_trusted, load_findings, verdict
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import Origin, check_comparable, load_evaluation, other_settings, save_evaluation
from worstclass.inputs.radius import same_radius, show_radius
from worstclass.metrics.measures import Measure
from worstclass.metrics.percentages import percent, percent_interval
from worstclass.metrics.tail import has_many
from worstclass.report.markup import plain_text
from worstclass.report.results import Result, attack_title, strongest_attack
from worstclass.report.tables import TENTH, TENTH_NOTE, weakest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_CLASSES = 12  # of many, the weakest
WORDS = ("Attack", "Class", "Which")


class Worst(NamedTuple):
    """The weakest class: its name, its accuracy, and the 95% interval of the accuracy of whichever class is weakest."""

    name: str
    value: float
    low: float
    high: float


class _Block(NamedTuple):
    """A table: its header and rows as text."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True, repr=False)
class AuditResult:
    """Accuracy of each class on clean images and under each attack, with 95% intervals.

    `card` has every measure as plain JSON, `outcomes` the prediction for each image, `notes` what was warned of.
    """

    card: dict[str, Any]
    outcomes: Outcomes
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path | str) -> "AuditResult":
        """From a folder that `save`, an audit with a cache, or `worstclass evaluate` has written."""
        return cls(*load_evaluation(Path(folder)))

    @property
    def title(self) -> str:
        """What was audited."""
        about = self.card["about"]
        return str(about["model"] if "model" in about else about["recipe"]["method"])

    @property
    def attack(self) -> str:
        """The strongest attack: `average`, `worst` and `plot` are of it."""
        return strongest_attack([self._result])

    @property
    def average(self) -> Measure:
        """The share of all images that hold under the strongest attack, with its interval."""
        return self.under(self.attack)[0]

    @property
    def worst(self) -> Worst:
        """The weakest class under the strongest attack."""
        return self.under(self.attack)[1]

    @property
    def worst_tenth(self) -> Measure:
        """The mean accuracy of the worst 10% of the classes under the strongest attack: for many classes."""
        found = self.card["columns"][self.attack]["worst_tenth"]
        return Measure(*(found[key] for key in ("value", "low", "high")))

    @property
    def _many(self) -> bool:
        return has_many(len(self.card["class_names"]))

    def under(self, attack: str) -> tuple[Measure, Worst]:
        """Average and worst class under one attack, or `natural`."""
        column = self.card["columns"][choose("attack", attack, list(self.card["columns"]))]
        average, worst = column["average"], column["worst"]
        return (
            Measure(*(average[key] for key in ("value", "low", "high"))),
            Worst(*(worst[key] for key in ("class", "value", "low", "high"))),
        )

    @property
    def findings(self) -> list[Finding]:
        """What the checks found: whether to believe the numbers."""
        return load_findings(self.card)

    @property
    def per_class(self) -> Any:
        """A row for each class: images, and under each attack accuracy and its interval. A DataFrame where pandas is
        installed, elsewhere a list of dicts."""
        records: list[dict[str, Any]] = []
        for place, name in enumerate(self.card["class_names"]):
            record: dict[str, Any] = {"class": name}
            for attack, column in self.card["columns"].items():
                its = column["classes"][place]
                record |= {"images": its["images"], attack: its["value"]}
                record |= {f"{attack}_low": its["low"], f"{attack}_high": its["high"]}
            records.append(record)
        if importlib.util.find_spec("pandas") is None:
            return records
        return importlib.import_module("pandas").DataFrame(records)

    def compare(self, other: "AuditResult | Path | str") -> "AuditComparison":
        """This model less the other, image by image. Both must be audited on the same images in the same ball; in what
        more than the model they differ is a note."""
        base = other if isinstance(other, AuditResult) else AuditResult.load(other)
        check_comparable(self.card["about"], base.card["about"], base.title)
        if self.card["class_names"] != base.card["class_names"]:
            raise UserError(f"{base.title} was audited on other classes and cannot be compared.")
        shared = [name for name in self.card["columns"] if name in base.card["columns"]]
        count = len(self.card["class_names"])
        columns = {name: compare_with_base(self.outcomes, base.outcomes, name, count) for name in shared}
        differs = other_settings(Origin.read(self.card["about"]), Origin.read(base.card["about"]))
        notes = (f"{self.title} and {base.title} differ in more than the method: {differs}.",) if differs else ()
        return AuditComparison(self.title, base.title, columns, has_many(count), notes)

    def plot(self, attack: str | None = None) -> "Figure":
        """Accuracy of each class under one attack, the strongest unless said otherwise, as a Matplotlib figure."""
        from worstclass.report.figures import classwise

        name = self.attack if attack is None else choose("attack", attack, list(self.card["columns"]))
        return classwise([self._result], name)

    def save(self, folder: Path | str) -> None:
        """Write card.json and outcomes.npz, as an evaluated run has them: `worstclass report` reads the folder."""
        save_evaluation(Path(folder), self.card, self.outcomes)

    def report(self, page: Path | str) -> list[Path]:
        """Write a self-contained HTML page, its figures beside it; returns what was written."""
        from worstclass.report import write_report

        return write_report([self._result], Path(page), gallery=False)

    @property
    def _result(self) -> Result:
        return Result(self.title, Path(self.title), None, self.outcomes, self.card, self.card["columns"], False)

    def __str__(self) -> str:
        tables = _text(self._attacks()), _text(self._classes())
        return "\n".join([self._heading(), tables[0], self._weakest(), tables[1], *self._end()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For a notebook."""
        words = "".join(f"<p>{html.escape(line)}</p>" for line in (self._heading(), self._weakest()))
        end = "".join(f"<p>{html.escape(line)}</p>" for line in self._end())
        return f"<div>{words}{_html(self._attacks())}{_html(self._classes())}{end}</div>"

    def _heading(self) -> str:
        about, images, classes = self.card["about"], len(self.outcomes.labels), len(self.card["class_names"])
        return f"{self.title} on {about['data']}: {_ball(about)}, {images} images, {classes} classes"

    def _published(self) -> list[str]:
        """What RobustBench says of the same model."""
        about = self.card["about"]
        known = about.get("robustbench")
        if known is None:
            return []
        line = (
            f"RobustBench reports {percent(known['robust'])} average under {known['attack']}, "
            f"{percent(known['clean'])} on clean images ({known['data']}, {_ball(known)}, all test images)."
        )
        same = about["norm"] == known["norm"] and same_radius(about["eps"], known["eps"])
        return [line if same else f"{line} That does not compare with {_ball(about)} here."]

    def _attacks(self) -> _Block:
        many = self._many
        rows = [
            (
                attack_title(name),
                percent_interval(column["average"]),
                percent_interval(column["worst"]),
                weakest(column),
                *([percent_interval(column["worst_tenth"])] if many else []),
            )
            for name, column in self.card["columns"].items()
        ]
        return _Block(("Attack", "Average %", "Worst class %", "Which", *([TENTH] if many else [])), rows)

    def _classes(self) -> _Block:
        """The weakest first."""
        columns = self.card["columns"]
        left = [each["value"] for each in columns[self.attack]["classes"]]  # None where there are no images
        order = sorted(range(len(left)), key=lambda k: 2.0 if left[k] is None else left[k])
        rows = []
        for k in order[:SHOWN_CLASSES]:
            its = [column["classes"][k] for column in columns.values()]
            cells = ["" if each["value"] is None else percent_interval(each) for each in its]
            rows.append((str(self.card["class_names"][k]), str(its[0]["images"]), *cells))
        header = ("Class", "Images", *(f"{attack_title(name)} %" for name in columns))
        return _Block(header, rows)

    def _weakest(self) -> str:
        worst = self.card["columns"][self.attack]["worst"]
        more = f" (and {worst['ties'] - 1} more)" if worst["ties"] > 1 else ""
        return f"Weakest class under {attack_title(self.attack)}: {worst['class']}{more}, {percent_interval(worst)} %."

    def _end(self) -> list[str]:
        lines = []
        if len(self.card["class_names"]) > SHOWN_CLASSES:
            lines.append(f"The {SHOWN_CLASSES} weakest of {len(self.card['class_names'])} classes; per_class has all.")
        lines.append("[95% interval]")
        lines += [TENTH_NOTE] if self._many else []
        lines += self._published()
        findings = self.findings
        lines += [verdict(findings)] if is_trusted(findings) else []
        lines += [f"{finding.name}: {finding.seen}. {finding.advice}" for finding in findings if not finding.passed]
        return lines + [f"Note: {line}" for line in self.notes]


@dataclass(frozen=True, repr=False)
class AuditComparison:
    """One model less another on the same images, under each attack: differences, rho and McNemar's p-value. `notes` say
    what is not compared like with like."""

    title: str
    base: str
    columns: Mapping[str, Mapping[str, Any]]
    many: bool = False  # classes: the worst tenth is shown too
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        heading = f"{self.title} less {self.base}, points"
        return "\n".join([heading, _text(self._table()), "[95% interval]", *(f"Note: {line}" for line in self.notes)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heading = html.escape(f"{self.title} less {self.base}, points")
        end = "".join(f"<p>{html.escape(f'Note: {line}')}</p>" for line in self.notes)
        return f"<div><p>{heading}</p>{_html(self._table())}{end}</div>"

    def _table(self) -> _Block:
        shown = {"Average": "average_difference", "Worst class": "worst_difference"}
        shown |= {"Worst tenth": "worst_tenth_difference"} if self.many else {}
        rows = []
        for name, column in self.columns.items():
            gaps = [percent_interval(column[key], sign=True) for key in shown.values()]
            rows.append((attack_title(name), *gaps, f"{column['p_value']:.2g}"))
        return _Block(("Attack", *shown, "p (average)"), rows)


def _ball(threat: Mapping[str, Any]) -> str:
    """`L-inf radius 8/255`."""
    norm = {"linf": "L-inf", "l2": "L2"}[threat["norm"]]
    return f"{norm} radius {show_radius(threat['eps'])}"


def _text(block: _Block) -> str:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in block.header:
        table.add_column(Text(visible(name)), justify="left" if name in WORDS else "right", no_wrap=True)
    for row in block.rows:
        table.add_row(*(Text(visible(cell)) for cell in row))  # names are not markup
    return plain_text(table)


def _html(block: _Block) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in block.header)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
