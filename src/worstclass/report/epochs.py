"""What a run did over its epochs, as the charts of the page and of `worstclass watch` draw it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worstclass.metrics.tail import has_many


def epoch_data(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Class weights and accuracies of each epoch of a log, of which there is one at least, and the epoch that was kept.

    Of many classes there are bands, and lines for the three that are weakest at the end.
    """
    kept = [line["epoch"] for line in log if line["selected"]]
    tables = {key: np.round([line[key] for line in log], 4) for key in ("class_weights", "class_robust_accuracy")}
    shown: dict[str, Any] = {key: table.tolist() for key, table in tables.items()}
    if has_many(len(log[-1]["class_weights"])):
        weakest = np.argsort(tables["class_robust_accuracy"][-1], kind="stable")[:3]
        shown = {"weakest": weakest.tolist()} | {key: _bands(table, weakest) for key, table in tables.items()}
    return {"kept": kept[-1] if kept else None} | shown


def _bands(table: NDArray[np.float64], classes: NDArray[np.int64]) -> dict[str, Any]:
    """Over the epochs: lowest, first decile, median, last decile and highest of all classes, and some as they are."""
    bands = np.quantile(table, [0, 0.1, 0.5, 0.9, 1], axis=1).T
    return {"bands": np.round(bands, 4).tolist(), "lines": table[:, classes].T.tolist()}
