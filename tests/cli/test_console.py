"""What a person at the terminal sees, and how the engine is chosen."""

from pathlib import Path

import pytest
import torch
import typer

import worstclass.config.keys
from tiny import tiny_config, write_tiny_npz
from worstclass.cli.console import say
from worstclass.cli.main import app
from worstclass.cli.watched import epoch_line, train_with_progress
from worstclass.config.recipe import to_toml
from worstclass.errors import UserError
from worstclass.files import write_json
from worstclass.inputs.names import RECIPE
from worstclass.runs.devices import pick_engine
from worstclass.runs.run import open_run
from worstclass.training.engine import Engine

CPU = torch.device("cpu")


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo's command on small recipes: both runs, one table, the page; a second call reuses what is there."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    recipes = [tmp_path / f"{method}.toml" for method in ("trades", "wat")]
    for recipe in recipes:
        recipe.write_text(to_toml(tiny_config(data, method=recipe.stem, epochs=1)))
    monkeypatch.setattr("worstclass.cli.demo.RECIPES", [str(recipe) for recipe in recipes])
    monkeypatch.chdir(tmp_path)
    app(["demo", "--out", "demo"], standalone_mode=False)
    said = capsys.readouterr().out
    for word in (
        "PGD-100",
        "CW",
        "TRADES    1/1  loss",
        "WAT       1/1  loss",
        "rho",
        "demo/report.html",
        "weakest class",
    ):
        assert word in said
    assert (tmp_path / "demo" / "report.html").is_file()
    before = (tmp_path / "demo" / "wat" / "last.safetensors").stat().st_mtime_ns
    app(["demo", "--out", "demo"], standalone_mode=False)
    assert before == (tmp_path / "demo" / "wat" / "last.safetensors").stat().st_mtime_ns
    assert "PGD-100" in capsys.readouterr().out
    (tmp_path / "demo" / "wat" / "recipe.toml").write_text("epochs = 0")
    with pytest.raises(UserError, match="epochs"):
        app(["demo", "--out", "demo"], standalone_mode=False)


def test_names_are_not_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    say("mydata.py:one:")
    assert capsys.readouterr().out == "mydata.py:one:\n"


@pytest.mark.parametrize("attack", ["pgd", "cw"])
def test_a_line_for_each_epoch(attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=2, valid_attack=attack)
    train_with_progress(config, tmp_path / "run", device=CPU)
    lines = [line for line in capsys.readouterr().out.splitlines() if "/2  loss" in line]
    assert len(lines) == 2
    for line, record in zip(lines, open_run(tmp_path / "run").log, strict=True):
        weights, accuracy = record["next_class_weights"], record["class_robust_accuracy"]
        assert f"heaviest row {weights.index(max(weights))} {max(weights):.2f}" in line
        assert f"validation {attack.upper()} {100 * record['valid']['robust_accuracy']:.1f}" in line
        assert f"worst {100 * min(accuracy):.1f} row {accuracy.index(min(accuracy))}" in line
        assert epoch_line(record, config, ["row 0", "row 1", "row 2"]) == line


def test_a_run_with_code_goes_on_with_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("worstclass.cli.watched.train_run", stop)
    (tmp_path / RECIPE).touch()
    for model, end in (("own_model:make", " --allow-code\n"), ("small-cnn", f"{tmp_path}\n")):
        with pytest.raises(typer.Exit):
            train_with_progress(tiny_config(tmp_path / "tiny.npz", model=model), tmp_path, device=CPU)
        assert capsys.readouterr().out.endswith(end)


def test_engine_on_a_cpu() -> None:
    assert pick_engine(None, None, CPU, ours=True) == Engine()
    assert pick_engine("auto", "auto", CPU, ours=True, deterministic=True) == Engine(deterministic=True)
    wrong = (("fast", None, "GPU"), (None, "tf32", "GPU"), ("eager", "bf16", "GPU"), ("quick", None, "quick"))
    for engine, precision, word in wrong:
        with pytest.raises(UserError, match=word):
            pick_engine(engine, precision, CPU, ours=True)


@pytest.mark.parametrize("able", [True, False])
def test_engine_on_a_gpu(able: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast and bfloat16 where the GPU has it; TF32 for a model of one's own, whose last layer may not bear bfloat16."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if able else (7, 5))
    gpu = torch.device("cuda")
    assert pick_engine(None, None, gpu, ours=True) == Engine(fast=able, precision="bf16" if able else "tf32")
    assert pick_engine(None, None, gpu, ours=False) == Engine(fast=able, precision="tf32")
    assert pick_engine("fast", None, gpu, ours=True) == Engine(fast=True, precision="bf16" if able else "tf32")
    assert pick_engine("fast", "fp32", gpu, ours=True) == Engine(fast=True)
    assert pick_engine("eager", None, gpu, ours=True) == Engine(precision="tf32")
    for word, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(word, value)
    assert pick_engine(None, None, gpu, ours=True).fast == able  # under torchrun too


def test_a_run_remembers_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed without a word, a run goes on as it was started."""
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1)
    (tmp_path / "r.toml").write_text(to_toml(config))
    monkeypatch.chdir(tmp_path)
    app(["train", "r.toml", "--out", "run"], standalone_mode=False)
    about = open_run(tmp_path / "run").about
    machine = {"device": "cpu", "threads": torch.get_num_threads()}
    assert about["engine"] == {"fast": False, "precision": "fp32", "deterministic": False, "processes": 1} | machine
    write_json(tmp_path / "run" / "run.json", about | {"engine": about["engine"] | {"precision": "tf32"}})
    with pytest.raises(UserError, match="'tf32' needs a GPU"):
        app(["train", "--resume", "run"], standalone_mode=False)
    app(["train", "--resume", "run", "--precision", "fp32"], standalone_mode=False)


def test_recipes_have_a_first_line_each() -> None:
    for name in worstclass.config.recipe.recipe_names():
        assert worstclass.config.recipe.recipe_comment(name).endswith(".")
