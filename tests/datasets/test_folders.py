"""Folders of photos: many sizes cut and resized to one, and class folders without train/ and test/ split by digest."""

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import PIL.JpegImagePlugin
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from safetensors.torch import save_file

import hostile
from tiny import picture, tiny_config
from worstclass.auditing.audit import audit
from worstclass.auditing.data import read_data
from worstclass.cli import main as cli
from worstclass.config.keys import Config, differing_keys
from worstclass.config.recipe import load_config, make_config, merge, read_recipe, to_toml
from worstclass.data import open_source, pictures
from worstclass.data.folders import files_to_test
from worstclass.errors import UserError
from worstclass.evaluation import run_notes
from worstclass.evaluation.targets import evaluate_target, model_target, run_target
from worstclass.export import export_run
from worstclass.integrations.epoch_audit import EpochAudit
from worstclass.runs.adjust import adjust_run
from worstclass.runs.run import Run, open_run, valid_images
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast

RED, GREEN, BLUE, GOLD = (255, 0, 0), (0, 128, 0), (0, 0, 255), (200, 180, 40)


def one_line(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(root: Path, files: Mapping[str, Any]) -> str:
    """Images by path; a colour is an image of 5 x 4 pixels of it."""
    for name, its in files.items():
        picture(root / name, np.full((4, 5, 3), its, dtype=np.uint8) if isinstance(its, tuple) else its)
    return f"folder:{root}"


def read(root: Path, part: Any = "train", **options: Any) -> np.ndarray[Any, Any]:
    return open_source(f"folder:{root}", **options).read(part).x.numpy()


def noise(height: int, width: int, *channels: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, *channels), dtype=np.uint8)


# --- one size ---


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


@pytest.mark.parametrize("size", [0, -1, 1025, 8.0, True, "64"])
def test_sizes_that_are_none(size: Any, tmp_path: Path) -> None:
    data = write(tmp_path, {"train/a/0.png": RED, "train/b/0.png": RED})
    assert one_line(lambda: open_source(data, image_size=size)).startswith("image_size must be a whole number")
    if size not in (8.0, "64"):  # which a recipe reads as 8 and 64
        assert one_line(lambda: make_config({"data": data, "image_size": size})).startswith("image_size")


# --- class folders alone ---

PHOTOS = {f"{k}/{i:02}.png": (40 * j + 20, 5 * i, 0) for j, k in enumerate(("ant", "bee", "cat")) for i in range(20)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of 20 images, each of another colour."""
    write(tmp_path / "photos", PHOTOS)
    return tmp_path / "photos"


def colours(images: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    return [tuple(image[:, 0, 0].tolist()) for image in images]


def share(name: str) -> float:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) / 2**256


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.99])
def test_the_parts_are_those_of_the_digests(fraction: float, photos: Path) -> None:
    parts = {part: colours(read(photos, part, test_fraction=fraction)) for part in ("train", "test")}
    expected = []
    for k in ("ant", "bee", "cat"):
        names = sorted((name for name in PHOTOS if name.startswith(k)), key=share)
        count = min(max(1, sum(share(name) < fraction for name in names)), len(names) - 1)
        expected += sorted(names[:count])
    assert parts["test"] == [PHOTOS[name] for name in expected]
    assert parts["train"] == [colour for name, colour in PHOTOS.items() if name not in expected]


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), max_size=6).map("{}.png".format)


@settings(max_examples=100)
@given(before=st.sets(names, max_size=8), added=st.sets(names, max_size=8), fraction=st.floats(0.001, 0.999))
def test_an_image_stays_in_its_part(before: set[str], added: set[str], fraction: float) -> None:
    """None moves when others are added, once both parts have one by its digest; of two images each part has one."""
    root = Path("photos") / "ant"
    one, both = ([root / name for name in sorted(each)] for each in (before, before | added))
    tested, later = files_to_test(one, fraction), files_to_test(both, fraction)
    below = {root / name for name in before if share(f"ant/{name}") < fraction}
    if 0 < len(below) < len(one):
        assert tested == below == later & {*one}
    elif len(one) > 1:
        (forced,) = tested ^ below
        assert share(f"ant/{forced.name}") == (max if below else min)(share(f"ant/{name}") for name in before)
    else:
        assert tested == below


def test_parts_on_disk_are_disjoint_and_all(photos: Path) -> None:
    """And no image that was trained on is a test image once there are more."""
    before = {part: colours(read(photos, part, test_fraction=0.3)) for part in ("train", "test")}
    assert not {*before["train"]} & {*before["test"]}
    assert {*before["train"], *before["test"]} == {*PHOTOS.values()}
    write(photos, {f"{k}/more{i}.png": (200 + i, 0, 99) for k in ("ant", "bee", "cat") for i in range(30)})
    after = {part: colours(read(photos, part, test_fraction=0.3)) for part in ("train", "test")}
    assert {*before["train"]} <= {*after["train"]}
    assert {*before["test"]} <= {*after["test"]}


def test_an_accent_is_the_same_in_both_spellings() -> None:
    """macOS may write it as two characters: a copy of the folder would be tested on what was trained."""
    composed = [Path("a") / f"caf\u00e9{i}.jpg" for i in range(40)]
    apart = [Path("a") / f"cafe\u0301{i}.jpg" for i in range(40)]
    one, other = (files_to_test(files, 0.3) for files in (composed, apart))
    assert [file in one for file in composed] == [file in other for file in apart]
    files_to_test([Path("a") / "caf\udce9.jpg"], 0.3)  # bytes that are no text


def test_an_image_that_is_alone(tmp_path: Path) -> None:
    """By its digest; of two, one is in each part, whatever theirs are."""
    for fraction in (1e-9, 1 - 1e-9):
        assert len(files_to_test([Path("a/1.png")], fraction)) == round(fraction)
        assert len(files_to_test([Path("a/1.png"), Path("a/2.png")], fraction)) == 1


def test_without_the_fraction_it_is_all_test(photos: Path) -> None:
    source = open_source(f"folder:{photos}")
    assert colours(source.read("test").x.numpy()) == [*PHOTOS.values()]
    assert source.notes() == [
        f"{photos} has no train/ and test/: all of its images are test images. If a run was trained on some of them, "
        "give its test_fraction."
    ]
    text = one_line(lambda: source.read("train"))
    assert text.startswith(f"{photos} has no train/ and test/: give test_fraction, as in --set test_fraction=0.2, to ")
    text = one_line(lambda: cli.app(["data", f"folder:{photos}"], standalone_mode=False))
    assert text.startswith(f"{photos} has no train/ and test/: give --test-fraction 0.2, to ")
    settings = [f"--set={key}" for key in (f"data=folder:{photos}", "model=small-cnn")]
    text = one_line(
        lambda: cli.app(["train", "my-images", *settings, "--out", str(photos / "run")], standalone_mode=False)
    )
    assert "--set test_fraction=0.2" in text
    assert not (photos / "run").exists()


def test_parts_that_are_there_are_not_split(photos: Path) -> None:
    write(photos, {"test/ant/0.png": RED})
    text = one_line(lambda: open_source(f"folder:{photos}", test_fraction=0.2))
    assert text == f"{photos} has test/ already: test_fraction is for a folder of class folders alone."


def test_a_class_may_not_be_called_as_a_part(photos: Path) -> None:
    """Rather than to train on nothing: a train is a class of CIFAR-100."""
    write(photos, {"train/0.png": RED})
    text = one_line(lambda: open_source(f"folder:{photos}", test_fraction=0.2))
    assert "test_fraction" in text
    text = one_line(lambda: open_source(f"folder:{photos}"))
    assert text == f"{photos / 'train'} is the train part, and has no class folders: rename it if it is a class."


def test_what_systems_leave_is_no_class_and_no_image(photos: Path) -> None:
    (photos / "ant" / "._00.png").write_bytes(b"resource fork")
    write(photos, {"__MACOSX/ant/._00.png": RED, ".cache/0.png": RED})
    source = open_source(f"folder:{photos}", test_fraction=0.2)
    assert source.class_names == ("ant", "bee", "cat")
    assert len(source.read("train")) + len(source.read("test")) == 60
    assert source.notes() == []
    (photos / "bee" / "film.mp4").touch()
    (line,) = source.notes()
    assert line.startswith(f"1 files or folders in the class folders of {photos} are no images")
    assert line.endswith("bee/film.mp4.")


def test_a_single_colour_image_makes_both_parts_colour(tmp_path: Path) -> None:
    """Whichever part it falls into: a model for the one must take the other."""
    for name in ("00.png", "07.png", "13.png", "19.png"):
        root = tmp_path / name
        write(root, {file: noise(4, 5) for file in PHOTOS} | {f"ant/{name}": RED})
        source = open_source(f"folder:{root}", test_fraction=0.3)
        assert source.read("train").x.shape[1:] == source.read("test").x.shape[1:] == (3, 4, 5) == source.test_shape()


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan"), "0.2"])
def test_fractions_that_are_none(fraction: Any, photos: Path) -> None:
    data = f"folder:{photos}"
    assert one_line(lambda: open_source(data, test_fraction=fraction)).startswith("test_fraction must be a number")
    if fraction != "0.2":
        assert one_line(lambda: make_config({"data": data, "test_fraction": fraction})).startswith("test_fraction")


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    assert one_line(lambda: open_source(f"folder:{tmp_path / 'gone'}")) == f"there is no folder {tmp_path / 'gone'}."
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    source = open_source(f"folder:{tmp_path}", test_fraction=0.2)
    assert "holds no image files" in one_line(lambda: source.read("train"))


# --- the keys in a run ---


def photo_config(photos: Path, **settings: Any) -> Config:
    values = {"image_size": 8, "test_fraction": 0.25, "epochs": 1, "method": "trades"} | settings
    return make_config(merge(tiny_config(photos).recipe(), {"data": f"folder:{photos}"} | values))


@pytest.fixture
def run(photos: Path, tmp_path: Path) -> Run:
    return train_run(photo_config(photos), tmp_path / "run")


def test_a_run_reads_the_same_images_again(run: Run, photos: Path, tmp_path: Path) -> None:
    """Training, evaluation, adjustment and resuming; of the test part training sees nothing."""
    stored = read_recipe(str(run.folder / "recipe.toml"))
    assert (stored["image_size"], stored["test_fraction"]) == (8, 0.25)
    again = open_run(run.folder)
    source = open_source(f"folder:{photos}", image_size=8, test_fraction=0.25)
    target, trained = run_target(again), source.read("train")
    assert torch.equal(target.images.x, source.read("test").x)
    assert run.about["train_images"] + run.about["valid_images"] == len(trained) == 60 - len(target.images)
    assert not {*colours(target.images.x.numpy())} & {*colours(trained.x.numpy())}
    assert len(valid_images(again, source)) == run.about["valid_images"]
    card = evaluate_target(target, ["pgd-1"], run.folder)
    assert card["about"]["recipe"]["image_size"] == 8
    assert adjust_run(again, tmp_path / "adjusted").config.test_fraction == 0.25
    train_run(again.config, run.folder, resume=True)
    write(photos, {"bee/more.png": GOLD})
    with pytest.raises(UserError, match="was trained on other data than this; nothing was changed"):
        train_run(again.config, run.folder, resume=True)


def test_runs_that_read_differently_are_told_apart(run: Run, photos: Path, tmp_path: Path) -> None:
    other = photo_config(photos, image_size=12, test_fraction=0.4)
    assert differing_keys(run.config, other) == ["image_size", "test_fraction"]
    text = one_line(lambda: train_run(photo_config(photos, test_fraction=0.1, init=str(run.folder)), tmp_path / "a"))
    assert text.endswith("test_fraction = 0.25, this run has 0.1: it would be tested on images that were trained on.")
    changed = photo_config(photos, image_size=12, valid_fraction=0.1, init=str(run.folder))
    text = one_line(lambda: train_run(changed, tmp_path / "b"))
    assert text.endswith("it would be validated on images that were trained on.")
    larger = train_run(photo_config(photos, image_size=12, init=str(run.folder)), tmp_path / "c")
    assert larger.about["image_size"] == [12, 12]


def test_the_keys_belong_to_data_that_have_such_images() -> None:
    for values, line in (
        (
            {"image_size": 32},
            "image_size belongs to data 'folder:PATH', 'hf:NAME' or 'torchvision:NAME'; the data here is 'cifar10'.",
        ),
        (
            {"data": "hf:mnist", "test_fraction": 0.2},
            "test_fraction belongs to data 'folder:PATH'; the data here is 'hf:mnist'.",
        ),
        (
            {"data": "mine.py:images", "image_size": 32},
            "image_size belongs to data 'folder:PATH', 'hf:NAME' or 'torchvision:NAME'; "
            "the data here is 'mine.py:images'.",
        ),
    ):
        assert one_line(lambda given=values: make_config(given)) == line  # type: ignore[misc]
    for data in ("folder:photos", "hf:mnist", "torchvision:MNIST"):
        assert make_config({"data": data, "image_size": 32}).image_size == 32
    config = load_config("my-images", image_size=64, test_fraction="1/5")
    assert (config.image_size, config.test_fraction) == (64, 0.2)
    assert load_config("my-images", image_size="none").image_size is None
    assert one_line(lambda: open_source("fashion-mini", image_size=32)) == (
        "image_size is for folder:PATH, hf:NAME, torchvision:NAME, not for data 'fashion-mini'."
    )


def test_a_setting_of_other_data_leaves_them_out(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('data = "folder:photos"\nimage_size = 64\ntest_fraction = 0.2')
    config = load_config(str(tmp_path / "mine.toml"), data="hf:mnist")
    assert (config.image_size, config.test_fraction) == (64, None)
    assert load_config(str(tmp_path / "mine.toml"), data="cifar10").image_size is None


@pytest.mark.parametrize(("size", "times"), [(64, None), (65, 4), (224, 49)])
def test_train_says_what_large_images_cost(size: int, times: int | None, tmp_path: Path) -> None:
    for data in ("folder:photos", "npz:photos.npz"):
        lines = run_notes.cost_note(Run(tmp_path, make_config({"data": data}), {"image_size": [size, size]}))
        assert len(lines) == (times is not None)
        for line in lines:
            assert line.startswith(f"images of {size} x {size} pixels: a step takes about {times} times as long")
            assert ("image_size = 64" in line) == data.startswith("folder")


def test_train_prints_it(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_notes, "LARGE", 7)
    (tmp_path / "a.toml").write_text(to_toml(photo_config(photos, method="natural")))
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    cli.app(["train", str(tmp_path / "a.toml"), *out], standalone_mode=False)
    printed = capsys.readouterr().out
    assert printed.count("Note: images of 8 x 8 pixels") == printed.count("images of 8 x 8 pixels") == 1


def test_an_evaluation_says_that_images_may_have_changed_their_part(run: Run, photos: Path) -> None:
    """By name alone: the run was trained on the image, and would be tested on it."""
    assert run_target(run).notes == ()
    trained = next(name for name in PHOTOS if name.startswith("bee/") and share(name) >= 0.25)
    renamed = next(name for i in range(99) if share(name := f"bee/new{i}.png") < 0.25)
    (photos / trained).rename(photos / renamed)
    target = run_target(run)
    assert PHOTOS[trained] in colours(target.images.x.numpy())
    (line,) = target.notes
    assert line.endswith("a training image that was renamed since may be a test image now.")
    unreadable = next(name for name in PHOTOS if name.startswith("cat/") and share(name) >= 0.25)
    (photos / unreadable).write_bytes(b"")
    assert run_target(run).notes == (line,)  # the test images are still there


def test_a_model_card_says_how_photos_became_images(run: Run, tmp_path: Path) -> None:
    """Who uses the network elsewhere has to do the same."""
    export_run(run, tmp_path / "out", to="safetensors")
    text = (tmp_path / "out" / "README.md").read_text()
    assert (
        "Trained on images of 3 x 8 x 8 (C x H x W), made of images of any size: turned as EXIF says, cropped" in text
    )


def test_train_says_what_is_left_out_and_what_is_enlarged(photos: Path, tmp_path: Path) -> None:
    """Not `worstclass data` alone: who skips it would lose a nested folder without a word."""
    write(photos, {"ant/nested/1.png": RED})
    (photos / "bee" / "1.heic").write_bytes(b"")
    run = train_run(photo_config(photos), tmp_path / "run")
    left_out = run_notes.start_notes(open_run(run.folder))[0]
    assert left_out.startswith(f"2 files or folders in the class folders of {photos} are no images of a known kind")
    assert left_out.endswith("and are left out: ant/nested/, bee/1.heic.")
    run = train_run(photo_config(photos, image_size=16), tmp_path / "large")
    enlarged = run_notes.start_notes(run)[1]
    assert re.match(r"(\d+) of \1 train images are enlarged more than 2 times, to 16 pixels", enlarged)


# --- a model of one's own on them ---


def test_an_audit_takes_a_size(photos: Path) -> None:
    data = f"folder:{photos}"
    found = read_data(data, image_size=6)
    assert found.images.x.shape == (60, 3, 6, 6)
    assert [note.partition(": ")[2][:18] for note in found.notes] == ["all of its images "]
    assert "resize the images of a Dataset" in one_line(lambda: read_data(found.images, image_size=6))
    target = model_target("small-cnn", weights=None, data=data, eps=0.1, image_size=6)
    assert target.about["image_size"] == 6
    assert target.images.x.shape == (60, 3, 6, 6)


def test_an_audit_takes_the_test_images_of_a_run(run: Run, photos: Path) -> None:
    """Elsewhere a network knows nothing of the run that trained it: by the same keys no training image is tested on."""
    data = f"folder:{photos}"
    keys: dict[str, Any] = {"image_size": 8, "test_fraction": 0.25}
    model, tested = run.load_model()[0], run_target(run)
    found = read_data(data, **keys)
    assert torch.equal(found.images.x, tested.images.x)
    assert not found.notes
    target = model_target("small-cnn", weights=None, data=data, eps=0.1, **keys)
    assert target.about.items() >= {**keys, "images": tested.about["images"]}.items()
    result = audit(model, data, attacks="natural", checks=False, on_note=lambda line: None, **keys)
    assert result.card["about"].items() >= {**keys, "images": tested.about["images"]}.items()
    look = EpochAudit(data, attacks="natural", **keys)(model, 1)
    assert look is not None
    assert look.card["about"]["images"] == tested.about["images"]
    assert "test_fraction is for data by name" in one_line(lambda: read_data(found.images, test_fraction=0.25))


def test_the_commands_take_a_size(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 36, 3))\n"
    )
    write(photos, {"ant/wide.png": noise(4, 30, 3)})
    words = [f"{tmp_path / 'net.py'}:make", "--data", f"folder:{photos}", "--device", "cpu", "--attacks", "natural"]
    text = one_line(lambda: cli.app(["audit", *words, "--no-checks"], standalone_mode=False))
    assert text.endswith("give --image-size 64.")
    size = ["--image-size", "6"]
    cli.app(["audit", *words, "--no-checks", *size], standalone_mode=False)
    assert "61 images" in capsys.readouterr().out
    assert "belongs to" not in one_line(lambda: cli.app(["audit", str(photos), *size], standalone_mode=False))
    tested = len(open_source(f"folder:{photos}", image_size=6, test_fraction=0.25).read("test"))
    parts = [*size, "--test-fraction", "0.25"]
    cli.app(["audit", *words, "--no-checks", *parts], standalone_mode=False)
    assert f"{tested} images" in capsys.readouterr().out
    save_file({"1.weight": torch.zeros(3, 108), "1.bias": torch.zeros(3)}, tmp_path / "net.safetensors")
    own = ["--weights", str(tmp_path / "net.safetensors"), "--eps", "8/255", "--out", str(tmp_path / "own")]
    cli.app(["evaluate", *words, *own, *parts], standalone_mode=False)
    assert '"test_fraction": 0.25' in (tmp_path / "own" / "card.json").read_text()
    cli.app(["data", f"folder:{photos}", *size, "--test-fraction", "0.2"], standalone_mode=False)
    assert "Validation" in capsys.readouterr().out
