"""The worst tenth of the classes: the one definition, of selection, measures and tables.

It is the CVaR (expected shortfall) of the class accuracies at 10%: of 43 classes the four lowest count in full and the
fifth for 0.3, so that data sets of any number of classes compare. Up to 10 classes it is the worst class.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
MANY = 20  # classes from which one of them says too little


def has_many(num_classes: int) -> bool:
    """Whether headlines, tables and figures show the worst tenth beside the worst class."""
    return num_classes >= MANY


def tenth_weights(num_classes: int) -> Floats:
    """What each of the lowest classes counts for, the lowest first; sums to 1."""
    whole, rest = divmod(num_classes, 10)
    weights: Floats = np.array([1.0] * whole + ([rest / 10] if rest else []))
    weights /= weights.sum()
    return weights


def worst_tenths(accuracies: ArrayLike) -> Floats:
    """The mean accuracy of the worst tenth of the classes, of accuracies (..., K)."""
    values = np.asarray(accuracies, dtype=np.float64)
    weights = tenth_weights(values.shape[-1])
    lowest: Floats = np.sort(np.partition(values, len(weights) - 1, axis=-1)[..., : len(weights)], axis=-1)
    return np.asarray(lowest @ weights)


def worst_tenth(accuracy: ArrayLike) -> float:
    """The mean accuracy of the worst tenth of the classes (K,), steadier than the worst class; NaN is no class."""
    values = np.asarray(accuracy, dtype=np.float64)
    return float(worst_tenths(values[~np.isnan(values)]))
