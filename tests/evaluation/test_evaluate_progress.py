"""Evaluations that are stopped: progress is kept, continued, and not taken for another's."""

from pathlib import Path

import numpy as np
import pytest

from kills import kill_until_done
from tiny import tiny_run
from worstclass.attacks import APGD, Ensemble
from worstclass.errors import UserError
from worstclass.evaluation import outcomes as outcomes_module
from worstclass.evaluation.evaluate import Event
from worstclass.evaluation.outcomes import Outcomes, Progress
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.evaluation.targets import PROGRESS, evaluate_target, run_target
from worstclass.runs.run import Run, open_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("evaluate"))


def test_outcomes_hold_as_many_classes_as_there_are(tmp_path: Path) -> None:
    labels = np.array([0, 2**15, 70_000])
    Outcomes(labels, {"natural": labels[::-1]}).save(tmp_path / "o.npz")
    found = Outcomes.load(tmp_path / "o.npz")
    assert found.labels.tolist() == labels.tolist() == found.predictions["natural"].tolist()[::-1]


def test_outcomes_refuse_other_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(UserError, match="no labels"):
        Outcomes.load(tmp_path / "x.npz")


def continue_evaluation(folder: Path, out: Path) -> None:
    """What a new process does: the same evaluation, in small batches."""
    evaluate_target(run_target(open_run(folder)), ["pgd-20", "apgd-t", "fab-t"], out, batch_size=24)


def keep_on_evaluating(folder: Path, out: Path) -> None:
    """The same, saved after each batch."""
    outcomes_module.SAVE_EVERY = 0.0
    continue_evaluation(folder, out)


def test_an_evaluation_killed_at_any_moment(run: Run, tmp_path: Path) -> None:
    """SIGKILL, again and again, until it is done: the same bytes as in peace, and nothing left over."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    continue_evaluation(run.folder, whole)
    kept: list[bool] = []
    kills = kill_until_done(
        keep_on_evaluating,
        (run.folder, killed),
        wait=0.2,
        growth=1.3,
        on_kill=lambda: kept.append((killed / PROGRESS).is_file()),
    )
    assert kills >= 3
    assert any(kept)
    for file in (CARD, OUTCOMES):
        assert (whole / file).read_bytes() == (killed / file).read_bytes()
    assert not (killed / PROGRESS).exists()


def test_progress_of_something_else_is_not_continued(run: Run, tmp_path: Path) -> None:
    """A damaged file is an error; one of another seed or version is started afresh."""
    (tmp_path / PROGRESS).write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"progress\.npz"):
        evaluate_target(run_target(run), ["apgd-ce"], tmp_path)
    (tmp_path / PROGRESS).unlink()
    stale = Progress(tmp_path / PROGRESS, "another seed")
    stale.array(f"apgd-ce {Ensemble(attacks={'apgd-ce': APGD(eps=0.05)})!r} by", np.full(60, 0))
    stale.save()
    card = evaluate_target(run_target(run), ["apgd-ce"], tmp_path)
    assert (
        card["columns"]["apgd-ce"]
        == evaluate_target(run_target(run), ["apgd-ce"], tmp_path / "b")["columns"]["apgd-ce"]
    )


def test_one_command_leaves_the_progress_of_another(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped under one attack, and another attack run in the same folder: the first still goes on where it was."""
    monkeypatch.setattr(outcomes_module, "SAVE_EVERY", 0.0)
    seen: list[Event] = []

    def stop(event: Event) -> None:
        seen.append(event)
        if len(seen) == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_target(run_target(run), ["apgd-t"], tmp_path, batch_size=4, notify=stop)
    evaluate_target(run_target(run), ["pgd-5"], tmp_path, batch_size=4)
    assert (tmp_path / PROGRESS).is_file()
    later: list[Event] = []
    evaluate_target(run_target(run), ["apgd-t"], tmp_path, batch_size=4, notify=later.append)
    assert later[0].done > seen[0].done
    assert not (tmp_path / PROGRESS).exists()


def test_progress_needs_a_key_and_its_own_size(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a key"):
        Progress(tmp_path / PROGRESS)
    first = Progress(tmp_path / PROGRESS, "k")
    first.array("a", np.arange(3))
    first.save()
    assert Progress(tmp_path / PROGRESS, "k").array("a", np.zeros(3, dtype=np.int64)).tolist() == [0, 1, 2]
    assert Progress(tmp_path / PROGRESS, "k").array("a", np.zeros(2, dtype=np.int64)).tolist() == [0, 0]
