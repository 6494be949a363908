#!/usr/bin/env python3
"""PlantVillage at 32x32: 38 unbalanced classes of photographs of leaves. No setting of this package was chosen on them.

    make_leaves.py PLANTVILLAGE FOLDER [--seed N]

PLANTVILLAGE has a folder of colour images for each class (github.com/gabrieldgf4/PlantVillage-Dataset). A class of n
images has n / 5 + 75 training images, 105 to 1176, and at most 100 test images, at random. Photographs of one leaf
may be in both parts. Writes FOLDER/leaves.npz and a recipe of TRADES, leaves.toml;
`worstclass sweep examples/leaves.toml` trains on them in the folder `variants`.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 32
SHARE, MORE, TEST = 0.2, 75, 100
SUFFIXES = (".jpg", ".jpeg", ".png")
RECIPE = """\
# TRADES on the 38 classes of leaves that tools/make_leaves.py writes.
method = "trades"
data = "npz:{path}"
model = "small-cnn"
epochs = 20
batch_size = 128
lr = 0.1
lr_milestones = [0.75, 0.9]
weight_decay = 5e-4
crop_padding = 4
flip = true
eps = "2/255"
attack_steps = 3
attack_step_size = "0.8/255"
select = "worst"
seed = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plantvillage", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "leaves.npz"
    np.savez(path, **make(args.plantvillage, np.random.default_rng(args.seed)))
    (args.folder / "leaves.toml").write_text(RECIPE.format(path=path))


def make(folder: Path, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """The arrays of the data set."""
    classes = sorted(each for each in folder.iterdir() if "___" in each.name)
    files: dict[str, list[Path]] = {"train": [], "test": []}
    for each in classes:
        found = sorted(file for file in each.iterdir() if file.suffix.lower() in SUFFIXES)
        found = [found[i] for i in draw.permutation(len(found))]
        kept = int(SHARE * len(found) + MORE)
        files["train"] += found[:kept]
        files["test"] += found[kept : kept + TEST]
    label = {each.name: k for k, each in enumerate(classes)}
    arrays = {"class_names": np.array([name.replace("___", " ").replace("_", " ") for name in label])}
    for part, paths in files.items():
        arrays[f"x_{part}"] = np.stack([read(path) for path in paths])
        arrays[f"y_{part}"] = np.array([label[path.parent.name] for path in paths])
    return arrays


def read(path: Path) -> np.ndarray:
    """An image (SIZE, SIZE, 3), uint8."""
    with Image.open(path) as image:
        image.draft("RGB", (2 * SIZE, 2 * SIZE))  # a JPEG is decoded at no more than it needs
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX))


if __name__ == "__main__":
    main()
