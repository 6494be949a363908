"""Sources against files written here byte by byte; split, order and augmentation against slow oracles."""

import hashlib
import importlib.util
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from worstclass import rng
from worstclass.config import make_config
from worstclass.data import Augment, Images, epoch_order, open_source, sources, split_validation, to_float
from worstclass.data.cifar import CIFAR10, CIFAR100, Layout, download_cifar, ensure_cifar, read_cifar, read_cifar_names
from worstclass.errors import UserError
from worstclass.runs import open_run, train_run
from worstclass.subjects import run_subject

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts them
ROW = 3 * 32 * 32


# --- the data that ships with the package ---


def test_fashion_mini_is_what_it_says() -> None:
    source = open_source("fashion-mini")
    assert source.class_names[0] == "t-shirt"
    assert source.class_names[6] == "shirt"
    assert source.num_classes == len(set(source.class_names)) == 10
    for images, per_class in ((source.read("train"), 1100), (source.read("test"), 300)):
        assert images.x.shape == (10 * per_class, 1, 14, 14)
        assert images.x.dtype == torch.uint8
        assert images.y.dtype == torch.int64
        assert images.class_counts(10).tolist() == [per_class] * 10
        assert images.x.float().std() > 50  # pictures, not blanks
    assert sources.FASHION_MINI.stat().st_size < 3_000_000


def test_fashion_mini_validation_is_the_last_hundred_of_a_class() -> None:
    config = make_config({"data": "fashion-mini", "valid_fraction": "1/11"})
    train, valid = split_validation(open_source("fashion-mini").read("train"), 10, config.valid_fraction)
    assert train.class_counts(10).tolist() == [1000] * 10
    assert valid.class_counts(10).tolist() == [100] * 10


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="the original Fashion-MNIST files are not installed")
def test_fashion_mini_is_made_again_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[1] / "tools" / "make_fashion_mini.py"
    spec = importlib.util.spec_from_file_location("make_fashion_mini", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sources.FASHION_MINI == module.OUT
    monkeypatch.setattr(module, "OUT", tmp_path / "made.npz")
    monkeypatch.setattr("sys.argv", [str(script), str(ORIGINALS)])
    module.main()
    assert (tmp_path / "made.npz").read_bytes() == sources.FASHION_MINI.read_bytes()


# --- CIFAR's binary layout ---


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
    source = open_source("cifar10", data_dir=tmp_path)
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


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


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


# --- .npz ---

GREY = np.random.default_rng(0).integers(0, 256, (12, 8, 9), dtype=np.uint8)
COLOUR = np.random.default_rng(1).integers(0, 256, (12, 8, 9, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def npz(path: Path, **changes: Any) -> str:
    """A good archive but for the changes; None leaves an array out."""
    arrays: dict[str, Any] = {"x_train": GREY, "y_train": LABELS, "x_test": GREY[:6], "y_test": LABELS[:6]} | changes
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return f"npz:{path}"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (COLOUR, COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR.transpose(0, 3, 1, 2), COLOUR.transpose(0, 3, 1, 2)),
        (COLOUR[..., [0, 1, 2, 0]], COLOUR[..., [0, 1, 2, 0]].transpose(0, 3, 1, 2)),
    ],
    ids=["NHW", "NHW1", "N1HW", "NHWC", "NCHW", "NHW4"],
)
def test_npz_layouts(tmp_path: Path, stored: Any, expected: Any) -> None:
    images = open_source(npz(tmp_path / "a.npz", x_train=stored)).read("train")
    assert images.x.dtype == torch.uint8
    assert images.x.is_contiguous()
    assert np.array_equal(images.x.numpy(), expected)
    assert images.y.dtype == torch.int64
    assert images.y.tolist() == LABELS.tolist()


def test_npz_names_and_label_types(tmp_path: Path) -> None:
    assert open_source(npz(tmp_path / "a.npz")).class_names == ("0", "1", "2")
    names = np.array(["a", "b", "c", "d"])
    source = open_source(npz(tmp_path / "b.npz", class_names=names, y_train=LABELS.astype(np.uint8)))
    assert source.class_names == ("a", "b", "c", "d")
    assert source.read("train").y.dtype == torch.int64
    assert source.read("test").y.tolist() == LABELS[:6].tolist()


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "float images": ({"x_train": GREY / 255}, "x_train must be uint8 in 0..255, not float64"),
    "signed images": ({"x_train": GREY.astype(np.int16)}, "x_train must be uint8 in 0..255, not int16"),
    "five channels": ({"x_train": np.zeros((12, 8, 9, 5), np.uint8)}, "x_train has shape (12, 8, 9, 5)"),
    "flat images": ({"x_train": GREY.reshape(12, -1)}, "x_train has shape (12, 72)"),
    "a number": ({"x_train": np.uint8(3)}, "x_train has shape ()"),
    "no images": ({"x_train": None}, "has no array 'x_train' (it has x_test, y_test, y_train)"),
    "no labels": ({"y_train": None}, "has no array 'y_train'"),
    "negative label": ({"y_train": LABELS - 1}, "y_train: labels lie in -1..1, expected"),
    "huge label": (
        {"y_train": np.where(LABELS == 2, 2**40, LABELS)},
        "y_train: labels lie in 0..1099511627776, expected",
    ),
    "label over the names": (
        {"y_train": LABELS + 1, "class_names": np.array(list("abc"))},
        "y_train: labels lie in 1..3, expected 0..2.",
    ),
    "float labels": ({"y_train": LABELS.astype(np.float32)}, "y_train: one whole number for each image is expected"),
    "column of labels": ({"y_train": LABELS[:, None]}, "y_train: one whole number for each image is expected"),
    "one label for all": (
        {"y_train": np.array(1), "class_names": np.array(list("abc"))},
        "y_train: one whole number for each image is expected",
    ),
    "fewer labels": ({"y_train": LABELS[:-1]}, "12 images in x_train but 11 labels in y_train"),
    "one class": ({"y_train": LABELS * 0}, "has 1 class(es); two or more are needed"),
    "pickled labels": ({"y_train": np.array([0, 1, "2"] * 4, dtype=object)}, "array 'y_train' cannot be read: Object"),
    "pickled images": ({"x_train": np.array([{}] * 12, dtype=object)}, "array 'x_train' cannot be read: Object"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_npz_with_a_bad_array(tmp_path: Path, case: str) -> None:
    changes, message = BAD_ARRAYS[case]
    with pytest.raises(UserError) as caught:
        open_source(npz(tmp_path / "bad.npz", **changes)).read("train")
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "bad.npz"))


def test_npz_test_labels_outside_the_training_classes(tmp_path: Path) -> None:
    source = open_source(npz(tmp_path / "a.npz", y_test=LABELS[:6] + 1))
    assert len(source.read("train")) == 12
    with pytest.raises(UserError, match=r"y_test: labels lie in 1\.\.3, expected 0\.\.2"):
        source.read("test")


BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "cut at the end": lambda content: content[:-30],
    "cut in half": lambda content: content[: len(content) // 2],
    "without its start": lambda content: content[len(content) // 2 :],
    "empty": lambda content: b"",
    "text": lambda content: b"x_train,y_train\n",
    "a pickle": lambda content: b"cos\nsystem\n(S'echo'\ntR.",
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_npz_that_is_no_whole_archive(tmp_path: Path, case: str) -> None:
    path = tmp_path / "a.npz"
    name = npz(path)
    path.write_bytes(BAD_FILES[case](path.read_bytes()))
    with pytest.raises(UserError) as caught:
        open_source(name).read("train")
    assert str(path) in str(caught.value)


def test_npz_with_a_flipped_bit_is_the_same_or_refused(tmp_path: Path) -> None:
    name = npz(tmp_path / "a.npz")
    good, content = open_source(name).read("train"), (tmp_path / "a.npz").read_bytes()
    refused = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        (tmp_path / "a.npz").write_bytes(damaged)
        try:
            read = open_source(name).read("train")
        except UserError:
            refused += 1
        else:
            assert torch.equal(read.x, good.x)
            assert torch.equal(read.y, good.y)
    assert refused > 100


def test_npz_that_is_a_single_array_or_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GREY)
    with pytest.raises(UserError, match=r"a\.npy is not a readable \.npz file"):
        open_source(f"npz:{tmp_path / 'a.npy'}")
    with pytest.raises(UserError, match=r"no data file at .*gone\.npz"):
        open_source(f"npz:{tmp_path / 'gone.npz'}")


# --- folders of images ---


def picture(path: Path, array: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of grey images; the files' order is not the order of their making."""
    for part in ("train", "test"):
        for name, index in (("b.png", 1), ("a.png", 0), ("c.bmp", 2)):
            picture(tmp_path / part / "dog" / name, GREY[3 + index])
            picture(tmp_path / part / "cat" / name, GREY[index])
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


def test_folder_of_grey_images(pictures: Path) -> None:
    source = open_source(f"folder:{pictures}")
    assert source.class_names == ("cat", "dog")
    parts: tuple[Literal["train", "test"], ...] = ("train", "test")
    for part in parts:
        images = source.read(part)
        assert images.y.tolist() == [0, 0, 0, 1, 1, 1]
        assert images.y.dtype == torch.int64
        assert images.x.dtype == torch.uint8
        assert np.array_equal(images.x.numpy(), GREY[:6, None])


def test_folder_of_colour_images(tmp_path: Path) -> None:
    for k, name in enumerate(("cat", "dog")):
        picture(tmp_path / "train" / name / "0.png", COLOUR[k])
    images = open_source(f"folder:{tmp_path}").read("train")
    assert np.array_equal(images.x.numpy(), COLOUR[:2].transpose(0, 3, 1, 2))


def test_folder_with_grey_among_colour_is_colour(pictures: Path) -> None:
    picture(pictures / "train" / "dog" / "d.png", COLOUR[0])
    images = open_source(f"folder:{pictures}").read("train")
    assert images.x.shape == (7, 3, 8, 9)
    for channel in range(3):
        assert np.array_equal(images.x[:6, channel].numpy(), GREY[:6])
    assert np.array_equal(images.x[6].numpy(), COLOUR[0].transpose(2, 0, 1))


def break_file(content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / "train" / "dog" / "b.png").write_bytes(content)


def deep_image(root: Path) -> None:
    picture(root / "train" / "dog" / "b.png", GREY[0].astype(np.uint16) * 257)


def cut_image(root: Path) -> None:
    path = root / "train" / "dog" / "b.png"
    path.write_bytes(path.read_bytes()[:60])


def bad_chunk(root: Path) -> None:
    path = root / "train" / "dog" / "b.png"
    head, data = path.read_bytes().split(b"IDAT")
    path.write_bytes(head[:-4] + bytes([0, 0, 0, 20]) + b"IDAT" + data)  # a chunk that says it is shorter than it is


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another size": (lambda root: picture(root / "train/dog/d.png", GREY[0, :7]), "differ in size ((7, 9), (8, 9))"),
    "not an image": (break_file(b"GIF? no"), "b.png is not a readable image"),
    "empty image": (break_file(b""), "b.png is not a readable image"),
    "cut short": (cut_image, "b.png is not a readable image"),
    "broken chunk": (bad_chunk, "b.png is not a readable image"),
    "16 bits": (deep_image, "b.png has more than 8 bits a channel"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_folder_with_a_bad_image(pictures: Path, case: str) -> None:
    change, message = BAD_FOLDERS[case]
    change(pictures)
    with pytest.raises(UserError) as caught:
        open_source(f"folder:{pictures}").read("train")
    assert message in str(caught.value)


def test_folder_with_a_test_class_that_training_has_not(pictures: Path) -> None:
    picture(pictures / "test" / "wolf" / "0.png", GREY[0])
    source = open_source(f"folder:{pictures}")
    assert len(source.read("train")) == 6
    with pytest.raises(UserError, match=r"has classes that train/ has not: wolf\."):
        source.read("test")


def test_folder_without_parts_classes_or_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no folder .*train"):
        open_source(f"folder:{tmp_path}")
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match=r"has 1 class folder"):
        open_source(f"folder:{tmp_path}")
    (tmp_path / "train" / "dog").mkdir()
    source = open_source(f"folder:{tmp_path}")
    with pytest.raises(UserError, match=r"holds no image files"):
        source.read("train")
    with pytest.raises(UserError, match=r"no folder .*test"):
        source.read("test")


# --- the split ---


def numbered(labels: Any) -> Images:
    """Images that carry their own number in two bytes."""
    number = torch.arange(len(labels))
    x = torch.stack([number // 256, number % 256], 1).to(torch.uint8).view(-1, 1, 1, 2)
    return Images(x, torch.as_tensor(labels))


def numbers(images: Images) -> list[int]:
    high, low = images.x[:, 0, 0, 0].long(), images.x[:, 0, 0, 1].long()
    return (256 * high + low).tolist()


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(2, 40), min_size=2, max_size=7),
    fraction=st.floats(0.001, 0.999),
    shuffle=st.randoms(use_true_random=False),
)
def test_split_takes_the_last_of_each_class(counts: list[int], fraction: float, shuffle: Any) -> None:
    labels = [k for k, count in enumerate(counts) for _ in range(count)]
    shuffle.shuffle(labels)
    train, valid = split_validation(numbered(labels), len(counts), fraction)
    assert sorted(numbers(train) + numbers(valid)) == list(range(len(labels)))
    for part in (train, valid):
        assert numbers(part) == sorted(numbers(part))
        assert part.y.tolist() == [labels[i] for i in numbers(part)]
    for k, count in enumerate(counts):
        members = [i for i, label in enumerate(labels) if label == k]
        held_out = [i for i in numbers(valid) if labels[i] == k]
        assert held_out == members[count - len(held_out) :]
        assert 1 <= len(held_out) <= count - 1
        assert abs(len(held_out) - min(max(1, fraction * count), count - 1)) <= 0.5


@pytest.mark.parametrize(("num_classes", "per_class", "held_out"), [(10, 5000, 300), (100, 500, 30)])
def test_split_of_the_paper(num_classes: int, per_class: int, held_out: int) -> None:
    labels = torch.arange(num_classes).repeat(per_class)
    train, valid = split_validation(numbered(labels), num_classes, make_config({}).valid_fraction)
    assert valid.class_counts(num_classes).tolist() == [held_out] * num_classes
    assert train.class_counts(num_classes).tolist() == [per_class - held_out] * num_classes
    assert numbers(valid) == list(range(num_classes * (per_class - held_out), num_classes * per_class))


@pytest.mark.parametrize(("labels", "message"), [([0, 0, 1, 2, 2], "class 1 has 1 "), ([0, 0, 2, 2], "class 1 has 0 ")])
def test_split_needs_two_images_a_class(labels: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_validation(numbered(labels), 3, 0.5)


# --- order and augmentation ---


def test_epoch_order_is_a_permutation_given_by_seed_and_epoch() -> None:
    orders = {(s, e): epoch_order(50, seed=s, epoch=e).tolist() for s in (1, 2) for e in (1, 2, 3)}
    torch.manual_seed(123)
    for (seed, epoch), order in orders.items():
        assert sorted(order) == list(range(50))
        assert epoch_order(50, seed=seed, epoch=epoch).tolist() == order
    assert len(set(map(tuple, orders.values()))) == 6


def slow_augmentations(image: Tensor, pad: int, flip: bool) -> dict[tuple[int, int, bool], Tensor]:
    """Every crop of the zero-padded image, plain and mirrored, pixel by pixel."""
    _, height, width = image.shape
    made = {}
    for top in range(-pad, pad + 1):
        for left in range(-pad, pad + 1):
            for mirrored in (False, True) if flip else (False,):
                out = torch.zeros_like(image)
                for y in range(height):
                    for x in range(width):
                        column = width - 1 - x if mirrored else x
                        if 0 <= y + top < height and 0 <= column + left < width:
                            out[:, y, x] = image[:, y + top, column + left]
                made[top, left, mirrored] = out
    assert len(made) == (2 * pad + 1) ** 2 * (2 if flip else 1)
    return made


@pytest.mark.parametrize(("pad", "flip"), [(0, True), (1, False), (1, True), (2, True)])
def test_augment_crops_and_flips(pad: int, flip: bool) -> None:
    image = torch.randint(1, 256, (3, 5, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    other = image.flip(0).flip(1)
    size = 1200
    batch = torch.stack([image, other] * (size // 2))
    out = Augment(crop_padding=pad, flip=flip)(batch, rng.generator(1, "test"))
    assert out.shape == batch.shape
    assert out.dtype == torch.uint8
    counts: dict[tuple[int, int, bool], int] = {}
    for start, source in ((0, image), (1, other)):
        allowed = slow_augmentations(source, pad, flip)
        for made in out[start::2]:
            hits = [key for key, expected in allowed.items() if torch.equal(made, expected)]
            assert len(hits) == 1
            counts[hits[0]] = counts.get(hits[0], 0) + 1
    kinds = (2 * pad + 1) ** 2 * (2 if flip else 1)
    assert len(counts) == kinds  # each happens, and about as often as any other
    assert max(abs(count - size / kinds) for count in counts.values()) < 5 * (size / kinds) ** 0.5


def test_augment_without_options_changes_nothing() -> None:
    x = torch.from_numpy(GREY[:, None])
    assert torch.equal(Augment()(x, rng.generator(1, "test")), x)


def test_augment_depends_on_the_generator_alone() -> None:
    x = torch.from_numpy(COLOUR).permute(0, 3, 1, 2)
    kept = x.clone()
    augment = Augment(crop_padding=2, flip=True)
    first = augment(x, rng.generator(1, "train", 3))
    torch.manual_seed(5)
    assert torch.equal(augment(x, rng.generator(1, "train", 3)), first)
    assert not torch.equal(augment(x, rng.generator(1, "train", 4)), first)
    assert torch.equal(x, kept)


def test_to_float_covers_the_unit_interval() -> None:
    x = torch.arange(256, dtype=torch.uint8)
    assert to_float(x).tolist() == [float(np.float32(i) / np.float32(255)) for i in range(256)]
    assert x.dtype == torch.uint8


# --- the test set is for the end ---


def test_training_never_reads_the_test_part(tmp_path: Path, tiny_npz: Path, tiny_values: dict[str, Any]) -> None:
    with np.load(tiny_npz) as archive:
        train_only = {name: archive[name] for name in ("x_train", "y_train")}
    np.savez(tmp_path / "train_only.npz", **train_only)
    config = make_config(tiny_values | {"data": f"npz:{tmp_path / 'train_only.npz'}"})
    train_run(config, tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert len(run.log) == 1
    with pytest.raises(UserError, match="has no array 'x_test'"):
        run_subject(run)
    assert len(run_subject(run, part="valid").images) == 12


def test_training_on_a_folder_needs_no_test_folder(tmp_path: Path, tiny_values: dict[str, Any]) -> None:
    for k, name in enumerate(("cat", "dog")):
        for index in range(4):
            picture(tmp_path / "data" / "train" / name / f"{index}.png", GREY[4 * k + index])
    config = make_config(tiny_values | {"data": f"folder:{tmp_path / 'data'}", "batch_size": 3})
    run = train_run(config, tmp_path / "run")
    assert run.class_names == ["cat", "dog"]
    assert run.about["image_size"] == [8, 9]
