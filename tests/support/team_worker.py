"""One process of several: does the jobs of a JSON file, one after another."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import everything
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.execution.distributed import Team, joined
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork
from worstclass.stats import ClassStats
from worstclass.strategies import ClassGuard, ClassHedge
from worstclass.strategies.guarded import Guarded
from worstclass.training import data_parallel
from worstclass.training.engine import Engine


def train(
    team: Team,
    config: dict[str, Any],
    out: str,
    resume: bool = False,
    compiled: bool = False,
    fork: str | None = None,
) -> None:
    lines: list[str] = []
    run = partial(train_run, make_config(config), Path(out), team=team, allow_code=True, on_fallback=lines.append)
    if compiled:  # all of the fast engine that a CPU can do: traced forwards, nothing captured
        uncaptured = mock.patch.object(Engine, "prepare", lambda self, work, *_, **__: work)
        with uncaptured, mock.patch("torch.compile", partial(torch.compile, backend="aot_eager")):
            run(engine=Engine(fast=True))
    else:
        run(resume=resume, fork=None if fork is None else parse_fork(fork))
    assert team.leads or not lines  # one speaks for all
    if team.leads:
        Path(out, "lines.json").write_text(json.dumps(lines))


def evaluate(team: Team, run: str, attacks: list[str], out: str) -> None:
    target = run_target(open_run(Path(run)), allow_code=True)
    card = evaluate_target(target, attacks, Path(out), batch_size=7, team=team)
    assert bool(card) == team.leads


def share(team: Team) -> None:
    """Weights and buffers are the leader's; gradients are sums, of two kinds of number, laid out as they were."""
    model = nn.ModuleDict({"conv": nn.Conv2d(2, 3, 2), "norm": nn.BatchNorm2d(3), "wide": nn.Linear(2, 1).double()})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != "norm.weight")
        parameter.data = parameter.data.contiguous(memory_format=layout(parameter))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(5 + team.rank)
    data_parallel.share(model, team)
    assert all(bool((tensor == 5).all()) for tensor in model.state_dict().values())

    wanted: dict[str, Tensor | None] = {}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        grad = (torch.arange(parameter.numel()).view_as(parameter) + number).to(parameter)
        wanted[name] = grad if parameter.requires_grad else None
        if parameter.requires_grad and (number + team.rank) % 2 == 0:  # each is used by one process
            parameter.grad = grad.contiguous(memory_format=layout(parameter))
    model["conv"].bias.grad, wanted["conv.bias"] = torch.full((3,), 10.0 + team.rank), torch.full((3,), 21.0)  # by both
    data_parallel.sum_gradients(model, team)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=0, atol=0)
        assert parameter.grad is None or parameter.grad.stride() == parameter.stride()


def layout(parameter: Tensor) -> torch.memory_format:
    return torch.channels_last if parameter.dim() == 4 else torch.contiguous_format


def differ(team: Team) -> None:
    """Models that are not alike are an error on every process, though they have as many numbers."""
    for shapes in ([(2, 3), (3, 2)], [(2, 3), (3, 3)]):
        with pytest.raises(UserError, match="different models"):
            data_parallel.share(nn.Linear(*shapes[team.rank], bias=False), team)


def plug_in(team: Team) -> None:
    """Learners in somebody's own loop, each process with other training samples, play what one with all of them plays;
    held-out samples that are not those of all are an error, on every process."""
    seen, right = torch.tensor([[400, 80, 20], [100, 20, 5]]), torch.tensor([[300, 20, 10], [90, 15, 0]])
    held_out = torch.tensor([[40, 30], [10, 4], [5, 1]])  # of each group: samples, and those right
    group = torch.arange(3).repeat_interleave(held_out[:, 0])
    correct = torch.cat([torch.arange(int(total)) < hits for total, hits in held_out])
    losses = 1.5 - correct.float()
    own = torch.arange(3).repeat_interleave(seen[team.rank])
    hits = torch.cat([torch.arange(int(n)) < k for n, k in zip(seen[team.rank], right[team.rank], strict=True)])
    counts = seen.sum(0)

    expected, trained, valid = Guarded(counts), ClassStats(3), ClassStats(3)
    for stats, totals in ((trained, torch.stack([counts, right.sum(0)], 1)), (valid, held_out)):
        stats.counts.copy_(totals[:, 0])
        stats.sums("robust_correct").copy_(totals[:, 1])
    expected.update(trained, valid)
    guard, hedge = ClassGuard(counts), ClassHedge(3, class_counts=counts)
    guard.weigh(torch.zeros(len(own)), own, hits)
    hedge.weigh(torch.zeros(len(own)), own)
    guard.update(correct, group)
    hedge.update(losses, group)
    assert torch.equal(guard.weights, expected.distribution)
    costs = torch.stack([losses.mean(), *(losses[group == k].mean() for k in range(3))]).double()
    torch.testing.assert_close(hedge.weights, torch.softmax(0.1 * costs, 0), rtol=1e-6, atol=0)
    for learner, values in ((guard, correct), (hedge, losses)):
        before = learner.weights.clone()
        with pytest.raises(UserError, match="other samples on another process"):
            learner.update(values[team.rank :: 2], group[team.rank :: 2])
        assert torch.equal(learner.weights, before)


JOBS: dict[str, Callable[..., None]] = {
    "train": train,
    "evaluate": evaluate,
    "share": share,
    "differ": differ,
    "plug_in": plug_in,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    METHODS["everything"] = everything.METHOD
    with joined(torch.device("cpu")) as team:
        for name, arguments in json.loads(Path(sys.argv[1]).read_text()):
            JOBS[name](team, **arguments)
