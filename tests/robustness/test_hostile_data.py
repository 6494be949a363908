"""Data that means harm: bombs, arrays that lie, paths that climb out, images that start programs."""

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
from cifar_files import FILES10, SMALL10, tree, write_files
from hostile import CLIMBING, one_line
from tiny import GREY, picture, write_tiny_npz
from worstclass.data import open_source
from worstclass.data.cifar import download_cifar, read_cifar_names

GIGABYTE = 2**30


@pytest.mark.parametrize("name", ["x_train", "y_train", "class_names"])
def test_objects_among_arrays(name: str, tmp_path: Path) -> None:
    good = dict(np.load(write_tiny_npz(tmp_path / "good.npz")))
    np.savez(tmp_path / "a.npz", **{key: array for key, array in good.items() if key != name})
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr(f"{name}.npy", hostile.object_array(tmp_path / "mark"))
    text = one_line(lambda: open_source(f"npz:{tmp_path / 'a.npz'}").read("train"))
    assert "Objects and records are refused" in text
    assert not (tmp_path / "mark").exists()


# --- bombs, in a process that may not take more than a gigabyte beyond its start ---

LIMITED = """
import resource, sys, time
from worstclass.data import open_source
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from pathlib import Path
import PIL.Image
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**30, now + 2**30))
started = time.monotonic()
try:
    Outcomes.load(Path(sys.argv[2])) if sys.argv[1] == "outcomes" else open_source(sys.argv[2]).read("train")
except UserError as error:
    assert time.monotonic() - started < 20
    print("clean:", error)
"""


def limited(what: str, name: str) -> str:
    """What a process with little memory says to that file."""
    words = [sys.executable, "-W", "error", "-c", LIMITED, what, name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("clean: "), done.stdout
    return done.stdout


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """More than a gigabyte of zeros in a hundredth of it, as data and as outcomes."""
    path = hostile.zeros_bomb(tmp_path / "a.npz", 5 * GIGABYTE // 4)
    assert path.stat().st_size < 20e6
    assert "times its size: it is not opened" in limited("data", f"npz:{path}")
    assert "times its size: it is not opened" in limited("outcomes", str(path))


def test_bombs_that_overlap_are_counted_together(tmp_path: Path) -> None:
    """A thousand entries that share one packed part of 100 kB, as a zip file may."""
    path = hostile.zeros_bomb(tmp_path / "a.npz", 60 * 2**20)
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02", content.rindex(b"x_train.npy", 0, content.index(b"PK\x01\x02") + 1))
    entry = content[content.rindex(b"PK\x01\x02") : content.rindex(b"PK\x05\x06")]
    directory = b"".join(entry.replace(b"x_train.npy", b"x_%05d.npy" % k) for k in range(1000))
    count = (1000).to_bytes(2, "little")
    tail = b"PK\x05\x06" + bytes(4) + count * 2 + len(directory).to_bytes(4, "little") + start.to_bytes(4, "little")
    path.write_bytes(content[:start] + directory + tail + bytes(2))
    with zipfile.ZipFile(path) as archive:
        assert sum(info.file_size for info in archive.infolist()) > 50 * GIGABYTE
    assert "times its size" in one_line(lambda: open_source(f"npz:{path}"))


Y = hostile.npy("<i8", (4,), (np.arange(4) % 2).tobytes())
HEADERS: dict[str, bytes] = {
    "terabytes": hostile.npy("|u1", (10**6, 10**3, 10**3)),
    "more than a word counts": hostile.npy("|u1", (2**63, 2**63)),
    "negative": hostile.npy("|u1", (-4, -8), bytes(32)),
    "shorter than it is": hostile.npy("|u1", (4, 2, 2), bytes(64)),
    "text for a shape": hostile.npy("|u1", "4", bytes(4)),
    "deep": b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000,
    "endless digits": b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"1" * 9000,
    "an open string": b"\x93NUMPY\x01\x00\x04\x00'''a",
    "not closed": b"\x93NUMPY\x01\x00\x04\x00{'a'",
    "a call": b"\x93NUMPY\x01\x00\x14\x00__import__('os')    ",
    "a record": hostile.npy([("a", "|u1")], (4,), bytes(4)),
    "a hidden object": hostile.npy([("a", "|O")], (4,), bytes(32)),
    "nothing, often": hostile.npy("|S0", (10**15,)),
    "a date": hostile.npy("<M8[s]", (4,), bytes(32)),
    "an unknown version": b"\x93NUMPY\x09\x00" + bytes(20),
    "a longer header than there is": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
    "no array": b"GIF89a",
    "nothing": b"",
}


@pytest.mark.parametrize("case", HEADERS)
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_that_lies(case: str, kind: int, tmp_path: Path) -> None:
    path = hostile.archive(tmp_path / "a.npz", {"x_train.npy": HEADERS[case], "y_train.npy": Y}, kind)
    assert "x_train" in one_line(lambda: open_source(f"npz:{path}").read("train"))


def test_an_array_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hostile.archive(
        tmp_path / "a.npz", {"x_train.npy": hostile.npy("|u1", (4, 8, 8), bytes(256)), "y_train.npy": Y}
    )
    assert len(open_source(f"npz:{path}").read("train")) == 4
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    assert "more than the memory of this machine" in one_line(lambda: open_source(f"npz:{path}").read("train"))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_packings_are_not_opened(kind: int, tmp_path: Path) -> None:
    path = hostile.archive(tmp_path / "a.npz", {"x_train.npy": Y, "y_train.npy": Y}, kind)
    assert "packed in a way that is not read" in one_line(lambda: open_source(f"npz:{path}"))


def test_sizes_and_secrets_in_the_directory(tmp_path: Path) -> None:
    """A member that says it is larger than it is; one that needs a password."""
    path = hostile.archive(tmp_path / "a.npz", {"y_train.npy": Y})
    hostile.claim_size(path, 2**31)
    one_line(lambda: open_source(f"npz:{path}"))
    hostile.claim_size(path, 2**20)
    one_line(lambda: open_source(f"npz:{path}"))
    path = hostile.archive(tmp_path / "b.npz", {"y_train.npy": Y})
    content = bytearray(path.read_bytes())
    for place in (6, content.rindex(b"PK\x01\x02") + 8):
        content[place] |= 1  # encrypted
    path.write_bytes(bytes(content))
    assert "encrypted" in one_line(lambda: open_source(f"npz:{path}"))


# --- paths that climb out ---


def test_names_in_an_npz_lead_nowhere(tmp_path: Path) -> None:
    good = dict(np.load(write_tiny_npz(tmp_path / "good.npz")))
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    np.savez(folder / "a.npz", **good)
    with zipfile.ZipFile(folder / "a.npz", "a") as archive:
        for name in CLIMBING:
            archive.writestr(f"{name}.npy", Y)
    before = tree(tmp_path)
    assert len(open_source(f"npz:{folder / 'a.npz'}").read("train")) == 120
    assert tree(tmp_path) == before
    assert not Path("/tmp/climbed-by-worstclass.npy").exists()


def test_a_download_that_climbs_links_or_swells(tmp_path: Path) -> None:
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
    members = [(f"x/{name}", tarfile.REGTYPE, content) for name, content in FILES10.items()]
    evil = [(name, tarfile.REGTYPE, b"evil") for name in CLIMBING]
    evil += [("x/data_batch_1.bin", kind, b"/etc/passwd") for kind in kinds]
    evil += [("x/test_batch.bin", tarfile.REGTYPE, bytes(10**6)), ("x/batches.meta.txt", tarfile.REGTYPE, bytes(10**6))]
    site = tmp_path / "site.tar.gz"
    hostile.tar_members(site, members + evil)
    digest = hashlib.sha256(site.read_bytes()).hexdigest()
    download_cifar(replace(SMALL10, url=site.as_uri(), archive_sha256=digest), tmp_path / "a" / "b" / "cifar10")
    assert tree(tmp_path) == {"site.tar.gz", "a", "a/b", "a/b/cifar10"} | {f"a/b/cifar10/{name}" for name in FILES10}
    assert {path.name: path.read_bytes() for path in (tmp_path / "a/b/cifar10").iterdir()} == FILES10


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b\x08" + bytes(30)])
def test_a_download_that_is_no_archive(content: bytes, tmp_path: Path) -> None:
    site = tmp_path / "site.tar.gz"
    site.write_bytes(content)
    layout = replace(SMALL10, url=site.as_uri(), archive_sha256=hashlib.sha256(content).hexdigest())
    assert "cannot be downloaded" in one_line(lambda: download_cifar(layout, tmp_path / "data" / "cifar10"))
    assert tree(tmp_path) == {"site.tar.gz"}


@pytest.mark.parametrize("content", [b"\xff\xfe" * 5, bytes(2**17), b"a\x1b b c d e f g h i j", b"a a c d e f g h i j"])
def test_names_of_cifar(content: bytes, tmp_path: Path) -> None:
    folder = write_files(tmp_path, FILES10 | {SMALL10.names_file: content})
    one_line(lambda: read_cifar_names(SMALL10, folder))


# --- images ---


def folder_with(root: Path, content: bytes, name: str = "1.png") -> str:
    for k, part in enumerate(("a", "b")):
        picture(root / "train" / part / "0.png", GREY[k])
    (root / "train" / "b" / name).write_bytes(content)
    return f"folder:{root}"


@pytest.mark.parametrize(
    ("width", "height", "message"),
    [
        (50_000, 50_000, "decompression bomb"),  # over Pillow's limit
        (13_000, 9_000, "decompression bomb"),  # where it only warns
        (5000, 5000, "5000 x 5000 pixels are more than 16777216"),  # where it says nothing
        (0, 0, "not a readable image"),
    ],
)
def test_an_image_that_claims_to_be_huge(width: int, height: int, message: str, tmp_path: Path) -> None:
    assert message in limited("data", folder_with(tmp_path, hostile.png(width, height)))


def test_a_file_that_needs_a_program_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript called .png: Pillow would start Ghostscript on it."""

    def started(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "check_call", started)
    monkeypatch.setattr(subprocess, "Popen", started)
    assert "not a readable image" in one_line(lambda: open_source(folder_with(tmp_path, hostile.EPS)).read("train"))


def test_links_are_followed_to_images_only(tmp_path: Path) -> None:
    source = folder_with(tmp_path / "data", b"not an image", "notes.txt")
    picture(tmp_path / "elsewhere.png", GREY[2])
    link = tmp_path / "data" / "train" / "b" / "9.png"
    link.symlink_to(tmp_path / "elsewhere.png")
    assert np.array_equal(open_source(source).read("train").x[2, 0].numpy(), GREY[2])
    for target in ("/etc/passwd", "/dev/zero", tmp_path / "gone", tmp_path, link):
        link.unlink()
        link.symlink_to(target)
        assert "9.png" in one_line(lambda: open_source(source).read("train"))


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", os.fsdecode(b"\xff")])
def test_names_of_folders_cannot_steer_a_terminal(name: str, tmp_path: Path) -> None:
    source = folder_with(tmp_path, b"", "notes.txt")
    (tmp_path / "train" / name).mkdir()
    assert "is not a class name" in one_line(lambda: open_source(source))
