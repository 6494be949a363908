"""Time to robustness: the clock of a run, its picture, and the command that trains and draws."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import worstclass.cli.main as cli
from tiny import tiny_config, write_tiny_npz
from worstclass.bench import robustness
from worstclass.bench.robustness import draw_front, read_curve, shared_attack
from worstclass.cli.console import print_curves
from worstclass.config.recipe import load_config, make_config, to_toml
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.files import read_json, write_json
from worstclass.metrics.percentages import percent
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import ABOUT, LOG
from worstclass.runs.train import train_run
from worstclass.runs.warm_start import parse_fork

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("clock")
    data = write_tiny_npz(folder / "tiny.npz")
    return train_run(tiny_config(data, epochs=5, valid_every=2), folder / "clock-seed1")


def test_the_clock_of_a_run(run: Run) -> None:
    curve = read_curve(run.folder)
    assert [point.epoch for point in curve.points] == [1, 2, 4, 5]
    start, log = run.about["start"], run.log
    assert curve.points[0].seconds == pytest.approx(start["seconds"] + log[0]["seconds"])
    assert curve.seconds == curve.points[-1].seconds == pytest.approx(start["seconds"] + sum(x["seconds"] for x in log))
    assert curve.prepare == start["prepare_seconds"]
    assert curve.process is None
    assert curve.kept.epoch == run.load_model("selected")[1]
    assert curve.test == {}
    timed = read_curve(run.folder, wall=curve.seconds + 7)
    assert timed.seconds == timed.points[-1].seconds == pytest.approx(curve.seconds + 7)
    assert timed.process == pytest.approx(7)
    assert all(
        before.seconds + 7 == pytest.approx(after.seconds)
        for before, after in zip(curve.points, timed.points, strict=True)
    )


def test_a_fork_has_points_of_its_own(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The time before it counts; the numbers are of another run, here under another attack."""
    config = make_config(run.config.recipe() | {"epochs": 7, "valid_attack": "cw"})
    fork = train_run(config, tmp_path / "fork", fork=parse_fork(f"{run.folder}@5"))
    curve = read_curve(fork.folder)
    assert [point.epoch for point in curve.points] == [6, 7]
    assert curve.points[0].seconds > sum(line["seconds"] for line in run.log)
    print_curves([curve], [])
    assert "Validation CW %" in " ".join(capsys.readouterr().out.split())
    print_curves([read_curve(run.folder), curve], [])
    printed = " ".join(capsys.readouterr().out.split())
    assert "Validation CW/PGD %" in printed
    assert f"{percent(curve.kept.average)} CW" in printed
    legend = draw_front([read_curve(run.folder), curve]).legends[0].get_texts()
    assert [text.get_text().rpartition(" ")[2] for text in legend] == ["(PGD)", "(CW)"]
    log = fork.folder / LOG
    log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines()[:5]))
    with pytest.raises(UserError, match="no selected weights"):
        read_curve(fork.folder)


def test_a_base_and_a_resumed_run_take_their_time_too(tmp_path: Path) -> None:
    data = write_tiny_npz(tmp_path / "tiny.npz")
    run = train_run(tiny_config(data, epochs=3, base_start=0.4), tmp_path / "run")
    plain, base = read_curve(run.folder), train_run_log(run.folder / "base")
    assert plain.seconds - plain.points[-1].seconds >= sum(line["seconds"] for line in base[1:]) > 0
    about = read_json(run.folder / ABOUT)
    again = {"engine": about["engine"], "start": {"seconds": 100.0, "prepare_seconds": 60.0}}
    write_json(run.folder / ABOUT, about | {"resumed": [again]})
    resumed = read_curve(run.folder)
    assert resumed.seconds == pytest.approx(plain.seconds + 100)
    assert resumed.prepare == pytest.approx((plain.prepare or 0) + 60)


def train_run_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def test_shipped_runs_and_runs_without_test_images_can_be_drawn(run: Run) -> None:
    folders = sorted(RESULTS.glob("*-seed1"))
    shipped = [read_curve(folder) for folder in folders]
    assert shared_attack(shipped) == "autoattack"
    for folder, curve in zip(folders, shipped, strict=True):
        assert all(one.seconds < other.seconds for one, other in pairwise(curve.points))
        timed = "prepare_seconds" in (folder / ABOUT).read_text()  # of older runs nobody took the time
        assert (curve.prepare is not None) == timed
    assert {curve.prepare is None for curve in shipped} == {True, False}
    assert len(draw_front(shipped).axes) == 2
    own = read_curve(run.folder)
    assert shared_attack([*shipped, own]) is None
    assert len(draw_front([*shipped, own]).axes) == len(draw_front([own]).axes) == 1
    names = [text.get_text() for text in draw_front(shipped[:2]).legends[0].get_texts()]
    assert names == ["csl-seed1 (PGD)", "csr-ema-fork-seed1 (CW)"]  # validated by two attacks


def test_a_run_without_weights_is_a_line(run: Run, tmp_path: Path) -> None:
    for name in ("recipe.toml", ABOUT):
        (tmp_path / name).write_bytes((run.folder / name).read_bytes())
    with pytest.raises(UserError, match="no selected weights"):
        read_curve(tmp_path)


def bench(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["worstclass", "bench", "robustness", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_the_command_trains_recipes_and_reads_runs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The processes that it would start are stood in for."""
    (tmp_path / "tiny.toml").write_text(to_toml(run.config))
    out, started = tmp_path / "out", []

    def command(*words: str) -> float:
        started.append(words)
        if words[0] == "train":
            train_run(load_config(words[1], seed=3, epochs=2), Path(words[3]))
        else:
            made = open_run(Path(words[1]))
            evaluate_target(run_target(made), ["pgd-20"], made.folder)
        return 50.0

    monkeypatch.setattr(robustness, "time_command", command)
    words = [tmp_path / "tiny.toml", run.folder, "--set", "seed=3", "--set", "epochs=2", "--attacks", "pgd-20"]
    assert bench(monkeypatch, *words, "--out", out, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert [words[0] for words in started] == ["train", "evaluate"]
    assert started[0][-4:] == ("--set", "seed=3", "--set", "epochs=2")
    assert "tiny-seed3: 50.0 s from the start of the process to selected weights, on cpu." in said
    trained, read = read_json(out / "robustness.json")
    assert trained["seconds"] == 50.0
    assert trained["kept"]["worst"] <= trained["kept"]["average"]
    assert 0 <= trained["test"]["pgd-20"]["worst"]["value"] <= trained["test"]["pgd-20"]["average"]["value"]
    assert read["name"] == run.folder.name
    assert (out / "robustness.svg").is_file()
    assert (out / "robustness.png").is_file()


def test_what_is_wrong_is_a_line_before_anything_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(robustness, "time_command", lambda *_: pytest.fail("it has started"))
    for words, line in (
        (["no-such-recipe"], "unknown recipe"),
        (["cifar10-resnet18-fast", "--set", "valid_every=0"], "valid_every"),
        ([run.folder, "--set", "seed=2"], "--set is for recipes"),
        (["cifar10-resnet18-fast", "--attacks", "nope"], "nope"),
    ):
        assert bench(monkeypatch, *words) == 2
        assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_fails_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*words: str) -> float:
        raise subprocess.CalledProcessError(2, words)

    monkeypatch.setattr(robustness, "time_command", fail)
    monkeypatch.chdir(tmp_path)
    assert bench(monkeypatch) == 2  # the default recipe
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_process_is_timed_from_its_start(run: Run, tmp_path: Path) -> None:
    """Imports are part of it, which no run can time itself."""
    (tmp_path / "tiny.toml").write_text(to_toml(run.config))
    wall = robustness.time_command("train", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "out"))
    curve = read_curve(tmp_path / "out", wall)
    assert curve.process is not None
    assert 0 < curve.process < wall
    with pytest.raises(subprocess.CalledProcessError):
        robustness.time_command("train", "no-such-recipe")


def test_the_fast_recipe_works_on_a_cpu(tiny_values: dict[str, Any], tmp_path: Path) -> None:
    """Its keys together, on data and a network that take no time."""
    recipe = load_config("cifar10-resnet18-fast").recipe()
    size = {key: tiny_values[key] for key in ("data", "model", "eps", "batch_size", "valid_fraction", "crop_padding")}
    config = make_config(recipe | size | {"epochs": 5, "radius_warmup": 1, "attack_step_size": 0.02, "lr": 0.02})
    run = train_run(config, tmp_path / "run")
    assert [line["epoch"] for line in run.log if "valid_epoch" not in line] == [1, 2, 4, 5]
