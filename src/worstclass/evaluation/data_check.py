"""What to know of a data set before a class method is trained on it: sizes, duplicates, blanks, disputed labels."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from worstclass.data import Images, exact_duplicates, held_out, validation_shift
from worstclass.data.checks import BLOCK, mirror_pairs, quick_predictions, small_copies
from worstclass.errors import UserError
from worstclass.metrics.measures import binomial_interval

FEW = 20  # validation images of a class below which its accuracy is hardly known
FEW_TEST = 10  # images of a class, below which its accuracy is hardly known
UNLIKE = 8.0  # times what chance gives
SMALL = 12  # pixels of a side, below which little can be seen
NEAR = 0.02  # root mean square of the difference of two images in [0, 1]
UNBALANCED = 5  # times as many images
MANY_NEAR = 0.001  # of a part


@dataclass(frozen=True)
class DataCheck:
    """What was found: images of each class in each part, and lines to read before training."""

    class_names: tuple[str, ...]
    counts: Mapping[str, list[int]]  # by part
    half_width: list[float]  # of the 95% interval of a class's validation accuracy, at 50%
    disputed: list[float]  # share of a class's training images that a simple classifier assigns to another
    exact: Mapping[tuple[str, str], int]  # images of the second part that are also in the first
    near: Mapping[tuple[str, str], int]
    conflicts: int  # pairs of equal images with different labels
    blank: int
    mirrored: list[tuple[int, int]]  # classes that a mirror makes of one another
    shift: list[float]  # of a class's validation images against its training images, in multiples of chance
    notes: list[str] = field(default_factory=list)


def check_data(parts: Mapping[str, Images], class_names: Sequence[str], *, own_validation: bool = False) -> DataCheck:
    """Look through the parts `train`, `valid` and `test` of a data set, which may have its own validation images."""
    num_classes = len(class_names)
    if differing := size_note(parts["train"].x.shape[1:], parts["test"].x.shape[1:]):
        raise UserError(differing[0])
    counts = {name: images.class_counts(num_classes).tolist() for name, images in parts.items()}
    exact, conflicts = exact_duplicates(parts)
    small = {name: small_copies(images.x).flatten(1) for name, images in parts.items()}
    pairs = list(combinations(parts, 2))
    near = {pair: near_duplicates(small[pair[0]], small[pair[1]]) - exact[pair] for pair in pairs}
    found = DataCheck(
        class_names=tuple(class_names),
        counts=counts,
        half_width=half_width(counts["valid"]),
        disputed=disputed_labels(small["train"], parts["train"].y.cpu(), num_classes).tolist(),
        exact=exact,
        near={pair: max(0, count) for pair, count in near.items()},
        conflicts=conflicts,
        blank=sum(int((images.x.flatten(1) == images.x.flatten(1)[:, :1]).all(1).sum()) for images in parts.values()),
        mirrored=mirror_pairs(parts["train"], num_classes),
        shift=validation_shift(parts["train"], parts["valid"], num_classes),
    )
    found.notes.extend(_notes(found, min(parts["train"].x.shape[2:]), own_validation))
    return found


def near_duplicates(one: Tensor, other: Tensor) -> int:
    """How many of the other images have one in the first that differs by no more than noise, equal ones included."""
    bound, squares = NEAR**2 * one.shape[1], one.square().sum(1)
    count = 0
    for block in other.split(BLOCK):
        nearest = torch.full((len(block),), torch.inf)
        for start in range(0, len(one), BLOCK):
            apart = squares[start : start + BLOCK] - 2 * block @ one[start : start + BLOCK].T
            nearest = torch.minimum(nearest, apart.amin(1) + block.square().sum(1))
        count += int((nearest <= bound).sum())
    return count


def disputed_labels(small: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """The share of each class's images (K,) that a quick model, fitted on the other half, takes for another class.

    It is a weak model: a class stands out only beside the others.
    """
    (found,) = quick_predictions(small, y, num_classes, small)
    wrong = (found != y).double()
    total = torch.bincount(y, minlength=num_classes).clamp_min(1)
    return torch.zeros(num_classes, dtype=torch.float64).index_add(0, y, wrong) / total


def half_width(images: Sequence[int]) -> list[float]:
    """Of the 95% interval of an accuracy of 50% on so many images."""
    count = np.array(images)
    low, high = binomial_interval(count / 2, np.maximum(count, 1))
    return [float(width) for width in (high - low) / 2]


def count_notes(class_names: Sequence[str], counts: Mapping[str, Sequence[int]]) -> list[str]:
    """What the images of each class in `train` and `valid` say: too few to validate on, or unbalanced."""
    train, valid, lines = counts["train"], counts["valid"], []
    few = [k for k, count in enumerate(valid) if count < FEW]
    if few:
        k = min(few, key=valid.__getitem__)
        lines.append(
            f"{len(few)} of {len(class_names)} classes have fewer than {FEW} validation images; accuracy on the "
            f"{valid[k]} of '{class_names[k]}' is known to +-{100 * half_width([valid[k]])[0]:.0f} points: "
            "choose no epoch or weight by it."
        )
    least, most = (choose(range(len(class_names)), key=train.__getitem__) for choose in (min, max))
    if train[most] > UNBALANCED * max(train[least], 1):
        lines.append(
            f"classes are unbalanced: '{class_names[most]}' has {train[most]} training images, "
            f"'{class_names[least]}' {train[least]}."
        )
    return lines


def split_note(counts: Mapping[str, Sequence[int]], fraction: float, *, own: bool = False) -> list[str]:
    """Where classes hold out more validation images than a fraction of them: `3 classes hold out 20 images, not 6`; or
    that the data have their own."""
    if own:
        return [f"the {sum(counts['valid'])} validation images are the data's own: none are taken out of training."]
    pairs = []
    for trained, valid in zip(counts["train"], counts["valid"], strict=True):
        usual = held_out(trained + valid, fraction) if trained + valid > 1 else valid
        if valid > usual:
            pairs.append((valid, usual))
    if not pairs:
        return []
    now, before = (_range([pair[place] for pair in pairs]) for place in (0, 1))
    plural = "class holds" if len(pairs) == 1 else "classes hold"
    return [f"{len(pairs)} {plural} out {now} validation images instead of {before} (valid_min)."]


def name_note(class_names: Sequence[str]) -> list[str]:
    """Classes whose names a person reads as one: they differ in upper and lower case, or in how an accent is coded."""
    alike: dict[str, list[str]] = {}
    for name in class_names:
        alike.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(f"'{name}'")
    groups = [" and ".join(names) for names in alike.values() if len(names) > 1]
    if not groups:
        return []
    more = f"; and {len(groups) - 3} more" if len(groups) > 3 else ""
    which = f"{'; '.join(groups[:3])}{more}"
    return [f"classes whose names differ in case or in an accent's code alone: {which}. Are they one class?"]


def size_note(train: Sequence[int], test: Sequence[int]) -> list[str]:
    """Test images of another shape (C, H, W) than the training images."""
    if list(train) == list(test):
        return []
    shapes = f"training images are {tuple(train)}, test images {tuple(test)}"
    return [f"{shapes}: a model of the one cannot be evaluated on the other."]


def empty_note(class_names: Sequence[str], counts: Sequence[int], kind: str = "test ") -> list[str]:
    """Classes without images to judge a model on."""
    empty = [f"'{name}'" for name, count in zip(class_names, counts, strict=True) if count == 0]
    if not empty:
        return []
    more = f" and {len(empty) - 3} more" if len(empty) > 3 else ""
    which = f"{', '.join(empty[:3])}{more}"
    return [f"{len(empty)} of {len(class_names)} classes have no {kind}images ({which}): nothing is known of them."]


def few_test_note(class_names: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Classes with so few test images that their accuracy stays unknown."""
    few = [k for k, count in enumerate(counts) if 0 < count < FEW_TEST]
    if not few:
        return []
    k = min(few, key=counts.__getitem__)
    return [
        f"{len(few)} of {len(class_names)} classes have fewer than {FEW_TEST} test images; accuracy on the "
        f"{counts[k]} of '{class_names[k]}' will be known to +-{100 * half_width([counts[k]])[0]:.0f} points."
    ]


def copy_note(one: str, other: str, count: int) -> list[str]:
    """Images of a part that are in another too."""
    return [f"{count} {other} images are in the {one} part too: accuracy measured on them is too high."] * (count > 0)


def shift_note(class_names: Sequence[str], shift: Sequence[float], *, own: bool = False) -> list[str]:
    """Classes whose validation images are unlike their training images, by `validation_shift`."""
    unlike = [k for k, each in enumerate(shift) if each > UNLIKE]
    if not unlike:
        return []
    k = max(unlike, key=shift.__getitem__)
    which = f"'{class_names[k]}'" if len(unlike) == 1 else f"{len(unlike)} classes, '{class_names[k]}' above all,"
    told = f"validation images of {which} are unlike the training images"
    if own:
        return [f"{told}: class weights and the epoch are chosen by them. Are test images like the one or the other?"]
    advice = "shuffle images that have an order, but keep those of one scene together"
    return [f"{told}: the last images of a class are held out; {advice}."]


def mirror_note(class_names: Sequence[str], pairs: Sequence[Sequence[int]]) -> list[str]:
    """Classes that flips would mix, by `mirror_pairs`."""
    if not pairs:
        return []
    shown = "; ".join(f"'{class_names[one]}' and '{class_names[other]}'" for one, other in pairs[:3])
    more = f"; and {len(pairs) - 3} more" if len(pairs) > 3 else ""
    return [f"mirror images of each other, by a quick model: {shown}{more}. Train with flip = false."]


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _notes(found: DataCheck, side: int, own_validation: bool) -> list[str]:
    names, train = found.class_names, found.counts["train"]
    lines = name_note(names) + count_notes(names, found.counts) + empty_note(names, found.counts["test"])
    lines += few_test_note(names, found.counts["test"])
    for (one, other), count in found.exact.items():
        lines += copy_note(one, other, count)
    lines += shift_note(names, found.shift, own=own_validation) + mirror_note(names, found.mirrored)
    for (one, other), count in found.near.items():
        if count > MANY_NEAR * sum(found.counts[other]):
            advice = ": photos of one scene or track belong in one part; make train/ and test/ yourself"
            where = f"near-duplicates of one in the {one} part{advice if other == 'test' else ''}"
            lines.append(f"{count} {other} images are {where}.")
    if found.conflicts:
        lines.append(f"{found.conflicts} images have an exact duplicate with another label.")
    if found.blank:
        lines.append(f"{found.blank} images are of one colour.")
    if side < SMALL:
        lines.append(f"images are small: {side} pixels. Take a small network, and crop_padding = 0.")
    usual = float(np.median(found.disputed))
    for k, share in enumerate(found.disputed):
        if share > 2 * usual + 0.15 and train[k] >= FEW:
            lines.append(
                f"'{names[k]}': a simple classifier assigns {100 * share:.0f}% of its images to other classes "
                f"({100 * usual:.0f}% is usual here): the class is hard, or its labels are wrong."
            )
    return lines
