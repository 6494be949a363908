#!/usr/bin/env python3
"""Draw 43 unbalanced classes of digits and letters: data on which no setting of this package was chosen.

    make_glyphs.py FOLDER [--seed N]

Each image is one character of 16x16 grey pixels in one of matplotlib's 21 fonts, turned, sheared, scaled, moved and
blurred, light on dark, with a second, fainter character at its edge, and noise. A class has
105 to 1125 training images, in random order of the classes, and 100 test images. Some classes look alike (0 and O,
1 and I, 5 and S), as they do in data of one's own. Writes FOLDER/glyphs.npz and a recipe of TRADES, glyphs.toml;
`worstclass sweep examples/glyphs.toml` trains on them in the folder `variants`.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdeghn"
FONTS = (
    *(f"DejaVu{kind}.ttf" for kind in ("Sans", "Sans-Bold", "Sans-Oblique", "Sans-BoldOblique")),
    *(f"DejaVuSansMono{kind}.ttf" for kind in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{kind}.ttf" for kind in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{kind}.ttf" for kind in ("", "Bol", "Italic", "BolIta")),
    *(f"{name}.ttf" for name in ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10")),
)
SIZE, CANVAS = 16, 64  # pixels of an image, and of the drawing that is scaled down to it
FEWEST, MOST, TEST = 105, 1125, 100
RECIPE = """\
# TRADES on the 43 classes that tools/make_glyphs.py draws.
method = "trades"
data = "npz:{path}"
model = "small-cnn"
epochs = 15
batch_size = 256
lr = 0.2
lr_milestones = [0.7, 0.9]
weight_decay = 5e-4
crop_padding = 0
flip = false
eps = 0.05
attack_steps = 5
attack_step_size = 0.02
select = "worst"
seed = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "glyphs.npz"
    np.savez_compressed(path, **make(np.random.default_rng(args.seed)))
    (args.folder / "glyphs.toml").write_text(RECIPE.format(path=path))


def make(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """The arrays of the data set."""
    fonts = load_fonts()
    counts = np.geomspace(MOST, FEWEST, len(CHARACTERS)).round().astype(int)[draw.permutation(len(CHARACTERS))]
    arrays: dict[str, np.ndarray] = {"class_names": np.array(list(CHARACTERS))}
    for part, sizes in {"train": counts, "test": np.full_like(counts, TEST)}.items():
        arrays[f"y_{part}"] = np.repeat(np.arange(len(CHARACTERS)), sizes)
        arrays[f"x_{part}"] = np.stack([draw_image(CHARACTERS[k], fonts, draw) for k in arrays[f"y_{part}"]])[..., None]
    return arrays


def load_fonts() -> list[ImageFont.FreeTypeFont]:
    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    return [ImageFont.truetype(folder / name, size=CANVAS * 4 // 5) for name in FONTS]


def draw_image(character: str, fonts: list[ImageFont.FreeTypeFont], draw: np.random.Generator) -> np.ndarray:
    """One image (SIZE, SIZE), uint8."""
    ink = place(character, fonts, draw, shift=draw.uniform(-0.08, 0.08, 2))
    side, neighbour = draw.choice([-1, 1]), str(draw.choice(list(CHARACTERS)))
    other = place(neighbour, fonts, draw, shift=np.array([0.7 * side, draw.uniform(-0.2, 0.2)]))
    ground, contrast = draw.uniform(0, 0.2), draw.uniform(0.6, 0.8)
    slope = np.linspace(-0.1, 0.1, SIZE) * draw.uniform(-1, 1)
    image = ground + slope + contrast * np.maximum(ink, 0.5 * other) + draw.normal(0, 0.03, (SIZE, SIZE))
    return (255 * image.clip(0, 1)).round().astype(np.uint8)


def place(
    character: str, fonts: list[ImageFont.FreeTypeFont], draw: np.random.Generator, *, shift: np.ndarray
) -> np.ndarray:
    """The ink of a character (SIZE, SIZE) in [0, 1], its centre moved by `shift` of the image's width and height."""
    canvas = Image.new("L", (CANVAS, CANVAS))
    font = fonts[int(draw.integers(len(fonts)))]
    ImageDraw.Draw(canvas).text((CANVAS / 2, CANVAS / 2), character, fill=255, font=font, anchor="mm")
    angle, shear, scale = draw.uniform(-0.2, 0.2), draw.uniform(-0.2, 0.2), draw.uniform(0.85, 1.15)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inverse = turn @ np.array([[1.0, shear], [0.0, 1.0]]) / scale  # from a pixel of the image to one of the canvas
    offset = CANVAS / 2 - inverse @ ((shift + 0.5) * CANVAS)
    matrix = (*inverse[0], offset[0], *inverse[1], offset[1])
    moved = canvas.transform(canvas.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    blurred = moved.filter(ImageFilter.GaussianBlur(draw.uniform(0, 2)))
    return np.asarray(blurred.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=float) / 255


if __name__ == "__main__":
    main()
