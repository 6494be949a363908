"""Sweeps on a real Ray cluster of this machine: workers are killed, jobs fail; and what happens where Ray is not."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeps import assert_same_job, by_hand, sweep_in, working_in, write_sweep
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.recipe import to_toml
from worstclass.errors import UserError
from worstclass.files import read_json
from worstclass.runs.finished import is_trained
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST
from worstclass.runs.train import train_run
from worstclass.sweep import RESULTS, ray_cluster, ray_is_installed

needs_ray = pytest.mark.skipif(not ray_is_installed(), reason="Ray is not installed")


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_sweep(tmp_path / "sweep.toml", '[grid]\nmethod = ["trades"]')
    monkeypatch.setattr("worstclass.sweep.runners.ray_is_installed", lambda: False)
    monkeypatch.chdir(tmp_path)
    for option in ("--address", "--workers"):
        with pytest.raises(UserError, match=re.escape(f"{option} needs Ray: pip install 'worstclass[ray]'.")):
            cli.app(["sweep", "sweep.toml", option, "2"], standalone_mode=False)
        with pytest.raises(UserError, match=f"{option} needs Ray: drop --serial"):
            cli.app(["sweep", "sweep.toml", "--serial", option, "2"], standalone_mode=False)
    assert not cli.app(["sweep", "sweep.toml"], standalone_mode=False)
    assert "one after another in this process (Ray is not installed" in capsys.readouterr().out
    assert (tmp_path / "sweeps" / "sweep" / "trades-seed1" / LAST).is_file()


def test_a_folder_called_ray_is_not_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert not ray_is_installed()


def test_what_ray_says_until_it_is_shut_down_is_dropped(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The paragraph of a lost worker comes late: after the last job's end, or only when Ray's threads are stopped."""
    ray = SimpleNamespace(
        init=lambda *_, **__: None, cluster_resources=lambda: {"GPU": 2.0}, shutdown=lambda: print("(raylet) leftover")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with ray_cluster(None, "auto") as kind:
        print("(raylet) A worker died or was killed while executing a task.")
    print(kind)
    assert capsys.readouterr() == ("cuda\n", "")


def holder(folder: Path) -> int | None:
    """The process that trains in a folder: the one that has its lock open."""
    lock = str((folder / ".train.lock").resolve())
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            holds = any(os.readlink(link) == lock for link in (entry / "fd").iterdir())
            if holds and (entry / "cmdline").read_bytes().startswith(b"ray::"):
                return int(entry.name)
        except OSError:  # not ours, or gone
            continue
    return None


def kill_in_training(folder: Path) -> None:
    """Wait until a run has a checkpoint, and kill the worker that trains it."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pid = holder(folder) if (folder / LAST).is_file() else None
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)
    raise AssertionError(f"nobody trains in {folder}")


def on_ray(folder: Path, during: Callable[[], object]) -> tuple[int, str]:
    """The command on a cluster of its own, two jobs at once; what it printed must be ours alone."""
    words = ["sweep", "sweep.toml", "--out", "out", "--workers", "2", "--checkpoint-minutes", "0", "--device", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-m", "worstclass", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            during()
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert err == ""
    assert "raylet" not in out
    return process.returncode, out


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As a Ray worker with one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_ray
@pytest.mark.slow
def test_a_lost_worker_is_replaced_and_its_run_goes_on(tmp_path: Path, one_thread: None) -> None:
    write_sweep(
        tmp_path / "sweep.toml", 'attacks = "natural,fgsm"\n[grid]\nmethod = ["wat", "trades"]\nseed = [1]', epochs=12
    )
    code, said = on_ray(tmp_path, lambda: kill_in_training(tmp_path / "out" / "wat-seed1"))
    assert code == 0, said
    assert said.startswith("2 of 2 jobs to do on a Ray cluster on this machine, a core each, 2 at once.\n")
    assert "wat-seed1: done, resumed" in said
    assert [line["state"] for line in read_json(tmp_path / "out" / RESULTS)["jobs"]] == ["done"] * 2
    with working_in(tmp_path):
        for method in ("wat", "trades"):
            run = open_run(Path("out") / f"{method}-seed1")
            assert len(run.about.get("resumed", [])) == (method == "wat")
            by_hand(run.config, Path("hand") / method)
            assert_same_job(run.folder, Path("hand") / method)


@needs_ray
@pytest.mark.slow
def test_jobs_that_fail_on_ray(tmp_path: Path, one_thread: None) -> None:
    """One blows up, one loses its worker and may not be retried: each is told, and what is left goes on without Ray."""
    base = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=12)
    for name, lr in (("bad", 1e30), ("lost", 0.1)):
        (tmp_path / f"{name}.toml").write_text(to_toml(base.model_copy(update={"lr": lr})))
    (tmp_path / "sweep.toml").write_text('recipes = ["bad.toml", "lost.toml"]\nretries = 0')
    code, said = on_ray(tmp_path, lambda: kill_in_training(tmp_path / "out" / "lost-seed1"))
    assert code == 1, said
    assert "2 of 2 jobs failed" in said
    bad, lost = read_json(tmp_path / "out" / RESULTS)["jobs"]
    assert "not finite" in bad["reason"]
    assert bad["reason"] in said
    assert lost["reason"] == "its worker was lost (0 retries)."
    assert not is_trained(open_run(tmp_path / "out" / "lost-seed1"))
    assert sweep_in(tmp_path) == 1  # the bad one is still bad
    train_run(open_run(tmp_path / "out" / "lost-seed1").config, tmp_path / "hand")
    assert_same_run(tmp_path / "out" / "lost-seed1", tmp_path / "hand")
