"""What several tests of reports share: two evaluated runs."""

from pathlib import Path

import pytest

from tiny import tiny_config, tiny_run
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.runs.train import train_run


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of two epochs. The base has the shipped weights: no class of it is at zero, where rho has no meaning."""
    root = tmp_path_factory.mktemp("report")
    base = tiny_run(root, "trades", epochs=2)
    other = train_run(tiny_config(root / "tiny.npz", method="wat", epochs=2), root / "wat")
    for run in (base, other):
        evaluate_target(run_target(run), ["pgd-5"], run.folder)
    return [base.folder, other.folder]
