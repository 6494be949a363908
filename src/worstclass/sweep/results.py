"""What a sweep has found: each job's accuracies, and their mean and spread over the seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worstclass.evaluation.saved import load_card
from worstclass.evaluation.seeds import seed_groups, standard_deviation
from worstclass.metrics.tail import worst_tenth
from worstclass.sweep.jobs import Failure
from worstclass.sweep.plan import Job, Sweep


def collect_results(sweep: Sweep, jobs: Sequence[Job], failures: Mapping[str, Failure]) -> dict[str, Any]:
    """A sweep that has ended as plain JSON: its file, its jobs with their accuracies, and the summary over seeds."""
    groups = {place: jobs[group[0]].group for group in seed_groups([job.config for job in jobs]) for place in group}
    lines = []
    for place, job in enumerate(jobs):
        line: dict[str, Any] = {"name": job.name, "group": groups[place], "seed": job.config.seed}
        failure = failures.get(job.name)
        if failure is None:
            columns = load_card(job.folder)["columns"] if sweep.attack_names else {}
            kept = {name: columns[name] for name in sweep.attack_names}
            line |= {"state": "done", "results": {name: _accuracies(column) for name, column in kept.items()}}
        else:
            line |= {"state": "failed", "reason": failure.reason, "results": {}}
            line |= {"traceback": failure.traceback} if failure.traceback else {}
        lines.append(line)
    return {"sweep": sweep.model_dump(mode="json"), "jobs": lines, "summary": summarize(lines)}


def summarize(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each group of jobs that differ in their seed: how many have ended well, and under each attack the mean and
    the standard deviation (n - 1; None for one seed) of average, worst class and worst tenth, the worst class of all
    seeds together, with the lowest mean accuracy, and how many classes there are."""
    summary = []
    for group in dict.fromkeys(line["group"] for line in lines):
        results = [line["results"] for line in lines if line["group"] == group and line["state"] == "done"]
        names = list(results[0]) if results else []
        measures = {name: _over_seeds([result[name] for result in results]) for name in names}
        summary.append({"group": group, "seeds": len(results), "results": measures})
    return summary


def _accuracies(column: Mapping[str, Any]) -> dict[str, Any]:
    worst = column["worst"]
    classes = {each["class"]: each["value"] for each in column["classes"] if each["value"] is not None}
    return {
        "average": column["average"]["value"],
        "worst": worst["value"],
        "worst_class": worst["class"],
        "worst_tenth": worst_tenth(list(classes.values())),
        "classes": classes,
    }


def _over_seeds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    means = {name: float(np.mean([each["classes"][name] for each in found])) for name in found[0]["classes"]}
    weakest = min(means, key=lambda name: means[name])
    spread = {key: _spread([each[key] for each in found]) for key in ("average", "worst", "worst_tenth")}
    return spread | {"pooled_worst": {"value": means[weakest], "class": weakest}, "classes": len(means)}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "std": standard_deviation(values)}
