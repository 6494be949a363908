"""Several processes, as torchrun starts them, over gloo: they do what one process does."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import everything
import team_models
from tiny import assert_same_run, put_weights, tiny_config, write_tiny_npz
from worstclass.config import methods
from worstclass.config.recipe import make_config, to_toml
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import OUTCOMES
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.inputs.names import RECIPE
from worstclass.runs.run import open_run
from worstclass.runs.saver import ABOUT, LAST, LOG
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork
from worstclass.training.checkpoint import load_tensors

HERE = Path(__file__).parents[1] / "support"


METHODS = [*methods.METHODS]


OWN: dict[str, dict[str, Any]] = {
    "fixed": {"focus_class": 1, "focus_weight": 0.6},
    "dafa": {"dafa_warmup": 1},
    "cfa": {"cfa_start": 1},
    "cfol": {"cfol_eta": 0.01},
}


PARTS: dict[str, dict[str, Any]] = {
    "ema": {"average": "ema", "ema_decay": 0.9},
    "fawa": {"average": "fawa", "fawa_threshold": 0.0},
    "awp": {"awp_gamma": 0.02, "awp_warmup": 1},
    "adamw": {  # it would scale up the rounding that is all the gradient of a bias before BatchNorm
        "model": "team_models:plain",
        "optimizer": "adamw",
        "lr": 1e-3,
        "clip_grad_norm": 0.5,
        "schedule": "one-cycle",
    },
    "everything": {
        "average": "ema",
        "adr_share": [0.7, 0.9],
        "awp_gamma": 0.02,
        "nesterov": True,
        "clip_grad_norm": 2.0,
        "radius_warmup": 1,
        "attack_steps": 3,
        "early_attack_steps": [2],
        "attack_milestones": [0.9],
    },
}


QUICK = ("trades", "normed", "everything")  # what two processes train without --full


def settings(data: Path, method: str, **more: object) -> dict[str, Any]:
    values: dict[str, Any] = {"method": method, "model": "team_models:plain", "epochs": 3, "lr": 0.1}
    values |= OWN.get(method, {})
    return tiny_config(data, **(values | more)).recipe()


def torchrun(
    size: int, *command: str, meet: Sequence[str] = ("--standalone",), **options: Any
) -> subprocess.Popen[str]:
    """The command in so many processes of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *meet, "--nproc-per-node", str(size)]
    paths = os.pathsep.join([str(HERE), *sys.path])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONWARNINGS": "default"}
    return subprocess.Popen([*launcher, *command], env=environment, text=True, **options)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed, once it has ended; it is given minutes."""
    try:
        return process.communicate(timeout=300)
    finally:
        process.kill()


def work(size: int, jobs: list[tuple[str, dict[str, Any]]], folder: Path) -> None:
    """Let so many processes do the jobs together."""
    folder.mkdir(exist_ok=True)
    todo = folder / f"jobs{size}.json"
    todo.write_text(json.dumps(jobs, default=str))
    process = torchrun(size, str(HERE / "team_worker.py"), str(todo), stderr=subprocess.PIPE)
    _, errors = ended(process)
    assert process.returncode == 0, errors[-3000:]


def apart(one: Path, other: Path) -> float:
    """The largest difference between two checkpoints, as a part of what each tensor holds, but for the unused layer."""
    (ours, header), (theirs, other_header) = load_tensors(one / LAST), load_tensors(other / LAST)
    ours, theirs = ({name: its[name] for name in its if ".unused." not in name} for its in (ours, theirs))
    assert ours.keys() == theirs.keys()
    assert header["best"]["epoch"] == other_header["best"]["epoch"]
    sizes = {name: tensor.double().abs().max() + 1e-12 for name, tensor in ours.items()}
    return max(float(((ours[name].double() - theirs[name].double()).abs().max()) / sizes[name]) for name in ours)


@pytest.fixture(scope="module")
def _registered() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(methods.METHODS, "everything", everything.METHOD)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, full: bool, _registered: None) -> Path:
    """Every method and every part trained by one, two and three processes; a network with BatchNorm, and an awkward
    validation part.

    Its images leave a batch of one, of which two of three processes have nothing. Without --full: some of it, by two.
    """
    root = tmp_path_factory.mktemp("team")
    data, odd = write_tiny_npz(root / "tiny.npz"), write_tiny_npz(root / "odd.npz", per_class=86)
    configs = {method: settings(data, method) for method in METHODS}
    configs["normed"] = settings(data, "wat", model="team_models:normed", epochs=8)
    for name, values in PARTS.items():
        method = name if name == "everything" else "trades"
        configs[name] = settings(data, method, **{"model": "team_models:normed"} | values)
    configs["odd"] = settings(odd, "wat", epochs=1, valid_fraction=0.5)
    if not full:
        configs = {name: configs[name] for name in QUICK}
    for name, values in configs.items():
        train_run(make_config(values), root / f"1-{name}", allow_code=True)
    if not full:
        work(2, [("train", {"config": values, "out": root / f"2-{name}"}) for name, values in configs.items()], root)
        return root
    alone = open_run(root / "1-odd")
    assert alone.about["valid_images"] % alone.config.make_plan().valid_batch_size == 1
    attacks = ["pgd-20", "autoattack"]
    values = settings(data, "trades", model="team_models:shipped", epochs=1)
    shipped = train_run(make_config(values), root / "shipped", allow_code=True)
    put_weights(shipped, team_models.shipped(num_classes=3, in_channels=1))
    evaluate_target(run_target(shipped, allow_code=True), attacks, root / "1-outcomes")
    for size in (2, 3):
        jobs = [("train", {"config": values, "out": root / f"{size}-{name}"}) for name, values in configs.items()]
        jobs += [("train", {"config": configs["normed"], "out": root / f"{size}-compiled", "compiled": True})]
        jobs += [("evaluate", {"run": shipped.folder, "attacks": attacks, "out": root / f"{size}-outcomes"})]
        work(size, jobs, root)
    return root


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=() if size == 2 and name in QUICK else pytest.mark.slow)
        for name in (*METHODS, *PARTS, "normed", "odd")
        for size in (2, 3)
    ],
)
def test_several_processes_train_the_run_that_one_trains(runs: Path, name: str, size: int) -> None:
    one, other = runs / f"1-{name}", runs / f"{size}-{name}"
    assert apart(one, other) < 1e-9
    for line, its in zip(open_run(one).log, open_run(other).log, strict=True):
        assert line["selected"] == its["selected"]
        for key in ("class_costs", "class_train_accuracy", "class_robust_accuracy", "next_class_weights"):
            np.testing.assert_allclose(line[key], its[key], rtol=1e-7)
        assert line["train"] == pytest.approx(its["train"], rel=1e-7)
    assert json.loads((other / ABOUT).read_text())["engine"]["processes"] == size


def test_a_layer_that_no_step_uses_decays_in_a_team(runs: Path) -> None:
    """As torch's optimizer does it with gradient zero; a single process leaves the layer alone."""
    alone, team = open_run(runs / "1-trades"), open_run(runs / "2-trades")
    layer = nn.Parameter(load_tensors(alone.folder / LAST)[0]["model.unused.weight"])
    config = alone.config
    optimizer = torch.optim.SGD([layer], lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    layer.grad = torch.zeros_like(layer)
    for line in alone.log:
        optimizer.param_groups[0]["lr"] = line["lr"]
        for _ in range(alone.about["train_images"] // config.batch_size):
            optimizer.step()
    found = load_tensors(team.folder / LAST)[0]["model.unused.weight"]
    torch.testing.assert_close(found, layer.detach(), rtol=1e-6, atol=0)


def test_what_processes_share(tmp_path: Path) -> None:
    work(2, [("share", {}), ("differ", {})], tmp_path)


def test_learners_of_several_processes_stay_the_same(tmp_path: Path) -> None:
    work(2, [("plug_in", {})], tmp_path)


@pytest.mark.slow
def test_two_processes_start_where_one_starts(tmp_path: Path) -> None:
    """From an epoch of a run, and from its selected weights: the leader reads them, and all have them."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    parent = train_run(make_config(settings(data, "trades", epochs=2)), tmp_path / "parent", allow_code=True, keep=(1,))
    warm = {"model": "team_models:plain", "average": "ema", "epochs": 3}
    jobs: dict[str, dict[str, Any]] = {
        "fork": {"config": settings(data, "wat", **warm), "fork": f"{parent.folder}@1"},
        "init": {"config": settings(data, "wat", **warm, init=str(parent.folder))},
    }
    for name, job in jobs.items():
        fork = parse_fork(job["fork"]) if "fork" in job else None
        train_run(make_config(job["config"]), tmp_path / f"1-{name}", allow_code=True, fork=fork)
    work(2, [("train", job | {"out": tmp_path / f"2-{name}"}) for name, job in jobs.items()], tmp_path)
    for name in jobs:
        assert apart(tmp_path / f"1-{name}", tmp_path / f"2-{name}") < 1e-9
        assert len(open_run(tmp_path / f"2-{name}").log) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("size", "even"), [(2, True), (3, False)])
def test_several_processes_train_compiled_what_one_trains(runs: Path, size: int, even: bool) -> None:
    """Where a batch is split evenly: processes with other shapes would compile other graphs, and are left eager."""
    run = runs / f"{size}-compiled"
    assert apart(runs / "1-normed", run) < 1e-9
    line = "16 images are not an even batch for 3 processes: going on with the eager engine."
    assert json.loads((run / "lines.json").read_text()) == ([] if even else [line])
    assert open_run(run).about["engine"]["fast"] == even


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_give_the_verdicts_of_one(runs: Path, size: int) -> None:
    one, other = (Outcomes.load(runs / f"{each}-outcomes" / OUTCOMES) for each in (1, size))
    assert set(one.predictions) == {"natural", "pgd-20", "pgd-20/any", "autoattack"} == set(other.predictions)
    for name in one.predictions:
        np.testing.assert_array_equal(one.predictions[name], other.predictions[name])
    np.testing.assert_array_equal(one.broken_by["autoattack"], other.broken_by["autoattack"])
    assert len(set(one.broken_by["autoattack"])) > 2  # some stand, some fall
    left = sorted(path.name for path in (runs / f"{size}-outcomes").iterdir() if not path.name.startswith("."))
    assert left == ["card.json", "outcomes.npz"]


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_and_any_number_of_processes_goes_on(tmp_path: Path) -> None:
    """SIGKILL for one of two processes, in the middle of a run."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    recipe = tmp_path / "recipe.toml"
    values = settings(data, "wat", epochs=40)
    recipe.write_text(to_toml(make_config(values)))
    work(2, [("train", {"config": values, "out": tmp_path / "whole"})], tmp_path)
    out = tmp_path / "run"
    command = ["-m", "worstclass", "train", str(recipe), "--out", str(out), "--allow-code", "--checkpoint-minutes", "0"]
    process = torchrun(2, *command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (out / LOG).is_file() or len((out / LOG).read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    ranks = {environment(pid).get("RANK"): pid for pid in reversed(children(process.pid))}  # not what they started
    os.kill(process.pid, signal.SIGSTOP)  # the launcher might end the other before that has said why it ends
    os.kill(ranks["1"], signal.SIGKILL)
    killed = time.monotonic()
    while is_running(ranks["0"]) and time.monotonic() - killed < 60:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGCONT)
    printed, errors = ended(process)
    assert time.monotonic() - killed < 60
    assert process.returncode != 0
    assert printed.count(" 1/40 ") == 1  # one of them speaks
    assert "error: process 0 of 2 has lost another one of the job" in errors
    assert len(open_run(out).log) < 40
    load_tensors(out / LAST)  # whole: its digest is right
    for size in (1, 2, 3):
        copy = tmp_path / f"copy{size}"
        shutil.copytree(out, copy)
        if size == 1:
            notes: list[str] = []
            train_run(make_config(values), copy, resume=True, allow_code=True, on_fallback=notes.append)
        else:
            work(size, [("train", {"config": values, "out": copy, "resume": True})], tmp_path)
            notes = json.loads((copy / "lines.json").read_text())
        assert apart(tmp_path / "whole", copy) < 1e-9
        expected = f"2 process(es) trained this run, {size} go on: the same run but for rounding."
        assert notes == ([] if size == 2 else [expected])
    assert_same_run(tmp_path / "whole", tmp_path / "copy2")  # the same bits


@pytest.mark.slow
def test_two_machines_meet(runs: Path, tmp_path: Path) -> None:
    """Two launchers on this machine, as on two: a rendezvous, and a process of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meet = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "test")
    recipe = str(runs / "1-wat" / RECIPE)
    command = ("-m", "worstclass", "train", recipe, "--out", str(tmp_path / "run"), "--allow-code")
    machines = [torchrun(1, *command, meet=meet, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        for machine in machines:
            _, errors = ended(machine)
            assert machine.returncode == 0, errors[-3000:]
    finally:
        for machine in machines:  # where one fails, the other waits for it for minutes
            machine.kill()
            machine.communicate()
    assert apart(runs / "1-wat", tmp_path / "run") < 1e-9
    assert open_run(tmp_path / "run").about["engine"]["processes"] == 2


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_in_each_process(runs: Path, tmp_path: Path) -> None:
    """Both processes keep what is done; the verdicts are those of one process in peace."""
    out = tmp_path / "out"
    command = [
        "-m",
        "worstclass",
        "evaluate",
        str(runs / "shipped"),
        "--allow-code",
        "--attacks",
        "pgd-100,autoattack",
    ]
    command += ["--batch-size", "5", "--out", str(out)]
    process = torchrun(2, *command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while len(list(out.glob("progress-*of2.npz"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    for pid in children(process.pid):
        os.kill(pid, signal.SIGKILL)
    ended(process)
    assert not (out / OUTCOMES).exists()
    again = torchrun(2, *command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    _, errors = ended(again)
    assert again.returncode == 0, errors[-3000:]
    one, other = (Outcomes.load(folder / OUTCOMES) for folder in (runs / "1-outcomes", out))
    np.testing.assert_array_equal(one.predictions["autoattack"], other.predictions["autoattack"])
    assert not list(out.glob("progress*"))


def test_processes_that_were_not_started_alike_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch\n"
        "from worstclass.execution.distributed import joined\n"
        "with joined(torch.device('cpu')) as team:\n"
        "    team.check_same('same', 'never')\n"
        "    try:\n"
        "        team.check_same(os.environ['RANK'], 'not alike')\n"
        "    except ValueError as error:\n"
        "        os.write(1, f'{team.rank} {error}\\n'.encode())\n"
    )
    process = torchrun(2, str(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    printed, errors = ended(process)
    said = re.findall(r"\d not alike", printed)  # some versions of gloo print too
    assert sorted(said) == ["0 not alike", "1 not alike"], errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "complaint", "epochs"),
    [
        ("fading", None, 20),
        ("growing", None, 20),
        ("lopsided", None, 20),
        ("wandering", "error: epoch 9, step 5: the processes no longer hold the same weights", 8),  # within the epoch
    ],
)
def test_a_model_that_changes_is_trained_together_or_an_error(
    model: str, complaint: str | None, epochs: int, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    values = {"model": f"team_models:{model}", "method": "natural", "epochs": 20}
    recipe.write_text(to_toml(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), **values)))
    command = ("-m", "worstclass", "train", str(recipe), "--out", str(tmp_path / "run"), "--allow-code")
    process = torchrun(2, *command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    _, errors = ended(process)
    assert (process.returncode == 0) == (complaint is None), errors
    assert complaint is None or complaint in errors, errors
    assert len(open_run(tmp_path / "run").log) == epochs


def children(parent: int) -> list[int]:
    """The processes below a process, by what the kernel says."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    below = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                below += [pid, *children(pid)]
    return below


def is_running(pid: int) -> bool:
    """Not so once it has ended, though its parent has not asked for it yet."""
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def environment(pid: int) -> dict[str, str]:
    words = (Path("/proc") / str(pid) / "environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
