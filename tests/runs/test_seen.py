"""A run knows which images it has learned from, and says so when it is judged on them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tiny import tiny_config, write_tiny_npz
from worstclass.data import image_digests, open_source
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.files import write_npz
from worstclass.runs.adjust import adjust_run
from worstclass.runs.run import Run
from worstclass.runs.seen import SEEN, count_seen
from worstclass.runs.train import train_run


def trained(tmp_path: Path, copied: int) -> Run:
    """A run whose first test images are training images, so many of them."""
    arrays = dict(np.load(write_tiny_npz(tmp_path / "tiny.npz")))
    for name in ("x", "y"):
        arrays[f"{name}_test"][:copied] = arrays[f"{name}_train"][:copied]
    np.savez(tmp_path / "tiny.npz", **arrays)
    return train_run(tiny_config(tmp_path / "tiny.npz", epochs=1), tmp_path / "run")


@pytest.mark.parametrize("copied", [0, 7, 60])
def test_test_images_that_were_learned_from_are_counted(copied: int, tmp_path: Path) -> None:
    """Whether they were trained on or held out for validation; of another run's images too."""
    run = trained(tmp_path, copied)
    heard: list[str] = []
    card = evaluate_target(run_target(run), ["pgd-1"], run.folder, on_note=heard.append)
    (finding,) = (each for each in card["findings"] if each["name"] == "unseen-images")
    assert finding["passed"] == (copied == 0)
    told = f"{copied} of 60 images are training or validation images of this run"
    assert any(line.startswith(told) for line in heard) == (copied > 0)
    assert (told in finding["seen"]) == (copied > 0)
    valid = evaluate_target(run_target(run, part="valid"), ["pgd-1"], tmp_path / "valid")  # they are meant to be
    assert "unseen-images" not in [each["name"] for each in valid["findings"]]


def test_what_was_seen_goes_with_the_run(tmp_path: Path) -> None:
    run = trained(tmp_path, 7)
    before = (run.folder / SEEN).read_bytes()
    train_run(run.config, run.folder, resume=True)
    assert (run.folder / SEEN).read_bytes() == before
    images = open_source(run.config.data).read("test")
    adjusted = adjust_run(run, tmp_path / "adjusted")
    assert count_seen(run.folder, images) == count_seen(adjusted.folder, images) == 7


def test_a_run_that_does_not_know_says_nothing(tmp_path: Path) -> None:
    """Of an older version, or of large data."""
    run = trained(tmp_path, 7)
    (run.folder / SEEN).unlink()
    assert count_seen(run.folder, open_source(run.config.data).read("test")) is None
    card = evaluate_target(run_target(run), ["pgd-1"], run.folder)
    assert "unseen-images" not in [each["name"] for each in card["findings"]]
    write_npz(run.folder / SEEN, {"digests": np.zeros(3)})
    with pytest.raises(UserError, match="is damaged: digests are float64"):
        evaluate_target(run_target(run), ["pgd-1"], tmp_path / "again")


def test_a_digest_is_of_the_pixels_of_one_image(tmp_path: Path) -> None:
    images = open_source(f"npz:{write_tiny_npz(tmp_path / 'tiny.npz')}").read("train")
    digests = image_digests(images)
    assert len(set(digests.tolist())) == len(images)
    rows = np.array([5, 1, 5])
    assert (image_digests(images.select(torch.from_numpy(rows))) == digests[rows]).all()


def test_a_run_has_seen_what_its_start_has(tmp_path: Path) -> None:
    """Its weights have, though it is trained on other images itself."""
    run = trained(tmp_path, 7)
    images = open_source(run.config.data).read("test")
    other = tmp_path / "other.npz"
    write_tiny_npz(other, seed=1)
    for name, expected in (("knows", 7), ("knows not", None)):
        config = tiny_config(other, epochs=1, init=str(run.folder))
        assert count_seen(train_run(config, tmp_path / name).folder, images) == expected
        (run.folder / SEEN).unlink(missing_ok=True)
