"""CIFAR-10 and CIFAR-100 in their official binary layout: rows of label bytes and 3072 pixel bytes."""

import contextlib
import hashlib
import http.client
import re
import tarfile
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from worstclass.data.images import Images, check_class_names
from worstclass.data.source import Part
from worstclass.errors import UserError, reason
from worstclass.files import read_text, write_atomic

PIXELS = 3 * 32 * 32
MAX_NAMES = 2**16  # bytes of the list of names


@dataclass(frozen=True)
class Layout:
    """What a CIFAR archive holds. `files` maps each name to (rows, SHA-256); the last label byte is the class."""

    name: str
    num_classes: int
    label_bytes: int
    train: dict[str, tuple[int, str | None]]
    test: dict[str, tuple[int, str | None]]
    names_file: str
    url: str
    archive_sha256: str

    @property
    def files(self) -> dict[str, tuple[int, str | None]]:
        return self.train | self.test


CIFAR10 = Layout(
    name="cifar10",
    num_classes=10,
    label_bytes=1,
    train={
        "data_batch_1.bin": (10_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        "data_batch_2.bin": (10_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        "data_batch_3.bin": (10_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        "data_batch_4.bin": (10_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        "data_batch_5.bin": (10_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    },
    test={"test_batch.bin": (10_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b")},
    names_file="batches.meta.txt",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive_sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR100 = Layout(
    name="cifar100",
    num_classes=100,
    label_bytes=2,  # coarse, then fine: the class is the fine label
    train={"train.bin": (50_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29")},
    test={"test.bin": (10_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a")},
    names_file="fine_label_names.txt",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    archive_sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)


def ensure_cifar(layout: Layout, data_dir: Path, notify: Callable[[str, int, int], None] | None = None) -> Path:
    """The folder that holds the files: `data_dir`, or one of its usual sub-folders, or freshly downloaded."""
    found = find_cifar(layout, data_dir)
    if found is not None:
        return found
    download_cifar(layout, data_dir / layout.name, notify)
    return data_dir / layout.name


def find_cifar(layout: Layout, data_dir: Path) -> Path | None:
    """The folder that holds the files, if there is one; one that holds some of them is an error, unless it is ours."""
    unpacked = Path(layout.url).name.removesuffix(".tar.gz").replace("cifar-10-binary", "cifar-10-batches-bin")
    for folder in (data_dir, data_dir / layout.name, data_dir / unpacked):
        if any((folder / name).is_file() for name in layout.files):
            missing = [name for name in layout.files if not (folder / name).is_file()]
            if missing and folder == data_dir / layout.name:  # a download that was killed while it unpacked
                return None
            if missing:
                raise UserError(f"{folder} holds {layout.name} but not {', '.join(missing)}.")
            return folder
    return None


def read_cifar(layout: Layout, folder: Path, part: Part) -> Images:
    """The images and class labels of one part, checked against the known size and digest."""
    tables = []
    for name, (rows, digest) in (layout.train if part == "train" else layout.test).items():
        row_bytes = layout.label_bytes + PIXELS
        content = _read(folder / name, rows * row_bytes, layout.name)
        if digest and hashlib.sha256(content).hexdigest() != digest:
            raise UserError(f"{folder / name} does not match the SHA-256 of {layout.name}: the file is damaged.")
        tables.append(np.frombuffer(content, dtype=np.uint8).reshape(rows, row_bytes))
    table = np.concatenate(tables)
    labels = table[:, layout.label_bytes - 1].astype(np.int64)
    if labels.max() >= layout.num_classes:
        raise UserError(f"{folder}: label {labels.max()} in {layout.name}, expected 0..{layout.num_classes - 1}.")
    pixels = table[:, layout.label_bytes :].reshape(-1, 3, 32, 32)
    return Images(torch.from_numpy(pixels.copy()), torch.from_numpy(labels))


def read_cifar_names(layout: Layout, folder: Path) -> tuple[str, ...]:
    """Class names from the archive's own list; numbers where the list is missing."""
    path = folder / layout.names_file
    if not path.is_file():
        return tuple(str(k) for k in range(layout.num_classes))
    names = read_text(path, MAX_NAMES).split()
    if len(names) != layout.num_classes:
        raise UserError(f"{path} has {len(names)} names, {layout.num_classes} expected.")
    return check_class_names(names, path)


def download_cifar(layout: Layout, folder: Path, notify: Callable[[str, int, int], None] | None = None) -> None:
    """Fetch the archive from the data set's own site, check it, and unpack the files we know by name."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    archive = folder / (Path(layout.url).name + ".part")
    digest = hashlib.sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(layout.url, timeout=60) as response, archive.open("wb") as out:
            length = response.headers.get("Content-Length", "")
            total = int(length) if re.fullmatch("[0-9]{1,15}", length) else 0
            while chunk := response.read(1 << 20):
                out.write(chunk)
                digest.update(chunk)
                if notify:
                    notify(f"downloading {layout.name}", out.tell(), total)
        if digest.hexdigest() != layout.archive_sha256:
            raise UserError(f"the download of {layout.name} does not match its SHA-256; try again or pass --data-dir.")
        wanted = {name: rows * (layout.label_bytes + PIXELS) for name, (rows, _) in layout.files.items()}
        wanted[layout.names_file] = MAX_NAMES
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name  # wherever a path leads, the file lands in our folder
                known = member.isfile() and member.size <= wanted.get(name, -1)
                stream = tar.extractfile(member) if known else None
                if stream:
                    write_atomic(folder / name, stream.read())
    except (OSError, http.client.HTTPException, tarfile.TarError, EOFError, zlib.error) as error:
        # no network, a time-out, an answer that is cut short, a folder that cannot be written
        raise UserError(
            f"{layout.name} is not in {folder.parent} and cannot be downloaded ({reason(error)}); "
            f"put its binary files ({', '.join(layout.files)}) in a folder and pass --data-dir."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            archive.unlink()
        with contextlib.suppress(OSError):  # up to the first folder that holds something
            for parent in made:
                parent.rmdir()


def _read(path: Path, size: int, what: str) -> bytes:
    """The bytes of a file that must have so many."""
    try:
        if not path.is_file():
            raise UserError(f"{path} is not a file.")
        found = path.stat().st_size
        if found != size:
            raise UserError(f"{path}: {found} bytes, {size} expected: cut short, or not {what}.")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
