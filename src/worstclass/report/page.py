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

from worstclass.config.recipe import to_toml
from worstclass.evaluation.checks import load_findings
from worstclass.evaluation.run_notes import run_notes
from worstclass.files import write_atomic
from worstclass.inputs.names import VERSION
from worstclass.inputs.radius import show_radii, show_radius
from worstclass.metrics.tail import has_many
from worstclass.report import figures
from worstclass.report.answer import answers, comparison
from worstclass.report.epochs import epoch_data
from worstclass.report.gallery import make_gallery
from worstclass.report.groups import Group, group_results, has_seeds
from worstclass.report.leaderboard import leaderboard_header, leaderboard_notes, leaderboard_rows, render_leaderboard
from worstclass.report.results import Result, attack_title, shared_attacks, strongest_attack, upper_bound
from worstclass.report.tables import header, notes, render_table, rows
from worstclass.runs.notes import counts_of, distribution, effective_classes
from worstclass.runs.run import Run
from worstclass.theory.certify import certify_outcomes, certify_training

SCRIPTS = ("vendor/d3.min.js", "vendor/plot.umd.min.js", "charts.js", "page_many.js", "page.js")
COPIED = ("markdown", "latex")  # what buttons copy a table as


def write_report(
    results: Sequence[Result],
    out: Path | str,
    *,
    groups: Sequence[Group] | None = None,
    data_dir: Path | str = Path("data"),
    allow_code: bool = False,
    gallery: bool = True,
    hourly_price: float | None = None,
) -> list[Path]:
    """Write the page and, in the same folder, each figure as SVG and PNG; returns what was written.

    `groups` are those of `group_results`, if they are known already. `gallery` shows attacked images of the weakest
    class, for which it needs the weights and the data. `hourly_price` puts a price on the time that training took.
    """
    out = Path(out)
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
        answers=answers(groups, attack),
        comparison=comparison(groups, attack),
        attack_title=attack_title(attack),
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
        bounds=[upper_bound(result.card) for result in results],
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
    """What the charts are drawn from. The numbers of the cards are as they were measured: the page rounds once."""
    names = shared_attacks(results)
    groups = group_results(results) if groups is None else groups
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
                "log": epoch_data(result.run.log) if result.run else None,
            }
            for index, result in enumerate(results)
        ],
        "methods": [
            {"title": group.title, "seeds": group.seeds, "columns": {name: _method(group, name) for name in names}}
            for group in groups
        ],
        "copies": {
            "measures": {kind: render_table(results, kind) for kind in COPIED},
            "methods": {kind: render_leaderboard(groups, names, kind) for kind in COPIED},
        },
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
        "average": _ends(column["average"]),
        "worst_tenth": _ends(column["worst_tenth"]),
        "worst": _ends(column["worst"]) | {key: column["worst"][key] for key in ("class", "ties")},
        "classes": [_ends(each) for each in column["classes"]],
        "rho": _ends(against["rho"]) if against else None,
        **({"confusions": _largest(shares)} if many else {"confusion": shares.tolist()}),
    }


def _largest(shares: NDArray[np.float64]) -> list[list[tuple[int, float]]]:
    """For each class the three others that it is most often taken for, and how often; a matrix of many is too large."""
    others = np.where(np.eye(len(shares), dtype=bool), -1, shares)
    thieves = np.argsort(-others, axis=1, kind="stable")[:, :3]
    return [[(int(j), float(row[j])) for j in three] for row, three in zip(shares, thieves, strict=True)]


def _method(group: Group, name: str) -> dict[str, Any]:
    column = group.columns[name]
    return {
        key: _ends(column[key])
        | {
            "std": column[key]["std"],
            "seeds": column[key]["seeds"],
            "paper": column["paper"].get(key) if column["paper"] else None,
        }
        for key in ("average", "worst", "worst_tenth")
    }


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


def _ends(measure: Mapping[str, Any]) -> dict[str, Any]:
    return {key: measure[key] for key in ("value", "low", "high")}


def _for_script(data: Any) -> Markup:
    """JSON that cannot end the script element it stands in, whatever classes are called."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _asset(name: str) -> str:
    return files("worstclass.report").joinpath(name).read_text()
