#!/usr/bin/env python3
"""Tiny-ImageNet at 32x32: 200 classes of 500 training images. No setting of this package was chosen on them.

    make_tiny_imagenet.py TINY FOLDER

TINY has train, val, wnids.txt and words.txt, as the data set is distributed: 64x64, or a copy at 32x32 (the numbers
of docs/study.md: github.com/DhanashriPalodkar/imageet32x32). The images of val, 50 a class, are for testing: those of
test have no public labels. Writes FOLDER/tiny-imagenet.npz and a recipe of TRADES, tiny-imagenet.toml;
`worstclass sweep examples/tiny-imagenet.toml` trains on them in the folder `variants`.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 32
RECIPE = """\
# TRADES on the 200 classes of Tiny-ImageNet that tools/make_tiny_imagenet.py writes.
method = "trades"
data = "npz:{path}"
model = "resnet18"
epochs = 20
batch_size = 256
lr = 0.2
eps = "4/255"
seed = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tiny", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "tiny-imagenet.npz"
    np.savez(path, **make(args.tiny))
    (args.folder / "tiny-imagenet.toml").write_text(RECIPE.format(path=path))


def make(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of the data set, its classes in the order of their WordNet numbers."""
    wnids = sorted((folder / "wnids.txt").read_text().split())
    words = dict(line.split("\t", 1) for line in (folder / "words.txt").read_text().splitlines() if "\t" in line)
    label = {wnid: k for k, wnid in enumerate(wnids)}
    arrays = {"class_names": np.array([words[wnid].split(",")[0] for wnid in wnids])}
    for part, files in {"train": training_files(folder / "train", label), "test": test_files(folder, label)}.items():
        arrays[f"x_{part}"] = np.stack([read(path) for path, _ in files])
        arrays[f"y_{part}"] = np.array([k for _, k in files])
    return arrays


def training_files(folder: Path, label: dict[str, int]) -> list[tuple[Path, int]]:
    return [(path, k) for wnid, k in label.items() for path in by_number((folder / wnid / "images").glob("*.JPEG"))]


def test_files(folder: Path, label: dict[str, int]) -> list[tuple[Path, int]]:
    lines = (folder / "val/val_annotations.txt").read_text().splitlines()
    owner = {name: label[wnid] for name, wnid, *_ in (line.split("\t") for line in lines)}
    files = by_number((folder / "val/images").glob("*.JPEG"))
    return sorted(((path, owner[path.name]) for path in files), key=lambda file: file[1])


def by_number(files: Iterable[Path]) -> list[Path]:
    """NAME_NUMBER.JPEG, by number."""
    return sorted(files, key=lambda path: int(path.stem.rpartition("_")[2]))


def read(path: Path) -> np.ndarray:
    """An image (SIZE, SIZE, 3), uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX))


if __name__ == "__main__":
    main()
