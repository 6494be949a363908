"""CIFAR in its binary layout, and its download, against files written here byte by byte."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cifar_files import FILES10, FILES100, ROW, SMALL10, SMALL100, cifar_file, pixel, sha, tree, write_files
from worstclass.data import open_source, sources
from worstclass.data.cifar import CIFAR10, CIFAR100, Layout, download_cifar, ensure_cifar, read_cifar, read_cifar_names
from worstclass.errors import UserError

pytestmark = pytest.mark.fast

# --- CIFAR's binary layout ---


def assert_pixels(x: Tensor, rows: list[int]) -> None:
    expected = [[[[pixel(r, c, y, x) for x in range(32)] for y in range(32)] for c in range(3)] for r in rows]
    assert x.dtype == torch.uint8
    assert x.tolist() == expected


def test_cifar10_rows_planes_and_files_in_order(tmp_path: Path) -> None:
    folder = write_files(tmp_path, FILES10)
    train, test = read_cifar(SMALL10, folder, "train"), read_cifar(SMALL10, folder, "test")
    assert train.y.tolist() == [3, 0, 9, 7, 1]
    assert test.y.tolist() == [2, 5]
    assert_pixels(train.x, [0, 1, 2, 3, 4])
    assert_pixels(test.x, [11, 12])
    assert read_cifar_names(SMALL10, folder)[3] == "cat"


def test_cifar100_class_is_the_fine_label(tmp_path: Path) -> None:
    folder = write_files(tmp_path, FILES100)
    train, test = read_cifar(SMALL100, folder, "train"), read_cifar(SMALL100, folder, "test")
    assert train.y.tolist() == [99, 0, 57]
    assert test.y.tolist() == [98]
    assert_pixels(train.x, [0, 1, 2])
    assert_pixels(test.x, [5])
    assert read_cifar_names(SMALL100, folder)[57] == "name57"


def test_official_layouts_have_the_official_sizes() -> None:
    assert sum(rows for rows, _ in CIFAR10.train.values()) == sum(rows for rows, _ in CIFAR100.train.values()) == 50_000
    assert sum(rows for rows, _ in CIFAR10.test.values()) == sum(rows for rows, _ in CIFAR100.test.values()) == 10_000
    assert {rows * (CIFAR10.label_bytes + ROW) for rows, _ in CIFAR10.files.values()} == {30_730_000}
    assert (CIFAR10.label_bytes, CIFAR100.label_bytes) == (1, 2)
    for layout in (CIFAR10, CIFAR100):
        digests = [digest for _, digest in layout.files.values()] + [layout.archive_sha256]
        assert all(digest is not None and len(digest) == 64 for digest in digests)
        assert layout.url.startswith("https://")


@pytest.mark.parametrize("cut", [1, ROW + 1, 2 * ROW])
def test_cifar_file_cut_short(tmp_path: Path, cut: int) -> None:
    name = "data_batch_2.bin"
    folder = write_files(tmp_path, FILES10 | {name: FILES10[name][:-cut]})
    with pytest.raises(UserError, match=rf"{name}: \d+ bytes, {2 * (ROW + 1)} expected"):
        read_cifar(SMALL10, folder, "train")
    assert read_cifar(SMALL10, folder, "test").y.tolist() == [2, 5]  # the other part is not touched


def test_cifar_file_with_another_digest(tmp_path: Path) -> None:
    damaged = bytearray(FILES10["test_batch.bin"])
    damaged[1000] ^= 1
    folder = write_files(tmp_path, FILES10 | {"test_batch.bin": bytes(damaged)})
    with pytest.raises(UserError, match=r"test_batch.bin does not match the SHA-256"):
        read_cifar(SMALL10, folder, "test")


@pytest.mark.parametrize(("layout", "label"), [(CIFAR10, [10]), (CIFAR100, [0, 100])])
def test_cifar_label_out_of_range(tmp_path: Path, layout: Layout, label: list[int]) -> None:
    content = cifar_file([label])
    name = next(iter(layout.test))
    folder = write_files(tmp_path, {name: content})
    with pytest.raises(UserError, match=rf"label {label[-1]} .*expected 0\.\.{layout.num_classes - 1}\."):
        read_cifar(replace(layout, test={name: (1, None)}), folder, "test")


def test_cifar_missing_file_is_named_and_nothing_is_downloaded(tmp_path: Path) -> None:
    folder = write_files(tmp_path, {k: v for k, v in FILES10.items() if k != "data_batch_2.bin"})
    with pytest.raises(UserError, match=r"holds cifar10 but not data_batch_2\.bin\."):
        ensure_cifar(replace(SMALL10, url="file:///must/not/be/asked.tar.gz"), tmp_path)
    assert len(list(folder.iterdir())) == 3


def test_cifar_download_that_was_killed_is_made_again(tmp_path: Path) -> None:
    """Half of the files in the folder that downloads go to: the archive is asked for once more."""
    write_files(tmp_path / "cifar10", {k: v for k, v in FILES10.items() if k != "data_batch_2.bin"})
    with pytest.raises(UserError, match="cannot be downloaded"):
        ensure_cifar(replace(SMALL10, url="file:///asked/again.tar.gz"), tmp_path)


@pytest.mark.parametrize("where", [".", "cifar10", "cifar-10-batches-bin"])
def test_cifar_is_found_in_the_usual_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    write_files(tmp_path / where, FILES10)
    monkeypatch.setattr(sources, "CIFAR10", replace(SMALL10, url="file:///must/not/be/asked/cifar-10-binary.tar.gz"))
    source = open_source("cifar10", data_dir=str(tmp_path))
    assert source.class_names[-1] == "truck"
    assert source.read("train").y.tolist() == [3, 0, 9, 7, 1]
    assert source.read("test").y.tolist() == [2, 5]


def test_cifar_names_that_do_not_fit(tmp_path: Path) -> None:
    folder = write_files(tmp_path, FILES10 | {"batches.meta.txt": b"cat\ndog\n"})
    with pytest.raises(UserError, match=r"batches\.meta\.txt has 2 names, 10 expected"):
        read_cifar_names(SMALL10, folder)
    (folder / "batches.meta.txt").unlink()
    assert read_cifar_names(SMALL10, folder) == tuple("0123456789")


# --- the download ---


def served(folder: Path, layout: Layout, members: dict[str, bytes]) -> Layout:
    """The layout with an archive of `members` to download, from a file."""
    folder.mkdir()
    archive = folder / Path(layout.url).name
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return replace(layout, url=archive.as_uri(), archive_sha256=sha(archive.read_bytes()))


@pytest.mark.parametrize(
    ("layout", "files", "inside"),
    [(SMALL10, FILES10, "cifar-10-batches-bin"), (SMALL100, FILES100, "cifar-100-binary")],
)
def test_download(tmp_path: Path, layout: Layout, files: dict[str, bytes], inside: str) -> None:
    extra = {f"{inside}/readme.html": b"not needed"}
    layout = served(tmp_path / "site", layout, {f"{inside}/{k}": v for k, v in files.items()} | extra)
    seen: list[tuple[str, int, int]] = []
    data_dir = tmp_path / "new" / "data"
    folder = ensure_cifar(layout, data_dir, lambda *progress: seen.append(progress))
    assert folder == data_dir / layout.name
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    size = len(Path(layout.url.removeprefix("file://")).read_bytes())
    assert seen[-1] == (f"downloading {layout.name}", size, size)
    offline = replace(layout, url="file:///must/not/be/asked/again.tar.gz")
    assert ensure_cifar(offline, data_dir) == folder


def test_download_with_another_checksum_leaves_nothing(tmp_path: Path) -> None:
    layout = replace(served(tmp_path / "site", SMALL10, FILES10), archive_sha256="0" * 64)
    (tmp_path / "mine").mkdir()
    before = tree(tmp_path)
    for data_dir in (tmp_path / "data", tmp_path / "mine"):
        with pytest.raises(UserError, match=r"download of cifar10 does not match its SHA-256"):
            ensure_cifar(layout, data_dir)
    assert tree(tmp_path) == before


def test_no_network_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    layout = replace(SMALL10, url=(tmp_path / "nowhere.tar.gz").as_uri())
    with pytest.raises(UserError, match=r"cannot be downloaded .*data_batch_1\.bin.*--data-dir"):
        ensure_cifar(layout, tmp_path / "a" / "b")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be downloaded"):
        ensure_cifar(layout, tmp_path / "file")
    assert tree(tmp_path) == {"file"}


def test_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    members = {f"x/{k}": v for k, v in FILES10.items()}
    members |= {"../../evil": b"evil", str(tmp_path / "absolute"): b"evil", "../../../batches.meta.txt": b"moved"}
    layout = served(tmp_path / "site", SMALL10, members)
    download_cifar(layout, tmp_path / "deep" / "data" / "cifar10")
    assert {entry.name for entry in tmp_path.iterdir()} == {"site", "deep"}
    assert {entry.name for entry in (tmp_path / "deep").iterdir()} == {"data"}
    assert tree(tmp_path / "deep" / "data" / "cifar10") == set(FILES10)


def test_archive_cannot_bring_a_link(tmp_path: Path) -> None:
    layout = served(tmp_path / "site", SMALL10, {})
    archive = Path(layout.url.removeprefix("file://"))
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("x/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    folder = tmp_path / "data" / "cifar10"
    download_cifar(replace(layout, archive_sha256=sha(archive.read_bytes())), folder)
    assert not folder.exists()
