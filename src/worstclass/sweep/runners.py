"""Where the jobs of a sweep run: on a Ray cluster, or one after another in this process."""

import importlib
import importlib.util
import json
import os
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from worstclass.config.recipe import make_config, to_toml
from worstclass.errors import UserError
from worstclass.sweep.jobs import Failure, OnAttack, Setup, attempt
from worstclass.sweep.plan import Job

Finish = Callable[[Job, Failure | None], None]


def run_serially(jobs: Sequence[Job], setup: Setup, finish: Finish, on_attack: OnAttack | None = None) -> None:
    """One job after another in this process; `finish(job, failure)` hears of the end of each.

    `on_attack(event)` hears how far each attack is.
    """
    for job in jobs:
        finish(job, attempt(job.config, job.folder, setup, on_attack))


def ray_is_installed() -> bool:
    """Whether Ray can be imported; a mere folder of that name does not count."""
    spec = importlib.util.find_spec("ray")
    return spec is not None and spec.origin is not None


@contextmanager
def ray_cluster(address: str | None, device: str) -> Iterator[str]:
    """Join a Ray cluster, or start one on this machine; gives the device each job gets, a GPU where there are any.

    Inside, what is printed to standard output, as `sys.stdout` has it, is dropped: Ray prints a paragraph for each
    worker lost, from a thread that ends when Ray is shut down, and has no switch for it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        if address is None:  # only strings are sent: the least store that Ray allows is enough
            ray.init("local", include_dashboard=False, object_store_memory=100 * 2**20, **quiet)
        else:
            ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot reach Ray at {address or 'this machine'}: {str(error).splitlines()[0]}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_term)  # Ray puts its own in its place
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            gpus = ray.cluster_resources().get("GPU", 0)
            if device == "cuda" and gpus < 1:
                raise UserError("device 'cuda' was asked for, but the Ray cluster has no GPU.")
            yield "cpu" if device == "cpu" or gpus < 1 else "cuda"
        finally:
            ray.shutdown()


def run_on_ray(
    jobs: Sequence[Job], setup: Setup, finish: Finish, *, retries: int = 2, workers: int | None = None
) -> None:
    """A task for each job on the cluster joined, at most `workers` at once; a task whose worker is lost starts again.

    A task is one string and so is its answer: no object of ours is pickled.
    """
    ray: Any = importlib.import_module("ray")
    share = {"num_gpus": 1} if setup.device == "cuda" else {"num_cpus": 1}
    task = ray.remote(max_retries=retries, retry_exceptions=False, **share)(run_task)
    waiting = list(reversed(jobs))
    running: dict[Any, Job] = {}
    while waiting or running:
        while waiting and (workers is None or len(running) < workers):
            job = waiting.pop()
            running[task.remote(task_text(job, setup))] = job
        for reference in ray.wait(list(running), timeout=1.0)[0]:
            job = running.pop(reference)
            try:
                answer = json.loads(ray.get(reference))
                failure = Failure(**answer) if answer else None
            except ray.exceptions.RayError as error:
                failure = Failure(f"its worker was lost ({retries} retries).", str(error))
            finish(job, failure)


def task_text(job: Job, setup: Setup) -> str:
    """A job as one string: its recipe, and paths as they are seen from the folder we are in."""
    values: dict[str, Any] = {"recipe": to_toml(job.config), "folder": str(job.folder), "cwd": os.getcwd()}
    shared: dict[str, Any] = {"attacks": setup.attacks, "data_dir": str(setup.data_dir), "device": setup.device}
    shared |= {"checkpoint_minutes": setup.checkpoint_minutes, "allow_code": setup.allow_code}
    return json.dumps(values | {"setup": shared})


def run_task(text: str) -> str:
    """On a worker: run the job in a string; the answer is a failure as JSON, or null."""
    values = json.loads(text)
    shared = values["setup"]
    setup = Setup(**shared | {"attacks": tuple(shared["attacks"]), "data_dir": Path(shared["data_dir"])})
    try:
        os.chdir(values["cwd"])
    except OSError:
        return json.dumps({"reason": f"{values['cwd']} is not on the worker's machine: it must be shared storage."})
    failure = attempt(make_config(tomllib.loads(values["recipe"])), Path(values["folder"]), setup)
    return json.dumps(failure and {"reason": failure.reason, "traceback": failure.traceback})
