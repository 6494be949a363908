"""One process of several: does the jobs of a JSON file, one after another."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from worstclass.config import make_config
from worstclass.runs import open_run, train_run
from worstclass.subjects import evaluate_subject, run_subject
from worstclass.team import Team, joined
from worstclass.train.engine import Engine


def train(team: Team, config: dict[str, Any], out: str, resume: bool = False, compiled: bool = False) -> None:
    if compiled:  # all of the fast engine that a CPU can do: traced forwards, nothing captured
        uncaptured = mock.patch.object(Engine, "prepare", lambda self, work, *_, **__: work)
        with uncaptured, mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
            train_run(make_config(config), Path(out), team=team, allow_code=True, engine=Engine(fast=True))
        return
    lines: list[str] = []
    train_run(make_config(config), Path(out), resume=resume, team=team, allow_code=True, on_fallback=lines.append)
    if team.leads:
        Path(out, "lines.json").write_text(json.dumps(lines))


def evaluate(team: Team, run: str, attacks: list[str], out: str) -> None:
    subject = run_subject(open_run(Path(run)), allow_code=True)
    card = evaluate_subject(subject, attacks, Path(out), batch_size=7, team=team)
    assert bool(card) == team.leads


JOBS: dict[str, Callable[..., None]] = {"train": train, "evaluate": evaluate}

if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(torch.device("cpu")) as team:
        for name, arguments in json.loads(Path(sys.argv[1]).read_text()):
            JOBS[name](team, **arguments)
