"""Photos of many sizes are cut and resized to one."""

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.JpegImagePlugin
import pytest
import torch
from PIL import Image, ImageOps

import hostile
from photos import BLUE, GOLD, GREEN, RED, noise, one_line, read, write
from tiny import picture
from worstclass.cli import main as cli
from worstclass.config.recipe import make_config
from worstclass.data import open_source, pictures
from worstclass.errors import UserError

pytestmark = pytest.mark.fast


def weights(length: int, start: float, stop: float, size: int) -> np.ndarray[Any, Any]:
    """Antialiased bilinear resizing of start..stop of a line to `size` pixels, as a matrix (size, length): a triangle
    about the centre of each, of half-width max(1, factor), over the pixels that there are."""
    factor = (stop - start) / size
    half = max(factor, 1.0)
    centre = start + (np.arange(size)[:, None] + 0.5) * factor
    raw = np.maximum(0, 1 - np.abs(np.arange(length)[None] + 0.5 - centre) / half)
    return np.asarray(raw / raw.sum(1, keepdims=True))


def resized(array: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """The square in the middle of (H, W) at `size` pixels, in float64."""
    height, width = array.shape
    side = min(height, width)
    top, left = (height - side) / 2, (width - side) / 2
    rows, columns = weights(height, top, top + side, size), weights(width, left, left + side, size)
    return np.asarray(rows @ array @ columns.T)


@pytest.mark.parametrize("shape", [(40, 40), (37, 64), (90, 31), (9, 8), (5, 3), (200, 33)])
@pytest.mark.parametrize("size", [1, 8, 24])
def test_images_are_cut_and_resized(shape: tuple[int, int], size: int, tmp_path: Path) -> None:
    """Against a transcription; Pillow rounds after each of two passes."""
    image = noise(*shape)
    write(tmp_path, {"train/a/0.png": image, "train/b/0.png": noise(*shape, 3)})
    x = read(tmp_path, image_size=size)
    assert x.shape == (2, 3, size, size)
    assert np.abs(x[0, 0] - resized(image, size)).max() <= 1.01
    for channel in range(3):
        assert np.abs(x[1, channel] - resized(noise(*shape, 3)[..., channel], size)).max() <= 1.01


def test_a_gradient_stays_one(tmp_path: Path) -> None:
    """In closed form: pixel i of 16 has its centre at 4 i + 1.5 of 64."""
    gradient = np.tile(3 * np.arange(64, dtype=np.uint8), (64, 1))
    write(tmp_path, {"train/a/0.png": gradient, "train/b/0.png": np.full((70, 12), 200, dtype=np.uint8)})
    x = read(tmp_path, image_size=16)
    assert np.abs(x[0, 0, :, 1:-1] - 3 * (4 * np.arange(1, 15) + 1.5)).max() <= 1
    assert (x[1] == 200).all()


def test_the_square_is_the_middle_one(tmp_path: Path) -> None:
    """Of three squares side by side, and of three on top of each other."""
    row = np.concatenate([np.full((30, 30, 3), colour, dtype=np.uint8) for colour in (RED, GREEN, BLUE)], axis=1)
    write(tmp_path, {"train/a/0.png": row, "train/b/0.png": row.transpose(1, 0, 2)})
    x = read(tmp_path, image_size=10)
    assert (x[:, :, 1:-1, 1:-1] == np.array(GREEN)[None, :, None, None]).all()


def test_images_of_that_size_stay_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, {f"train/{name}/0.png": noise(16, 16, 3, seed=k) for k, name in enumerate("ab")})
    assert np.array_equal(read(tmp_path, image_size=16), read(tmp_path))


def test_pictures_of_every_kind_become_alike(tmp_path: Path) -> None:
    """Grey, black and white, a palette, transparent and half so, a single pixel, a line: of one colour each."""
    kinds: dict[str, tuple[Image.Image, Any]] = {
        "0.png": (Image.new("L", (30, 7), 90), (90, 90, 90)),
        "1.png": (Image.new("1", (9, 9), 1), (255, 255, 255)),
        "2.png": (Image.new("RGB", (8, 20), GOLD).quantize(4), GOLD),
        "3.png": (Image.new("RGBA", (11, 5), (0, 0, 0, 0)), (255, 255, 255)),
        "4.png": (Image.new("RGBA", (11, 5), (0, 0, 0, 128)), (127, 127, 127)),
        "5.png": (Image.new("LA", (5, 5), (0, 0)), (255, 255, 255)),
        "6.png": (Image.new("RGB", (1, 1), BLUE), BLUE),
        "7.bmp": (Image.new("RGB", (500, 1), GREEN), GREEN),
        "8.webp": (Image.new("RGB", (60, 40), (77, 77, 77)), (77, 77, 77)),
        "9.jpg": (Image.new("CMYK", (60, 40), (0, 0, 0, 0)), (255, 255, 255)),
    }
    for part in "ab":
        (tmp_path / "train" / part).mkdir(parents=True)
        for name, (image, _) in kinds.items():
            image.save(tmp_path / "train" / part / name)
    x = read(tmp_path, image_size=6)
    expected = np.array([colour for _, colour in kinds.values()] * 2)[:, :, None, None]
    assert x.shape == (20, 3, 6, 6)
    assert np.abs(x.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("size", [None, 12])
def test_photos_are_turned_as_the_camera_was(size: int | None, tmp_path: Path) -> None:
    """All orientations of EXIF, by Pillow's own reading of them."""
    image = Image.fromarray(np.kron(noise(3, 4, 3), np.ones((8, 8, 1), dtype=np.uint8)))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for name in "ab":
            file = tmp_path / str(orientation) / "train" / name / "0.jpg"
            file.parent.mkdir(parents=True)
            image.save(file, quality=95, exif=exif)
        with Image.open(file) as saved:
            upright = np.asarray(ImageOps.exif_transpose(saved))
        root = tmp_path / str(orientation)
        (root / "train").rename(root / "test")
        x = read(root, "test", image_size=size)[0]
        assert open_source(f"folder:{root}", image_size=size).test_shape() == x.shape
        if size is None:
            assert np.array_equal(x, upright.transpose(2, 0, 1))
        else:
            assert all(np.abs(x[c] - resized(upright[..., c], size)).max() <= 2 for c in range(3))


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("exif", [b"Exif\0\0" + b"II*\0\xff\xff\xff\xff", b"Exif\0\0MM", b"Exif\0\0" + bytes(40)])
def test_damaged_exif_says_nothing(exif: bytes, kind: str, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (16, 8), GOLD).save(tmp_path / "train" / name / f"0.{kind}", exif=exif)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(tmp_path).shape == (2, 3, 8, 16)
        assert read(tmp_path, image_size=4).shape == (2, 3, 4, 4)


def test_large_photos_are_decoded_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six megapixels as a 64th of them, and the result is that of all."""
    shade = np.add.outer(np.linspace(0, 120, 2000), np.linspace(0, 120, 3000)).astype(np.uint8)
    for k in "ab":
        picture(tmp_path / "train" / k / "0.jpg", shade)
    decoded: list[tuple[int, int]] = []

    def spy(image: Any, *arguments: Any) -> Any:
        found = draft(image, *arguments)
        decoded.append(image.size)
        return found

    draft = PIL.JpegImagePlugin.JpegImageFile.draft
    monkeypatch.setattr(PIL.JpegImagePlugin.JpegImageFile, "draft", spy)
    x = read(tmp_path, image_size=32)
    assert decoded == [(375, 250)] * 2
    expected = weights(2000, 0, 2000, 32) @ shade @ weights(3000, 500, 2500, 32).T
    assert np.abs(x[0, 0] - expected).max() <= 3


def test_a_photo_of_a_large_camera_is_read_where_it_shrinks(tmp_path: Path) -> None:
    """24 million pixels are more than a picture may have, and far fewer are decoded."""
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("RGB", (6000, 4000), (200, 100, 50)).save(tmp_path / "train" / name / "1.jpg")
    x = open_source(f"folder:{tmp_path}", image_size=8).read("train").x
    assert (x.float() - torch.tensor([200.0, 100.0, 50.0])[:, None, None]).abs().max() <= 3
    with pytest.raises(UserError, match="6000 x 4000 pixels are more than"):
        open_source(f"folder:{tmp_path}").read("train")


def test_the_limit_of_pixels_stays(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/0.png": RED, "train/b/0.png": RED})
    (tmp_path / "train/b/1.png").write_bytes(hostile.png(5000, 5000))
    text = one_line(lambda: read(tmp_path, image_size=8))
    assert text.endswith("1.png is not a readable image: 5000 x 5000 pixels are more than 16777216.")
    (tmp_path / "train/b/1.png").unlink()
    Image.new("L", (8200, 2050)).save(tmp_path / "train/b/2.jpg")
    assert "2.jpg is not a readable image: 8200 x 2050 pixels" in one_line(lambda: read(tmp_path))
    assert read(tmp_path, image_size=8).shape[2:] == (8, 8)  # decoded small


def deep(file: Path) -> None:
    picture(file, noise(6, 6).astype(np.uint16) * 257)


def cut(file: Path) -> None:
    picture(file, noise(60, 60))
    file.write_bytes(file.read_bytes()[:200])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no image": (lambda file: file.write_bytes(b"GIF? no"), "is not a readable image"),
    "empty": (lambda file: file.touch(), "is not a readable image"),
    "cut": (cut, "is not a readable image"),
    "16 bits": (deep, "has more than 8 bits a channel"),
    "folder": (lambda file: file.mkdir(), "is not a file"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("name", ["2.png", "2.jpg"])
def test_a_broken_file_is_one_line(case: str, name: str, tmp_path: Path) -> None:
    make, message = BROKEN[case]
    if case == "16 bits" and name.endswith(".jpg"):
        name = "2.png"
    write(tmp_path, {f"train/{k}/{i}.png": RED for k in "ab" for i in (0, 1, 3, 4, 5, 6)})
    make(tmp_path / "train" / "b" / name)
    text = one_line(lambda: read(tmp_path, image_size=8))
    assert text.startswith(f"{tmp_path / 'train' / 'b' / name} {message}")


@pytest.mark.parametrize("size", [None, 8])
def test_all_broken_files_are_named_at_once(size: int | None, tmp_path: Path) -> None:
    write(tmp_path, {f"train/{k}/{i}.png": noise(6, 6) for k in "ab" for i in range(12)})
    broken = [tmp_path / "train" / f"{k}/{i}.png" for k in "ab" for i in (3, 7, 9)]
    for count, file in enumerate(broken, 1):
        file.write_bytes(b"GIF? no")
        text = one_line(lambda: read(tmp_path, image_size=size))
        assert text.startswith(f"{broken[0]} is not a readable image")
        end = f" {count} of 24 images cannot be read: {', '.join(map(str, broken[:count]))}"
        assert text.endswith(end) == (count > 1)


def test_images_of_several_sizes_name_the_remedy(tmp_path: Path) -> None:
    data = write(tmp_path, {f"train/{k}/{i}.png": noise(4 + i, 9) for k in "ab" for i in range(5)})
    text = one_line(lambda: read(tmp_path))
    sizes = "((4, 9), (5, 9), (6, 9) and 2 more)"
    assert text == f"{tmp_path / 'train'}: images differ in size {sizes}: give image_size, as in --set image_size=64."
    text = one_line(lambda: cli.app(["data", data], standalone_mode=False))
    assert text.endswith(f"images differ in size {sizes}: give --image-size 64.")


def test_photos_that_memory_does_not_hold_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large as 4 images of 10 x 10 pixels in colour; at 5 x 5 they fit."""
    write(tmp_path, {f"train/{k}/{i}.png": noise(10, 10, 3) for k in "ab" for i in range(3)})
    monkeypatch.setattr(pictures, "memory", lambda: 1200)
    text = one_line(lambda: read(tmp_path))
    assert "6 images of 10 x 10 pixels are more than the memory of this machine: give image_size" in text
    assert read(tmp_path, image_size=5).shape == (6, 3, 5, 5)


def test_what_is_enlarged_is_told(tmp_path: Path) -> None:
    """By the side that is read, of the parts that were read."""
    files = {"train/a/0.png": noise(7, 60), "train/a/1.png": noise(8, 8), "train/b/0.png": noise(60, 5)}
    source = open_source(write(tmp_path, files | {"test/a/0.png": noise(8, 9)}), image_size=16)
    assert source.notes() == []
    source.read("test")
    source.read("train")
    (line,) = source.notes()
    assert line.startswith("2 of 3 train images are enlarged more than 2 times, to 16 pixels (the smallest from 5): ")
    assert source.notes("train") == [line]
    assert source.notes("test") == []


def test_a_long_reading_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in ten seconds, on a clock that each picture moves by four."""
    write(tmp_path, {f"train/{k}/{i}.png": GOLD for k in "ab" for i in range(4)})
    clock = itertools.count(0, 4)
    monkeypatch.setattr("worstclass.data.pictures.time.monotonic", lambda: float(next(clock)))
    with caplog.at_level("INFO", "worstclass"):
        read(tmp_path)
    assert caplog.messages == [f"{tmp_path / 'train'}: {n} of 8 images read" for n in (2, 5)]


@pytest.mark.parametrize("size", [0, -1, 1025, 8.0, True, "64"])
def test_sizes_that_are_none(size: Any, tmp_path: Path) -> None:
    data = write(tmp_path, {"train/a/0.png": RED, "train/b/0.png": RED})
    assert one_line(lambda: open_source(data, image_size=size)).startswith("image_size must be a whole number")
    if size not in (8.0, "64"):  # which a recipe reads as 8 and 64
        assert one_line(lambda: make_config({"data": data, "image_size": size})).startswith("image_size")
