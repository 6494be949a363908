"""Files in CIFAR's binary layout, written byte by byte, and layouts that expect them."""

import hashlib
from dataclasses import replace
from pathlib import Path

from worstclass.data.cifar import CIFAR10, CIFAR100, Layout

ROW = 3 * 32 * 32


def pixel(row: int, channel: int, y: int, x: int) -> int:
    return (31 * row + 101 * channel + 7 * y + 3 * x + x * y) % 256


def cifar_file(labels: list[list[int]], first_row: int = 0) -> bytes:
    """Rows of label bytes, then the red, the green and the blue plane, each row by row."""
    content = bytearray()
    for row, label_bytes in enumerate(labels, start=first_row):
        content += bytes(label_bytes)
        content += bytes(pixel(row, c, y, x) for c in range(3) for y in range(32) for x in range(32))
    return bytes(content)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


FILES10 = {
    "data_batch_1.bin": cifar_file([[3], [0], [9]]),
    "data_batch_2.bin": cifar_file([[7], [1]], first_row=3),
    "test_batch.bin": cifar_file([[2], [5]], first_row=11),
    "batches.meta.txt": b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n",
}
FILES100 = {
    "train.bin": cifar_file([[19, 99], [4, 0], [0, 57]]),
    "test.bin": cifar_file([[11, 98]], first_row=5),
    "fine_label_names.txt": "\n".join(f"name{k}" for k in range(100)).encode(),
}


def small_layout(layout: Layout, files: dict[str, bytes]) -> Layout:
    """The layout for small files that have the official names."""
    row_bytes = layout.label_bytes + ROW
    known: dict[str, tuple[int, str | None]] = {
        name: (len(c) // row_bytes, sha(c)) for name, c in files.items() if name.endswith(".bin")
    }
    test = {name: value for name, value in known.items() if name.startswith("test")}
    return replace(layout, train={name: value for name, value in known.items() if name not in test}, test=test)


SMALL10, SMALL100 = small_layout(CIFAR10, FILES10), small_layout(CIFAR100, FILES100)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
