"""The file of a sweep: the jobs that it stands for, their names, and mistakes in one line."""

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps import working_in
from worstclass.cli import main as cli
from worstclass.config.differences import differing_keys
from worstclass.config.methods import METHODS
from worstclass.config.recipe import load_config, make_config, to_toml
from worstclass.errors import UserError
from worstclass.sweep import Job, Setup, Sweep, expand, jobs, read_sweep

ROOT = Path(__file__).parents[2]


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
    "attacks as numbers": ("attacks = [20]\n" + WAT, "attacks = [20]"),
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


def test_attacks_are_names_with_commas_or_a_list() -> None:
    lists: list[Any] = ["natural,pgd-20", ["natural", "pgd-20"]]
    one, other = (Sweep.model_validate({"set": {"method": "wat"}, "attacks": each}) for each in lists)
    assert one == other


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


def test_a_base_is_of_the_methods_that_can_have_one() -> None:
    plan = expanded(recipes=["my-images"], grid={"method": ["guarded", "trades"]}, set={"budget": 0.1})
    assert [(job.config.method, job.config.base_start) for job in plan] == [("guarded", 0.7), ("trades", None)]
    plan = expanded(recipes=["my-images"], grid={"base_start": ["none", 0.7]})
    assert [job.group for job in plan] == ["my-images-base_start-none", "my-images-base_start0.7"]
    assert [job.config.base_start for job in plan] == [None, 0.7]
