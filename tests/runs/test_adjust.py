"""An adjusted run: the same by a key of its recipe and by the command, and that a stop does not change it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny import put_weights, tiny_config, tiny_run, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.cli.evaluate import weights_line
from worstclass.config.recipe import load_config, make_config
from worstclass.errors import UserError
from worstclass.evaluation.run_notes import run_notes
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.report import load_results
from worstclass.report.paper import printed
from worstclass.reproduce.rows import rows_of
from worstclass.runs.adjust import adjust_run
from worstclass.runs.finished import is_trained
from worstclass.runs.logit_adjustment import ROUNDS, SCALES, add_bias, last_layer
from worstclass.runs.run import Run, open_run
from worstclass.runs.saver import ABOUT, LAST, SELECTED
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import weights_of


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose last class was made unlikely by hand: a bias for it is sure to help."""
    run = tiny_run(tmp_path_factory.mktemp("lopsided"), eps=0.01)
    model = run.load_model()[0]
    add_bias(last_layer(model, 3), torch.tensor([2.0, 2.0, -4.0]))
    put_weights(run, model)
    return run


@pytest.fixture(scope="module")
def adjusted(lopsided: Run) -> Run:
    return adjust_run(lopsided, lopsided.folder.with_name("adjusted"), budget=0.5)


def same_weights(one: Run, other: Run) -> bool:
    first, second = (weights_of(run.load_model()[0]) for run in (one, other))
    return all(torch.equal(first[name], second[name]) for name in first)


def test_what_ships_is_the_bias_that_was_accepted(lopsided: Run, adjusted: Run) -> None:
    run = adjusted
    assert open_run(run.folder).about == run.about
    assert is_trained(open_run(run.folder))
    record = run.about["adjustment"]
    assert record["scale"] > 0
    own, shipped = (weights_of(each.load_model()[0]) for each in (lopsided, run))
    changed = [name for name in own if not torch.equal(own[name], shipped[name])]
    assert changed == ["linear.bias"]
    assert (shipped["linear.bias"] - own["linear.bias"]).tolist() == pytest.approx(record["bias"], abs=1e-5)
    assert f"logit adjustment: {record['verdict']}" in run_notes(run)


def test_evaluations_say_that_the_logits_are_adjusted(adjusted: Run) -> None:
    run = adjusted
    card = evaluate_target(run_target(run), ["pgd-1"], run.folder)
    assert card["about"]["adjusted"] == run.about["adjustment"]["scale"]
    assert weights_line(card["about"]).endswith(", logits adjusted")
    assert run.config.title == "TRADES + adjusted"  # of another group than those of the run it comes from
    assert "adjusted" not in run_target(run, checkpoint="last").about


@pytest.mark.parametrize("extra", [{}, {"method": "guarded", "base_start": 0.5}])
def test_a_key_of_the_recipe_does_the_same_as_the_command(data: Path, tmp_path: Path, extra: dict[str, Any]) -> None:
    plain = train_run(tiny_config(data, epochs=2, **extra), tmp_path / "plain")
    after = adjust_run(plain, tmp_path / "after", budget=0.1)
    heard: list[tuple[int, int]] = []
    recipe = tiny_config(data, epochs=2, adjust_budget=0.1, **extra)
    at_once = train_run(recipe, tmp_path / "at once", on_adjust=lambda *at: heard.append(at))
    total = ROUNDS + len(SCALES)
    assert heard == [(done, total) for done in range(total + 1)]
    assert at_once.config == after.config
    assert same_weights(after, at_once)
    assert after.about["adjustment"] == at_once.about["adjustment"]
    for run in (after, at_once):
        bytes_before = (run.folder / SELECTED).read_bytes()
        again = train_run(run.config, run.folder, resume=True)
        assert (run.folder / SELECTED).read_bytes() == bytes_before
        assert again.about == run.about


def test_an_adjusted_run_is_neither_a_base_nor_a_row_of_the_paper(lopsided: Run, adjusted: Run) -> None:
    for run in (adjusted, lopsided):
        evaluate_target(run_target(run), ["pgd-1"], run.folder)
    assert [result.is_base for result in load_results([adjusted.folder, lopsided.folder])] == [False, True]
    assert [len(row.results) for row in rows_of(load_results([adjusted.folder]), ["trades"], ("other", "data"))] == [0]
    config = load_config("cifar10-resnet18-trades")
    assert printed(config, "natural") is not None
    assert printed(load_config("cifar10-resnet18-trades", adjust_budget=0.05), "natural") is None


def test_a_run_that_was_stopped_before_its_adjustment_is_not_done(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, epochs=2, adjust_budget=0.1)
    whole = train_run(config, tmp_path / "whole")

    def stop(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, tmp_path / "stopped", on_epoch=stop)
    assert (tmp_path / "stopped" / LAST).is_file()
    assert not is_trained(open_run(tmp_path / "stopped"))
    again = train_run(config, tmp_path / "stopped", resume=True)
    assert is_trained(again)
    assert (again.folder / SELECTED).read_bytes() == (whole.folder / SELECTED).read_bytes()


def test_refusals(lopsided: Run, adjusted: Run, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is adjusted already"):
        adjust_run(adjusted, tmp_path / "twice")
    with pytest.raises(UserError, match="is not an empty folder"):
        adjust_run(lopsided, adjusted.folder)
    other = write_tiny_npz(tmp_path / "other.npz", seed=1)
    moved = make_config(lopsided.config.recipe() | {"data": f"npz:{other}"})
    with pytest.raises(UserError, match="was trained on other images than npz:"):
        adjust_run(Run(lopsided.folder, moved, lopsided.about), tmp_path / "moved")
    unfinished = shutil.copytree(lopsided.folder, tmp_path / "run")
    (unfinished / LAST).unlink()
    with pytest.raises(UserError, match="is not trained to its end: worstclass train --resume"):
        adjust_run(open_run(unfinished), tmp_path / "unfinished")
    assert not (tmp_path / "unfinished").exists()
    steps: list[int] = []
    config = tiny_config(data, valid_fraction=0.05, valid_min=0, adjust_budget=0.1)
    with pytest.raises(UserError, match=r"validation images of each class or more; class 'row \d' has"):
        train_run(config, tmp_path / "few", on_step=lambda *step: steps.append(step[1]))
    assert not steps


def test_the_command(
    lopsided: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["worstclass", "adjust", str(lopsided.folder), "--budget", "0.5"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    folder = lopsided.folder.with_name(f"{lopsided.folder.name}-adjusted")
    verdict = json.loads((folder / ABOUT).read_text())["adjustment"]["verdict"]
    printed = " ".join(capsys.readouterr().out.split())
    assert f"adjusting the logits: 0/{ROUNDS + len(SCALES)}" in printed
    assert f"Logit adjustment: {verdict}" in printed
