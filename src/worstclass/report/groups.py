"""Evaluated runs by method: those that differ in the seed alone are one group, with means, spread and comparisons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worstclass.config.keys import Config
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.seeds import (
    Spreads,
    compare_seeds,
    pooled_spread,
    seed_groups,
    seed_means,
    standard_deviation,
)
from worstclass.metrics.measures import Measure
from worstclass.metrics.tail import has_many
from worstclass.report.paper import printed
from worstclass.report.results import Result, shared_attacks
from worstclass.report.titles import distinguish

DIFFERENCES = ("average_difference", "worst_difference", "worst_tenth_difference")


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, or a single run; `columns` has what they say together under each attack.

    `average`, `worst` and `worst_tenth` are means over seeds with `std`, the values of `seeds`, and an interval for
    images and seeds, `pooled_worst` is the worst class of all seeds together, `rho` the mean of what each seed has
    against the base of its own seed, `against_base` the differences to the base group, and `paper` what the paper
    prints, if it does.
    """

    title: str
    results: tuple[Result, ...]
    columns: Mapping[str, Mapping[str, Any]]
    is_base: bool

    @property
    def seeds(self) -> list[int | None]:
        return [result.recipe.seed if result.recipe else None for result in self.results]

    @property
    def many(self) -> bool:
        """Whether there are so many classes that the worst tenth is shown."""
        return has_many(len(self.results[0].class_names))

    @property
    def differences(self) -> tuple[str, ...]:
        """Those of `DIFFERENCES` that are shown."""
        return DIFFERENCES if self.many else DIFFERENCES[:2]


def group_results(results: Sequence[Result], attacks: Sequence[str] | None = None) -> list[Group]:
    """Groups in the order of their first runs, compared under these attacks, or under all that every run has.

    A group has a column for those of the attacks that all of its runs were evaluated under. The spread over seeds is
    that of all groups together, so a method of one seed has an interval for seeds too, as soon as another has two.
    """
    places = seed_groups([r.recipe for r in results], [r.kind for r in results])
    members = [tuple(results[place] for place in each) for each in places]
    bases = [any(result.is_base for result in each) for each in members]
    base = next((each for each, is_base in zip(members, bases, strict=True) if is_base), None)
    columns: list[dict[str, dict[str, Any]]] = [{} for _ in members]
    for attack in shared_attacks(results) if attacks is None else attacks:
        attacked = [all(attack in result.columns for result in each) for each in members]
        spreads = _spreads([each for each, has in zip(members, attacked, strict=True) if has], attack)
        of_base = None if base is None else [result.outcomes for result in base]
        for each, found, is_base, has in zip(members, columns, bases, attacked, strict=True):
            if not has:
                continue
            found[attack] = _column(each, attack, spreads)
            against = of_base or _given_bases(each)
            if against and not is_base and all(attack in outcomes.predictions for outcomes in against):
                found[attack]["against_base"] = _against(each, against, attack, spreads)
    return [
        Group(title, each, found, is_base)
        for title, each, found, is_base in zip(_titles(members), members, columns, bases, strict=True)
    ]


def by_worst(groups: Sequence[Group], attack: str) -> list[Group]:
    """Those with this attack, the best worst class first; of those that are equal, as many are at 0, by worst tenth."""

    def order(group: Group) -> tuple[float, float]:
        column = group.columns[attack]
        return -float(column["worst"]["value"]), -float(column["worst_tenth"]["value"])

    return sorted((group for group in groups if attack in group.columns), key=order)


def has_seeds(groups: Sequence[Group]) -> bool:
    """Whether any method has two seeds or more."""
    return any(len(group.results) > 1 for group in groups)


def _titles(members: Sequence[Sequence[Result]]) -> list[str]:
    """Those of the methods; where two are alike, with what tells them apart, which is never the seed."""
    firsts = [each[0] for each in members]
    return distinguish(
        [_title(first) for first in firsts],
        [first.folder for first in firsts],
        [_without_seed(first.recipe) for first in firsts],
        [first.card["about"].get("checkpoint") for first in firsts],
    )


def _title(result: Result) -> str:
    if result.run:
        return result.run.title
    return result.recipe.title if result.recipe else result.title


def _without_seed(config: Config | None) -> Config | None:
    return config.model_copy(update={"seed": 0}) if config else None


def _spreads(members: Sequence[Sequence[Result]], attack: str) -> Spreads:
    """Over the seeds of all groups together."""
    return Spreads(*(pooled_spread([_values(each, attack, key) for each in members]) for key in Spreads._fields))


def _values(runs: Sequence[Result], attack: str, key: str) -> list[float]:
    return [float(result.columns[attack][key]["value"]) for result in runs]


def _column(runs: Sequence[Result], attack: str, spreads: Spreads) -> dict[str, Any]:
    names = runs[0].class_names
    means = seed_means(runs[0].outcomes.labels, _predictions(runs, attack), len(names), spreads=spreads)
    config = runs[0].recipe
    cell = printed(config, attack) if config else None
    return {
        "average": _over_seeds(means.average, _values(runs, attack, "average")),
        "worst": _over_seeds(means.worst, _values(runs, attack, "worst")),
        "worst_tenth": _over_seeds(means.worst_tenth, _values(runs, attack, "worst_tenth")),
        "pooled_worst": means.pooled_worst._asdict() | {"class": names[means.pooled_class]},
        "rho": _rho(runs, attack),
        "paper": None if cell is None else {"average": cell.average / 100, "worst": cell.worst / 100},
        "degrees": spreads.average.degrees,
    }


def _over_seeds(mean: Measure, values: Sequence[float]) -> dict[str, Any]:
    return mean._asdict() | {"std": standard_deviation(values), "seeds": list(values)}


def _rho(runs: Sequence[Result], attack: str) -> dict[str, Any] | None:
    """The mean over the seeds that have one; a base run has none, nor has a run whose base is at 0 (`without`)."""
    found = [run.columns[attack]["against_base"]["rho"] for run in runs if "against_base" in run.columns[attack]]
    values = [rho["value"] for rho in found if rho["value"] is not None]
    if not values:
        return None
    interval = found[0] if len(runs) == 1 else {"low": None, "high": None}
    return {
        "value": float(np.mean(values)),
        "low": interval["low"],
        "high": interval["high"],
        "std": standard_deviation(values),
        "seeds": values,
        "without": len(found) - len(values),
    }


def _given_bases(runs: Sequence[Result]) -> list[Outcomes]:
    """Of a base that is not among the runs, what each was compared with."""
    return list({id(run.against): run.against for run in runs if run.against is not None}.values())


def _against(runs: Sequence[Result], base: Sequence[Outcomes], attack: str, spreads: Spreads) -> dict[str, Any]:
    if len(runs) == len(base) == 1 and spreads.average.degrees == 0:  # compared already
        return {key: runs[0].columns[attack]["against_base"][key] for key in DIFFERENCES} | {"degrees": 0}
    found = compare_seeds(
        runs[0].outcomes.labels,
        _predictions(runs, attack),
        np.stack([outcomes.predictions[attack] for outcomes in base]),
        len(runs[0].class_names),
        spreads=spreads,
    )
    gaps = (found.avg_difference, found.worst_difference, found.worst_tenth_difference)
    return {key: gap._asdict() for key, gap in zip(DIFFERENCES, gaps, strict=True)} | {"degrees": found.degrees}


def _predictions(runs: Sequence[Result], attack: str) -> NDArray[np.int64]:
    return np.stack([result.outcomes.predictions[attack] for result in runs])
