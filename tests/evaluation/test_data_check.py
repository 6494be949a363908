"""What the check of a data set finds is what was put there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny import tiny_config, write_tiny_npz
from worstclass.cli import main as cli
from worstclass.config.keys import Config
from worstclass.config.recipe import load_config, to_toml
from worstclass.data import Images, mirror_pairs, validation_shift
from worstclass.data.checks import SIDE, small_copies
from worstclass.errors import UserError
from worstclass.evaluation.data_check import (
    check_data,
    disputed_labels,
    empty_note,
    mirror_note,
    name_note,
    near_duplicates,
    shift_note,
    split_note,
)
from worstclass.evaluation.run_notes import start_notes
from worstclass.metrics import binomial_interval
from worstclass.runs.run import Run, open_run
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast

NAMES = ("ants", "bees", "cats")


def noise(count: int, seed: int, size: int = 16) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=draw)


def parts(train: int = 60, valid: int = 60, test: int = 30) -> dict[str, Images]:
    """Images of noise, no two alike."""
    sizes = {"train": train, "valid": valid, "test": test}
    return {
        name: Images(noise(size, number), torch.arange(size) % 3) for number, (name, size) in enumerate(sizes.items())
    }


def test_nothing_stands_out() -> None:
    found = check_data(parts(), NAMES)
    assert found.counts == {"train": [20] * 3, "valid": [20] * 3, "test": [10] * 3}
    assert set(found.exact.values()) == set(found.near.values()) == {0}
    assert (found.conflicts, found.blank, found.notes) == (0, 0, [])
    low, high = binomial_interval([10], [20])
    assert found.half_width == pytest.approx([float((high - low)[0]) / 2] * 3)


def test_copies_across_the_parts() -> None:
    """Equal ones, with equal and other labels; and such that differ by a little noise."""
    data = parts()
    data["test"].x[:2] = data["train"].x[[0, 4]]  # labels 0, 1 and 0, 1
    data["test"].x[2] = data["valid"].x[3]  # labels 2 and 0
    data["test"].x[5] = (data["train"].x[9].int() + (noise(1, 9)[0].int() % 3)).clamp(0, 255).to(torch.uint8)
    found = check_data(data, NAMES)
    assert found.exact == {("train", "valid"): 0, ("train", "test"): 2, ("valid", "test"): 1}
    assert found.near == {("train", "valid"): 0, ("train", "test"): 1, ("valid", "test"): 0}
    assert found.conflicts == 2
    assert [line.split(":")[0] for line in found.notes] == [
        "2 test images are in the train part too",
        "1 test images are in the valid part too",
        "1 test images are near-duplicates of one in the train part",
        "2 images have an exact duplicate with another label.",
    ]
    advice = ": photos of one scene or track belong in one part; make train/ and test/ yourself."
    assert found.notes[2].endswith(f"the train part{advice}")


def test_near_is_by_the_nearest() -> None:
    """Against all distances, one by one."""
    one, other = (small_copies(noise(count, seed, 8)).flatten(1) for count, seed in ((50, 1), (40, 2)))
    other[:7] = one[:7] + 0.01
    apart = torch.cdist(other.double(), one.double()) / one.shape[1] ** 0.5
    assert near_duplicates(one, other) == int((apart.amin(1) <= 0.02).sum()) == 7


def test_blank_images() -> None:
    data = parts()
    data["train"].x[3] = 7
    data["test"].x[3:5] = 0
    found = check_data(data, NAMES)
    assert found.blank == 3
    assert "3 images are of one colour." in found.notes


def test_a_class_whose_labels_are_wrong_stands_out() -> None:
    """Classes that brightness tells apart; half of one carry the labels of the others."""
    y = torch.arange(300) % 3
    small = (y[:, None].double() + 0.1 * torch.randn(300, 4, generator=torch.Generator().manual_seed(0))).float()
    small = torch.cat([small, (small - 1).square()], 1)
    assert disputed_labels(small, y, 3).tolist() == pytest.approx([0, 0, 0], abs=0.02)
    wrong = y.clone()
    members = (y == 1).nonzero().squeeze(1)
    members = members[torch.arange(len(members)) % 4 < 2]
    wrong[members] = torch.arange(len(members)) % 2 * 2
    rates = disputed_labels(small, wrong, 3)
    assert rates[0] == pytest.approx(1 / 5, abs=0.05)  # 25 of 125 are class 1's
    assert rates[1] == pytest.approx(0, abs=0.05)


def test_few_and_unbalanced() -> None:
    y = torch.tensor([0] * 40 + [1] * 40 + [2] * 4)
    data = {"train": Images(noise(84, 1), y), "valid": Images(noise(84, 2), y), "test": Images(noise(84, 3), y)}
    notes = check_data(data, NAMES).notes
    assert notes[0].startswith("1 of 3 classes have fewer than 20 validation images; accuracy on the 4 of 'cats'")
    assert "1 of 3 classes have fewer than 10 test images; accuracy on the 4 of 'cats' will be known to" in notes[2]
    assert notes[1] == "classes are unbalanced: 'ants' has 40 training images, 'cats' 4."


def test_a_class_without_test_images() -> None:
    data = parts()
    data["test"] = data["test"].select(data["test"].y != 2)
    assert check_data(data, NAMES).notes == ["1 of 3 classes have no test images ('cats'): nothing is known of them."]
    assert "'0', '1', '2' and 7 more" in empty_note([str(k) for k in range(10)], [0] * 10)[0]


@pytest.mark.parametrize("other", [noise(30, 2, 20), noise(30, 2)[:, :1]])
def test_test_images_of_another_shape(other: Tensor) -> None:
    data = parts()
    data["test"] = Images(other, data["test"].y)
    with pytest.raises(
        UserError, match=r"^training images are \(3, 16, 16\), test images \([13], (16|20), (16|20)\): "
    ):
        check_data(data, NAMES)


def test_names_that_a_person_reads_as_one() -> None:
    told = "classes whose names differ in case or in an accent's code alone: "
    (note,) = name_note(["Glass", "bu\u0308ch", "glass", "b\u00fcch", "metal"])
    assert note == f"{told}'Glass' and 'glass'; 'bu\u0308ch' and 'b\u00fcch'. Are they one class?"
    assert name_note(NAMES) == []
    assert check_data(parts(), ("ants", "bees", "Ants")).notes[0].startswith(told)


def test_small_images() -> None:
    data = {name: Images(noise(60, number, 8), torch.arange(60) % 3) for number, name in enumerate(parts())}
    assert check_data(data, NAMES).notes == ["images are small: 8 pixels. Take a small network, and crop_padding = 0."]


def test_what_is_held_out_beyond_the_fraction() -> None:
    """6% of 105, 200 and 1000 images are 6, 12 and 60."""
    assert split_note({"train": [940], "valid": [60]}, 0.06) == []
    counts = {"train": [85, 180, 940], "valid": [20, 20, 60]}
    assert split_note(counts, 0.06) == ["2 classes hold out 20 validation images instead of 6 to 12 (valid_min)."]
    one = {"train": [85, 940], "valid": [20, 60]}
    assert split_note(one, 0.06) == ["1 class holds out 20 validation images instead of 6 (valid_min)."]


def test_images_that_are_drawn_alike_are_at_one() -> None:
    """A closed form: the mean of a chi-squared over its degrees of freedom, whatever the number of images."""
    draw = torch.Generator().manual_seed(0)
    train, valid = (
        Images((0.5 + 0.05 * torch.randn(count, 3, 16, 16, generator=draw)).clamp(0, 1), torch.arange(count) % 4)
        for count in (400, 40)
    )
    assert validation_shift(train, valid, 5) == pytest.approx([1, 1, 1, 1, 0], abs=0.25)


def test_validation_images_of_another_kind(tmp_path: Path) -> None:
    """Twenty frames of one object, or images that are darker: the classes are named."""
    data = parts()
    own = data["valid"].y == 1
    data["valid"].x[own] = data["valid"].x[own][:1]
    shift = validation_shift(data["train"], data["valid"], 3)
    assert shift[1] == pytest.approx(20 * 20 / 40 * (1 + 1 / 20), rel=0.1)  # one image's distance is its variance
    assert max(shift[0], shift[2]) < 2
    (note,) = shift_note(NAMES, shift)
    assert note.startswith("validation images of 'bees' are unlike the training images")
    assert note in check_data(data, NAMES).notes
    (note,) = shift_note(NAMES, [9, 0, 10])
    assert note.startswith("validation images of 2 classes, 'cats' above all,")
    assert shift_note(NAMES, [5.9] * 3) == []


class Stop(Exception):
    pass


def started(config: Config, out: Path) -> Run:
    """A run before its first step."""
    runs = []

    def stop(run: Run) -> None:
        runs.append(run)
        raise Stop

    with pytest.raises(Stop):
        train_run(config, out, on_start=stop)
    assert open_run(out).about == runs[0].about
    return open_run(out)


def test_nothing_is_said_at_the_start_on_healthy_data(tmp_path: Path) -> None:
    run = started(load_config("fashion-mini-wat"), tmp_path / "run")
    assert run.about["class_counts"] == {"train": [1000] * 10, "valid": [100] * 10}
    assert run.about["valid_in_train"] == 0
    assert start_notes(run) == []
    cifar = {"class_counts": {"train": [4700] * 10, "valid": [300] * 10}, "valid_in_train": 5}
    assert start_notes(Run(tmp_path, load_config("cifar10-resnet18-wat"), run.about | cifar)) == []


def test_what_is_said_at_the_start(tmp_path: Path) -> None:
    """110, 60 and 12 images of three classes; two that are validated on are trained on too."""
    y = np.repeat([0, 1, 2], [110, 60, 12])
    x = noise(len(y), 1).numpy()
    x[109], x[181] = x[0], x[170]
    np.savez(tmp_path / "few.npz", x_train=x, y_train=y, class_names=np.array(NAMES), layout=np.array("NCHW"))
    config = tiny_config(tmp_path / "few.npz", valid_fraction=0.06)
    run = started(config, tmp_path / "run")
    assert start_notes(run) == [
        "3 classes hold out 2 to 20 validation images instead of 1 to 7 (valid_min).",
        "2 of 3 classes have fewer than 20 validation images; accuracy on the 2 of 'cats' is known to +-49 points: "
        "choose no epoch or weight by it.",
        "classes are unbalanced: 'ants' has 90 training images, 'cats' 10.",
        "2 valid images are in the train part too: accuracy measured on them is too high.",
    ]
    run.about["class_names"] = ["ants", "bees", "Ants"]
    assert "'ants' and 'Ants'" in start_notes(run)[0]


def test_test_images_of_another_size_are_told_at_the_start(tmp_path: Path) -> None:
    x, y = noise(180, 1).numpy(), np.arange(180) % 3
    for size, count in ((16, 0), (20, 1)):
        file = tmp_path / f"{size}.npz"
        np.savez(file, x_train=x, y_train=y, x_test=noise(9, 2, size).numpy(), y_test=y[:9], layout=np.array("NCHW"))
        lines = start_notes(started(tiny_config(file, valid_fraction=0.4), tmp_path / f"run{size}"))
        told = "training images are (3, 16, 16), test images (3, 20, 20): "
        assert [line.startswith(told) for line in lines] == [True] * count


def test_train_says_it_at_its_start_and_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tiny_npz(tmp_path / "tiny.npz")
    (tmp_path / "a.toml").write_text(to_toml(tiny_config(data, epochs=1)))
    cli.app(
        ["train", str(tmp_path / "a.toml"), "--out", str(tmp_path / "run"), "--device", "cpu"], standalone_mode=False
    )
    lines = capsys.readouterr().out.splitlines()
    few = "3 of 3 classes have fewer than 20 validation images; accuracy on the 10 of 'row 0'"
    assert [line.startswith(f"Note: {few}") for line in lines].index(True) == 0
    end = lines.index("Notes on this run:")
    assert lines[end + 1].startswith(f"- {few}")
    assert lines[1].startswith("Note: training takes 5 steps of 16 images in all")
    assert not any(line.startswith("Note: ") for line in lines[2:])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny_npz(tmp_path / "one:.npz")
    cli.app(["data", "npz:one:.npz", "--valid-fraction", "0.25"], standalone_mode=False)
    out = capsys.readouterr().out
    assert "npz:one:.npz" in out  # no emoji
    assert "Validation" in out
    assert "Disputed" in out


@pytest.mark.parametrize("random", [True, False])
def test_a_classifier_too_simple_for_the_data_says_so(
    random: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = arrows(240)
    x = noise(240, 1) if random else x
    parts: dict[str, Any] = {
        "x_train": x.numpy(),
        "y_train": y.numpy(),
        "x_test": x[:30].numpy(),
        "y_test": y[:30].numpy(),
    }
    np.savez(tmp_path / "a.npz", layout=np.array("NCHW"), **parts)
    cli.app(["data", f"npz:{tmp_path / 'a.npz'}"], standalone_mode=False)
    assert ("too hard for it to tell wrong labels" in " ".join(capsys.readouterr().out.split())) == random


def arrows(count: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A bright left half, a bright right half, and a bright upper half, in noise."""
    y = torch.arange(count) % 3
    x = noise(count, seed).float() / 4
    x[y == 0, :, :, : x.shape[3] // 2] += 120
    x[y == 1, :, :, x.shape[3] // 2 :] += 120
    x[y == 2, :, : x.shape[2] // 2] += 120
    return x.to(torch.uint8), y


@pytest.mark.parametrize("size", [(32, 32), (14, 28), (8, 30), (9, 12)])
def test_small_copies_are_averages_and_of_a_mirror_image_the_mirror_image(size: tuple[int, int]) -> None:
    x = torch.randint(0, 256, (5, 3, *size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    small = small_copies(x)
    expected = F.adaptive_avg_pool2d(x / 255, SIDE) if max(size) > SIDE else x / 255
    torch.testing.assert_close(small, expected)
    torch.testing.assert_close(small_copies(x.flip(-1)), small.flip(-1))


def test_classes_that_are_mirror_images_are_found() -> None:
    x, y = arrows(120)
    assert mirror_pairs(Images(x, y), 3) == [(0, 1)]
    assert mirror_pairs(Images(x, torch.where(y == 1, 0, y)), 3) == []  # one class: flips do no harm
    assert mirror_note(NAMES, [(0, 1)])[0].endswith("Train with flip = false.")
    assert "'ants'" in mirror_note(NAMES, [(0, 1)])[0]


@pytest.mark.parametrize("flip", [True, False])
def test_train_says_that_flips_mix_classes(tmp_path: Path, flip: bool) -> None:
    x, y = arrows(300)
    file, names = tmp_path / "arrows.npz", np.array(NAMES)
    np.savez(file, x_train=x.numpy(), y_train=y.numpy(), class_names=names, layout=np.array("NCHW"))
    lines = start_notes(started(tiny_config(file, flip=flip), tmp_path / "run"))
    assert any("mirror images" in line for line in lines) == flip


@pytest.mark.parametrize(
    ("optimizer", "lr", "told"), [("adamw", 0.2, True), ("adamw", 1e-3, False), ("sgd", 0.2, False)]
)
def test_a_rate_of_sgd_for_adamw_is_told(optimizer: str, lr: float, told: bool, tmp_path: Path) -> None:
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), optimizer=optimizer, lr=lr)
    lines = start_notes(started(config, tmp_path / "run"))
    assert any("is a rate for SGD: AdamW usually takes 1e-3." in line for line in lines) == told


@pytest.mark.parametrize(("eps", "norm", "told"), [(0.5, "linf", "L-inf"), (0.4, "linf", None), (0.05, "l2", "L2")])
def test_a_radius_that_is_seldom_meant_is_told_of(eps: float, norm: str, told: str | None, tmp_path: Path) -> None:
    config = tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), eps=eps, norm=norm, attack_step_size=0.3)
    lines = [line for line in start_notes(started(config, tmp_path / "run")) if " radius of " in line]
    assert len(lines) == (told is not None)
    assert told is None or told in lines[0]
