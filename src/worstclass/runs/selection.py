"""Which epoch a run keeps: the one with the best score on validation, smoothed over epochs if asked."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from worstclass.config.keys import Config
from worstclass.metrics.tail import worst_tenth


def is_validated(line: Mapping[str, Any]) -> bool:
    """Whether the numbers of validation in a line of the log are of its own epoch: with `valid_every` the epochs
    between two validations repeat those of the last one."""
    return "valid_epoch" not in line


def selection_score(select: str, lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """What the kept epoch maximises, as a list whose first difference decides.

    `lines` are those of the log, of this epoch and of those before it that count: the score is that of their mean.
    A log keeps every digit, so a run that goes on from its log has the scores that it would have had.
    """
    accuracy = np.mean([line["class_robust_accuracy"] for line in lines], axis=0)
    average = float(np.mean([line["valid"]["robust_accuracy"] for line in lines]))
    match select:
        case "worst-accuracy":
            return [float(accuracy.min()), average]
        case "worst-tenth":
            return [worst_tenth(accuracy), average]
        case "worst-loss":
            losses = np.mean([line["class_costs"][1:] for line in lines], axis=0)
            return [-float(losses.max())]
        case "average":
            return [average]
        case "average-and-worst":
            return [(average + worst_tenth(accuracy)) / 2]
        case _:
            return [float(lines[-1]["epoch"])]


class Selector:
    """Scores the validated epochs of a run, one after another; `before` are lines of the log that came before."""

    def __init__(self, config: Config, before: Iterable[Mapping[str, Any]] = ()) -> None:
        self._select = config.select
        self._window = deque(filter(is_validated, before), maxlen=config.select_smoothing)

    def score(self, line: Mapping[str, Any]) -> list[float]:
        self._window.append(line)
        return selection_score(self._select, self._window)


def smooths(config: Config) -> bool:
    """Whether an epoch's score depends on those before it."""
    return config.select != "last" and config.select_smoothing > 1
