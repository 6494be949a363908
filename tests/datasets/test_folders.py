"""Class folders without train/ and test/ are split by digest."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photos import PHOTOS, RED, colours, noise, one_line, read, share, write
from worstclass.cli import main as cli
from worstclass.config.recipe import make_config
from worstclass.data import open_source
from worstclass.data.folders import files_to_test

pytestmark = pytest.mark.fast


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


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["Train/ant/0.png", "Train/bee/0.png", "Test/ant/0.png", "Test/bee/0.png"], "Test"),
        (["Train/0.png", "Test/0.png", "Val/0.png"], "Test"),
        (["train/ant/0.png", "train/bee/0.png", "TEST/ant/0.png", "TEST/bee/0.png"], "TEST"),
        (["Train/ant/0.png", "Train/bee/0.png", "labels/0.png"], "Train"),
    ],
)
def test_a_part_in_capitals_is_no_class(files: list[str], found: str, tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(files, RED))
    text = one_line(lambda: open_source(f"folder:{tmp_path}", test_fraction=None))
    assert text == f"{tmp_path} has a folder {found}/: rename {found}/ to {found.lower()}/."


def test_a_class_called_train_in_capitals(photos: Path) -> None:
    write(photos, {"Train/0.png": RED})
    assert open_source(f"folder:{photos}", test_fraction=0.2).class_names == ("Train", "ant", "bee", "cat")


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


def test_a_folder_is_looked_for_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run remembers the path as it was given: elsewhere it is another folder."""
    monkeypatch.chdir(tmp_path)
    assert one_line(lambda: open_source("folder:gone")) == f"there is no folder gone in {tmp_path}."


@pytest.mark.parametrize("root", ["", "train/"])
def test_a_class_of_unknown_kinds_alone_is_named(root: str, tmp_path: Path) -> None:
    """Else it would be a class without images, and nobody knows why."""
    data = write(tmp_path / "kinds", {f"{root}{name}": colour for name, colour in PHOTOS.items()})
    folder = tmp_path / "kinds" / root / "dog"
    folder.mkdir()
    (folder / "1.heic").write_bytes(b"")
    source = open_source(data, test_fraction=None if root else 0.2)
    assert one_line(lambda: source.read("train")).startswith(f"{folder} holds no image files (.bmp, .jpeg")


def test_a_folder_beside_the_parts_is_told(tmp_path: Path) -> None:
    """Who has an extra/ may take it for a part."""
    source = open_source(
        write(tmp_path, {f"{part}/{name}": RED for part in ("train", "extra", "test") for name in PHOTOS})
    )
    told = f"{tmp_path} also holds extra/, which is not read: validation images are taken out of train/."
    assert (source.notes("train"), source.notes(), source.notes("test")) == ([told], [told], [])
