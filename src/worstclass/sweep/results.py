"""What a sweep has found: each job's accuracies, and their mean and spread over the seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worstclass.evaluation.targets import load_card
from worstclass.sweep.jobs import Failure
from worstclass.sweep.plan import Job, Sweep


def collect_results(sweep: Sweep, jobs: Sequence[Job], failures: Mapping[str, Failure]) -> dict[str, Any]:
    """A sweep that has ended as plain JSON: its file, its jobs with their accuracies, and the summary over seeds."""
    lines = []
    for job in jobs:
        line: dict[str, Any] = {"name": job.name, "group": job.group, "seed": job.config.seed}
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
    """For each group of jobs that differ in their seed: how many have ended well, and the mean and the standard
    deviation (n - 1; None for one seed) of average and worst class under each attack."""
    summary = []
    for group in dict.fromkeys(line["group"] for line in lines):
        results = [line["results"] for line in lines if line["group"] == group and line["state"] == "done"]
        names = list(results[0]) if results else []
        measures = {
            name: {key: _spread([result[name][key] for result in results]) for key in ("average", "worst")}
            for name in names
        }
        summary.append({"group": group, "seeds": len(results), "results": measures})
    return summary


def _accuracies(column: Mapping[str, Any]) -> dict[str, Any]:
    worst = column["worst"]
    return {"average": column["average"]["value"], "worst": worst["value"], "worst_class": worst["class"]}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else None}
