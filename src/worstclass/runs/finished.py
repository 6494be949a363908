"""Whether a run is done: trained to its end, and after that compared and adjusted as its recipe says."""

from pathlib import Path

from worstclass.runs.run import Run
from worstclass.runs.saver import LAST, SELECTED, read_about
from worstclass.training.checkpoint import load_header


def is_settled(folder: Path) -> bool:
    """Whether a run was compared with its base, and what ships was written."""
    return "mix" in load_header(folder / SELECTED) and "base" in read_about(folder)


def is_adjusted(folder: Path) -> bool:
    """Whether a logit adjustment was looked for, and what ships was written."""
    return "adjusted" in load_header(folder / SELECTED) and "adjustment" in read_about(folder)


def is_trained(run: Run) -> bool:
    """Whether a run has come to its end, with all that its recipe wants after the last epoch."""
    header = load_header(run.folder / LAST)
    ended = header.get("epoch") == run.config.epochs and not header.get("step")
    settled = run.config.base_start is None or is_settled(run.folder)
    return ended and settled and (run.config.adjust_budget is None or is_adjusted(run.folder))
