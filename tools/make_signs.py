#!/usr/bin/env python3
"""GTSRB at 32x32: 43 unbalanced classes of photographs of traffic signs. No setting of this package was chosen on them.

    make_signs.py GTSRB FOLDER [--seed N]

GTSRB has Final_Training/Images and Final_Test with GT-final_test.csv, as benchmark.ini.rub.de publishes them. The
training images of a class, 105 to 1125, are every other frame of its tracks, track by track: 15 photographs of a sign
as a car comes nearer. At most 100 test images of a class, at random, are of other signs. Writes FOLDER/signs.npz and a
recipe of TRADES, signs.toml; `worstclass sweep examples/signs.toml` trains on them in the folder `variants`.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = 32
TEST = 100
NAMES = (
    *(f"speed limit {limit}" for limit in (20, 30, 50, 60, 70, 80)),
    "end of speed limit 80",
    *(f"speed limit {limit}" for limit in (100, 120)),
    *("no passing", "no passing for trucks", "right of way at crossing", "priority road", "yield", "stop"),
    *("no vehicles", "no trucks", "no entry", "danger", "bend left", "bend right", "double bend", "bumpy road"),
    *("slippery road", "narrow on the right", "road works", "traffic lights", "pedestrians", "children"),
    *("bicycles", "ice or snow", "wild animals", "end of limits", "turn right", "turn left", "straight ahead"),
    *("straight or right", "straight or left", "keep right", "keep left", "roundabout", "end of no passing"),
    "end of no passing for trucks",
)
RECIPE = """\
# TRADES on the 43 classes of traffic signs that tools/make_signs.py writes.
method = "trades"
data = "npz:{path}"
model = "small-cnn"
epochs = 20
batch_size = 128
lr = 0.1
lr_milestones = [0.75, 0.9]
weight_decay = 5e-4
crop_padding = 4
eps = "2/255"
attack_steps = 3
attack_step_size = "0.8/255"
select = "worst"
seed = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gtsrb", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "signs.npz"
    np.savez(path, **make(args.gtsrb, np.random.default_rng(args.seed)))
    (args.folder / "signs.toml").write_text(RECIPE.format(path=path))


def make(folder: Path, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """The arrays of the data set."""
    arrays = {"class_names": np.array(NAMES)}
    parts = {"train": training_files(folder / "Final_Training/Images"), "test": test_files(folder / "Final_Test", draw)}
    for part, files in parts.items():
        arrays[f"x_{part}"] = np.stack([read(path) for path, _ in files])
        arrays[f"y_{part}"] = np.array([label for _, label in files])
    return arrays


def training_files(folder: Path) -> list[tuple[Path, int]]:
    """Every other frame: TRACK_FRAME.ppm in a folder for each class."""
    frames = [(path, k) for k in range(len(NAMES)) for path in sorted((folder / f"{k:05d}").glob("*.ppm"))]
    return [(path, k) for path, k in frames if int(path.stem.partition("_")[2]) % 2 == 0]


def test_files(folder: Path, draw: np.random.Generator) -> list[tuple[Path, int]]:
    with (folder / "GT-final_test.csv").open(newline="") as file:
        known = [(line["Filename"], int(line["ClassId"])) for line in csv.DictReader(file, delimiter=";")]
    labels = np.array([label for _, label in known])
    chosen = [draw.permutation(np.flatnonzero(labels == k))[:TEST] for k in range(len(NAMES))]
    return [(folder / "Images" / known[i][0], known[i][1]) for i in np.concatenate(chosen)]


def read(path: Path) -> np.ndarray:
    """An image (SIZE, SIZE, 3), uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BOX))


if __name__ == "__main__":
    main()
