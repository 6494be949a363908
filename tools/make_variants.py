#!/usr/bin/env python3
"""Make harder variants of fashion-mini, on which a class method may do harm: an .npz and a recipe of TRADES for each.

    make_variants.py FOLDER [--seed N] [--develop]

    long-tail        1000 to 40 training images a class, the classes in random order
    wrong-labels     40% of one class's training and validation images have labels of other classes
    off-validation   the validation images of one class have their pixels shuffled
    thin-validation  2 validation images a class
    forty-classes    each class upright, upside down, and both inverted: 40 classes of 10 to 250 training images

Validation images are the last of each class, 1 of 11, as the fashion-mini recipes split them. Test images stay as they
are. With `--develop` they are the clean validation images instead: settings are chosen on those, never on test images.
`worstclass sweep examples/study.toml` trains on the variants in the folder `variants`.
"""

import argparse
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1] / "src/worstclass"
VALID = 1 / 11
RATIO, WRONG, THIN = 25, 0.4, 2
WAYS = ("", " upside down", " inverted", " upside down inverted")

Arrays = tuple[np.ndarray, np.ndarray]


def split(y: np.ndarray, k: int) -> Arrays:
    """Training and validation images of a class, by index."""
    members = np.flatnonzero(y == k)
    held_out = max(1, round(VALID * len(members)))
    return members[:-held_out], members[-held_out:]


def taper(x: np.ndarray, y: np.ndarray, draw: np.random.Generator, ratio: int = RATIO) -> Arrays:
    """An exponential profile over classes in random order; validation shrinks in proportion."""
    num_classes = int(y.max()) + 1
    keep = []
    for rank, k in enumerate(draw.permutation(num_classes)):
        share = ratio ** (-rank / (num_classes - 1))
        for part in split(y, int(k)):
            keep.append(part[: max(1, round(share * len(part)))])
    order = np.sort(np.concatenate(keep))
    return x[order], y[order]


def wrong_labels(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    """Labels of one class become those of others, and as many of the others' images become that class."""
    labels, k = y.copy(), int(draw.integers(10))
    for part in (0, 1):  # training among training images, validation among validation images
        own = split(y, k)[part]
        others = np.concatenate([split(y, other)[part] for other in range(10) if other != k])
        wrong, swapped = (draw.choice(each, round(WRONG * len(own)), replace=False) for each in (own, others))
        labels[wrong], labels[swapped] = y[swapped], k
    return x, labels


def off_validation(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    """One class's validation images are noise with its histogram."""
    x, k = x.copy(), int(draw.integers(10))
    for index in split(y, k)[1]:
        x[index] = draw.permutation(x[index].reshape(-1)).reshape(x[index].shape)
    return x, y


def thin_validation(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    """All but two validation images of each class are gone."""
    keep = np.sort(np.concatenate([np.r_[split(y, k)[0], split(y, k)[1][:THIN]] for k in range(10)]))
    return x[keep], y[keep]


def four_ways(x: np.ndarray, y: np.ndarray) -> Arrays:
    """Image i of a class as it is, upside down, or either inverted, by i mod 4: classes k, k + 10, k + 20, k + 30."""
    x, labels = x.copy(), y.copy()
    for k in range(10):
        members = np.flatnonzero(y == k)
        for way in range(4):
            part = members[way::4]
            images = x[part]
            images = images[..., ::-1, ::-1] if way % 2 else images
            x[part] = 255 - images if way >= 2 else images
            labels[part] = k + 10 * way
    return x, labels


def forty_classes(x: np.ndarray, y: np.ndarray, draw: np.random.Generator) -> Arrays:
    """The long tail of them."""
    return taper(*four_ways(x, y), draw)


VARIANTS = {
    "long-tail": taper,
    "wrong-labels": wrong_labels,
    "off-validation": off_validation,
    "thin-validation": thin_validation,
    "forty-classes": forty_classes,
}


def recipe(name: str, npz: Path) -> str:
    """TRADES of the demo on a variant."""
    text = (ROOT / "recipes/fashion-mini-trades.toml").read_text()
    text = text.replace('data = "fashion-mini"', f'data = "npz:{npz}"')
    if name == "thin-validation":
        text = text.replace('"1/11"', f'"{THIN}/{1000 + THIN}"')
    if name == "forty-classes":  # as many steps as on the others, with a quarter of the images
        text = text.replace("epochs = 10", "epochs = 30")
    text = text.replace("crop_padding", "valid_min = 0  # however few images that leaves\ncrop_padding")
    return f"# The demo's task on {name}.\n" + text.split("\n", 1)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--develop", action="store_true", help="test on the clean validation images")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with np.load(ROOT / "data/fashion_mini.npz", allow_pickle=False) as source:
        names, x, y, *test = (source[key] for key in ("class_names", "x_train", "y_train", "x_test", "y_test"))
    if given.develop:
        held_out = np.concatenate([split(y, k)[1] for k in range(10)])
        test = [x[held_out], y[held_out]]
    for number, (name, change) in enumerate(VARIANTS.items()):
        train = change(x, y, np.random.default_rng([given.seed, number]))
        parts = [train, four_ways(*test) if name == "forty-classes" else test]
        ways = WAYS if name == "forty-classes" else WAYS[:1]
        changed = {"class_names": np.array([f"{each}{way}" for way in ways for each in names])}
        for part, (images, labels) in zip(("train", "test"), parts, strict=True):
            changed |= {f"x_{part}": images, f"y_{part}": labels}
        npz = given.folder / f"{name}.npz"
        np.savez_compressed(npz, **changed)
        npz.with_suffix(".toml").write_text(recipe(name, npz))
        counts = np.bincount(train[1])
        print(f"{npz}: {len(counts)} classes of {counts.min()} to {counts.max()} training and validation images")


if __name__ == "__main__":
    main()
