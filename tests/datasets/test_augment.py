"""Crop-shift, erasing, and changes of colour and shape: against Pillow, and by what they keep."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from tiny import tiny_config, write_tiny_npz
from worstclass import rng
from worstclass.config.recipe import make_config
from worstclass.data import Augment, color_shape
from worstclass.data.augment import AREA, crop_shifted, erased
from worstclass.errors import UserError
from worstclass.runs.train import train_run

pytestmark = pytest.mark.fast

ALL = Augment(flip=True, crop_shift=10, color_shape=True, erase=0.5)


def pictures(channels: int, *, size: tuple[int, int] = (32, 32), count: int = 6) -> Tensor:
    """Smooth and noisy ones, dark and light."""
    draw = np.random.default_rng(0)
    low, high = np.linspace(0, 60, count)[:, None, None, None], np.linspace(120, 255, count)[:, None, None, None]
    steps = np.linspace(0, 1, size[1]) * np.linspace(0.3, 1, size[0])[:, None]
    x = low + (high - low) * np.clip(steps + draw.normal(0, 0.1, (count, channels, *size)), 0, 1)
    return torch.from_numpy(x.astype(np.uint8))


def as_pil(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if len(image) == 1 else array)


def from_pil(image: Image.Image) -> Tensor:
    array = np.asarray(image)
    return torch.from_numpy(array.copy()[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def changed(change: Callable[..., Tensor], x: Tensor, amount: float, *more: Any) -> Tensor:
    out = change(x / 255, torch.full((len(x), 1, 1, 1), amount), *more)
    return (out * 255).round().to(torch.uint8)


COLOURS: list[tuple[Callable[..., Tensor], Callable[[Image.Image, float], Image.Image], list[float]]] = [
    (color_shape.saturate, lambda image, by: ImageEnhance.Color(image).enhance(by), [0.1, 1.0, 1.9]),
    (color_shape.brighten, lambda image, by: ImageEnhance.Brightness(image).enhance(by), [0.5, 1.9]),
    (color_shape.contrast, lambda image, by: ImageEnhance.Contrast(image).enhance(by), [0.5, 1.9]),
    (color_shape.sharpen, lambda image, by: ImageEnhance.Sharpness(image).enhance(by), [0.1, 1.9]),
    (color_shape.stretch, lambda image, by: ImageOps.autocontrast(image), [0.0]),
    (color_shape.equalize, lambda image, by: ImageOps.equalize(image), [0.0]),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("change", "pillow", "amounts"), COLOURS, ids=[each[0].__name__ for each in COLOURS])
def test_colours_are_those_of_pillow(
    change: Callable[..., Tensor],
    pillow: Callable[[Image.Image, float], Image.Image],
    amounts: list[float],
    channels: int,
) -> None:
    """To two levels: Pillow rounds in between; levels that are counted are exact."""
    x = pictures(channels)
    for amount in amounts:
        expected = torch.stack([from_pil(pillow(as_pil(image), amount)) for image in x])
        apart = (changed(change, x, amount).int() - expected.int()).abs()
        assert int(apart.max()) <= (0 if change is color_shape.equalize else 2)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
def test_shapes_are_those_of_pillow(size: tuple[int, int]) -> None:
    """Nearly every pixel: where two are equally near, either may be taken."""
    x, (height, width) = pictures(3, size=size), size
    for amount in (-10.0, 4.0):
        expected = torch.stack([from_pil(as_pil(image).rotate(amount)) for image in x])
        assert (changed(color_shape.rotate, x, amount) == expected).float().mean() > 0.99
    for amount in (-0.15, 0.1):
        slope = float(np.tan(amount))
        for across, plan in (
            (True, (1, slope, -slope * height / 2, 0, 1, 0)),
            (False, (1, 0, 0, slope, 1, -slope * width / 2)),
        ):
            moved = [as_pil(image).transform((width, height), Image.Transform.AFFINE, plan) for image in x]
            expected = torch.stack([from_pil(image) for image in moved])
            found = changed(color_shape.shear, x, amount, torch.full((len(x), 1, 1, 1), across))
            assert (found == expected).float().mean() > 0.99


def test_each_of_the_eight_happens() -> None:
    """About as often as any other: two of them leave a mark that can be counted."""
    x = pictures(3, count=1).expand(4000, -1, -1, -1)
    out = color_shape.color_shape(x, rng.generator(1, "test"))
    unchanged = (out == x).flatten(1).all(1)
    for change in (color_shape.stretch, color_shape.equalize):
        made = changed(change, x[:1], 0.0)
        share = float(((out == made).flatten(1).all(1) & ~unchanged).float().mean())
        assert share == pytest.approx(1 / 8, abs=5 * (7 / 64 / 4000) ** 0.5)
    corner = (out[:, :, 0, -1] == 0).all(1).float().mean()  # black only where the image was turned or sheared
    assert 0.05 < float(corner) < 0.25


def test_a_crop_is_moved() -> None:
    """Pixels that say where they come from: a window of the image, anywhere, all else black."""
    height, width, most, size = 7, 9, 4, 3000
    places = torch.arange(1, height * width + 1).view(1, 1, height, width)
    out = crop_shifted(places.expand(size, -1, -1, -1), most, rng.generator(1, "test"))[:, 0]
    cuts: Counter[tuple[int, int]] = Counter()
    for image in out:
        rows, columns = (image > 0).any(1), (image > 0).any(0)
        first_row, first_column = int(rows.float().argmax()), int(columns.float().argmax())
        kept = image[rows][:, columns]
        top, left = divmod(int(kept[0, 0]) - 1, width)
        high, wide = kept.shape
        assert torch.equal(kept, places[0, 0, top : top + high, left : left + wide])
        assert first_row + high <= height
        assert first_column + wide <= width
        cuts[height - high, width - wide] += 1
    for (rows_cut, columns_cut), count in cuts.items():  # the sum is uniform, and so is how it is shared
        cut = rows_cut + columns_cut
        expected = size / (most + 1) / (cut + 1)
        assert abs(count - expected) < 5 * expected**0.5
    assert len(cuts) == sum(cut + 1 for cut in range(most + 1))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_rectangle_is_erased(share: float) -> None:
    size, side = 2000, 32
    out = erased(torch.ones(size, 3, side, side), share, rng.generator(1, "test"))
    gone = (out == 0).all(1)
    assert torch.equal(gone, (out == 0).any(1))
    hit = gone.flatten(1).any(1)
    assert float(hit.float().mean()) == pytest.approx(share, abs=0.06)
    rows, columns = gone.any(2).sum(1)[hit], gone.any(1).sum(1)[hit]
    assert torch.equal(rows * columns, gone.flatten(1).sum(1)[hit])  # one rectangle, without a hole
    area = (rows * columns) / side**2
    assert AREA[0] * 0.7 < float(area.min()) < 0.05
    assert 0.28 < float(area.max()) < AREA[1] * 1.1
    assert float(area.mean()) == pytest.approx(sum(AREA) / 2, abs=0.01)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(2, 9), st.integers(2, 9), st.booleans(), st.integers(0, 99))
def test_images_stay_images(channels: int, height: int, width: int, floats: bool, seed: int) -> None:
    x = torch.randint(0, 256, (5, channels, height, width), generator=torch.Generator().manual_seed(seed))
    x = x / 255 if floats else x.to(torch.uint8)
    kept = x.clone()
    out = ALL(x, rng.generator(seed, "test"))
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert torch.equal(x, kept)
    assert bool(((out >= 0) & (out <= (1 if floats else 255))).all())
    assert torch.equal(ALL(x, rng.generator(seed, "test")), out)


def test_a_recipe_crops_in_one_way() -> None:
    """What is drawn without the new keys is what was drawn before there were any."""
    plan = make_config({"crop": "shift", "color_shape": True, "erase": 0.5}).make_plan()
    assert plan.augment == Augment(flip=True, crop_shift=10, color_shape=True, erase=0.5)
    assert make_config({}).make_plan().augment == Augment(crop_padding=4, flip=True)
    with pytest.raises(UserError, match="crop_padding belongs to crop 'pad'; the crop here is 'shift'"):
        make_config({"crop": "shift", "crop_padding": 4})
    with pytest.raises(UserError, match="crop_shift belongs to crop 'shift'"):
        make_config({"crop_shift": 4})


def test_a_run_trains_with_them(tmp_path: Any) -> None:
    data = write_tiny_npz(tmp_path / "tiny.npz")
    recipe = {key: value for key, value in tiny_config(data).recipe().items() if key != "crop_padding"}
    config = make_config(recipe | {"crop": "shift", "crop_shift": 2, "color_shape": True, "erase": 0.5, "epochs": 1})
    run = train_run(config, tmp_path / "run")
    assert np.isfinite(run.log[0]["train"]["loss"])
