"""What a log says against its run: weight on few classes, or in vain, or on strong ones; an epoch chosen by chance;
nothing learned.

Everything follows from the lines of a log and from run.json: it can be said while a run goes on, at its end, and of a
run from before. A class of n validation images has an accuracy p with variance p (1 - p) / n, where p is counted
with one success and one failure more: zero of six is not known exactly.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from worstclass.metrics.percentages import percent
from worstclass.metrics.tail import tenth_weights, worst_tenths
from worstclass.runs.selection import is_validated
from worstclass.strategies.guarded import FAR_BELOW

Floats = NDArray[np.float64]
Line = Mapping[str, Any]

FEW = 0.5  # of the classes that the data plays: fewer than so many are few
HEAVY = 2.0  # times what a class has by the data, or by right of one of K
VERY_HEAVY = 4.0
PATIENCE = 5  # epochs
SURE = 1.96  # standard errors
NAMED = 3  # classes, at most, in a sentence


def counts_of(about: Mapping[str, Any], part: str) -> Floats:
    """Images of each class (K,) in `train` or `valid`; where run.json is older than these, all alike."""
    known, num_classes = about.get("class_counts", {}).get(part), about["num_classes"]
    return np.array(known or [about["valid_images"] / num_classes] * num_classes, dtype=np.float64)


def distribution(line: Line, share: ArrayLike) -> Floats:
    """What the weights of an epoch play: the share (K,) of each class in what is trained on, summing to 1.

    That is its weight times its share of the images, the mean of the weights of both losses. Where classes are drawn,
    the weights of a log hold how often each came.
    """
    own = np.asarray(share, dtype=np.float64)
    parts = [np.array(line.get(key) or line["class_weights"]) for key in ("class_weights", "class_robust_weights")]
    return _normalised(sum((_normalised(np.maximum(weights, 0) * own) for weights in parts), np.zeros(len(own))))


def effective_classes(played: ArrayLike) -> float:
    """exp of the entropy of a distribution over classes: K where all are alike, 1 where one has everything."""
    p = np.asarray(played, dtype=np.float64)
    return float(np.exp(-(p[p > 0] * np.log(p[p > 0])).sum()))


def lift(played: ArrayLike, share: ArrayLike) -> Floats:
    """How many times as much a class plays as it does by its images or by right of one of K, whichever is more.

    Weights that only balance the classes lift none.
    """
    p, own = np.asarray(played, dtype=np.float64), _normalised(np.asarray(share, dtype=np.float64))
    return np.asarray(p / np.maximum(own, 1 / len(own)))


def is_concentrated(played: Floats, share: ArrayLike) -> bool:
    """Whether few classes have most of the weight, or a single one very much of it."""
    own = effective_classes(_normalised(np.asarray(share, dtype=np.float64)))
    return effective_classes(played) < FEW * own or bool((lift(played, share) >= VERY_HEAVY).any())


def variance(accuracy: ArrayLike, images: ArrayLike) -> Floats:
    """Of an accuracy on so many images."""
    p, n = np.asarray(accuracy, dtype=np.float64), np.maximum(np.asarray(images, dtype=np.float64), 1)
    smoothed = (p * n + 1) / (n + 2)
    return np.asarray(smoothed * (1 - smoothed) / n)


def unresponsive(lifts: Floats, accuracy: Floats, images: Floats) -> list[int]:
    """Classes whose weight does not help them, from lifts and robust accuracies (T, K) and validation images (K,).

    Such a class has been heavy for `PATIENCE` epochs or more without a break. The gap between its accuracy and the mean
    of the others has not risen since the epochs before, by more than `SURE` standard errors of its own accuracy. And
    it still has less than half of the others' accuracy.
    """
    epochs, num_classes = lifts.shape
    if epochs < PATIENCE or num_classes < 2:
        return []
    found = []
    for k in np.flatnonzero((lifts[-PATIENCE:] >= HEAVY).all(0)):
        light = np.flatnonzero(lifts[:, k] < HEAVY)
        began = int(light[-1]) + 1 if len(light) else 0
        before = slice(max(0, began - PATIENCE), max(began, 1))  # or its first epoch, if it was heavy from the start
        own, others = accuracy[:, k], np.delete(accuracy, k, axis=1).mean(1)
        then, now = ((float(own[part].mean()), float(others[part].mean())) for part in (before, slice(-PATIENCE, None)))
        error = np.sqrt(variance(then[0], images[k]) + variance(now[0], images[k]))
        rise = (now[0] - now[1]) - (then[0] - then[1])
        if rise <= SURE * error and now[0] < FAR_BELOW * now[1]:
            found.append(int(k))
    return found


def misplaced(lifts: Floats, accuracy: Floats, images: Floats) -> list[int]:
    """Classes that have been heavy for `PATIENCE` epochs though they are stronger than the others' mean, shown beyond
    `SURE` standard errors of their accuracy: weight that was earned once, or by a loss that says little."""
    if len(lifts) < PATIENCE or lifts.shape[1] < 2:
        return []
    mean = accuracy[-PATIENCE:].mean(0)
    others = (mean.sum() - mean) / (len(mean) - 1)
    strong = mean - others > SURE * np.sqrt(variance(mean, images))
    return [int(k) for k in np.flatnonzero((lifts[-PATIENCE:] >= HEAVY).all(0) & strong)]


def as_good_as_selected(worst: ArrayLike, selected: int, images: ArrayLike) -> int:
    """How many of the other epochs have a worst class (T,) that is not shown to be worse than the selected one's.

    `images` (T,) are its validation images in each epoch; `selected` is an index. The worst tenth is read as one class.
    """
    accuracy, spread = np.asarray(worst, dtype=np.float64), variance(worst, images)
    alike = accuracy[selected] - accuracy <= SURE * np.sqrt(spread + spread[selected])
    return int(alike.sum()) - 1


def unlearned(accuracy: Floats, images: Floats) -> bool:
    """Whether natural accuracies (T, K) of the last `PATIENCE` epochs, the mean over classes, are no better than those
    of a constant answer, 1/K, shown beyond `SURE` standard errors of one epoch's validation images (K,)."""
    epochs, num_classes = accuracy.shape
    chance = 1 / num_classes
    error = np.sqrt((chance * (1 - chance) / np.maximum(images, 1)).sum()) / num_classes
    return epochs >= PATIENCE and bool(accuracy[-PATIENCE:].mean() <= chance + SURE * error)


def training_notes(
    log: Sequence[Line], about: Mapping[str, Any], select: str, *, averaged: bool = False
) -> dict[str, str]:
    """What is to be said after the last of these epochs, by a key that stays the same while the numbers change.

    `about` is run.json, `select` that key of the recipe. `averaged` weights hardly change from epoch to epoch, so that
    many epochs are as good as the selected one says nothing against it. The epochs before a fork are another run's: it
    may have been validated with another attack, and none of them can be selected.
    """
    log = log[(about.get("fork") or {}).get("epoch", 0) :]
    if not log:
        return {}
    names, share, images = about["class_names"], counts_of(about, "train"), counts_of(about, "valid")
    played = np.array([distribution(line, share) for line in log])
    lifts = np.array([lift(each, share) for each in played])
    accuracy = np.array([line["class_robust_accuracy"] for line in log])
    notes = {}
    if is_concentrated(played[-1], share):
        weight = played[-1] / _normalised(share)
        heaviest = [int(k) for k in np.argsort(-lifts[-1], kind="stable") if lifts[-1][k] >= HEAVY][:NAMED]
        which = ", ".join(f"'{names[k]}' weighs {weight[k]:.3g} times the average" for k in heaviest)
        number = f"{effective_classes(played[-1]):.1f} of {len(names)}"
        notes["concentrated"] = (
            "; ".join([f"few classes have most of the weight (effective number {number})", *([which] if which else [])])
            + "."
        )
    last = accuracy[-PATIENCE:].mean(0)

    def describe(k: int) -> str:
        others = float(np.delete(last, k).mean())
        return (
            f"{lifts[-1][k]:.1f} times its share of the weight, and {100 * last[k]:.0f}% robust accuracy on "
            f"{images[k]:.0f} validation images ({100 * others:.0f}% for the others)."
        )

    for k in unresponsive(lifts, accuracy, images):
        notes[f"unresponsive {k}"] = (
            f"'{names[k]}' does not respond: {describe(k)} Look at its labels and its validation images."
        )
    for k in misplaced(lifts, accuracy, images):
        notes[f"misplaced {k}"] = f"'{names[k]}' has a high weight but is not weak: {describe(k)}"
    accuracy = accuracy[[is_validated(line) for line in log]]  # an epoch without validation could not be chosen
    log = [line for line in log if is_validated(line)]
    natural = np.array([line.get("class_natural_accuracy", []) for line in log])
    if natural.size and unlearned(natural, images):
        notes["unlearned"] = (
            f"nothing is learned: {percent(natural[-PATIENCE:].mean())}% of clean validation images are right (mean "
            f"over classes), a constant answer has {percent(1 / len(names))}%. Lower lr or eps, or fork a trained run."
        )
    chosen = [index for index, line in enumerate(log) if line["selected"]]
    if not averaged and select.startswith("worst") and chosen and len(log) >= 2 * PATIENCE:
        count = len(tenth_weights(len(names))) if select == "worst-tenth" else 1
        judged = images[accuracy.argsort(1)[:, :count]].sum(1)
        score = worst_tenths(accuracy) if count > 1 else accuracy.min(1)
        alike = as_good_as_selected(score, chosen[-1], judged)
        if alike > len(log) / 2:
            whose = "worst tenth" if count > 1 else "worst class"
            notes["selection"] = (
                f"the selected epoch is a matter of chance: by the {whose}'s {judged[chosen[-1]]:.0f} "
                f"validation images {alike} of the other {len(log) - 1} epochs may be as good. "
                'Hold out more, or take select = "average".'
            )
    return notes


def is_raw(log: Sequence[Line], epoch: int) -> bool:
    """Whether the weights of an epoch are the raw ones, though the run averages over epochs: none had held by then. A
    log that is older than the count does not say."""
    return any(line["epoch"] == epoch and line.get("averaged_epochs") == 0 for line in log)


def average_notes(log: Sequence[Line]) -> list[str]:
    """At the end of a run: that an average over the epochs that hold has nothing averaged in what is kept."""
    chosen = [line["epoch"] for line in log if line["selected"]]
    if not chosen or not is_raw(log, chosen[-1]):
        return []
    if is_raw(log, log[-1]["epoch"]):
        return ["no epoch held: nothing was averaged, these are the raw weights; lower fawa_threshold."]
    return [
        f"epoch {chosen[-1]} was selected before any epoch held: nothing is averaged in it, these are the raw weights."
    ]


def _normalised(values: Floats) -> Floats:
    total = values.sum()
    return np.asarray(values / total if total > 0 else np.full(len(values), 1 / len(values)))
