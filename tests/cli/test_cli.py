"""The command: what bad input gets is one line, exit code 2, and nothing written; good input differs by one thing."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worstclass
from worstclass.cli import main as cli
from worstclass.config.keys import Config
from worstclass.config.methods import METHODS
from worstclass.config.recipe import make_config, recipe_names, to_toml
from worstclass.data import sources
from worstclass.data.cifar import CIFAR10
from worstclass.inputs.names import RECIPE
from worstclass.runs.saver import ABOUT, LAST, LOG, SELECTED
from worstclass.runs.seen import SEEN
from worstclass.runs.train import train_run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(
    tmp_path: Path, tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command in this process, in a folder of its own that holds a good recipe, tiny.toml."""
    (tmp_path / "tiny.toml").write_text(to_toml(make_config(tiny_values)))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["worstclass", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Outcome(caught.value.code, printed.out, printed.err)

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_values: dict[str, Any]) -> Path:
    """Two runs of one epoch, `small` and `wide`, which differ in their network."""
    folder = tmp_path_factory.mktemp("trained")
    train_run(make_config(tiny_values), folder / "small")
    train_run(make_config(tiny_values | {"model": "wrn10-1", "batch_size": 54}), folder / "wide")
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """Copies of the trained runs, to be spoilt."""
    shutil.copytree(trained, tmp_path / "runs")
    return tmp_path / "runs"


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, with what it holds."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def assert_refused(outcome: Outcome, *fragments: str) -> None:
    assert outcome.code == 2, outcome
    assert re.fullmatch(r"error: [^\n]+\.\n", outcome.err), outcome.err
    assert "Traceback" not in outcome.out + outcome.err
    for fragment in fragments:
        assert fragment in outcome.err


def shell(*arguments: object, cwd: Path) -> Outcome:
    """The command as a process of its own."""
    words = [sys.executable, "-m", "worstclass", *map(str, arguments)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


# --- good input ---


def test_train_evaluate_and_the_files_they_leave(command: Command, tmp_path: Path) -> None:
    outcome = command("train", "tiny.toml", "--out", "out", "--set", "epochs=2", "--set", "seed=7")
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    assert "worstclass evaluate out" in outcome.out
    assert {path.name for path in (tmp_path / "out").glob("[!.]*")} == {RECIPE, ABOUT, LOG, LAST, SELECTED, SEEN}
    assert len((tmp_path / "out" / LOG).read_text().splitlines()) == 2
    assert "seed = 7\n" in (tmp_path / "out" / RECIPE).read_text()
    outcome = command("evaluate", "out", "--attacks", "natural,fgsm")
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    assert (tmp_path / "out" / "card.json").is_file()
    assert (tmp_path / "out" / "outcomes.npz").is_file()


def test_another_method_by_a_setting_leaves_out_the_keys_of_the_old_one(command: Command, tmp_path: Path) -> None:
    assert {"eta = 0.1", "attack_steps = 1"} <= set((tmp_path / "tiny.toml").read_text().splitlines())
    outcome = command("train", "tiny.toml", "--out", "out", "--set", "method=natural")
    assert outcome.code == 0, outcome
    recipe = (tmp_path / "out" / RECIPE).read_text()
    assert 'method = "natural"\n' in recipe
    assert not re.search("^(eta|variant|beta|attack_steps|attack_step_size) =", recipe, re.MULTILINE)


def test_default_run_folder_is_named_after_recipe_and_seed(command: Command, tmp_path: Path) -> None:
    assert command("train", "tiny.toml", "--set", "seed=3").code == 0
    assert (tmp_path / "runs" / "tiny-seed3" / RECIPE).is_file()


def test_help_shows_every_key_with_its_default(command: Command) -> None:
    outcome = command("train", "--help")
    assert outcome.code == 0
    for key, field in Config.model_fields.items():
        line = rf"^ +{key}( = .+)?: {re.escape(field.description or '')}( \(.+\))?( \[.+\])?$"
        assert re.search(line, outcome.out, re.MULTILINE), key
    assert f"({', '.join(METHODS)})" in outcome.out
    for line in ("eps = 8/255:", "lr = 0.1:", "epochs = 100:", "eta = 0.1:", "method = wat:", "beta = 6.0:"):
        assert re.search(rf"^ +{re.escape(line)}", outcome.out, re.MULTILINE), line
    for line in (
        "eta = .*[method wat]",
        "beta = .*[objective trades or bat]",
        "frl_tau = .*[method frl-rw or frl-rwrm]",
    ):
        start, owner = line.split(".*")
        assert re.search(rf"^ +{start}.* {re.escape(owner)}$", outcome.out, re.MULTILINE), line
    for symbol in ("epsilon", "lambda", "beta", "eta", "alpha", "tau"):
        assert re.search(rf": .*\b{symbol}(_|\b)", outcome.out), symbol


def test_bench_train_takes_several_networks_in_one_run(command: Command) -> None:
    sizes = ("--batch-size", 4, "--steps", 1, "--device", "cpu")
    outcome = command("bench", "train", "--model", "small-cnn, wrn10-1", *sizes)
    assert outcome.code == 0, outcome
    first, second = re.split(r" +wrn10-1, batch 4, 1 steps", outcome.out)
    assert "small-cnn, batch 4, 1 steps" in first
    for table in (first, second):
        found = re.findall(r"│ (public code|eager fp32) +│ ([\d.]+) +│ ([\d.]+) +│ (\d+)", table)
        assert [row[0] for row in found] == ["public code", "eager fp32"]
        for _, milliseconds, faster, images in found:
            assert float(faster) == pytest.approx(float(found[0][1]) / float(milliseconds), abs=0.01)
            assert int(images) == pytest.approx(4000 / float(milliseconds), abs=0.6)
    assert_refused(command("bench", "train", "--model", "small-cnn,resnet19", *sizes), "resnet19")
    assert_refused(command("bench", "train", "--ways", "fast bf16", *sizes), "fast bf16")


def test_recipes_are_listed(command: Command) -> None:
    outcome = command("recipes")
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == recipe_names()


def test_version_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert shell("--version", cwd=tmp_path) == Outcome(0, f"{worstclass.__version__}\n", "")


# --- bad input to train ---

BAD_SETTINGS: dict[str, tuple[list[str], list[str]]] = {
    "unknown key": (["epocs=3"], ["unknown key 'epocs'", "Did you mean 'epochs'?", "batch_size"]),
    "unknown method": (["method=trade"], ["unknown method 'trade'", "Did you mean 'trades'?", "frl-rwrm"]),
    "unknown model": (["model=small"], ["unknown model 'small'", "small-cnn"]),
    "unknown data": (["data=cifar"], ["unknown data 'cifar'", "Did you mean 'cifar10'?", "folder:PATH"]),
    "eps of 0": (["eps=0"], ["eps = 0", "greater than 0"]),
    "eps over 1": (["eps=8"], ["eps = 8:", "at most 1", "8/255?"]),
    "no epochs": (["epochs=0"], ["epochs = 0", "greater than or equal to 1"]),
    "words for a number": (["lr=fast"], ["lr: 'fast' is not a number"]),
    "all for validation": (["valid_fraction=1"], ["valid_fraction = 1", "less than 1"]),
    "no setting": (["epochs"], ["'epochs' is not a setting of the form key=value"]),
    "fixed without weights": (["method=fixed"], ["class_weights", "focus_class"]),
    "weights for other classes": (
        ["method=fixed", "class_weights=[0.5, 0.5]"],
        ["class_weights has 2 numbers, the data 3 classes"],
    ),
    "focus outside": (
        ["method=fixed", "focus_class=3", "focus_weight=0.5"],
        ["focus_class is 3, the data's classes are 0..2"],
    ),
    "a key of another method": (["csl_rate=1"], ["csl_rate belongs to method 'csl'; the method here is 'wat'."]),
    "a key that is named as an argument": (["recipe=1"], ["unknown key 'recipe'"]),
    "own model that is not there": (["model=no_such_module:build"], ["cannot import 'no_such_module'"]),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings(command: Command, tmp_path: Path, case: str) -> None:
    settings, fragments = BAD_SETTINGS[case]
    before = contents(tmp_path)
    options = [word for setting in settings for word in ("--set", setting)]
    assert_refused(command("train", "tiny.toml", "--out", "out", *options), *fragments)
    assert contents(tmp_path) == before


def test_bad_recipes(command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("method = \n")
    (tmp_path / "key.toml").write_text("epocs = 3\n")
    (tmp_path / "code.toml").write_text('model = "own_code:build"\ndata = "fashion-mini"\n')
    (tmp_path / "own_code.py").write_text("raise SystemExit('this must not be imported')\n")
    before = contents(tmp_path)
    assert_refused(command("train", "fashion-mini-wta"), "unknown recipe", "Did you mean 'fashion-mini-wat'?")
    assert_refused(command("train", "nowhere/mine.toml"), "no recipe at nowhere/mine.toml")
    assert_refused(command("train", "broken.toml"), "broken.toml is not valid TOML")
    assert_refused(command("train", "key.toml"), "key.toml: unknown key 'epocs'", "Did you mean 'epochs'?")
    assert_refused(command("train", "code.toml"), "own_code:build", "--allow-code")
    assert_refused(command("train"), "give a recipe, --resume")
    assert_refused(command("train", "tiny.toml", "--resume", "x"), "one of the three")
    assert_refused(command("train", "--fork", "runs/t"), "'runs/t' is not a run folder and an epoch")
    assert_refused(command("train", "tiny.toml", "--device", "gpu"), "unknown device 'gpu'", "auto, cpu, cuda")
    assert contents(tmp_path) == before


def test_a_run_with_code_is_evaluated_with_consent(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worstclass.cli.watched.train_with_progress", lambda *_, **__: None)
    own = command("train", "tiny.toml", "--set", "model=own_model:make", "--out", "own")
    assert own.out.splitlines()[-1].endswith("worstclass evaluate own --allow-code")
    assert command("train", "tiny.toml", "--out", "ours").out.splitlines()[-1].endswith("worstclass evaluate ours")


def spoil(path: Path, good: Path, **changes: Any) -> None:
    with np.load(good) as archive:
        np.savez(path, **({name: archive[name] for name in archive.files} | changes))


def test_bad_data(command: Command, tmp_path: Path, tiny_npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.tile(np.arange(3), 40)
    (tmp_path / "cut.npz").write_bytes(tiny_npz.read_bytes()[:-1000])
    spoil(tmp_path / "float.npz", tiny_npz, x_train=np.full((120, 8, 8), 0.5))
    spoil(tmp_path / "outside.npz", tiny_npz, y_train=labels + 1)
    spoil(tmp_path / "negative.npz", tiny_npz, y_train=labels - 1)
    spoil(tmp_path / "single.npz", tiny_npz, y_train=np.r_[2, labels[1:] % 2])
    monkeypatch.setattr(sources, "CIFAR10", replace(CIFAR10, url=(tmp_path / "offline.tar.gz").as_uri()))
    before = contents(tmp_path)

    def train(data: str) -> Outcome:
        return command("train", "tiny.toml", "--out", "out", "--set", f"data={data}", "--data-dir", "data")

    assert_refused(train("npz:gone.npz"), "no data file at gone.npz")
    assert_refused(train("npz:cut.npz"), "cut.npz is not a readable .npz file")
    assert_refused(train("npz:float.npz"), "x_train must be uint8 in 0..255, not float64")
    assert_refused(train("npz:outside.npz"), "labels lie in 1..3, expected 0..2")
    assert_refused(train("npz:negative.npz"), "labels lie in -1..1, expected 0..2")
    assert_refused(train("npz:single.npz"), "class 'bottom' has 1 training image(s)", "validation")
    assert_refused(train("folder:gone"), f"there is no folder gone in {tmp_path}.")
    assert_refused(train("cifar10"), "cifar10 is not in data and cannot be downloaded", "--data-dir")
    assert contents(tmp_path) == before


def test_truncated_cifar(command: Command, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in CIFAR10.files:
        (tmp_path / "data" / name).write_bytes(bytes(1000))
    before = contents(tmp_path)
    outcome = command("train", "tiny.toml", "--set", "data=cifar10", "--data-dir", "data", "--out", "out")
    assert_refused(outcome, "data_batch_1.bin: 1000 bytes, 30730000 expected")
    (tmp_path / "data" / "test_batch.bin").unlink()
    outcome = command("train", "tiny.toml", "--set", "data=cifar10", "--data-dir", "data", "--out", "out")
    assert_refused(outcome, "holds cifar10 but not test_batch.bin")
    del before[str(tmp_path / "data" / "test_batch.bin")]
    assert contents(tmp_path) == before


def test_output_folder_in_use(command: Command, tmp_path: Path, runs: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    before = contents(tmp_path)
    assert_refused(command("train", "tiny.toml", "--out", runs / "small"), "holds a run already", "--resume")
    assert_refused(command("train", "tiny.toml", "--out", "other"), "other is in use for something else")
    assert_refused(command("train", "tiny.toml", "--out", "file"), "file is in use for something else")
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    assert command("train", "tiny.toml", "--out", "empty").code == 0


# --- bad input to --resume ---


def test_resume_of_what_is_no_run(command: Command, tmp_path: Path, runs: Path) -> None:
    (tmp_path / "other").mkdir()
    (runs / "wide" / ABOUT).write_text("{")
    before = contents(tmp_path)
    assert_refused(command("train", "--resume", "other"), "other is not a run folder")
    assert_refused(command("train", "--resume", "gone"), "gone is not a run folder")
    assert_refused(command("train", "--resume", runs / "wide"), "cannot read", ABOUT)
    assert_refused(command("train", "--resume", runs / "small", "--set", "epochs=3"), "no --set")
    assert contents(tmp_path) == before


def test_resume_with_a_damaged_or_foreign_checkpoint(command: Command, tmp_path: Path, runs: Path) -> None:
    good = (runs / "small" / LAST).read_bytes()
    flip_byte(runs / "small" / LAST)
    before = contents(tmp_path)
    assert_refused(command("train", "--resume", runs / "small"), f"{LAST} is damaged")
    assert contents(tmp_path) == before
    shutil.copy(runs / "wide" / LAST, runs / "small" / LAST)
    before = contents(tmp_path)
    assert_refused(command("train", "--resume", runs / "small"), f"{LAST} is a checkpoint of another architecture")
    assert contents(tmp_path) == before
    (runs / "small" / LAST).write_bytes(good)
    finished = command("train", "--resume", runs / "small")
    assert finished.code == 0
    assert "nothing is left to do" in finished.out


def test_resume_on_other_data(command: Command, tmp_path: Path, tiny_npz: Path) -> None:
    shutil.copy(tiny_npz, tmp_path / "mine.npz")
    assert command("train", "tiny.toml", "--out", "out", "--set", "data=npz:mine.npz").code == 0
    with np.load(tiny_npz) as archive:
        changed = archive["x_train"].copy()
    changed[0, 0, 0] ^= 1
    spoil(tmp_path / "mine.npz", tiny_npz, x_train=changed)
    before = contents(tmp_path)
    assert_refused(command("train", "--resume", "out"), "trained on other data")
    assert contents(tmp_path) == before


# --- bad input to evaluate ---


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def test_evaluate_with_unknown_names(command: Command, tmp_path: Path, runs: Path) -> None:
    small = runs / "small"
    before = contents(tmp_path)
    assert_refused(
        command("evaluate", small, "--attacks", "natural,pdg-20"), "unknown attack 'pdg-20'", "'pgd-20'?", "cw"
    )
    assert_refused(command("evaluate", small, "--attacks", "pgd"), "pgd-20", "number of steps")
    assert_refused(command("evaluate", small, "--attacks", "pgd-0"), "'pgd-0' needs at least one step")
    assert_refused(command("evaluate", small, "--part", "train"), "unknown part 'train'", "test, valid")
    assert_refused(command("evaluate", small, "--checkpoint", "best"), "unknown checkpoint 'best'", "selected, last")
    assert_refused(command("evaluate", small, "--eps", "8/255"), "--eps is for a model of your own")
    for eps, hints in (("8", ["eps = 8:", "8/255?"]), ("300", ["at most 1"]), ("0", ["positive"]), ("x", ["8/255"])):
        words = ("--weights", "w.safetensors", "--data", "fashion-mini", "--out", "out", "--eps", eps)
        assert_refused(command("evaluate", "own_code:build", *words), *hints)
    assert_refused(command("evaluate", "own_code:build"), "give --data, --eps and --out")
    assert_refused(command("evaluate", small, "--attacks", "fgsm", "--base", runs / "wide"), "has not been evaluated")
    assert contents(tmp_path) == before


def test_evaluate_before_training(command: Command, tmp_path: Path, runs: Path) -> None:
    for name in (SELECTED, LAST, LOG):
        (runs / "small" / name).unlink()
    before = contents(tmp_path)
    assert_refused(command("evaluate", runs / "small"), f"has no {SELECTED} yet: no checkpoint has been written")
    assert_refused(command("evaluate", runs / "small", "--checkpoint", "last"), f"has no {LAST} yet")
    assert_refused(command("evaluate", "gone"), "gone is not a run folder")
    assert contents(tmp_path) == before


def test_evaluate_a_checkpoint_of_another_architecture(command: Command, tmp_path: Path, runs: Path) -> None:
    shutil.copy(runs / "wide" / SELECTED, runs / "small" / SELECTED)
    before = contents(tmp_path)
    assert_refused(command("evaluate", runs / "small"), f"{SELECTED} is a checkpoint of another architecture")
    assert contents(tmp_path) == before
    assert command("evaluate", runs / "small", "--checkpoint", "last", "--attacks", "natural").code == 0


def test_evaluate_a_damaged_checkpoint(command: Command, tmp_path: Path, runs: Path) -> None:
    flip_byte(runs / "small" / SELECTED)
    (runs / "wide" / SELECTED).write_bytes((runs / "wide" / SELECTED).read_bytes()[:-1])
    before = contents(tmp_path)
    assert_refused(command("evaluate", runs / "small"), f"{SELECTED} is damaged")
    assert_refused(command("evaluate", runs / "wide"), f"{SELECTED} is not a readable safetensors file")
    assert contents(tmp_path) == before


# --- as a user sees it: the same, from a process of its own ---


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ("train fashion-mini-wat --set data=npz:cut.npz", "cut.npz is not a readable .npz file"),
        ("evaluate runs/small --attacks pgd-twenty", "unknown attack 'pgd-twenty'"),
    ],
)
def test_refusals_in_a_process_of_their_own(
    tmp_path: Path, tiny_npz: Path, runs: Path, arguments: str, fragment: str
) -> None:
    (tmp_path / "cut.npz").write_bytes(tiny_npz.read_bytes()[:-1000])
    assert (runs / "small").is_dir()
    before = contents(tmp_path)
    assert_refused(shell(*arguments.split(), cwd=tmp_path), fragment)
    assert contents(tmp_path) == before
