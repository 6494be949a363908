"""Off a terminal: a line when something begins or ends and now and then in between; SIGTERM stops as Ctrl-C does."""

import io
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console

from sweeps import write_sweep
from tiny import tiny_config, write_tiny_npz
from worstclass.cli import progress, watched
from worstclass.cli.board import Board
from worstclass.cli.main import app
from worstclass.cli.progress import Bars, Lines, clock, watch
from worstclass.config.recipe import to_toml
from worstclass.evaluation.evaluate import Event
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run
from worstclass.sweep import Failure, Job


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, each length of time as `M:SS`: that of a busy machine is any."""
    return re.sub(r"\d+:\d\d", "M:SS", capsys.readouterr().out).splitlines()


def test_what_is_captured_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(watch(), Lines)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do for the commands in their cells: colours, but no terminal
    assert isinstance(watch(), Lines)


def test_an_attack_begins_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as lines:
        for done in range(101):
            lines.attack(Event("pgd-20", done, 100))
        lines.attack(Event("autoattack: apgd-ce", 0.0, 8.0, 40))
        lines.attack(Event("autoattack: apgd-ce", 1.0, 8.0, 31))
        lines.attack(Event("autoattack: square", 4.0, 8.0, 30))
    assert lines_of(capsys) == [
        "pgd-20: 0/100 images",
        "pgd-20: done in M:SS",
        "autoattack: apgd-ce: 0%, 40 standing",
        "autoattack: square: 50%, 30 standing, M:SS left",
        "autoattack: done in M:SS",
    ]


def test_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any news too: one batch may take many minutes."""
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    with Lines() as lines:
        lines.attack(Event("cw", 0, 100))
        lines.attack(Event("cw", 60, 100))
        time.sleep(0.5)
    first, *between, last = lines_of(capsys)
    assert (first, last) == ("cw: 0/100 images", "cw: done in M:SS")
    assert set(between) == {"cw: 60/100 images, M:SS left"}


def test_an_attack_that_is_stopped_has_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(KeyboardInterrupt), Lines() as lines:
        lines.attack(Event("cw", 0, 100))
        raise KeyboardInterrupt
    assert lines_of(capsys) == ["cw: 0/100 images"]


def test_an_epoch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    with Lines() as lines:
        lines.step("wat epoch 1/2", 1, 4)
        time.sleep(0.4)
        lines.epoch("the first epoch")
        time.sleep(0.4)
    said = lines_of(capsys)
    assert said[0] == "wat epoch 1/2: 4 steps"
    assert said[-1] == "the first epoch"  # nothing runs after it
    assert set(said[1:-1]) == {"wat epoch 1/2: step 1/4, M:SS left of this epoch"}


def test_a_first_step_that_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    with Lines() as lines:
        lines.begin("wat epoch 1/2", 0, 4)
        time.sleep(0.4)
        between = lines_of(capsys)
        lines.step("wat epoch 1/2", 1, 4)
    assert between[0] == "wat epoch 1/2: 4 steps"
    assert set(between[1:]) == {"wat epoch 1/2: step 1/4, M:SS so far"}
    assert "wat epoch 1/2: 4 steps" not in lines_of(capsys)


def test_an_epoch_is_announced_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the steps that it has, and of a run that goes on those done."""
    said: list[tuple[str, str, int, int]] = []

    class Said(Bars):
        def begin(self, what: str, done: int, steps: int) -> None:
            said.append(("begin", what, done, steps))

        def step(self, what: str, step: int, steps: int) -> None:
            said.append(("step", what, step, steps))
            if len(said) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(watched, "watch", Said)
    config, folder = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1), tmp_path / "run"
    options: Any = {"device": torch.device("cpu"), "checkpoint_minutes": 0.0}
    with pytest.raises(typer.Exit):
        watched.train_with_progress(config, folder, **options)
    watched.train_with_progress(config, folder, resume=True, **options)
    steps = said[0][3]
    assert said[:3] == [("begin", "wat epoch 1/1", 0, steps)] + [("step", "wat epoch 1/1", i, steps) for i in (1, 2)]
    assert said[3:5] == [("begin", "wat epoch 1/1", 1, steps), ("step", "wat epoch 1/1", 2, steps)]
    assert said[-1] == ("step", "wat epoch 1/1", steps, steps)
    count = len(said)
    watched.train_with_progress(config, folder, resume=True, **options)
    assert len(said) == count  # nothing is left to do


def test_a_download(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as lines:
        lines.download("cifar10", 0, 170_000_000)
        lines.download("cifar10", 90_000_000, 170_000_000)
        lines.step("wat epoch 1/2", 1, 4)
    assert lines_of(capsys) == ["cifar10, 170 MB", "wat epoch 1/2: 4 steps"]


def test_a_count(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    with Lines() as lines:
        lines.count("comparing", 0, 8)
        lines.count("comparing", 3, 8)
        time.sleep(0.4)
        lines.count("comparing", 8, 8)
        time.sleep(0.1)
    first, *between, last = lines_of(capsys)
    assert (first, last) == ("comparing: 0/8", "comparing: done in M:SS")
    assert set(between) == {"comparing: 3/8, M:SS left"}


def test_bars_take_the_same_events() -> None:
    with Bars() as bars:
        bars.begin("wat epoch 1/2", 0, 4)
        bars.count("comparing", 3, 8)
        bars.download("cifar10", 1, 2)
        bars.step("wat epoch 1/2", 1, 4)
        bars.epoch("the first epoch")
        bars.attack(Event("cw", 1, 100))
        bars.attack(Event("autoattack: square", 4.0, 8.0, 30))


def test_clock() -> None:
    assert [clock(s) for s in (0, 7.4, 59.6, 750, 11_100)] == ["0:00", "0:07", "1:00", "12:30", "3:05:00"]


def test_an_evaluation_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_run(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1), tmp_path / "run")
    app(["evaluate", str(tmp_path / "run"), "--attacks", "fgsm,apgd-ce"], standalone_mode=False)
    first, *said = lines_of(capsys)
    assert first == f"{tmp_path / 'run'}: the selected epoch, 1"
    assert said[:2] == ["fgsm: 0/60 images", "fgsm: done in M:SS"]
    assert re.fullmatch(r"apgd-ce: \d+%, \d+ standing", said[2])


def test_a_serial_sweep_evaluates_in_a_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is first said to be evaluated, then has the lines of `evaluate`; nothing of it is left for the next."""
    monkeypatch.chdir(tmp_path)
    write_sweep(Path("sweep.toml"), 'attacks = "fgsm,apgd-ce"\n[grid]\nmethod = ["trades"]\nseed = [1, 2]')
    app(["sweep", "sweep.toml", "--serial", "--out", "out"], standalone_mode=False)
    said = lines_of(capsys)
    for name in ("trades-seed1", "trades-seed2"):
        start = next(i for i, line in enumerate(said) if line.startswith(f"{name}: evaluating"))
        assert said[start + 1 : start + 3] == ["fgsm: 0/60 images", "fgsm: done in M:SS"]
        assert re.fullmatch(r"apgd-ce: \d+%, \d+ standing", said[start + 3])
        assert said[start + 4] == "apgd-ce: done in M:SS"
        assert said[start + 5].startswith(f"{name}: done")


def test_a_sweep_whose_evaluation_fails(tmp_path: Path) -> None:
    """Its attack has no end; the next run begins anew."""
    out = io.StringIO()
    jobs = [Job(name, tmp_path / name, tiny_config(tmp_path / "tiny.npz")) for name in ("one", "two")]
    with Board(jobs, set(), Console(file=out)) as board:
        for job, failure in ((jobs[0], Failure("it broke")), (jobs[1], None)):
            board.attack(Event("autoattack", 0.0, 8.0, 40))
            board.finish(job, failure)
    said = re.sub(r"\d+:\d\d", "M:SS", out.getvalue()).splitlines()
    start = "autoattack: 0%, 40 standing"
    assert said == [start, "one: failed: it broke", start, "autoattack: done in M:SS", "two: done"]


def test_a_sweep_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every half minute, if anything has moved."""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    config = tiny_config(Path("tiny.npz"), epochs=9)
    jobs = [Job(name, tmp_path / name, config) for name in ("one", "two")]
    out = io.StringIO()
    board = Board(jobs, {"one"}, Console(file=out))
    for epoch in (3, 3, 4):
        board._rows["two"].state = f"training epoch {epoch}/9"
        board._say_how_far()
    lines = [f"1 of 2 jobs ended; two: training epoch {epoch}/9" for epoch in (3, 4)]
    assert out.getvalue().splitlines() == lines


# --- a real process, really stopped ---


def stop(arguments: list[str], when: str, cwd: Path) -> tuple[int, str, str]:
    """Start the command, send it SIGTERM once it has printed `when`, and return exit code and output."""
    words = [sys.executable, "-m", "worstclass", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        try:
            assert process.stdout is not None
            seen = ""
            for line in process.stdout:
                seen += line
                if when in line:
                    break
            process.terminate()
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, seen + out, err


def test_sigterm_stops_a_training(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(to_toml(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=5000)))
    options = ["--out", "run", "--checkpoint-minutes", "0"]
    code, out, err = stop(["train", "r.toml", *options], "  2/5000", tmp_path)
    assert (code, err) == (128 + signal.SIGTERM, "")
    assert out.endswith("\nStopped. Continue with: worstclass train --resume run\n")
    assert open_run(tmp_path / "run").load_model("selected")[1] >= 1


def test_sigterm_stops_an_evaluation(tmp_path: Path) -> None:
    train_run(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1), tmp_path / "run")
    code, out, err = stop(["evaluate", "run", "--attacks", "fgsm,pgd-1000000"], "pgd-1000000: 0/60", tmp_path)
    assert (code, err) == (128 + signal.SIGTERM, "")
    assert out.endswith("\nStopped. The same command goes on from run/progress.npz.\n")


def test_sigterm_stops_a_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep.toml", '[grid]\nmethod = ["trades"]', epochs=5000)
    code, out, err = stop(["sweep", "sweep.toml", "--serial", "--out", "out"], "training epoch", tmp_path)
    assert (code, err) == (128 + signal.SIGTERM, "")
    assert out.endswith("\nStopped. The same command goes on where it stopped.\n")
