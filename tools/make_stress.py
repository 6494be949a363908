#!/usr/bin/env python3
"""Make variants of fashion-mini on which classes cannot be helped, for class methods that nobody tuned for them.

    make_stress.py FOLDER [--seed N]

    two-wrong     40% of the labels of two classes are wrong, in training and validation
    label-noise   30% of all labels are drawn at random, in training and validation
    twins         the images of one class have one of two labels, by a coin
    junk          an eleventh class of 5% of the images of each other class
    tail-100      1000 to 10 training images a class, 100 to 1 validation images
    two-classes   T-shirt and shirt, 1000 and 50 training images, 100 and 5 validation images

Test images are labelled in the same way in `twins` and `junk`, and clean otherwise. Writes an .npz and a recipe of
TRADES for each; `worstclass sweep examples/stress.toml` trains on them in the folder `stress`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from make_variants import ROOT, WRONG, Arrays, recipe, split, taper

NOISE, JUNK, RATIO, FEW = 0.3, 20, 100, (50, 5)
TWIN, SHIRTS = 3, (0, 6)
TEST_SEED = 99


def two_wrong(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    labels, wronged = y.copy(), draw.choice(10, 2, replace=False)
    for k in wronged:
        for part in (0, 1):  # training among training images, validation among validation images
            own = split(y, k)[part]
            others = np.concatenate([split(y, other)[part] for other in range(10) if other not in wronged])
            wrong, swapped = (draw.choice(each, round(WRONG * len(own)), replace=False) for each in (own, others))
            labels[wrong], labels[swapped] = y[swapped], k
    return x, labels


def label_noise(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    labels, noisy = y.copy(), draw.choice(len(y), round(NOISE * len(y)), replace=False)
    labels[noisy] = draw.integers(0, 10, len(noisy))
    return x, labels


def twins(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    labels, members = y.copy(), np.flatnonzero(y == TWIN)
    labels[members[draw.random(len(members)) < 0.5]] = 10
    return x, labels


def junk(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    labels = y.copy()
    for k in range(10):
        for part in split(y, k):
            labels[draw.choice(part, max(1, len(part) // JUNK), replace=False)] = 10
    return x, labels


def long_tail(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    return taper(x, y, draw, RATIO)


def two_classes(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    common, rare = (split(y, k) for k in SHIRTS)
    keep = np.sort(np.concatenate([*common, *(part[:few] for part, few in zip(rare, FEW, strict=True))]))
    return x[keep], (y[keep] == SHIRTS[1]).astype(y.dtype)


STRESS: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], Arrays]] = {
    "two-wrong": two_wrong,
    "label-noise": label_noise,
    "twins": twins,
    "junk": junk,
    "tail-100": long_tail,
    "two-classes": two_classes,
}


def make(name: str, arrays: dict[str, np.ndarray], draw: np.random.Generator) -> dict[str, np.ndarray]:
    """The arrays of fashion-mini, changed."""
    names, test = arrays["class_names"], (arrays["x_test"], arrays["y_test"])
    if name in ("twins", "junk"):
        names, test = np.append(names, name), STRESS[name](*test, np.random.default_rng(TEST_SEED))
    if name == "two-classes":
        keep = np.isin(test[1], SHIRTS)
        names, test = names[list(SHIRTS)], (test[0][keep], (test[1][keep] == SHIRTS[1]).astype(test[1].dtype))
    train = STRESS[name](arrays["x_train"], arrays["y_train"], draw)
    return {"class_names": names, "x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1]}


def stress_recipe(name: str, npz: Path) -> str:
    text = recipe(name, npz)
    return text.replace("epochs = 10", "epochs = 60") if name == "two-classes" else text  # a tenth of the images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with np.load(ROOT / "data/fashion_mini.npz", allow_pickle=False) as source:
        arrays = {key: source[key] for key in ("class_names", "x_train", "y_train", "x_test", "y_test")}
    for number, name in enumerate(STRESS):
        changed = make(name, arrays, np.random.default_rng([given.seed, number]))
        npz = given.folder / f"{name}.npz"
        np.savez_compressed(npz, **changed)
        npz.with_suffix(".toml").write_text(stress_recipe(name, npz))
        print(f"{npz}: training and validation images {np.bincount(changed['y_train']).tolist()}")


if __name__ == "__main__":
    main()
