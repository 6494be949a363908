"""Add a data set: arrays to an .npz file, and a recipe trained on it."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import worstclass as wc


def stripes(counts: dict[str, int], seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noisy RGB images (N, 16, 16, 3) of stripes in three directions, in a random order. Put your own arrays here."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:16, 0:16]
    direction = {"across": rows, "down": columns, "slanted": rows + columns}
    labels = rng.permutation(np.repeat(np.arange(len(counts)), list(counts.values())))
    patterns = np.stack([direction[name] // 2 % 2 for name in counts]).astype(np.float64)
    pixels = 128 + 60 * (2 * patterns[labels] - 1)[..., None] + rng.normal(0, 40, (len(labels), 16, 16, 3))
    return pixels.clip(0, 255).astype(np.uint8), labels


def write_npz(path: Path) -> None:
    """The file that `npz:PATH` reads; class_names may be left out, and classes need not be balanced."""
    x_train, y_train = stripes({"across": 200, "down": 200, "slanted": 50}, seed=0)
    x_test, y_test = stripes({"across": 50, "down": 50, "slanted": 50}, seed=1)
    names = np.array(["across", "down", "slanted"])
    np.savez_compressed(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, class_names=names)


def main(folder: Path, epochs: int = 3) -> wc.Run:
    """Write the file and train WAT on it, by a shipped recipe with a few keys replaced."""
    write_npz(folder / "stripes.npz")
    changes = {"data": f"npz:{folder / 'stripes.npz'}", "epochs": epochs, "eps": "8/255", "attack_step_size": 0.007}
    config = wc.load_config("fashion-mini-wat", **changes)
    run = wc.train_run(config, folder / "run")
    for line in run.log:
        valid = line["valid"]
        print(
            f"epoch {line['epoch']}  average {100 * valid['robust_accuracy']:.1f}%  "
            f"worst {100 * valid['worst_robust_accuracy']:.1f}%"
        )
    return run


if __name__ == "__main__":
    main(Path(tempfile.mkdtemp(prefix="stripes-")))
