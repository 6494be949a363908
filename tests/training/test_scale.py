"""What grows and what does not: images in host memory, the memory of an evaluation, books kept by class."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import assert_same_run, tiny_config, write_tiny_npz
from worstclass.bench import bench_classes
from worstclass.cli.main import app
from worstclass.config.recipe import to_toml
from worstclass.data import Images, Resident, Streamed, fits, make_feed
from worstclass.runs.train import train_run

CPU = torch.device("cpu")


def some_images(size: int) -> Images:
    return Images(torch.arange(4 * size).view(size, 1, 2, 2).to(torch.uint8), torch.arange(size))


@settings(max_examples=50)
@given(size=st.integers(1, 40), batch=st.integers(1, 12), seed=st.integers(0, 9))
def test_streamed_batches_are_the_resident_ones(size: int, batch: int, seed: int) -> None:
    images = some_images(size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    resident, streamed = Resident(images, CPU), Streamed(images, CPU, window=min(batch, size))
    assert len(resident) == len(streamed) == size
    seen = [streamed.images.select(index) for index in streamed.batches(order, batch)]
    for index, batch_seen in zip(resident.batches(order, batch), seen, strict=True):
        expected = resident.images.select(index)
        assert torch.equal(expected.x, batch_seen.x)
        assert torch.equal(expected.y, batch_seen.y)
    assert torch.equal(torch.cat([each.y for each in seen]), order)


def test_the_limit_decides_where_images_lie() -> None:
    images = some_images(10)
    assert images.x.nbytes == 40
    assert isinstance(make_feed(images, CPU, window=4), Resident)
    assert isinstance(make_feed(images, CPU, window=4, limit=40), Resident)
    feed = make_feed(images, CPU, window=4, limit=39)
    assert isinstance(feed, Streamed)
    assert len(feed.images) == 4  # a window, not the whole
    assert not fits(images, CPU, 39)


def test_a_run_from_host_memory_is_the_same_run(tmp_path: Path) -> None:
    """Stopped in the middle and continued too: what is fetched ahead and never used leaves no mark."""
    data = write_tiny_npz(tmp_path / "tiny.npz")
    config = tiny_config(data)
    lines: list[str] = []
    train_run(config, tmp_path / "device")
    train_run(config, tmp_path / "host", data_limit=1000, on_fallback=lines.append)
    assert_same_run(tmp_path / "device", tmp_path / "host")
    assert len(lines) == 1
    assert "stay in host memory" in lines[0]

    def stop(epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == (2, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(
            config,
            tmp_path / "stopped",
            data_limit=0,
            checkpoint_minutes=0,
            on_step=stop,
            on_fallback=lines.append,
        )
    train_run(config, tmp_path / "stopped", resume=True, data_limit=0, on_fallback=lines.append)
    assert_same_run(tmp_path / "device", tmp_path / "stopped")


def test_the_command_takes_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(tiny_config(write_tiny_npz(tmp_path / "tiny.npz"), epochs=1)))
    app(["train", str(recipe), "--out", str(tmp_path / "run"), "--data-gib", "0"], standalone_mode=False)
    assert "Note: the training images (" in capsys.readouterr().out


MEMORY = r"""
import re, sys, torch
from pathlib import Path
from worstclass.attacks import APGD, pgd
from worstclass.data import Images
from worstclass.evaluation.evaluate import evaluate

def peak() -> int:  # KiB; getrusage would count the process that started this one
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

size = int(sys.argv[1])
torch.set_num_threads(1)
source = torch.Generator().manual_seed(0)
images = Images(torch.randint(0, 256, (size, 3, 16, 16), dtype=torch.uint8, generator=source), torch.arange(size) % 100)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 100))
attacks = {"pgd": pgd(2, eps=0.03), "apgd": APGD(eps=0.03, steps=2)}
evaluate(model, images.select(torch.arange(8000)), attacks, batch_size=250, must_harm=False)
before = peak()
evaluate(model, images, attacks, batch_size=250, must_harm=False)
print(peak() - before)
"""


@pytest.mark.slow
def test_the_memory_of_an_evaluation_does_not_grow_with_the_images() -> None:
    """Beyond the first 8000, 52,000 images with a hundred logits each would be 21 MB of logits, 160 MB of floats and
    twice that attacked, if any of them were kept; what is kept are a few integers an image, 3 to 6 MB were measured."""
    measured = []
    for _ in range(6):  # an allocator keeps 0 to 14 MB on top; what the program keeps is there each time
        done = subprocess.run([sys.executable, "-c", MEMORY, "60000"], capture_output=True, text=True, check=True)
        measured.append(json.loads(done.stdout))
        if measured[-1] < 12_000:  # KiB
            return
    raise AssertionError(measured)


@pytest.mark.slow  # it reads the clock
@pytest.mark.parametrize(("classes", "share"), [(10, 0.01), (1000, 0.03)])
def test_books_by_class_cost_next_to_nothing(classes: int, share: float) -> None:
    books = bench_classes(classes, image_size=16, steps=2)
    assert books.books > 0
    assert books.share < share, books
