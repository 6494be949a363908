"""Faults, each by doing it: a folder in use, damaged checkpoints, writes that fail, a folder closed to us, kills."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kills import FORKS, kill_until_done
from tiny import tiny_config, write_tiny_npz
from worstclass.config.recipe import make_config, to_toml
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.files import keep_previous, locked
from worstclass.inputs.names import RECIPE
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST, LOG, PREVIOUS, SELECTED
from worstclass.runs.train import train_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("faults") / "tiny.npz")


def halted_training(recipe: str, out: Path) -> None:
    """In a process of its own: a run that stands still once it has a checkpoint."""

    def halt(epoch: int, step: int, steps: int) -> None:
        if step == 2:
            time.sleep(3600)

    train_run(make_config(tomllib.loads(recipe)), out, on_step=halt, checkpoint_minutes=0)


def test_a_second_process_is_refused_and_a_kill_lets_go(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=2)
    train_run(config, tmp_path / "whole")
    process = FORKS.Process(target=halted_training, args=(to_toml(config), tmp_path / "run"))
    process.start()
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / LAST).is_file():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(UserError, match="holds a run already"):
            train_run(config, tmp_path / "run")
        with pytest.raises(UserError, match="in use"):
            train_run(config, tmp_path / "run", resume=True)
    finally:
        process.kill()
        process.join()
    train_run(config, tmp_path / "run", resume=True)
    for name in (LAST, SELECTED):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_two_evaluations_into_one_folder_are_not(data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    with locked(run.folder, "evaluate"), pytest.raises(UserError, match="in use"):
        evaluate_target(run_target(run), ["pgd-2"], run.folder)
    with locked(run.folder, "train"):  # a run that goes on may be evaluated
        evaluate_target(run_target(run), ["pgd-2"], run.folder)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(bytes(content))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def stopped(config: Any, out: Path) -> None:
    """A run that was stopped in its second epoch, saved after each step."""

    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, out, on_step=stop, checkpoint_minutes=0)


@pytest.mark.parametrize("harm", [truncate, flip, empty])
def test_a_damaged_checkpoint_is_found_and_the_one_before_it_taken(harm: Any, data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=3)
    train_run(config, tmp_path / "whole")
    stopped(config, tmp_path / "run")
    harm(tmp_path / "run" / LAST)
    told: list[str] = []
    train_run(config, tmp_path / "run", resume=True, on_fallback=told.append)
    assert len(told) == 1
    assert told[0].endswith("Going on from the checkpoint before it.")
    assert open_run(tmp_path / "run").about["resumed"][0]["step"] == 2  # the last was of step 3
    for name in (LAST, SELECTED):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_two_damaged_checkpoints_are_an_error_and_nothing_changes(data: Path, tmp_path: Path) -> None:
    stopped(tiny_config(data, epochs=3), tmp_path / "run")
    for name in (LAST, PREVIOUS):
        flip(tmp_path / "run" / name)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UserError, match="damaged"):
        train_run(tiny_config(data, epochs=3), tmp_path / "run", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_a_name_is_kept_at_every_moment(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    (tmp_path / ".b.partial").write_text("left by a kill")
    keep_previous(tmp_path / "a", tmp_path / "b")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}
    keep_previous(tmp_path / "none", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new"


def train_in_little_room(recipe: str, out: Path, room: int, answer: Any) -> None:
    """In a process of its own, in which no file may grow larger than `room`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        train_run(make_config(tomllib.loads(recipe)), out, resume=(out / RECIPE).exists(), checkpoint_minutes=0)
        answer.put("done")
    except OSError as error:
        answer.put(type(error).__name__)


def test_a_write_that_fails_leaves_the_checkpoint_before_it(data: Path, tmp_path: Path) -> None:
    """A disk with room for the small files and not for another checkpoint: the run can go on elsewhere, unharmed."""
    config = tiny_config(data, epochs=3)
    train_run(config, tmp_path / "whole")
    stopped(config, tmp_path / "run")
    good = (tmp_path / "run" / LAST).read_bytes()
    answer = FORKS.Queue()
    process = FORKS.Process(target=train_in_little_room, args=(to_toml(config), tmp_path / "run", 50_000, answer))
    process.start()
    assert answer.get(timeout=120) == "OSError"
    process.join()
    assert (tmp_path / "run" / LAST).read_bytes() == good
    train_run(config, tmp_path / "run", resume=True)
    for name in (LAST, SELECTED):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def train_as_nobody(recipe: str, out: Path, answer: Any) -> None:
    """In a process of its own, without the rights of root."""
    train_run(make_config(tomllib.loads(recipe)), out.with_name("before"))  # imports what nobody may not read
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    try:
        train_run(make_config(tomllib.loads(recipe)), out)
        answer.put("done")
    except OSError as error:
        answer.put(type(error).__name__)


def test_a_folder_that_may_not_be_written_is_left_alone(
    data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp()
    own = [base.parent] if base.parent.name.startswith("pytest-of-") else []  # else it is the user's, or the machine's
    for folder in (*own, base, data.parent, tmp_path):
        folder.chmod(0o755)  # pytest's own folders are private: nobody must be able to reach this one, and the data
    (tmp_path / "run").mkdir(mode=0o555)
    answer = FORKS.Queue()
    process = FORKS.Process(target=train_as_nobody, args=(to_toml(tiny_config(data)), tmp_path / "run", answer))
    process.start()
    assert answer.get(timeout=120) == "PermissionError"
    process.join()
    assert list((tmp_path / "run").iterdir()) == []


def continue_run(recipe: str, out: Path) -> None:
    train_run(make_config(tomllib.loads(recipe)), out, resume=(out / RECIPE).exists(), checkpoint_minutes=0)


def test_many_kills(data: Path, tmp_path: Path, full: bool) -> None:
    """Short runs, killed at moments all over training and saving, until each is done: the bytes of a run in peace."""
    config = tiny_config(data, epochs=3)
    train_run(config, tmp_path / "whole")
    kills, number = 0, 0
    while kills < (50 if full else 10):
        number += 1
        out = tmp_path / f"run{number}"
        kills += kill_until_done(continue_run, (to_toml(config), out), wait=0.05 + 0.013 * (number % 7), growth=1.15)
        for name in (LAST, SELECTED):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
        assert len((out / LOG).read_text().splitlines()) == 3


FULL_DISK = """
mount -t tmpfs -o size=$ROOM tmpfs "$DISK"
"$PYTHON" -m worstclass train "$RECIPE" --out "$DISK/run" --checkpoint-minutes 0
echo "code $?"
mount -o remount,size=64m "$DISK"
"$PYTHON" -m worstclass train --resume "$DISK/run"
echo "code $?"
cp -r "$DISK/run" "$COPY"
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="needs a mount of its own (user namespaces)",
)
def test_a_full_disk(data: Path, tmp_path: Path) -> None:
    """A real file system without room for a third checkpoint: one line, and with more room the run goes on unharmed."""
    config = tiny_config(data, epochs=3)
    whole = train_run(config, tmp_path / "whole")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(config))
    room = int(2.2 * (whole.folder / LAST).stat().st_size) + (whole.folder / SELECTED).stat().st_size
    names = {"DISK": tmp_path / "disk", "COPY": tmp_path / "run", "RECIPE": recipe, "ROOM": room}
    (tmp_path / "disk").mkdir()
    environment = os.environ | {name: str(value) for name, value in names.items()} | {"PYTHON": sys.executable}
    command = ["unshare", "-rm", "sh", "-c", FULL_DISK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert [line for line in done.stdout.splitlines() if line.startswith("code")] == ["code 2", "code 0"], done
    assert re.fullmatch(rf"error: {tmp_path}/disk/run/\w+\.safetensors: No space left on device\.\n", done.stderr)
    assert not list((tmp_path / "run").glob("*.partial"))
    for name in (LAST, SELECTED):
        assert (tmp_path / "run" / name).read_bytes() == (whole.folder / name).read_bytes()
