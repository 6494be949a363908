#!/usr/bin/env python3
"""Make src/worstclass/data/fashion_mini.npz from the original Fashion-MNIST files.

    make_fashion_mini.py [FOLDER]     default: where Debian's package dataset-fashion-mnist puts them

The first 1100 training images of each class and its test images from the 301st to the 600th, in their own order,
mean-pooled from 28x28 to 14x14; settings of the demo were once revised after a look at the first 300. The file is the
same for the same input: zip entries carry no time of their own.
"""

import gzip
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

NAMES = ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
OUT = Path(__file__).resolve().parents[1] / "src/worstclass/data/fashion_mini.npz"


def read_idx(path: Path) -> np.ndarray:
    """An array in the IDX format of MNIST."""
    raw = gzip.decompress(path.read_bytes())
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3]))
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def part(folder: Path, prefix: str, which: slice) -> tuple[np.ndarray, np.ndarray]:
    """Some images of each class, in the order of the original, mean-pooled and rounded."""
    x, y = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz"), read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    keep = np.sort(np.concatenate([np.flatnonzero(y == k)[which] for k in range(10)]))
    pooled = x[keep].reshape(-1, 14, 2, 14, 2).astype(np.float64).mean((2, 4))
    return np.rint(pooled).astype(np.uint8), y[keep].copy()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/datasets/fashion-mnist")
    arrays = {"class_names": np.array(NAMES)}
    arrays["x_train"], arrays["y_train"] = part(folder, "train", slice(1100))
    arrays["x_test"], arrays["y_test"] = part(folder, "t10k", slice(300, 600))
    with zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue(), zipfile.ZIP_DEFLATED, 9)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
