"""Sweeps: what a file may say, what it comes to, and runs that end in the same bytes whatever happens on the way."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kills import kill_until_done
from sweeps import ATTACKS, assert_same_job, by_hand, sweep_in, working_in, write_sweep
from tiny import tiny_config, write_tiny_npz
from worstclass.cli import board
from worstclass.cli import main as cli
from worstclass.cli.sweep import report_line
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, to_toml
from worstclass.errors import UserError
from worstclass.evaluation.saved import CARD
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.files import locked, read_json, write_json
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST
from worstclass.runs.train import train_run
from worstclass.sweep import RESULTS, Failure, Job, jobs
from worstclass.sweep.results import summarize

HEAD = 'attacks = "natural, fgsm"\n[grid]\nmethod = ["trades", "wat"]\nseed = [1, 2]\neta = [0.5]'


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sweep.toml, its data, and its runs in `out`: two methods with two seeds, one after another."""
    folder = tmp_path_factory.mktemp("swept")
    write_sweep(folder / "sweep.toml", HEAD)
    with working_in(folder):
        assert not cli.app(["sweep", "sweep.toml", "--serial", "--out", "out"], standalone_mode=False)
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# --- one after another ---


def test_a_serial_sweep_is_train_and_evaluate(swept: Path, tmp_path: Path) -> None:
    names = []
    with working_in(swept):
        for method, name in (("trades", "trades"), ("wat", "wat-eta0.5")):
            for seed in (1, 2):
                own = {"eta": 0.5} if method == "wat" else {}
                config = tiny_config(Path("tiny.npz"), method=method, epochs=1, seed=seed, **own)
                names.append(f"{name}-seed{seed}")
                by_hand(config, tmp_path / names[-1])
                assert_same_job(Path("out") / names[-1], tmp_path / names[-1])
    assert {path.name for path in (swept / "out").glob("[!.]*")} == {*names, RESULTS}


def test_the_same_again_does_nothing(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(swept / "out")
    with working_in(swept):
        assert not cli.app(["sweep", "sweep.toml", "--serial", "--out", "out"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "All 4 jobs are done already." in said
    assert "worstclass report out/*\n" in said
    after = contents(swept / "out")
    assert after[RESULTS][0] == before[RESULTS][0]
    for each in (before, after):
        each.pop(RESULTS)
        each.pop(".sweep.lock")
    assert after == before


def test_runs_on_other_images_are_not_sent_to_one_page() -> None:
    """`report` refuses them: photos of two sizes, or two radii."""
    photos = {"data": "folder:photos", "image_size": 32}
    one, other = (make_config({**photos, "seed": seed}) for seed in (1, 2))
    assert report_line([one, other], Path("out")) == "Compare these runs on one page: worstclass report out/*"
    others = [make_config({**photos, "image_size": 64}), make_config({**photos, "eps": "4/255"})]
    line = report_line([one, *others], Path("out"))
    assert line == "Compare runs that agree in image_size, eps on one page: worstclass report out/RUN ..."


def test_results_and_their_spread(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_json(swept / "out" / RESULTS)
    assert [line["state"] for line in results["jobs"]] == ["done"] * 4
    (group,) = (each for each in results["summary"] if each["group"] == "wat-eta0.5")
    cards = [read_json(swept / "out" / f"wat-eta0.5-seed{seed}" / CARD) for seed in (1, 2)]
    assert group["seeds"] == 2
    for attack in ATTACKS:
        for key in ("average", "worst"):
            values = [card["columns"][attack][key]["value"] for card in cards]
            assert group["results"][attack][key]["mean"] == pytest.approx(sum(values) / 2)
            assert group["results"][attack][key]["std"] == pytest.approx(abs(values[0] - values[1]) / np.sqrt(2))
        classes = np.mean([[c["value"] for c in card["columns"][attack]["classes"]] for card in cards], axis=0)
        assert group["results"][attack]["pooled_worst"]["value"] == pytest.approx(classes.min())
    board.print_results(results)
    average = group["results"]["fgsm"]["average"]
    assert f"{100 * average['mean']:.1f} ± {100 * average['std']:.1f} /" in capsys.readouterr().out


def test_one_seed_has_no_spread_and_a_failed_one_is_not_counted() -> None:
    cell = {"average": 0.5, "worst": 0.25, "worst_class": "a", "worst_tenth": 0.25, "classes": {"a": 0.25, "b": 0.75}}
    found = {"fgsm": cell}
    lines = [{"group": "g", "state": "done", "results": found}, {"group": "g", "state": "failed", "results": {}}]
    (group,) = summarize(lines)
    assert group["seeds"] == 1
    assert group["results"]["fgsm"]["average"] == {"mean": 0.5, "std": None}
    assert group["results"]["fgsm"]["pooled_worst"] == {"value": 0.25, "class": "a"}


def test_the_runs_feed_reproduce(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several seeds of a row are several lines."""
    paths = [str(path) for path in sorted((swept / "out").glob("[!.]*"))]  # as a shell expands out/*
    assert str(swept / "out" / RESULTS) in paths
    cli.app(["reproduce", "table1", *paths], standalone_mode=False)
    said = capsys.readouterr().out
    assert "TRADES, seed 1" in said
    assert "TRADES, seed 2" in said


@pytest.fixture
def copied(swept: Path, tmp_path: Path) -> Path:
    """The sweep and one of its runs, to be spoilt."""
    head = 'attacks = "natural,fgsm"\n[grid]\nmethod = ["trades"]'
    write_sweep(tmp_path / "sweep.toml", head)
    target = tmp_path / "out" / "trades-seed1"
    target.mkdir(parents=True)
    for path in (swept / "out" / "trades-seed1").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_new_attacks_are_added_without_training(copied: Path) -> None:
    before = (copied / "out" / "trades-seed1" / LAST).stat().st_mtime_ns
    write_sweep(copied / "sweep.toml", 'attacks = "natural,fgsm,pgd-2"\n[grid]\nmethod = ["trades"]')
    assert not sweep_in(copied)
    assert list(read_json(copied / "out" / "trades-seed1" / CARD)["columns"]) == ["natural", "fgsm", "pgd-2"]
    assert (copied / "out" / "trades-seed1" / LAST).stat().st_mtime_ns == before


def test_a_card_from_before_a_key_was_added_is_taken(copied: Path) -> None:
    """Its default is what the run had; another value is another recipe, and the card not of this run."""
    run = open_run(copied / "out" / "trades-seed1")
    card = read_json(run.folder / CARD)
    del card["about"]["recipe"]["normalize"]
    write_json(run.folder / CARD, card)
    assert jobs.attacks_left(run, ["fgsm", "pgd-2"]) == ["pgd-2"]
    card["about"]["recipe"]["normalize"] = True
    write_json(run.folder / CARD, card)
    assert jobs.attacks_left(run, ["fgsm", "pgd-2"]) == ["fgsm", "pgd-2"]


def test_another_recipe_in_a_folder_is_refused_before_anything_starts(copied: Path) -> None:
    write_sweep(copied / "sweep.toml", '[grid]\nmethod = ["csl", "trades"]', lr=0.2)
    before = contents(copied)
    with pytest.raises(UserError, match=r"trades-seed1 holds a run with another recipe \(lr = 0.1, here 0.2\)"):
        sweep_in(copied)
    assert contents(copied) == before


def test_a_second_sweep_in_a_folder_is_refused(copied: Path) -> None:
    with locked(copied / "out", "sweep"), pytest.raises(UserError, match="in use"):
        sweep_in(copied)


def test_failed_jobs_do_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A rate that blows up is told in a line; an error that nobody foresaw is kept with its traceback."""
    base = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1)
    for name, lr in (("bad", 1e30), ("good", 0.1), ("odd", 0.1)):
        (tmp_path / f"{name}.toml").write_text(to_toml(base.model_copy(update={"lr": lr})))
    (tmp_path / "sweep.toml").write_text('recipes = ["bad.toml", "odd.toml", "good.toml"]')

    def train(config: Config, folder: Path, **options: Any) -> Any:
        if folder.name.startswith("odd"):
            raise RuntimeError("a device gave up\nand more")
        return train_run(config, folder, **options)

    monkeypatch.setattr(jobs, "train_run", train)
    assert sweep_in(tmp_path) == 1
    said = capsys.readouterr().out
    assert "2 of 3 jobs failed" in said
    assert f"odd-seed{base.seed}: failed: RuntimeError: a device gave up\n" in said
    bad, odd, good = read_json(tmp_path / "out" / RESULTS)["jobs"]
    assert (bad["state"], odd["state"], good["state"]) == ("failed", "failed", "done")
    assert "not finite" in bad["reason"]
    assert bad["reason"] in said
    assert "traceback" not in bad
    assert "Traceback" in odd["traceback"]
    assert (tmp_path / "out" / f"good-seed{base.seed}" / LAST).is_file()
    monkeypatch.setattr(jobs, "train_run", train_run)
    assert sweep_in(tmp_path) == 1
    assert [line["state"] for line in read_json(tmp_path / "out" / RESULTS)["jobs"]] == ["failed", "done", "done"]


def continue_sweep(folder: Path) -> None:
    """In a process of its own."""
    code = sweep_in(folder, "--checkpoint-minutes", "0")
    assert not code


def test_a_sweep_killed_again_and_again_ends_in_the_same_bytes(swept: Path, tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep.toml", 'attacks = "natural,fgsm"\n[grid]\nmethod = ["trades"]\nseed = [1, 2]')
    kills = kill_until_done(continue_sweep, (tmp_path,), wait=0.2, growth=1.4)
    assert kills >= 2
    for name in ("trades-seed1", "trades-seed2"):
        assert_same_job(swept / "out" / name, tmp_path / "out" / name)
    results, whole = (read_json(folder / "out" / RESULTS) for folder in (tmp_path, swept))
    assert results["summary"] == whole["summary"][:1]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_sweep(tmp_path / "sweep.toml", '[grid]\nmethod = ["trades"]')
    monkeypatch.setattr(jobs, "train_run", stop)
    assert sweep_in(tmp_path) == 130
    assert "The same command goes on" in capsys.readouterr().out


# --- the table ---


def job_of(folder: Path) -> Job:
    return Job("run", folder, tiny_config(folder.parent / "tiny.npz", epochs=2, lr_milestones=[0.5]))


def test_a_row_follows_the_folder(tmp_path: Path) -> None:
    write_tiny_npz(tmp_path / "tiny.npz")
    job = job_of(tmp_path / "run")
    row = board.Row(job, done=False)
    assert row.cells() == ["run", "waiting", "", ""]
    seen = []

    def look(*_: object) -> None:
        row.refresh()
        seen.append(row.title)

    run = train_run(job.config, job.folder, on_step=look)
    assert seen[0] == "training epoch 1/2"
    assert seen[-1] == "training epoch 2/2"
    valid = [line["valid"] for line in run.log if line["selected"]][-1]
    again = board.Row(job, done=False)  # by a later sweep: nobody has taken the folder yet
    again.refresh()
    assert again.title == "waiting"
    evaluate_target(run_target(run), ["fgsm"], job.folder, notify=look)
    assert seen[-1] == "evaluating"
    row.end(None)
    assert row.title == "done"
    assert row.valid == f"{100 * valid['robust_accuracy']:.1f} / {100 * valid['worst_robust_accuracy']:.1f}"
    assert 0 <= float(row.minutes) < 10
    row.end(Failure("[bold]why"))
    row.refresh()
    assert row.title == "failed: [bold]why"


def test_the_table_in_a_terminal(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=130)
    first, second = job_of(tmp_path / "first"), job_of(tmp_path / "second")
    with board.Board([first, second], {"second"}, console) as table:
        table.finish(first, Failure("[red]it broke"))
    assert table.failures == {"first": Failure("[red]it broke")}
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).rsplit("Run ", 1)[1]
    assert "failed: [red]it broke" in last
    assert "done already" in last
