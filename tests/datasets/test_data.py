"""The data that ships with the package; split, order and augmentation against slow oracles."""

import importlib.util
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from tiny import COLOUR, GREY, picture
from worstclass import rng
from worstclass.config.recipe import load_config, make_config, parse_toml, recipe_names
from worstclass.data import (
    Augment,
    Images,
    epoch_order,
    held_out,
    long_tail,
    open_source,
    sources,
    split_validation,
    to_float,
)
from worstclass.errors import UserError
from worstclass.evaluation.targets import run_target
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package puts them


def tool(name: str) -> Any:
    """A program in tools/, imported."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    module = tool("make_fashion_mini")
    assert sources.FASHION_MINI == module.OUT
    monkeypatch.setattr(module, "OUT", tmp_path / "made.npz")
    monkeypatch.setattr("sys.argv", [module.__file__, str(ORIGINALS)])
    module.main()
    assert (tmp_path / "made.npz").read_bytes() == sources.FASHION_MINI.read_bytes()


# --- the split ---


def numbered(labels: Any) -> Images:
    """Images that carry their own number in two bytes."""
    number = torch.arange(len(labels))
    x = torch.stack([number // 256, number % 256], 1).to(torch.uint8).view(-1, 1, 1, 2)
    return Images(x, torch.as_tensor(labels))


def numbers(images: Images) -> list[int]:
    high, low = images.x[:, 0, 0, 0].long(), images.x[:, 0, 0, 1].long()
    return (256 * high + low).tolist()


@settings(max_examples=60)
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


def test_a_split_leaves_no_class_out() -> None:
    """A class beyond `num_classes` would have no validation images, without a word; a fraction of 2 nearly all."""
    images = numbered([0, 0, 1, 1, 2, 2])
    with pytest.raises(UserError, match=r"labels lie in 0\.\.2, expected 0\.\.1\."):
        split_validation(images, 2, 0.5)
    for fraction in (0.0, 1.0, 2.0, -0.5, math.nan):
        with pytest.raises(UserError, match="above 0 and below 1"):
            split_validation(images, 3, fraction)


@settings(max_examples=200)
@given(count=st.integers(2, 5000), fraction=st.floats(0.001, 0.999), minimum=st.integers(0, 100))
def test_a_class_holds_out_a_minimum_of_up_to_a_fifth(count: int, fraction: float, minimum: int) -> None:
    least, given_up = held_out(count, fraction), held_out(count, fraction, minimum)
    assert given_up >= least  # never fewer than the fraction
    assert 1 <= given_up < count
    if given_up > least:
        assert given_up == min(minimum, count // 5)
    assert given_up >= min(minimum, count // 5)


def test_the_minimum_takes_the_last_images_too() -> None:
    """Of 200, 105, 60 and 4 images, 6% are 12, 6, 4 and 1."""
    labels = [k for k, count in enumerate((200, 105, 60, 4)) for _ in range(count)]
    train, valid = split_validation(numbered(labels), 4, 0.06, 20)
    assert valid.class_counts(4).tolist() == [20, 20, 12, 1]
    assert numbers(valid) == [*range(180, 200), *range(285, 305), *range(353, 365), 368]
    assert numbers(train) == [i for i in range(369) if i not in numbers(valid)]


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name != "my-images"])
def test_shipped_recipes_split_as_before_there_was_a_minimum(recipe: str) -> None:
    """By the images of a class of their data; `split_validation` takes the last of so many."""
    config = load_config(recipe)
    count = {"cifar10": 5000, "cifar100": 500, "fashion-mini": 1100}[config.data]
    assert config.valid_min == 20
    assert held_out(count, config.valid_fraction, config.valid_min) == held_out(count, config.valid_fraction)


def test_fashion_mini_splits_as_before_to_the_index() -> None:
    images = open_source("fashion-mini").read("train")
    labelled = numbered(images.y)
    assert numbers(split_validation(labelled, 10, 1 / 11, 20)[1]) == numbers(split_validation(labelled, 10, 1 / 11)[1])


@pytest.mark.parametrize(("labels", "message"), [([0, 0, 1, 2, 2], "class 1 has 1 "), ([0, 0, 2, 2], "class 1 has 0 ")])
def test_split_needs_two_images_a_class(labels: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_validation(numbered(labels), 3, 0.5)
    with pytest.raises(UserError, match=message.replace("class 1", "class 'bee'")):
        split_validation(numbered(labels), 3, 0.5, class_names=("ant", "bee", "cat"))


def test_variants_of_fashion_mini_keep_their_thin_validation() -> None:
    module = tool("make_variants")
    for name in module.VARIANTS:
        config = make_config(parse_toml(module.recipe(name, Path("a.npz")), name))
        assert (config.data, config.valid_min) == ("npz:a.npz", 0)
        few = 2 if name == "thin-validation" else 91  # of 1002: two of each class are left there
        assert held_out(1002, config.valid_fraction, config.valid_min) == few


def test_stress_changes_the_labels_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of images that are all different: what each variant keeps, and what it calls them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    module = tool("make_stress")
    y = np.arange(2200) % 10
    arrays = {"class_names": np.array(list("abcdefghij"))}
    for part in ("train", "test"):
        arrays |= {f"x_{part}": np.arange(2200), f"y_{part}": y}
    made = {name: module.make(name, arrays, np.random.default_rng(0)) for name in module.STRESS}
    truth = {name: y[each["x_train"]] for name, each in made.items()}
    wrong = {name: each["y_train"] != truth[name] for name, each in made.items()}
    assert sorted(np.bincount(truth["two-wrong"][wrong["two-wrong"]], minlength=10))[-2:] == [88, 88]  # 40% of 220
    assert wrong["label-noise"].mean() == pytest.approx(0.27, abs=0.03)
    assert set(truth["twins"][wrong["twins"]]) == {module.TWIN}
    assert set(made["twins"]["y_train"][wrong["twins"]]) == {10}
    assert np.bincount(truth["junk"][wrong["junk"]]).tolist() == [11] * 10
    assert np.unique(made["junk"]["y_test"]).tolist() == list(range(11))
    assert not wrong["tail-100"].any()
    assert (np.bincount(truth["tail-100"]).max(), np.bincount(truth["tail-100"]).min()) == (220, 3)
    assert np.bincount(made["two-classes"]["y_train"]).tolist() == [220, 55]
    assert np.bincount(made["two-classes"]["y_test"]).tolist() == [220, 220]
    for name, each in made.items():
        assert len(each["class_names"]) == each["y_train"].max() + 1
        assert make_config(parse_toml(module.stress_recipe(name, Path("a.npz")), name)).valid_min == 0


def test_glyphs_are_43_unbalanced_classes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A few of each, drawn twice; their npz and recipe open as any do."""
    module = tool("make_glyphs")
    for name, count in {"FEWEST": 3, "MOST": 12, "TEST": 1}.items():
        monkeypatch.setattr(module, name, count)
    one, other = (module.make(np.random.default_rng(1)) for _ in range(2))
    assert all(np.array_equal(one[key], other[key]) for key in one)
    counts = np.bincount(one["y_train"])
    assert (len(counts), counts.min(), counts.max()) == (43, 3, 12)
    ink = np.ptp(one["x_train"].reshape(len(one["x_train"]), -1), axis=1)
    assert ink.min() > 255 * 0.3  # every image shows something
    np.savez(tmp_path / "glyphs.npz", **one)
    config = make_config(parse_toml(module.RECIPE.format(path=tmp_path / "glyphs.npz"), "glyphs"))
    assert open_source(config.data).class_names == tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdeghn")


def test_leaves_are_a_fifth_of_each_class_and_no_photograph_is_in_both_parts(tmp_path: Path) -> None:
    """Images of one colour each, which survives the change of size: the colour says which image it was."""
    module = tool("make_leaves")
    sizes = {"Apple___scab": 100, "Corn_(maize)___rust": 200, "x_Removed": 5}
    for k, (name, count) in enumerate(sizes.items()):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.new("RGB", (40 + k, 50), (i, 10 * k, 0)).save(tmp_path / name / f"{i}.PNG")
    one, other = (module.make(tmp_path, np.random.default_rng(0)) for _ in range(2))
    assert all(np.array_equal(one[key], other[key]) for key in one)
    assert one["class_names"].tolist() == ["Apple scab", "Corn (maize) rust"]
    assert [np.bincount(one[f"y_{part}"]).tolist() for part in ("train", "test")] == [[95, 115], [5, 85]]
    for part in ("train", "test"):
        assert one[f"x_{part}"].shape[1:] == (32, 32, 3)
        assert (one[f"x_{part}"][:, 0, 0, 1] == 10 * one[f"y_{part}"]).all()
    for k, count in enumerate((100, 200)):
        colours = np.concatenate([one[f"x_{part}"][one[f"y_{part}"] == k, 5, 5, 0] for part in ("train", "test")])
        assert sorted(colours) == list(range(count))
    np.savez(tmp_path / "leaves.npz", **one)
    config = make_config(parse_toml(module.RECIPE.format(path=tmp_path / "leaves.npz"), "leaves"))
    assert open_source(config.data).num_classes == 2


def test_signs_are_every_other_frame_of_training_and_labelled_test_images(tmp_path: Path) -> None:
    """Images of one colour each: label, and track and frame, or the number of a test image."""
    module = tool("make_signs")
    test = tmp_path / "Final_Test"
    (test / "Images").mkdir(parents=True)
    table = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for k in range(43):
        folder = tmp_path / f"Final_Training/Images/{k:05d}"
        folder.mkdir(parents=True)
        for track, frame in product(range(1 + (k == 2)), range(30)):
            Image.new("RGB", (40, 41), (k, track, frame)).save(folder / f"{track:05d}_{frame:05d}.ppm")
        for i in range(3 * k, 3 * k + 3):
            Image.new("RGB", (33, 50), (k, i, 0)).save(test / f"Images/{i:05d}.ppm")
            table.append(f"{i:05d}.ppm;33;50;1;1;30;40;{k}")
    (test / "GT-final_test.csv").write_text("\n".join(table) + "\n")
    arrays = module.make(tmp_path, np.random.default_rng(0))
    assert len(arrays["class_names"]) == len(set(arrays["class_names"])) == 43
    for part in ("train", "test"):
        assert arrays[f"x_{part}"].shape[1:] == (32, 32, 3)
        assert (arrays[f"x_{part}"][:, 9, 9, 0] == arrays[f"y_{part}"]).all()
    assert np.bincount(arrays["y_train"]).tolist() == [15, 15, 30] + [15] * 40
    second = arrays["x_train"][arrays["y_train"] == 2, 0, 0, 1:].tolist()
    assert second == [[track, frame] for track in range(2) for frame in range(0, 30, 2)]  # in order, track by track
    assert sorted(arrays["x_test"][:, 0, 0, 1]) == list(range(129))
    np.savez(tmp_path / "signs.npz", **arrays)
    config = make_config(parse_toml(module.RECIPE.format(path=tmp_path / "signs.npz"), "signs"))
    assert open_source(config.data).num_classes == 43


def test_tiny_imagenet_is_labelled_by_wordnet_number_and_in_numerical_order(tmp_path: Path) -> None:
    """Images of one colour each: label, number, and part."""
    module = tool("make_tiny_imagenet")
    wnids = ["n02", "n10", "n01"]
    (tmp_path / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (tmp_path / "words.txt").write_text("n01\ttench, Tinca tinca\nn02\tgoldfish\nn03\tnot asked for\nn10\tlion\n")
    (tmp_path / "val/images").mkdir(parents=True)
    lines = []
    for k, wnid in enumerate(sorted(wnids)):
        (tmp_path / "train" / wnid / "images").mkdir(parents=True)
        for i in (0, 2, 10):
            picture = Image.new("RGB", (64, 64), (k, i, 0))
            picture.save(tmp_path / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", format="PNG")
        for i in (k, 20 - k):
            Image.new("RGB", (32, 32), (k, i, 1)).save(tmp_path / f"val/images/val_{i}.JPEG", format="PNG")
            lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t63\t63")
    (tmp_path / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    arrays = module.make(tmp_path)
    assert arrays["class_names"].tolist() == ["tench", "goldfish", "lion"]
    numbers = {"train": [0, 2, 10] * 3, "test": [0, 20, 1, 19, 2, 18]}
    for mark, (part, expected) in enumerate(numbers.items()):
        assert arrays[f"x_{part}"].shape[1:] == (32, 32, 3)
        label, number, marked = arrays[f"x_{part}"][:, 7, 7].T
        assert (label == arrays[f"y_{part}"]).all()
        assert number.tolist() == expected
        assert (marked == mark).all()
    np.savez(tmp_path / "tiny-imagenet.npz", **arrays)
    config = make_config(parse_toml(module.RECIPE.format(path=tmp_path / "tiny-imagenet.npz"), "tiny-imagenet"))
    assert open_source(config.data).num_classes == 3


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
        run_target(run)
    assert len(run_target(run, part="valid").images) == 12


def test_training_on_a_folder_needs_no_test_folder(tmp_path: Path, tiny_values: dict[str, Any]) -> None:
    for k, name in enumerate(("cat", "dog")):
        for index in range(4):
            picture(tmp_path / "data" / "train" / name / f"{index}.png", GREY[4 * k + index])
    config = make_config(tiny_values | {"data": f"folder:{tmp_path / 'data'}", "batch_size": 3})
    run = train_run(config, tmp_path / "run")
    assert run.class_names == ["cat", "dog"]
    assert run.about["image_size"] == [8, 9]


def test_a_long_tail_has_the_standard_profile() -> None:
    """CIFAR-10-LT at 1:50: 5000 images of the first class, 100 of the last, n * 50^(-k / 9) between."""
    y = torch.arange(50_000) % 10
    x = torch.arange(50_000).to(torch.uint8).reshape(-1, 1, 1, 1)
    thinned = long_tail(Images(x, y), 10, 50)
    expected = [round(5000 * 50 ** (-k / 9)) for k in range(10)]
    assert thinned.class_counts(10).tolist() == expected
    assert expected[0] == 5000
    assert expected[-1] == 100
    for k in (0, 4, 9):
        assert torch.equal(thinned.x[thinned.y == k], x[y == k][: expected[k]])
    assert len(long_tail(Images(x, y), 10, 1)) == 50_000
