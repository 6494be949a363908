#!/usr/bin/env python3
"""Make harder variants of fashion-mini, on which a class method may do harm: an .npz each.

    make_variants.py FOLDER [SEED]

    long-tail.npz       1000 to 40 training images a class, the classes in random order
    wrong-labels.npz    40% of one class's training and validation images have labels of other classes
    off-validation.npz  the validation images of one class have their pixels shuffled
    thin-validation.npz 2 validation images a class: train with valid_fraction = 2/1002

Validation images are the last of each class, 1 of 11, as the fashion-mini recipes split them. Test images stay.
"""

import sys
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "src/worstclass/data/fashion_mini.npz"
VALID = 1 / 11
RATIO, WRONG = 25, 0.4


def split(y: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation images of a class, by index."""
    members = np.flatnonzero(y == k)
    held_out = max(1, round(VALID * len(members)))
    return members[:-held_out], members[-held_out:]


def long_tail(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An exponential profile of training images; validation shrinks in proportion."""
    classes = draw.permutation(10)
    keep = []
    for rank, k in enumerate(classes):
        share = RATIO ** (-rank / 9)
        for part in split(y, int(k)):
            keep.append(part[: max(1, round(share * len(part)))])
    order = np.sort(np.concatenate(keep))
    return x[order], y[order]


def wrong_labels(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels of one class become those of others, and as many of the others' images become that class."""
    labels, k = y.copy(), int(draw.integers(10))
    for part in (0, 1):  # training among training images, validation among validation images
        own = split(y, k)[part]
        others = np.concatenate([split(y, other)[part] for other in range(10) if other != k])
        wrong, swapped = (draw.choice(each, round(WRONG * len(own)), replace=False) for each in (own, others))
        labels[wrong], labels[swapped] = y[swapped], k
    return x, labels


def off_validation(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One class's validation images are noise with its histogram."""
    x, k = x.copy(), int(draw.integers(10))
    for index in split(y, k)[1]:
        x[index] = draw.permutation(x[index].reshape(-1)).reshape(x[index].shape)
    return x, y


def thin_validation(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All but two validation images of each class are gone."""
    keep = np.sort(np.concatenate([np.r_[split(y, k)[0], split(y, k)[1][:2]] for k in range(10)]))
    return x[keep], y[keep]


VARIANTS = {
    "long-tail": long_tail,
    "wrong-labels": wrong_labels,
    "off-validation": off_validation,
    "thin-validation": thin_validation,
}


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(SOURCE, allow_pickle=False) as source:
        arrays = dict(source)
    for number, (name, change) in enumerate(VARIANTS.items()):
        draw = np.random.default_rng([seed, number])
        x, y = change(arrays["x_train"], arrays["y_train"], draw)
        np.savez_compressed(folder / f"{name}.npz", **arrays | {"x_train": x, "y_train": y})
        print(f"{folder / name}.npz: {np.bincount(y).tolist()} training and validation images a class")


if __name__ == "__main__":
    main()
