"""A run in pieces is one run: stopped, killed, interrupted, resumed."""

import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from everything import METHOD
from kills import kill_until_done
from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config, to_toml
from worstclass.errors import UserError
from worstclass.inputs.names import RECIPE
from worstclass.models import SmallCNN
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST, LOG, SELECTED
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import load_tensors, save_tensors


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


def continue_run(recipe: str, out: Path) -> None:
    """In a process of its own: start the run, or go on with it."""
    train_run(make_config(tomllib.loads(recipe)), out, resume=(out / RECIPE).exists(), checkpoint_minutes=0)


def write_dropping(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of one's own, with dropout."""
    (folder / "dropping.py").write_text(
        "from torch import nn\nfrom worstclass.models import SmallCNN\n"
        "def make(num_classes, in_channels):\n"
        "    return nn.Sequential(nn.Dropout(0.3), SmallCNN(num_classes, in_channels))\n"
    )
    monkeypatch.syspath_prepend(folder)


SMOOTHED: dict[str, Any] = {"select": "worst-tenth", "select_smoothing": 3}
SELDOM: dict[str, Any] = {"method": "dafa", "dafa_warmup": 2, "dafa_part": "valid", "valid_every": 3, "average": "ema"}
IN_PIECES = [{"method": "wat"}, {"method": "frl-rwrm"}, {"method": "csl"}, SMOOTHED]


@pytest.mark.parametrize("settings", [*IN_PIECES, SMOOTHED | {"valid_every": 2}, SELDOM])
def test_a_run_in_pieces_is_one_run(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=4, **settings)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train_run(config, whole)

    class Stop(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        raise Stop

    with pytest.raises(Stop):
        train_run(config, pieces, on_epoch=stop, checkpoint_minutes=0)
    for _ in range(2):
        with pytest.raises(Stop):
            train_run(config, pieces, resume=True, on_epoch=stop, checkpoint_minutes=0)
    train_run(config, pieces, resume=True)
    assert_same_run(whole, pieces)


@pytest.mark.parametrize("model", ["small-cnn", "dropping:make"])
def test_stopped_within_an_epoch(model: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch goes on after the last step that was saved, and the run says that it was resumed."""
    write_dropping(tmp_path, monkeypatch)
    config = tiny_config(data, epochs=3, model=model)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train_run(config, whole, allow_code=True)
    taken: list[tuple[int, int]] = []
    stops = [(2, 2), (2, 3)]

    def stop(epoch: int, step: int, steps: int) -> None:
        taken.append((epoch, step))
        if (epoch, step) == stops[0]:
            stops.pop(0)
            raise KeyboardInterrupt

    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            train_run(config, pieces, resume=resume, allow_code=True, checkpoint_minutes=0, on_step=stop)
    train_run(config, pieces, resume=True, allow_code=True, on_step=lambda *at: taken.append(at[:2]))
    assert_same_run(whole, pieces)
    steps = max(step for _, step in taken)
    assert steps > 3
    assert taken.count((2, 1)) == 1  # saved after its first step, and not taken again
    assert open_run(whole).about.get("resumed") is None
    resumed = open_run(pieces).about["resumed"]
    assert [(note["epoch"], note["step"]) for note in resumed] == [(2, 1), (2, 2)]
    assert resumed[0]["engine"] == open_run(whole).about["engine"]


CHANGING: dict[str, Any] = {  # what is another one from step to step, or from epoch to epoch
    "optimizer": "adamw",
    "lr": 0.01,
    "schedule": "one-cycle",
    "lr_warmup": 0.5,
    "clip_grad_norm": 0.5,
    "awp_gamma": 0.02,
    "awp_warmup": 1,
    "radius_warmup": 1.5,
    "attack_steps": 3,
    "early_attack_steps": [1, 2],
    "attack_milestones": [0.5, 0.75],
}
PARTS: dict[str, dict[str, Any]] = {
    "ema": CHANGING | {"average": "ema", "ema_decay": 0.9, "adr_share": [0.7, 0.9]},
    "fawa": CHANGING | {"average": "fawa", "fawa_threshold": 0.0, "optimizer": "sgd", "nesterov": True},
    "gate shut": {"average": "fawa", "fawa_threshold": 1.0, "schedule": "cosine"},
    "everything": CHANGING | {"method": "everything", "average": "ema", "label_smoothing": 0.1},
}


@pytest.mark.parametrize(
    "part", [pytest.param(name, marks=pytest.mark.slow if "fawa" in PARTS[name].values() else ()) for name in PARTS]
)
def test_a_run_with_every_part_in_pieces(
    part: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped twice within its second epoch, and at the end of that; byte for byte the run in peace."""
    monkeypatch.setitem(METHODS, "everything", METHOD)
    config = tiny_config(data, epochs=3, **PARTS[part])
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train_run(config, whole)
    stops = [(2, 2), (2, 4), (2, 0)]

    def stop(epoch: int, step: int) -> None:
        if stops and (epoch, step) == stops[0]:
            stops.pop(0)
            raise KeyboardInterrupt

    for resume in (False, True, True):
        with pytest.raises(KeyboardInterrupt):
            train_run(
                config,
                pieces,
                resume=resume,
                checkpoint_minutes=0,
                on_step=lambda epoch, step, steps: stop(epoch, step),
                on_epoch=lambda line: stop(line["epoch"], 0),
            )
    train_run(config, pieces, resume=True)
    assert_same_run(whole, pieces)
    resumed = [(note["epoch"], note["step"]) for note in open_run(pieces).about["resumed"]]
    assert resumed == [(2, 1), (2, 3), (3, 0)]


def test_checkpoints_come_by_the_clock(data: Path, tmp_path: Path) -> None:
    """In less than a minute, none but the last; what came after the last one is made again."""
    config = tiny_config(data, epochs=3)
    train_run(config, tmp_path / "whole")

    def stop(line: dict[str, Any]) -> None:
        assert not (tmp_path / "pieces" / LAST).exists()
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "pieces", on_epoch=stop)
    run = train_run(config, tmp_path / "pieces", resume=True)
    assert [line["epoch"] for line in run.log] == [1, 2, 3]
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")


def test_asked_to_stop_it_saves_first(data: Path, tmp_path: Path) -> None:
    """Within an epoch and after one, long before a checkpoint is due; nothing is made again."""
    config = tiny_config(data, epochs=3)
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train_run(config, whole)
    taken: list[tuple[int, int]] = []
    stops = [(1, 2), (2, 0)]

    def stop() -> bool:
        return bool(stops) and taken[-1] == stops[0]

    def train(*, resume: bool) -> None:
        train_run(
            config,
            pieces,
            resume=resume,
            checkpoint_minutes=60,
            stop=stop,
            on_step=lambda epoch, step, steps: taken.append((epoch, step)),
            on_epoch=lambda line: taken.append((line["epoch"], 0)),
        )

    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            train(resume=resume)
        stops.pop(0)
    train(resume=True)
    assert_same_run(whole, pieces)
    assert len(taken) == len({*taken})
    assert [(note["epoch"], note["step"]) for note in open_run(pieces).about["resumed"]] == [(1, 2), (3, 0)]


def test_what_is_not_finite_is_not_saved_at_a_stop(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SmallCNN(3, 1)
    monkeypatch.setattr("worstclass.runs.run.make_model", lambda *_, **__: model)

    def stop() -> bool:
        torch.nn.init.constant_(next(model.parameters()), torch.nan)
        return True

    with pytest.raises(KeyboardInterrupt):
        train_run(tiny_config(data), tmp_path / "run", stop=stop)
    monkeypatch.undo()
    assert not (tmp_path / "run" / LAST).exists()
    with pytest.raises(UserError, match="no checkpoint has been written"):
        open_run(tmp_path / "run").load_model()


def test_a_checkpoint_from_within_an_epoch_is_no_epoch(data: Path, tmp_path: Path) -> None:
    """It continues the run; it is not evaluated under the name of the epoch before."""

    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 3):
            raise KeyboardInterrupt

    config = tiny_config(data, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "run", on_step=stop, checkpoint_minutes=0)
    run = open_run(tmp_path / "run")
    with pytest.raises(UserError, match="from within epoch 2"):
        run.load_model("last")
    assert run.load_model("selected")[1] == 1


def test_a_checkpoint_without_the_selected_weights_does_not_empty_them(data: Path, tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    tensors, header = load_tensors(run.folder / LAST)
    save_tensors(run.folder / LAST, {k: v for k, v in tensors.items() if not k.startswith("selected.")}, header)
    (run.folder / SELECTED).unlink()
    train_run(run.config, run.folder, resume=True)
    assert not (run.folder / SELECTED).exists()


def test_half_a_line_of_the_log_is_left_out(data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, epochs=2), tmp_path / "run")
    text = (run.folder / LOG).read_text()
    (run.folder / LOG).write_text(text[: text.index("\n") + 20])
    assert [line["epoch"] for line in run.log] == [1]


def test_a_selected_epoch_newer_than_the_checkpoint_is_put_right(data: Path, tmp_path: Path) -> None:
    """As if killed between the two files: the checkpoint's own selection counts."""
    config = tiny_config(data, epochs=2, select="last")
    whole = train_run(config, tmp_path / "whole")

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "pieces", on_epoch=stop, checkpoint_minutes=0)
    (tmp_path / "pieces" / SELECTED).write_bytes((whole.folder / SELECTED).read_bytes())
    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "pieces", resume=True, on_step=lambda *_: stop({}))
    assert load_tensors(tmp_path / "pieces" / SELECTED)[1]["epoch"] == 1
    (tmp_path / "pieces" / SELECTED).write_bytes(b"damaged")
    train_run(config, tmp_path / "pieces", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")


def test_killed_at_any_moment(data: Path, tmp_path: Path) -> None:
    """SIGKILL, again and again, until the run is done: the same bytes as a run in peace."""
    config = tiny_config(data, epochs=5)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_run(config, whole)
    assert kill_until_done(continue_run, (to_toml(config), killed), wait=0.05, growth=1.2) >= 5
    assert_same_run(whole, killed)


@pytest.mark.slow
def test_an_average_and_awp_killed_at_any_moment(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=5, **PARTS["ema"])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train_run(config, whole)
    assert kill_until_done(continue_run, (to_toml(config), killed), wait=0.05, growth=1.2) >= 5
    assert_same_run(whole, killed)


@pytest.mark.parametrize("settings", [{"momentum": 0.0}, {"model": "dropping:make"}, {"method": "natural"}])
def test_other_kinds_of_run_resume_too(
    settings: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without momentum there are no buffers to restore; dropout draws from torch's global generator."""
    write_dropping(tmp_path, monkeypatch)
    config = tiny_config(data, epochs=2, **settings)
    train_run(config, tmp_path / "whole", allow_code=True)
    torch.rand(3)
    state = torch.get_rng_state()

    def stop(line: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "pieces", allow_code=True, on_epoch=stop, checkpoint_minutes=0)
    train_run(config, tmp_path / "pieces", resume=True, allow_code=True)
    assert_same_run(tmp_path / "whole", tmp_path / "pieces")
    assert torch.equal(state, torch.get_rng_state())


def test_a_finished_run_resumes_to_itself(data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    train_run(run.config, run.folder, resume=True)
    assert before == {path.name: path.read_bytes() for path in run.folder.iterdir()}


def test_other_data_is_refused(data: Path, tmp_path: Path) -> None:
    mine = write_tiny_npz(tmp_path / "mine.npz")
    run = train_run(tiny_config(mine, epochs=2), tmp_path / "run")
    write_tiny_npz(mine, seed=1)
    with pytest.raises(UserError, match="other data"):
        train_run(run.config, run.folder, resume=True)


def test_the_checkpoint_holds_everything(data: Path, tmp_path: Path) -> None:
    run = train_run(tiny_config(data, epochs=2, average="ema"), tmp_path / "run")
    tensors, header = load_tensors(run.folder / LAST)
    assert header["epoch"] == 2
    parts = {"model", "optimizer", "strategy", "average", "epoch", "selected"}
    assert {name.split(".")[0] for name in tensors} == parts
    momenta = [name for name in tensors if name.startswith("optimizer.")]
    assert len(momenta) == len(list(run.load_model()[0].parameters()))
    costs = torch.tensor([line["class_costs"] for line in run.log], dtype=torch.float64).sum(0)
    assert torch.allclose(tensors["strategy.cumulative_cost"], costs)


def test_ctrl_c_saves_and_says_how_to_go_on(data: Path, tmp_path: Path) -> None:
    """After an epoch, long before a checkpoint is due."""
    config = tiny_config(data, epochs=5000)
    (tmp_path / "r.toml").write_text(to_toml(config))
    # a job in the background of a script inherits an ignored SIGINT; at a terminal it is Python's own handler
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start = f"{handler}; import worstclass.cli.main as c; c.main()"
    command = [sys.executable, "-c", start, "train", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run")]
    command += ["--checkpoint-minutes", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "run" / LOG).exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert stdout.endswith(f"\nStopped. Continue with: worstclass train --resume {tmp_path / 'run'}\n")
    assert "Traceback" not in stderr
    run = open_run(tmp_path / "run")
    assert load_tensors(run.folder / LAST)[1]["epoch"] == len(run.log) >= 1
    assert run.load_model("selected")[1] >= 1
