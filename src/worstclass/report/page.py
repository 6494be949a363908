"""The report: one self-contained HTML file that draws itself, and its figures as files beside it."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from worstclass.config import to_toml
from worstclass.evaluation.checks import load_findings
from worstclass.evaluation.run_notes import run_notes
from worstclass.files import write_atomic
from worstclass.names import VERSION
from worstclass.radius import show_radii, show_radius
from worstclass.report import figures
from worstclass.report.gallery import make_gallery
from worstclass.report.groups import Group, group_results, has_seeds
from worstclass.report.leaderboard import leaderboard_header, leaderboard_notes, leaderboard_rows
from worstclass.report.results import Result, attack_title, shared_attacks, strongest_attack
from worstclass.report.tables import header, notes, rows, weakest
from worstclass.runs.notes import counts_of, distribution, effective_classes
from worstclass.runs.run import Run
from worstclass.tail import has_many
from worstclass.theory.certify import certify_outcomes, certify_training

SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "page_many.js", "page.js")


def headline(results: Sequence[Result], groups: Sequence[Group] | None = None) -> list[str]:
    """What the numbers say, in sentences: the weakest class, and what each method gains and pays for it.

    A sentence for each run, or for each of the `groups` where a method has several seeds. With many classes it has the
    worst tenth too, and intervals.
    """
    attack = strongest_attack(results)
    if groups is not None and has_seeds(groups):
        return [_group_sentence(group, groups, attack) for group in groups]
    sentences = []
    many = has_many(len(results[0].class_names))
    for result in results:
        column = result.columns[attack]
        average, worst = (_percent(column[key], interval=many) for key in ("average", "worst"))
        one = column["worst"]["ties"] == 1
        sentence = f"{result.title}: {average} on average under {attack_title(attack)}, " + (
            f"{worst} for its weakest class, {weakest(column)}" if one else f"{weakest(column)} at {worst}"
        )
        if many:
            sentence += f", {_percent(column['worst_tenth'], interval=True)} for its worst tenth of classes"
        if against := column.get("against_base"):
            sentence += _gains(result.base, against, many=many)
        sentences.append(sentence + ".")
    return sentences


def _group_sentence(group: Group, groups: Sequence[Group], attack: str) -> str:
    column = group.columns[attack]
    average, worst, tenth = (_percent(column[key], interval=group.many) for key in ("average", "worst", "worst_tenth"))
    count = len(group.results)
    seeds = "one seed" if count == 1 else f"{count} seeds"
    sentence = (
        f"{group.title}, {seeds}: {average} on average under {attack_title(attack)}, {worst} for the weakest class"
    )
    sentence += f", {tenth} for the worst tenth of classes" if group.many else ""
    if against := column.get("against_base"):
        sentence += _gains(next(each.title for each in groups if each.is_base), against, many=group.many)
    return sentence + "."


def _percent(measure: Mapping[str, Any], *, interval: bool) -> str:
    """`47.9 ± 0.4%`, the deviation over seeds if there are several; `47.9% [46.8, 49.1]` with its interval."""
    deviation = "" if measure.get("std") is None else f" ± {100 * measure['std']:.1f}"
    ends = f" [{100 * measure['low']:.1f}, {100 * measure['high']:.1f}]" if interval else ""
    return f"{100 * measure['value']:.1f}{deviation}%{ends}"


def _gains(base: str, against: Mapping[str, Any], *, many: bool) -> str:
    gains = [("worst_difference", "the weakest class")] + [("worst_tenth_difference", "the worst tenth")] * many
    words: list[str] = []
    for key, what in gains:
        gain = against[key]
        sure = "" if gain["low"] > 0 or gain["high"] < 0 else " (which may be chance: its interval includes zero)"
        words.append(f"{100 * gain['value']:+.1f}{'' if words else ' points'} for {what}{sure}")
    change = 100 * against["average_difference"]["value"]
    return f"; against {base} that is {', '.join(words)} and {change:+.1f} on average"


def write_report(
    results: Sequence[Result],
    out: Path,
    *,
    groups: Sequence[Group] | None = None,
    data_dir: Path = Path("data"),
    allow_code: bool = False,
    gallery: bool = True,
    hourly_price: float | None = None,
) -> list[Path]:
    """Write the page and, in the same folder, each figure as SVG and PNG; returns what was written.

    `groups` are those of `group_results`, if they are known already. `gallery` shows attacked images of the weakest
    class, for which it needs the weights and the data. `hourly_price` puts a price on the time that training took.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = {f"classwise-{name}": figures.classwise(results, name) for name in shared_attacks(results)}
    trained = [(result.title, result.run) for result in results if result.run is not None]
    if trained:
        drawn["training"] = figures.training(trained)
    groups = group_results(results) if groups is None else groups
    drawn["forest"] = figures.forest(groups, strongest_attack(results))
    written = [out]
    for name, figure in drawn.items():
        for ending in ("svg", "png", "pdf") if name == "forest" else ("svg", "png"):
            written += figures.save_figure(figure, out.with_name(f"{name}.{ending}"))
    attack, data = strongest_attack(results), page_data(results, groups)
    findings = [load_findings(result.card) for result in results]
    environment = Environment(
        loader=PackageLoader("worstclass.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("page.html.j2").render(
        version=VERSION,
        many=data["many"],
        headline=headline(results, groups),
        methods=leaderboard_rows(groups, shared_attacks(results)) if has_seeds(groups) else [],
        methods_header=leaderboard_header(groups),
        methods_notes=leaderboard_notes(groups),
        header=header(results),
        rows=rows(results),
        notes=notes(results),
        show_radius=show_radius,
        show_radii=show_radii,
        results=results,
        colors=[run["color"] for run in data["runs"]],
        attacks=[(name, attack_title(name)) for name in shared_attacks(results)],
        attack=attack,
        data=_for_script(data),
        galleries=[make_gallery(r, attack, data_dir=data_dir, allow_code=allow_code) for r in results]
        if gallery
        else [],
        certified=[
            (r.title, [certify_training(r.run), certify_outcomes(r.folder, r.class_names)]) for r in results if r.run
        ],
        findings=findings,
        recipes=[
            to_toml(result.config) if result.run else json.dumps(result.card["about"], indent=1) for result in results
        ],
        run_notes=[run_notes(result.run) if result.run else [] for result in results],
        effective=[_effective_classes(result.run) if result.run else "" for result in results],
        costs=[_cost(result, hourly_price) for result in results],
        style=Markup(_asset("page.css")),  # ours, not input; so are the scripts
        scripts=[Markup(_asset(name)) for name in SCRIPTS],
    )
    write_atomic(out, page.encode())
    return written


def page_data(results: Sequence[Result], groups: Sequence[Group] | None = None) -> dict[str, Any]:
    """What the charts are drawn from: the numbers of the cards and logs, rounded to what a chart can show."""
    names = shared_attacks(results)
    return {
        "classes": results[0].class_names,
        "many": has_many(len(results[0].class_names)),
        "attacks": [{"name": name, "title": attack_title(name)} for name in names],
        "attack": strongest_attack(results),
        "base": _base(results),
        "runs": [
            {
                "title": result.title,
                "color": figures.run_color(index),
                "columns": {name: _column(result, name) for name in names},
                "log": _log(result),
            }
            for index, result in enumerate(results)
        ],
        "methods": [
            {"title": group.title, "seeds": group.seeds, "columns": {name: _method(group, name) for name in names}}
            for group in (group_results(results) if groups is None else groups)
        ],
    }


def _base(results: Sequence[Result]) -> dict[str, Any] | None:
    """What rho compares with, under each attack; where it is not among the runs, from the differences to it. Of several
    bases, one for each seed, there are only the names: lines of equal rho are of one."""
    titles = list(dict.fromkeys([r.title for r in results if r.is_base] + [r.base for r in results if r.base]))
    if len(titles) != 1:
        return {"title": ", ".join(titles), "columns": {}} if titles else None
    for result in results:
        if result.is_base:
            pairs = {n: (c["average"]["value"], c["worst"]["value"]) for n, c in result.columns.items()}
            return {"title": result.title, "columns": pairs}
    pairs = {}
    for result in results:
        for name, column in result.columns.items():
            if against := column.get("against_base"):
                gaps = [against[f"{key}_difference"]["value"] for key in ("average", "worst")]
                pairs[name] = (column["average"]["value"] - gaps[0], column["worst"]["value"] - gaps[1])
    return {"title": titles[0], "columns": pairs}


def _column(result: Result, name: str) -> dict[str, Any]:
    column = result.columns[name]
    against = column.get("against_base")
    labels, predicted = result.outcomes.labels, result.outcomes.predictions[name]
    count = len(result.class_names)
    table = np.bincount(labels * count + predicted, minlength=count * count).reshape(count, count)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    many = has_many(count)
    return {
        "average": _rounded(column["average"]),
        "worst_tenth": _rounded(column["worst_tenth"]),
        "worst": _rounded(column["worst"]) | {key: column["worst"][key] for key in ("class", "ties")},
        "classes": [_rounded(each) for each in column["classes"]],
        "rho": _rounded(against["rho"]) if against else None,
        **({"confusions": _largest(shares)} if many else {"confusion": np.round(shares, 4).tolist()}),
    }


def _largest(shares: NDArray[np.float64]) -> list[list[tuple[int, float]]]:
    """For each class the three others that it is most often taken for, and how often; a matrix of many is too large."""
    others = np.where(np.eye(len(shares), dtype=bool), -1, shares)
    thieves = np.argsort(-others, axis=1, kind="stable")[:, :3]
    return [[(int(j), round(float(row[j]), 4)) for j in three] for row, three in zip(shares, thieves, strict=True)]


def _method(group: Group, name: str) -> dict[str, Any]:
    column = group.columns[name]
    return {
        key: _rounded(column[key])
        | {
            "std": None if column[key]["std"] is None else round(column[key]["std"], 5),
            "seeds": [round(value, 5) for value in column[key]["seeds"]],
            "paper": column["paper"].get(key) if column["paper"] else None,
        }
        for key in ("average", "worst", "worst_tenth")
    }


def _log(result: Result) -> dict[str, Any] | None:
    if result.run is None:
        return None
    log = result.run.log
    kept = [line["epoch"] for line in log if line["selected"]]
    tables = {key: np.round([line[key] for line in log], 4) for key in ("class_weights", "class_robust_accuracy")}
    shown: dict[str, Any] = {key: table.tolist() for key, table in tables.items()}
    if has_many(len(result.class_names)):
        weakest = np.argsort(tables["class_robust_accuracy"][-1], kind="stable")[:3]
        shown = {"weakest": weakest.tolist()} | {key: _bands(table, weakest) for key, table in tables.items()}
    return {"kept": kept[-1] if kept else None} | shown


def _bands(table: NDArray[np.float64], classes: NDArray[np.int64]) -> dict[str, Any]:
    """Over the epochs: lowest, first decile, median, last decile and highest of all classes, and some as they are."""
    bands = np.quantile(table, [0, 0.1, 0.5, 0.9, 1], axis=1).T
    return {"bands": np.round(bands, 4).tolist(), "lines": table[:, classes].T.tolist()}


def _effective_classes(run: Run) -> str:
    """How the weights of a run concentrate over its epochs, where they move at all."""
    share = counts_of(run.about, "train")
    numbers = [effective_classes(distribution(line, share)) for line in run.log]
    if max(numbers) - min(numbers) < 0.05:
        return ""
    return (
        f"effective number of classes {numbers[0]:.1f} in the first epoch, {min(numbers):.1f} at the least, "
        f"{numbers[-1]:.1f} in the last (of {len(run.class_names)})"
    )


def _cost(result: Result, hourly_price: float | None) -> str:
    """How long training took and where, what interrupted it, and its price if one is known."""
    if result.run is None:
        return f"trained elsewhere, weights {result.card['about']['weights'][:12]}"
    seconds = sum(line["seconds"] for line in result.run.log)
    engine = result.run.about["engine"]
    machine = engine.get("gpu", engine["device"])
    text = f"{len(result.run.log)} epochs in {_duration(seconds)} of training on {machine}"
    if resumed := result.run.about.get("resumed"):
        text += f", resumed {len(resumed)} time{'s' if len(resumed) > 1 else ''}"
    return text if hourly_price is None else f"{text}, {seconds / 3600 * hourly_price:.2f} at {hourly_price:g} an hour"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _rounded(measure: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if measure[key] is None else round(measure[key], 5) for key in ("value", "low", "high")}


def _for_script(data: Any) -> Markup:
    """JSON that cannot end the script element it stands in, whatever classes are called."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _asset(name: str) -> str:
    return files("worstclass.report").joinpath(name).read_text()
