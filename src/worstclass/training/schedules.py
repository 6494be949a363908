"""What changes while a run goes on: the learning rate, the radius and the number of steps of its attack.

Each is a small class. A learning-rate schedule is called with how far the run is, and gives the factor on `Plan.lr`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from worstclass.errors import UserError
from worstclass.types import Objective


class Progress(NamedTuple):
    """How far a run is: in its 1-based `epoch` of `epochs`, of which the `share` in [0, 1) is done."""

    epoch: int
    epochs: int
    share: float = 0.0

    @property
    def done(self) -> float:
        """Of the whole run, in [0, 1)."""
        return (self.epoch - 1 + self.share) / self.epochs

    def reached(self, milestone: float) -> bool:
        """Whether the milestone, a share of the epochs, is reached: of 100 epochs, 0.75 is from the 75th on. The first
        epoch has reached none, however few there are."""
        return self.epoch > 1 and self.epoch / self.epochs * (1 + 1e-9) >= milestone  # 7 / 10 is not quite 0.7


Schedule = Callable[[Progress], float]


@dataclass(frozen=True)
class Piecewise:
    """The full rate, multiplied by `decay` at each of the `milestones`, shares of the epochs in (0, 1]."""

    milestones: tuple[float, ...] = ()
    decay: float = 0.1

    def __post_init__(self) -> None:
        for share in self.milestones:
            if not 0 < share <= 1:
                raise UserError(f"lr_milestones are shares of the epochs, in (0, 1], not {share:g}.")

    def __call__(self, at: Progress) -> float:
        return self.decay ** sum(map(at.reached, self.milestones))


@dataclass(frozen=True)
class Cosine:
    """Half a period of a cosine, step by step from the full rate to zero."""

    def __call__(self, at: Progress) -> float:
        return (1 + math.cos(math.pi * at.done)) / 2


@dataclass(frozen=True)
class OneCycle:
    """Up to the full rate and down again, step by step along two half cosines; the top is at the share `peak`.

    As torch's OneCycleLR: it starts at 1/25 of the full rate and ends at 1/10000 of that.
    """

    peak: float = 0.25
    start: float = 1 / 25
    end: float = 1 / 25 / 1e4

    def __call__(self, at: Progress) -> float:
        low, way = (self.start, at.done / self.peak) if at.done < self.peak else (self.end, _rest(at.done, self.peak))
        return low + (1 - low) * (1 - math.cos(math.pi * way)) / 2


@dataclass(frozen=True)
class WarmUp:
    """Another schedule, its rate brought up in a straight line over the first `epochs`."""

    schedule: Schedule
    epochs: float

    def __call__(self, at: Progress) -> float:
        return self.schedule(at) * ramp(at, self.epochs)


def ramp(at: Progress, epochs: float) -> float:
    """In a straight line from 0 to 1 over the first `epochs`; 1 where there are none."""
    return min(1.0, (at.epoch - 1 + at.share) / epochs) if epochs > 0 else 1.0


def _rest(done: float, peak: float) -> float:
    """How much of the way down is left, 1 at the peak and 0 at the end."""
    return (1 - done) / (1 - peak) if peak < 1 else 0.0


@dataclass(frozen=True)
class AttackSteps:
    """An attack whose number of steps, and their size, change at `milestones`: one count more than there are of those.

    Validation has the last ones from the start.
    """

    steps: tuple[int, ...]
    step_sizes: tuple[float, ...]
    milestones: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.step_sizes) == len(self.milestones) + 1:
            raise UserError(
                "an attack of several numbers of steps needs one milestone fewer, and a step size for each."
            )

    def phase(self, at: Progress) -> int:
        """Which of the counts is in force."""
        return sum(map(at.reached, self.milestones))

    def objective(self, objective: Objective, phase: int) -> Objective:
        """The objective with the attack of a phase."""
        given: Any = objective
        attack = replace(given.attack, steps=self.steps[phase], step_size=self.step_sizes[phase])
        changed: Objective = replace(given, attack=attack)
        return changed
