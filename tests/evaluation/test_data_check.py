"""What the check of a data set finds is what was put there."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tiny import write_tiny_npz
from worstclass.cli import main as cli
from worstclass.data import Images
from worstclass.evaluation.data_check import check_data, descriptors, disputed_labels, near_duplicates
from worstclass.metrics import binomial_interval

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
        "1 test images are all but equal to one of the train part.",
        "2 images have an equal one with another label.",
    ]


def test_near_is_by_the_nearest() -> None:
    """Against all distances, one by one."""
    one, other = descriptors(noise(50, 1, 8)), descriptors(noise(40, 2, 8))
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
    assert notes[1] == "classes are unbalanced: 'ants' has 40 training images, 'cats' 4."


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tiny_npz(tmp_path / "tiny.npz")
    cli.app(["data", f"npz:{data}", "--valid-fraction", "0.25"], standalone_mode=False)
    out = capsys.readouterr().out
    assert "Validation" in out
    assert "Disputed" in out
