"""Sweeps: what a file may say, what it comes to, and runs that end in the same bytes whatever happens on the way."""

import io
import os
import re
from itertools import product
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
from worstclass.cli import board
from worstclass.cli import main as cli
from worstclass.config import Config, differing_keys, load_config, make_config, to_toml
from worstclass.errors import UserError
from worstclass.evaluation.targets import CARD, evaluate_target, run_target
from worstclass.files import locked, read_json, write_json
from worstclass.methods import METHODS
from worstclass.runs.run import open_run
from worstclass.runs.saver import LAST
from worstclass.runs.train import train_run
from worstclass.sweep import RESULTS, Failure, Job, Setup, Sweep, expand, jobs, read_sweep
from worstclass.sweep.results import summarize

ROOT = Path(__file__).parents[2]


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


# --- the file ---

WAT = '[grid]\nmethod = ["wat"]\n'
BAD = {
    "nothing to run": ("[grid]\nseed = [1]", "a sweep has recipes, or a method in [grid] or [set]"),
    "unknown key": ('recipe = ["fashion-mini-wat"]', "unknown key 'recipe'. Did you mean 'recipes'?"),
    "unknown key in grid": (WAT + "epocs = [1]", "unknown key in [grid] 'epocs'. Did you mean 'epochs'?"),
    "unknown key in set": (WAT + "[set]\nepocs = 1", "unknown key in [set] 'epocs'. Did you mean 'epochs'?"),
    "a key outside": ("eta = [0.1]\n" + WAT, "unknown key 'eta'. Write eta = [...] under [grid]"),
    "seeds outside": ("seeds = [1]\n" + WAT, "unknown key 'seeds'. Write seed = [...] under [grid]"),
    "unknown method": ('[grid]\nmethod = ["wta"]', "unknown method 'wta'. Did you mean 'wat'?"),
    "unknown method in set": ('[set]\nmethod = "wta"', "unknown method 'wta'. Did you mean 'wat'?"),
    "a method that is a number": ("[set]\nmethod = 3", "method = 3: input should be a valid string"),
    "unknown recipe": ('recipes = ["fashion-mini-wta"]', "Did you mean 'fashion-mini-wat'?"),
    "no seeds": (WAT + "seed = []", "seed = [] is not a list of values"),
    "no list": (WAT + "seed = 1", "seed = 1 is not a list of values"),
    "no table": ('recipes = ["fashion-mini-wat"]\ngrid = 3', "grid = 3: input should be a valid dictionary"),
    "a word for a seed": (WAT + 'seed = ["one"]', "seed = 'one'"),
    "a seed below 0": (WAT + "seed = [-1]", "seed = -1"),
    "a seed twice": (WAT + "seed = [1, 2, 1]", "seed has 1 twice"),
    "a recipe twice": ('recipes = ["fashion-mini-wat", "fashion-mini-wat"]', "recipes has fashion-mini-wat twice"),
    "eta of 0": (WAT + "eta = [0]", "eta = 0: input should be greater than 0"),
    "eta twice": (WAT + 'eta = [0.1, "1/10"]', "eta has 0.1 twice"),
    "eta without wat": ('[grid]\nmethod = ["trades", "csl"]\neta = [0.1]', "eta belongs to method 'wat', and no run"),
    "set without an owner": (
        '[grid]\nmethod = ["trades"]\n[set]\neta = 0.1',
        "eta belongs to method 'wat', and no run",
    ),
    "seed in both": (WAT + "seed = [1]\n[set]\nseed = 1", "seed in [set] contradicts [grid]"),
    "method in set": ('recipes = ["fashion-mini-wat"]\n[set]\nmethod = "csl"', "method in [set] contradicts recipes"),
    "no epochs": (WAT + "[set]\nepochs = 0", "epochs = 0: input should be greater than or equal to 1"),
    "together impossible": (WAT + "attack_steps = [10, 2]", "wat-attack_steps2: attack_steps = 2 of attack_step_size"),
    "too many": (WAT + f"seed = {[*range(101)]}\nepochs = {[*range(1, 101)]}", "the grid has 10100 combinations"),
    "retries below 0": ("retries = -1\n" + WAT, "retries = -1"),
    "unknown attack": ('attacks = "pdg-20"\n' + WAT, "unknown attack 'pdg-20'"),
    "attacks as a list": ('attacks = ["pgd-20"]\n' + WAT, "attacks = ['pgd-20']"),
    "not TOML": ("[grid]\nmethod = [", "is not valid TOML"),
    "nested without end": ("seeds = " + 3000 * "[" + 3000 * "]", "is not valid TOML"),
    "a number without end": ("seeds = [" + 10_000 * "1" + "]", "is not valid TOML"),
    "a file without end": ("# " + 40_000 * "a", "at most 32768 are read"),
    "code of one's own": (WAT + '[set]\nmodel = "mine:make"', "pass --allow-code"),
    "data that is not there": (WAT + '[set]\ndata = "npz:no.npz"', "no.npz"),
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


def expanded(out: Path = Path("out"), **keys: Any) -> list[Job]:
    return expand(Sweep.model_validate(keys), out)


GRIDS = st.fixed_dictionaries(
    {
        "method": st.lists(st.sampled_from(list(METHODS)), min_size=1, unique=True).filter(
            lambda them: "fixed" not in them
        )
    },
    optional={
        "seed": st.lists(st.integers(0, 10**6), min_size=1, max_size=3, unique=True),
        "eta": st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=3, unique=True),
        "beta": st.lists(st.sampled_from([0, 1.5, 6]), min_size=1, unique=True),
        "attack_steps": st.lists(st.integers(5, 20), min_size=1, max_size=2, unique=True),
        "frl_tau": st.lists(st.sampled_from([0.0, 0.05]), min_size=1, unique=True),
        "flip": st.just([True, False]),
        "select": st.lists(st.sampled_from(["last", "average"]), min_size=1, unique=True),
        "eps": st.just(["8/255", 0.03]),
    },
)


@given(GRIDS)
def test_a_sweep_is_every_combination_once(grid: dict[str, list[Any]]) -> None:
    """For each method, of the keys that it uses: their product, each with a folder of its own and no run twice."""
    owners = {method: set(make_config({"method": method}).used_keys) for method in grid["method"]}
    keys = set(grid) & set().union(*owners.values())
    found = expanded(grid={key: grid[key] for key in grid if key in keys}, set={"lr": 0.5})
    assert len({job.folder for job in found}) == len(found)
    assert len({to_toml(job.config) for job in found}) == len(found)
    for method in grid["method"]:
        own = {key: grid[key] for key in keys & owners[method]} | {"method": [method]}
        wanted = [make_config({"lr": 0.5, **dict(zip(own, values, strict=True))}) for values in product(*own.values())]
        ours = [job for job in found if job.config.method == method]
        assert len(ours) == len(wanted)
        assert all(job.config in wanted for job in ours)
        for job in ours:
            assert job.name == f"{job.group}-seed{job.config.seed}"
            assert job.group.startswith(method)
            assert [f"-{key}" in job.group for key in own if key not in ("method", "seed")] == [True] * (
                len(set(own) - {"method", "seed"})
            )
    for group in {job.group for job in found}:  # what differs within a group is the seed
        assert differing_keys(*(job.config for job in found if job.group == group)) in ([], ["seed"])


def test_a_key_that_no_method_of_the_grid_owns() -> None:
    with pytest.raises(UserError, match="csl_rate belongs to method 'csl', and no run of the sweep is of that"):
        expanded(grid={"method": ["wat", "trades"], "csl_rate": [0.1]})
    found = expanded(grid={"method": ["wat", "csl"], "csl_rate": [0.1, 0.2]}, set={"eta": 0.5})
    assert [job.name for job in found] == ["wat-seed1", "csl-csl_rate0.1-seed1", "csl-csl_rate0.2-seed1"]
    assert [job.config.eta for job in found] == [0.5, 0.1, 0.1]


def test_folders_are_named_as_train_names_them() -> None:
    found = expanded(recipes=["fashion-mini-wat", "fashion-mini-csl"], grid={"seed": [3]})
    assert [job.name for job in found] == ["fashion-mini-wat-seed3", "fashion-mini-csl-seed3"]
    assert [job.name for job in expanded(recipes=["fashion-mini-wat"])] == ["fashion-mini-wat-seed1"]


def test_folders_are_named_by_what_differs() -> None:
    found = expanded(grid={"seed": [2], "eta": [0.1, 1.0], "method": ["wat"]})
    assert [job.name for job in found] == ["wat-eta0.1-seed2", "wat-eta1-seed2"]
    grid: dict[str, list[Any]] = {"eps": ["8/255"], "flip": [False], "lr_milestones": [["1/2", 1]], "select": ["last"]}
    (job,) = expanded(grid=grid | {"data": ["npz:/some where/my data.npz"]}, set={"method": "trades", "seed": 7})
    assert job.name == "trades-eps8-255-flip-false-lr_milestones-0.5-1-select-last-data-my-data.npz-seed7"
    weights = [[0.01] * 100, [0.02] * 50]
    one, other = expanded(grid={"method": ["fixed"], "class_weights": weights})
    assert one.name != other.name
    assert max(len(one.name), len(other.name)) < 100
    with pytest.raises(UserError, match=r"would share out/wat-data-a\.npz-seed1"):
        expanded(grid={"method": ["wat"], "data": ["npz:x/a.npz", "npz:y/a.npz"]})


def test_methods_over_a_recipe() -> None:
    """Each gets the recipe's keys that it uses."""
    found = expanded(recipes=["fashion-mini-wat"], grid={"method": ["wat", "trades", "natural"], "eta": [0.25]})
    names = ["fashion-mini-wat-wat-eta0.25", "fashion-mini-wat-trades", "fashion-mini-wat-natural"]
    assert [job.group for job in found] == names
    by_hand_configs = [load_config("fashion-mini-wat", method="wat", eta=0.25)]
    by_hand_configs += [load_config("fashion-mini-wat", method=method) for method in ("trades", "natural")]
    assert [job.config for job in found] == by_hand_configs


def test_a_recipe_with_a_mistake_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('method = "trades"\neta = 0.5')
    with pytest.raises(
        UserError, match=r"mine\.toml as mine: eta belongs to method 'wat'; the method here is 'trades'"
    ):
        expanded(recipes=[str(tmp_path / "mine.toml")], grid={"seed": [1, 2]})


def test_the_grid_may_complete_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "cat.toml").write_text('method = "fixed"\nfocus_class = 3')
    found = expanded(recipes=[str(tmp_path / "cat.toml")], grid={"focus_weight": [0.1, 0.25]})
    assert [job.name for job in found] == ["cat-focus_weight0.1-seed1", "cat-focus_weight0.25-seed1"]


def test_a_key_of_another_owner_than_the_method() -> None:
    grid = {"average": ["none", "ema"], "ema_decay": [0.99, 0.999], "method": ["trades"]}
    names = ["average-none", "average-ema-ema_decay0.99", "average-ema-ema_decay0.999"]
    assert [job.group for job in expanded(grid=grid)] == [f"trades-{name}" for name in names]


def test_the_example_and_the_page_about_it() -> None:
    """The page shows the file as it is and every key."""
    page = (ROOT / "docs" / "sweep.md").read_text()
    text = (ROOT / "examples" / "sweep.toml").read_text()
    assert f"```toml\n{text}```" in page
    sweep = read_sweep(ROOT / "examples" / "sweep.toml")
    with working_in(ROOT):
        found = expand(sweep, Path("out"))
    jobs.check_jobs(found, Setup(sweep.attack_names))
    assert len(found) == len(sweep.grid["seed"]) * (1 + len(sweep.grid["eta"]))
    assert [f"| `{key}` |" in page for key in Sweep.model_fields] == [True] * len(Sweep.model_fields)


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
    assert "odd-seed1: failed: RuntimeError: a device gave up\n" in said
    bad, odd, good = read_json(tmp_path / "out" / RESULTS)["jobs"]
    assert (bad["state"], odd["state"], good["state"]) == ("failed", "failed", "done")
    assert "not finite" in bad["reason"]
    assert bad["reason"] in said
    assert "traceback" not in bad
    assert "Traceback" in odd["traceback"]
    assert (tmp_path / "out" / "good-seed1" / LAST).is_file()
    monkeypatch.setattr(jobs, "train_run", train_run)
    assert sweep_in(tmp_path) == 1
    assert [line["state"] for line in read_json(tmp_path / "out" / RESULTS)["jobs"]] == ["failed", "done", "done"]


def continue_sweep(folder: Path) -> None:
    """In a process of its own."""
    code = sweep_in(folder, "--checkpoint-minutes", "0")
    assert not code


def test_a_sweep_killed_again_and_again_ends_in_the_same_bytes(swept: Path, tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep.toml", 'attacks = "natural,fgsm"\n[grid]\nmethod = ["trades"]\nseed = [1, 2]')
    kills = kill_until_done(continue_sweep, (tmp_path,), wait=0.4, growth=1.4)
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
