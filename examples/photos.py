"""A folder of images to try things on: fashion-mini as PNG files, one folder for each class."""

import sys
from pathlib import Path
from typing import Literal, get_args

from PIL import Image

import worstclass as wc

Part = Literal["train", "test"]


def main(folder: Path, *, per_class: int = 200) -> None:
    """Write the first images of each class to FOLDER/train/CLASS/ and FOLDER/test/CLASS/."""
    source = wc.open_source("fashion-mini")
    for part in get_args(Part):
        images = source.read(part)
        for k, name in enumerate(source.class_names):
            place = folder / part / name.replace("/", "-")
            place.mkdir(parents=True, exist_ok=True)
            for i, image in enumerate(images.x[images.y == k][:per_class]):
                Image.fromarray(image[0].numpy()).save(place / f"{i:03}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "photos"))
