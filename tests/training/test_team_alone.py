"""A team of processes without processes: shares of a batch, environments, and what is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tiny import tiny_config, write_tiny_npz
from worstclass.cli.main import app
from worstclass.data import open_source
from worstclass.errors import UserError
from worstclass.execution.distributed import Team
from worstclass.execution.torchrun import follows, team_size
from worstclass.models.sync_batchnorm import sync_norms
from worstclass.runs.run import build_model
from worstclass.training import fit, new_state


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (type("OwnNorm", (nn.BatchNorm2d,), {})(8), "layer '1' is a OwnNorm"),
        (nn.BatchNorm2d(8, track_running_stats=False), "layer '1' keeps no running statistics"),
    ],
)
def test_a_batch_norm_that_cannot_be_shared_is_refused(layer: nn.Module, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        sync_norms(nn.Sequential(nn.BatchNorm2d(8), layer))


@pytest.mark.parametrize("words", [{"WORLD_SIZE": "abc"}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "2"}])
def test_half_an_environment_is_no_torchrun(words: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert team_size() == 1
    assert not follows()


def test_other_commands_are_refused_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="leave torchrun out"):
        app(["demo"], standalone_mode=False)


def test_a_batch_smaller_than_the_team_is_refused(tmp_path: Path) -> None:
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), batch_size=2)
    images = open_source(config.data).read("train")
    state = new_state(build_model(config, 3, 1, None), config.make_strategy(torch.ones(3)), config.make_plan())
    with pytest.raises(UserError, match="a batch of 2 images cannot be split over 3 processes"):
        next(fit(state, images, images, config.make_objective(), config.make_plan(), team=Team(1, 3, alone=False)))


@given(total=st.integers(0, 1000), size=st.integers(1, 64))
def test_shares_cover_a_batch_once_and_evenly(total: int, size: int) -> None:
    shares = [range(total)[Team(rank, size).share(total)] for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
