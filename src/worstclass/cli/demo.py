"""The demo: runs that are trained and attacked side by side, each in a process of its own with one thread.

A network this small gains nothing from a second thread, and two runs fill two cores.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from worstclass.cli.console import say
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, read_recipe, read_stored
from worstclass.errors import TrainingError
from worstclass.inputs.names import RECIPE

RECIPES = ("fashion-mini-trades", "fashion-mini-wat")
ATTACKS = ("pgd-100", "cw")


def train_and_attack(recipes: Sequence[str], folders: Sequence[Path], device: str) -> None:
    """Train and attack each recipe in its folder; lines are shown as they come, behind the name of the method."""
    titles = [_config(recipe, folder).title for recipe, folder in zip(recipes, folders, strict=True)]
    widest = max(map(len, titles))
    children = [_start(recipe, folder, device) for recipe, folder in zip(recipes, folders, strict=True)]
    readers = [
        threading.Thread(target=_show, args=(child, f"{title:{widest}}"), daemon=True)
        for child, title in zip(children, titles, strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        codes = [child.wait() for child in children]
    except KeyboardInterrupt:
        for child in children:
            child.terminate()  # it saves itself as it does on Ctrl-C
        for child in children:
            child.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
    if any(codes):
        raise TrainingError("a run of the demo failed; its lines above say why.")


def _start(recipe: str, folder: Path, device: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "worstclass.cli.demo", recipe, str(folder), device],
        env={"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _show(child: subprocess.Popen[str], title: str) -> None:
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            if line.strip():
                say(f"{title}  {line.rstrip()}")


def _config(recipe: str, folder: Path) -> Config:
    """The recipe, or that of the run which was started before."""
    return make_config(read_stored(folder) if (folder / RECIPE).is_file() else read_recipe(recipe))


def _work(recipe: str, folder: Path, device: str) -> None:
    """What a process does; what is there already is not done again."""
    from worstclass.cli.watched import evaluate_with_progress, train_with_progress
    from worstclass.evaluation.saved import CARD
    from worstclass.evaluation.targets import run_target
    from worstclass.runs.devices import pick_device
    from worstclass.runs.run import open_run

    chosen, resume = pick_device(device), (folder / RECIPE).is_file()
    train_with_progress(_config(recipe, folder), folder, resume=resume, device=chosen)
    if not (folder / CARD).is_file():
        evaluate_with_progress(run_target(open_run(folder)), list(ATTACKS), folder, device=chosen)


if __name__ == "__main__":
    from worstclass.cli.guard import guarded

    with guarded():
        _work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
