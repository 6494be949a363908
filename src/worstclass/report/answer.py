"""The answer that a report opens with: of each method the weakest class, how weak, how sure, what takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worstclass.evaluation.outcomes import STANDS
from worstclass.inputs.names import NATURAL
from worstclass.metrics.percentages import percent
from worstclass.report.groups import Group, by_worst
from worstclass.report.results import Result, attack_title
from worstclass.runs.shipped import shipped_note

LISTED = 3  # names in a list; of more it says how many
COMPARED = 4  # methods in the sentence that compares them


@dataclass(frozen=True)
class Answer:
    """What one method's numbers say under one attack, in words.

    Accuracies are as `30.6 ± 0.3% [27.4, 34.2]`: a deviation where there are several seeds, and the 95% interval.
    `worst_tenth` is empty where there are few classes. `taken` and `confused` are of the class that is weakest over all
    seeds, which `about` names where several are; they are means over seeds. `shipped` says in what the weights are not
    those of the method.
    """

    title: str
    seeds: int
    attack: str
    weakest: str
    note: str
    about: str
    worst: str
    average: str
    worst_tenth: str
    taken: str
    confused: str
    shipped: str

    @property
    def sentence(self) -> str:
        """All of it but what takes the class, for a terminal."""
        seeds = f", {self.seeds} seeds" if self.seeds > 1 else ""
        name = self.weakest if self.note else f"class {self.weakest}"
        tenth = f", {self.worst_tenth} for the worst tenth of classes" if self.worst_tenth else ""
        confused = f"; {self.about}taken for {self.confused}" if self.confused else ""
        shipped = f" {self.shipped[0].upper()}{self.shipped[1:]}." if self.shipped else ""
        return (
            f"{self.title}{seeds}: weakest {name} at {self.worst} under {self.attack}, "
            f"{self.average} on average{tenth}{confused}.{shipped}"
        )


def headline(groups: Sequence[Group], attack: str) -> list[str]:
    """What the numbers say, in sentences: one for each method, and one that compares them."""
    return [each.sentence for each in answers(groups, attack)] + list(filter(None, [comparison(groups, attack)]))


def answers(groups: Sequence[Group], attack: str) -> list[Answer]:
    """One for each method, the best worst class first."""
    return [_answer(group, attack) for group in by_worst(groups, attack)]


def comparison(groups: Sequence[Group], attack: str) -> str:
    """The methods against the base in one sentence, with intervals; empty where there is nothing to compare."""
    compared = [(group, *_against(group, attack, groups)) for group in by_worst(groups, attack) if not group.is_base]
    gains = [(group.title, base, against) for group, base, against in compared if against]
    if gains:
        parts = [f"{title} {_gains(against, many=groups[0].many)}" for title, _, against in gains[:COMPARED]]
        more = [f"{len(gains) - COMPARED} more methods are below"] if len(gains) > COMPARED else []
        bases = dict.fromkeys(base for _, base, _ in gains)
        return f"Against {', '.join(bases)}: {'; '.join(parts + more)}."
    if len(groups) < 2:
        return ""
    ranked = [
        f"{group.title} {percent(group.columns[attack]['worst']['value'])}%" for group in by_worst(groups, attack)
    ]
    more = [f"{len(ranked) - COMPARED} more"] if len(ranked) > COMPARED else []
    return f"Weakest class, from best to worst: {', '.join(ranked[:COMPARED] + more)}; without a base, no differences."


def _against(group: Group, attack: str, groups: Sequence[Group]) -> tuple[str, Mapping[str, Any] | None]:
    """The base's title and the differences to it; a base that is not among the methods is that of its first run."""
    title = next((each.title for each in groups if each.is_base), group.results[0].base)
    return title, group.columns[attack].get("against_base")


def _gains(against: Mapping[str, Any], *, many: bool) -> str:
    """`+7.0 points [+3.6, +11.3] for the weakest class and -2.1 on average`."""
    gains = [("worst_difference", "the weakest class")] + [("worst_tenth_difference", "the worst tenth")] * many
    words: list[str] = []
    for key, what in gains:
        unit = "" if words else " points"
        value, low, high = (percent(against[key][end], sign=True) for end in ("value", "low", "high"))
        words.append(f"{value}{unit} [{low}, {high}] for {what}{_chance(against[key])}")
    average = against["average_difference"]
    return f"{', '.join(words)} and {percent(average['value'], sign=True)} on average{_chance(average)}"


def _chance(difference: Mapping[str, float]) -> str:
    return "" if difference["low"] > 0 or difference["high"] < 0 else " (may be chance)"


def _answer(group: Group, attack: str) -> Answer:
    column, names = group.columns[attack], group.results[0].class_names
    table = _accuracies(group.results, attack)
    first = names.index(column["pooled_worst"]["class"])
    weakest, note = _weakest(table, names)
    return Answer(
        title=group.title,
        seeds=len(group.results),
        attack=attack_title(attack),
        weakest=weakest,
        note=note,
        about=f"{names[first]}: " if note else "",
        worst=_percent(column["worst"]),
        average=_percent(column["average"]),
        worst_tenth=_percent(column["worst_tenth"]) if group.many else "",
        taken=_taken(group, attack, first),
        confused=_confused(group.results, attack, first),
        shipped=_shipped(group.results),
    )


def _weakest(table: NDArray[np.float64], names: Sequence[str]) -> tuple[str, str]:
    """The class that is weakest in every seed, accuracies (seeds, K); where it is not one, what there is to know."""
    lowest = [[names[k] for k in np.flatnonzero(row == np.nanmin(row)).tolist()] for row in table]
    common = [name for name in lowest[0] if all(name in each for each in lowest)]
    if len(common) == 1:
        return common[0], ""
    if common:
        more = f" and {len(common) - LISTED} more" if len(common) > LISTED else ""
        return f"{len(common)} classes", f"equally weak: {', '.join(common[:LISTED])}{more}"
    differ = list(dict.fromkeys(each[0] for each in lowest))
    return " or ".join(differ[:LISTED]), f"by seed: {', '.join(each[0] for each in lowest)}"


def _shipped(results: Sequence[Result]) -> str:
    """In what the weights are not those of the method; of which seeds, where that is not so of all alike."""
    notes = [shipped_note(r.recipe, r.card["about"]) if r.recipe else "" for r in results]
    if len(set(notes)) == 1:
        return notes[0]
    seeds = [r.recipe.seed if r.recipe else None for r in results]
    return "; ".join(f"seed {seed}: {note}" for seed, note in zip(seeds, notes, strict=True) if note)


def _accuracies(results: Sequence[Result], attack: str) -> NDArray[np.float64]:
    """(runs, K); NaN for a class that has no images."""
    return np.array([[each["value"] for each in r.columns[attack]["classes"]] for r in results], dtype=float)


def _percent(measure: Mapping[str, Any]) -> str:
    deviation = "" if measure["std"] is None else f" ± {percent(measure['std'])}"
    return f"{percent(measure['value'])}{deviation}% [{percent(measure['low'])}, {percent(measure['high'])}]"


def _taken(group: Group, attack: str, index: int) -> str:
    """From clean accuracy to what the attack leaves, and which of its parts take the most."""
    if attack == NATURAL:
        return "no attack was run"
    left = {name: float(_accuracies(group.results, name)[:, index].mean()) for name in group.columns}
    clean = f"{percent(left[NATURAL])}% on clean images, " if NATURAL in left else ""
    text = f"{clean}{percent(left[attack])}% under {attack_title(attack)}"
    taken = _parts(group.results, attack, index)
    if taken:
        text += f" ({', '.join(f'{attack_title(name)} takes {percent(share)}%' for name, share in taken)})"
    lower = min((name for name in left if name != NATURAL), key=lambda name: left[name])
    if left[lower] < left[attack]:
        text += f"; {attack_title(lower)} leaves {percent(left[lower])}%"
    return text


def _parts(results: Sequence[Result], attack: str, index: int) -> list[tuple[str, float]]:
    """Of an attack made of several: how much of the class each takes from those before it, the most first."""
    shares: dict[str, list[float]] = {}
    for result in results:
        if attack not in result.outcomes.broken_by:
            return []
        own = result.outcomes.broken_by[attack][result.outcomes.labels == index]
        names, counts = np.unique(own, return_counts=True)
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            if name not in (STANDS, NATURAL):
                shares.setdefault(name, []).append(count / len(own))
    means = {name: sum(values) / len(results) for name, values in shares.items()}
    return sorted(means.items(), key=lambda each: -each[1])[:LISTED]


def _confused(results: Sequence[Result], attack: str, index: int) -> str:
    """What the class is taken for, the most frequent first."""
    names = results[0].class_names
    shares = np.zeros(len(names))
    for result in results:
        own = result.outcomes.predictions[attack][result.outcomes.labels == index]
        shares += np.bincount(own, minlength=len(names)) / len(own) / len(results)
    shares[index] = 0
    order = [int(k) for k in np.argsort(-shares, kind="stable")[:LISTED] if shares[k] > 0]
    return ", ".join(f"{names[k]} ({percent(shares[k])}%)" for k in order)
