"""Many runs from one file: recipes x a grid of settings, trained and evaluated on Ray, or one after another."""

from typing import TYPE_CHECKING

from worstclass.lazy import importer

__all__ = [
    "RESULTS",
    "Failure",
    "Job",
    "Setup",
    "Sweep",
    "check_jobs",
    "collect_results",
    "expand",
    "is_done",
    "ray_cluster",
    "ray_is_installed",
    "read_sweep",
    "run_job",
    "run_on_ray",
    "run_serially",
    "summarize",
]

if TYPE_CHECKING:
    from worstclass.sweep.jobs import Failure, Setup, check_jobs, is_done, run_job
    from worstclass.sweep.plan import RESULTS, Job, Sweep, expand, read_sweep
    from worstclass.sweep.results import collect_results, summarize
    from worstclass.sweep.runners import ray_cluster, ray_is_installed, run_on_ray, run_serially
else:
    __getattr__ = importer(
        __name__,
        {
            "jobs": "Failure Setup check_jobs is_done run_job",
            "plan": "RESULTS Job Sweep expand read_sweep",
            "results": "collect_results summarize",
            "runners": "ray_cluster ray_is_installed run_on_ray run_serially",
        },
    )
