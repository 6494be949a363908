"""Sweeps: what a file may say, what it comes to, and runs that end in the same bytes whatever happens on the way."""

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kills import kill_until_done
from sweeps import ATTACKS, assert_same_job, by_hand, sweep_in, working_in, write_sweep
from tiny import tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config import Config, to_toml
from worstclass.errors import UserError
from worstclass.evaluation.targets import CARD, evaluate_target, run_target
from worstclass.files import locked, read_json
from worstclass.runs.saver import LAST
from worstclass.runs.train import train_run
from worstclass.sweep import RESULTS, Failure, Job, Setup, Sweep, board, expand, jobs, read_sweep
from worstclass.sweep.results import summarize

ROOT = Path(__file__).parents[2]


HEAD = 'methods = ["trades", "wat"]\nseeds = [1, 2]\neta = [0.5]\nattacks = "natural, fgsm"'


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


# --- the file ---

BAD = {
    "nothing to run": ("seeds = [1]", "either recipes or methods"),
    "both kinds": ('recipes = ["fashion-mini-wat"]\nmethods = ["wat"]', "either recipes or methods"),
    "unknown key": ('method = ["wat"]', "unknown key 'method'. Did you mean 'methods'?"),
    "unknown method": ('methods = ["wta"]', "unknown method 'wta'. Did you mean 'wat'?"),
    "unknown recipe": ('recipes = ["fashion-mini-wta"]', "Did you mean 'fashion-mini-wat'?"),
    "no seeds": ('methods = ["wat"]\nseeds = []', "seeds = []: "),
    "a word for a seed": ('methods = ["wat"]\nseeds = ["one"]', "seeds = 'one'"),
    "a seed below 0": ('methods = ["wat"]\nseeds = [-1]', "seeds = -1"),
    "a seed twice": ('methods = ["wat"]\nseeds = [1, 2, 1]', "seeds has 1 twice"),
    "eta of 0": ('methods = ["wat"]\neta = [0]', "eta = 0: input should be greater than 0"),
    "eta twice": ('methods = ["wat"]\neta = [0.1, "1/10"]', "eta has 0.1 twice"),
    "eta without wat": ('methods = ["trades"]\neta = [0.1]', "belongs to method wat"),
    "seed in set": ('methods = ["wat"]\n[set]\nseed = 1', "seed in [set] contradicts seeds"),
    "method in set": ('recipes = ["fashion-mini-wat"]\n[set]\nmethod = "csl"', "method in [set] contradicts"),
    "eta in both": ('methods = ["wat"]\neta = [0.1]\n[set]\neta = 1', "eta in [set] contradicts eta"),
    "unknown key in set": ('methods = ["wat"]\n[set]\nepocs = 1', "method wat with [set]: unknown key 'epocs'"),
    "retries below 0": ('methods = ["wat"]\nretries = -1', "retries = -1"),
    "unknown attack": ('methods = ["wat"]\nattacks = "pdg-20"', "unknown attack 'pdg-20'"),
    "attacks as a list": ('methods = ["wat"]\nattacks = ["pgd-20"]', "attacks = ['pgd-20']"),
    "not TOML": ("methods = [", "is not valid TOML"),
    "nested without end": ("seeds = " + 3000 * "[" + 3000 * "]", "is not valid TOML"),
    "a number without end": ("seeds = [" + 10_000 * "1" + "]", "is not valid TOML"),
    "a file without end": ("# " + 40_000 * "a", "at most 32768 are read"),
    "code of one's own": ('methods = ["wat"]\n[set]\nmodel = "mine:make"', "pass --allow-code"),
    "data that is not there": ('methods = ["wat"]\n[set]\ndata = "npz:no.npz"', "no.npz"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_one_line_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    text, fragment = BAD[case]
    (tmp_path / "sweep.toml").write_text(text)
    with working_in(tmp_path), pytest.raises(UserError) as caught:
        cli.app(["sweep", "sweep.toml", "--serial"], standalone_mode=False)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.toml"]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.toml")
    with pytest.raises(UserError, match="is not a file"):
        read_sweep(tmp_path / "sweep.toml")


def test_recipes_of_one_name_would_share_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.toml").write_text('method = "wat"')
    both = tuple(str(tmp_path / name / "same.toml") for name in ("a", "b"))
    with pytest.raises(UserError, match="would share out/same-seed1"):
        expand(Sweep.model_validate({"recipes": both}), Path("out"))


NAMES = st.lists(st.sampled_from(["trades", "wat", "csl", "frl-rw", "natural"]), min_size=1, unique=True)
SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=4, unique=True)
ETAS = st.lists(st.floats(1e-6, 1e3), max_size=4, unique=True)


@given(NAMES, SEEDS, ETAS)
def test_a_sweep_is_every_combination_once(methods: list[str], seeds: list[int], etas: list[float]) -> None:
    if "wat" not in methods:
        etas = []
    sweep = Sweep.model_validate({"methods": methods, "seeds": seeds, "eta": etas, "set": {"lr": 0.5}})
    found = expand(sweep, Path("out"))
    assert len(found) == len(seeds) * sum(max(len(etas), 1) if method == "wat" else 1 for method in methods)
    assert len({job.folder for job in found}) == len(found)
    wanted = {(m, s, e) for m in methods for s in seeds for e in (etas if etas and m == "wat" else [0.1])}
    assert {(job.config.method, job.config.seed, job.config.eta) for job in found} == wanted
    for job in found:
        eta = f"-eta{job.config.eta!r}".removesuffix(".0") if etas and job.config.method == "wat" else ""
        assert job.folder == Path("out") / f"{job.config.method}{eta}-seed{job.config.seed}"
        assert job.config.lr == 0.5


def test_folders_are_named_as_train_names_them() -> None:
    sweep = Sweep.model_validate({"recipes": ["fashion-mini-wat", "fashion-mini-csl"], "seeds": [3]})
    assert [job.name for job in expand(sweep, Path("out"))] == ["fashion-mini-wat-seed3", "fashion-mini-csl-seed3"]


def test_the_example_and_the_page_about_it() -> None:
    """The example's runs are the paper's rows, and the page shows the file as it is and every key."""
    page = (ROOT / "docs" / "sweep.md").read_text()
    text = (ROOT / "examples" / "sweep.toml").read_text()
    assert f"```toml\n{text}```" in page
    sweep = read_sweep(ROOT / "examples" / "sweep.toml")
    with working_in(ROOT):
        found = expand(sweep, Path("out"))
    jobs.check_jobs(found, Setup(sweep.attack_names))
    assert len(found) == len(sweep.seeds) * (1 + len(sweep.eta))
    assert [f"| `{key}` |" in page for key in Sweep.model_fields] == [True] * len(Sweep.model_fields)


# --- one after another ---


def test_a_serial_sweep_is_train_and_evaluate(swept: Path, tmp_path: Path) -> None:
    names = []
    with working_in(swept):
        for method, name in (("trades", "trades"), ("wat", "wat-eta0.5")):
            for seed in (1, 2):
                eta = 0.5 if method == "wat" else 0.1
                config = tiny_config(Path("tiny.npz"), method=method, epochs=1, seed=seed, eta=eta)
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
    board.print_results(results)
    average = group["results"]["fgsm"]["average"]
    assert f"{100 * average['mean']:.1f} ± {100 * average['std']:.1f} /" in capsys.readouterr().out


def test_one_seed_has_no_spread_and_a_failed_one_is_not_counted() -> None:
    found = {"fgsm": {"average": 0.5, "worst": 0.25, "worst_class": "a"}}
    lines = [{"group": "g", "state": "done", "results": found}, {"group": "g", "state": "failed", "results": {}}]
    (group,) = summarize(lines)
    assert group["seeds"] == 1
    assert group["results"]["fgsm"]["average"] == {"mean": 0.5, "std": None}


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
    head = 'methods = ["trades"]\nattacks = "natural,fgsm"'
    write_sweep(tmp_path / "sweep.toml", head)
    target = tmp_path / "out" / "trades-seed1"
    target.mkdir(parents=True)
    for path in (swept / "out" / "trades-seed1").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_new_attacks_are_added_without_training(copied: Path) -> None:
    before = (copied / "out" / "trades-seed1" / LAST).stat().st_mtime_ns
    write_sweep(copied / "sweep.toml", 'methods = ["trades"]\nattacks = "natural,fgsm,pgd-2"')
    assert not sweep_in(copied)
    assert list(read_json(copied / "out" / "trades-seed1" / CARD)["columns"]) == ["natural", "fgsm", "pgd-2"]
    assert (copied / "out" / "trades-seed1" / LAST).stat().st_mtime_ns == before


def test_another_recipe_in_a_folder_is_refused_before_anything_starts(copied: Path) -> None:
    write_sweep(copied / "sweep.toml", 'methods = ["csl", "trades"]', lr=0.2)
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

    monkeypatch.setattr(jobs, "train", train)
    assert sweep_in(tmp_path) == 1
    said = capsys.readouterr().out
    assert "2 of 3 jobs failed" in said
    assert "odd-seed1: failed: RuntimeError: a device gave up\n" in said
    bad, odd, good = read_json(tmp_path / "out" / RESULTS)["jobs"]
    assert (bad["state"], odd["state"], good["state"]) == ("failed", "failed", "done")
    assert "not finite" in bad["reason"]
    assert bad["reason"] in said
    assert "traceback" not in bad
    assert "Traceback" in odd["traceback"]
    assert (tmp_path / "out" / "good-seed1" / LAST).is_file()
    monkeypatch.setattr(jobs, "train", train)
    assert sweep_in(tmp_path) == 1
    assert [line["state"] for line in read_json(tmp_path / "out" / RESULTS)["jobs"]] == ["failed", "done", "done"]


def continue_sweep(folder: Path) -> None:
    """In a process of its own."""
    code = sweep_in(folder, "--checkpoint-minutes", "0")
    assert not code


def test_a_sweep_killed_again_and_again_ends_in_the_same_bytes(swept: Path, tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep.toml", 'methods = ["trades"]\nseeds = [1, 2]\nattacks = "natural,fgsm"')
    kills = kill_until_done(continue_sweep, (tmp_path,), wait=0.4, growth=1.4)
    assert kills >= 2
    for name in ("trades-seed1", "trades-seed2"):
        assert_same_job(swept / "out" / name, tmp_path / "out" / name)
    results, whole = (read_json(folder / "out" / RESULTS) for folder in (tmp_path, swept))
    assert results["summary"] == whole["summary"][:1]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_sweep(tmp_path / "sweep.toml", 'methods = ["trades"]')
    monkeypatch.setattr(jobs, "train", stop)
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
