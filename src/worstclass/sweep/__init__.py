"""Many runs from one file: recipes or methods x eta x seeds, trained and evaluated on Ray, or one after another."""

from worstclass.sweep.jobs import Failure, Setup, check_jobs, is_done, run_job
from worstclass.sweep.plan import Job, Sweep, expand, read_sweep
from worstclass.sweep.results import RESULTS, collect_results, summarize
from worstclass.sweep.runners import ray_cluster, ray_is_installed, run_on_ray, run_serially

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
