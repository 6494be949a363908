"""Data of the user: .npz files and folders of images, whole and damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from tiny import COLOUR, GREY, picture
from worstclass.data import open_source
from worstclass.errors import UserError
from worstclass.files import write_npz

pytestmark = pytest.mark.fast

# --- .npz ---

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
    "labels from 1": ({"y_train": LABELS + 1}, "y_train: labels lie in 1..3: count classes from 0"),
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


def test_folder_with_grey_test_images_beside_colour(pictures: Path) -> None:
    source = open_source(f"folder:{pictures}")
    assert source.test_shape() == (1, 8, 9)
    picture(pictures / "train" / "dog" / "d.png", COLOUR[0])
    images = source.read("test")
    assert np.array_equal(images.x.numpy(), GREY[:6, None].repeat(3, axis=1))
    assert source.test_shape() == tuple(images.x.shape[1:])


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    """Black icons on nothing, with an alpha channel or a transparent value; a half is mixed."""
    alpha = np.array([[0, 255], [255, 0]], dtype=np.uint8)
    icon = np.dstack([np.zeros((2, 2, 3), dtype=np.uint8), alpha])
    half = np.dstack([np.zeros((2, 2, 3), dtype=np.uint8), np.full((2, 2), 128, dtype=np.uint8)])
    picture(tmp_path / "train" / "a" / "0.png", icon)
    picture(tmp_path / "train" / "a" / "1.png", half)
    Image.fromarray(alpha).save(tmp_path / "train" / "a" / "2.png", transparency=0)
    picture(tmp_path / "train" / "b" / "0.png", icon)
    x = open_source(f"folder:{tmp_path}").read("train").x.numpy()
    assert np.array_equal(x[0], np.stack([255 - alpha] * 3))
    assert np.array_equal(x[1], np.full((3, 2, 2), 127))
    assert np.array_equal(x[2], np.full((3, 2, 2), 255))


def test_what_is_left_out_of_a_folder_is_counted(pictures: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "e.tif", "f.TIFF"):
        (pictures / "train" / "dog" / name).touch()
    picture(pictures / "test" / "cat" / "more" / "a.png", GREY[0])
    kinds = "no images of a known kind (.bmp, .jpeg, .jpg, .png, .webp) and are left out"
    assert open_source(f"folder:{pictures}").notes() == [
        f"3 files or folders in the class folders of train/ are {kinds}: cat/notes.txt, dog/e.tif, dog/f.TIFF.",
        f"1 files or folders in the class folders of test/ are {kinds}: cat/more/.",
    ]


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


def test_a_test_part_alone_can_be_tested_on(pictures: Path, tmp_path: Path) -> None:
    """Its classes are those of the data; training on it is one line."""
    shutil.rmtree(pictures / "train")
    np.savez(tmp_path / "test.npz", x_test=GREY, y_test=np.arange(12) % 3)
    for name, classes, missing in (
        (f"folder:{pictures}", ("cat", "dog"), r"^no folder .*train: folder:PATH needs train/ and test/"),
        (f"npz:{tmp_path / 'test.npz'}", ("0", "1", "2"), r"has no array 'x_train' \(it has x_test, y_test\)\.$"),
    ):
        source = open_source(name)
        assert source.class_names == classes
        assert source.read("test").y.unique().tolist() == list(range(len(classes)))
        with pytest.raises(UserError, match=missing):
            source.read("train")


def test_npz_files_are_compressed(tmp_path: Path) -> None:
    write_npz(tmp_path / "zeros.npz", {"zeros": np.zeros(100_000)})
    assert (tmp_path / "zeros.npz").stat().st_size < 5000
