"""Searches that end at the first success: lanes, broken samples leave, survivors are packed together again.

A lane is one attempt on one sample: a target class, or a restart. All lanes of a batch step together. Every few steps
those that claim a success are judged; a sample that is broken takes all its lanes out of the batch. Success is
absorbing, so the verdict is that of running every lane to its end.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from worstclass.rng import PerSample, Randomness
from worstclass.types import Classifier, Norm

Lanes = dict[str, Tensor]
"""Tensors with one row a lane. Always there: `sample` (its row in the batch), `found`, and `fooling`, the image."""

REPACK_EVERY = 5  # steps between two looks at what has been found: each is a host sync


Look = Callable[[float, int], None]
"""Told now and then which share of an attack is done, and how many samples still stand."""


class Broken(NamedTuple):
    """For each sample the image that fooled the model, or x itself, and whether there is one, (B,)."""

    x_adv: Tensor
    found: Tensor


class Breaker(Protocol):
    """An attack that looks for one fooling image a sample and stops there."""

    @property
    def eps(self) -> float: ...

    @property
    def norm(self) -> Norm: ...

    def __call__(
        self, model: Classifier, x: Tensor, y: Tensor, *, margin: Tensor | None = None, generator: Randomness = None
    ) -> Tensor: ...

    def breaks(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        margin: Tensor | None = None,
        generator: Randomness = None,
        judge: Classifier | None = None,
        rows: int | None = None,
        look: Look | None = None,
    ) -> Broken:
        """Search with `model`; what counts is what `judge` (the model itself, if left out) gets wrong. A forward has
        at most `rows` images (the batch's own number, if left out): targets share it where they fit."""
        ...

    def work(self, num_classes: int) -> int:
        """Forward and backward passes of a sample that withstands."""
        ...


class Hunt:
    """The samples of a batch and what has been found on them. `judge` decides: the model, in strict float32."""

    def __init__(
        self, x: Tensor, y: Tensor, judge: Classifier, rows: int | None = None, look: Look | None = None
    ) -> None:
        self.x, self.y, self.judge, self.look = x, y, judge, look
        self.rows = max(rows or 0, len(x))
        self.x_adv = x.clone()
        self.logits = predict(judge, x)
        self.found = self.logits.argmax(1) != y  # wrong as it is: nothing to search

    def standing(self) -> Tensor:
        """Rows of the samples not broken yet."""
        return (~self.found).nonzero().squeeze(1)

    def settle(self, lanes: Lanes) -> Lanes:
        """Judge the claims, record those that hold, and return the lanes of samples that still stand."""
        claims = lanes["found"].nonzero().squeeze(1)
        if len(claims) == 0:
            return lanes
        images, sample = lanes["fooling"][claims], lanes["sample"][claims]
        holds = predict(self.judge, images).argmax(1) != self.y[sample]
        lanes["found"][claims] = False
        images, sample = images[holds].flip(0), sample[holds].flip(0)
        for image, row in zip(images, sample.tolist(), strict=True):  # flipped: of two lanes, the first is kept
            self.x_adv[row] = image
        self.found[sample] = True
        return select(lanes, ~self.found[lanes["sample"]])

    def attempts(
        self, radius: Tensor | float, targets: Tensor | None, restarts: int
    ) -> Iterator[tuple[Lanes, range, tuple[float, float]]]:
        """Lanes for every target and restart of the samples that stand, which attempts these are, and their share.

        Attempts number `restarts` for each target in turn. As many as fit into the rows of a forward run side by side.
        """
        count = restarts if targets is None else restarts * targets.shape[1]
        done = 0
        while done < count and len(standing := self.standing()):
            width = max(1, min(count - done, self.rows // len(standing)))
            turns = range(done, done + width)
            lanes = new_lanes(self.x, self.y, standing.repeat_interleave(width), radius)
            if targets is not None:
                lanes["target"] = targets[standing][:, [turn // restarts for turn in turns]].flatten()
            yield lanes, turns, (done / count, (done + width) / count)
            done += width

    def run(self, lanes: Lanes, step: Callable[[Lanes, int], None], steps: int, share: tuple[float, float]) -> None:
        """Take all steps with lanes that shrink. `step` writes into the lanes it is given; `share` is the part of the
        whole attack, from and to, that these steps are."""
        for number in range(1, steps + 1):
            if len(lanes["sample"]) == 0:
                return
            step(lanes, number - 1)
            if number % REPACK_EVERY == 0 or number == steps:
                lanes = self.settle(lanes)
                if self.look:
                    self.look(share[0] + (share[1] - share[0]) * number / steps, int((~self.found).sum()))

    def result(self) -> Broken:
        return Broken(self.x_adv, self.found)


def select(lanes: Lanes, keep: Tensor) -> Lanes:
    """The lanes of a mask."""
    rows = keep.nonzero().squeeze(1)
    return lanes if len(rows) == len(keep) else {name: values[rows] for name, values in lanes.items()}


@torch.no_grad()
def predict(model: Classifier, x: Tensor) -> Tensor:
    """Logits, without a graph."""
    logits: Tensor = model(x)
    return logits


def claim(lanes: Lanes, images: Tensor, fools: Tensor) -> None:
    """Note the first image of each lane that fools the model."""
    new = fools & ~lanes["found"]
    lanes["fooling"] = torch.where(new.view(-1, *[1] * (images.dim() - 1)), images, lanes["fooling"])
    lanes["found"] = lanes["found"] | new


def new_lanes(x: Tensor, y: Tensor, sample: Tensor, radius: Tensor | float) -> Lanes:
    """A lane for each entry of `sample`, with what every search needs."""
    start = x[sample]
    rows = radius[sample] if isinstance(radius, Tensor) else torch.full_like(start[:, :1, :1, :1], radius)
    found = torch.zeros_like(sample, dtype=torch.bool)
    return {"sample": sample, "x": start, "y": y[sample], "radius": rows, "fooling": start, "found": found}


def target_ranks(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The `count` likeliest wrong classes of each sample, in order, (B, min(count, K - 1))."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.topk(min(count, logits.shape[1] - 1), dim=1).indices


def side_by_side(lanes: Lanes, source: PerSample, attempts: Iterable[Callable[[Tensor, PerSample], Tensor]]) -> Tensor:
    """One draw for each attempt of each sample, in the order of the lanes: a sample draws for its attempts in turn."""
    each = list(attempts)
    x = lanes["x"][:: len(each)]
    own = source.select(lanes["sample"][:: len(each)].tolist())
    return torch.stack([draw(x, own) for draw in each], dim=1).flatten(0, 1)


def own_sources(source: Randomness, size: int) -> PerSample:
    """A generator for each sample: as given, or seeded by the one given, or of a fixed seed."""
    if isinstance(source, PerSample):
        return source
    if source is None:
        return PerSample(0, "default", range(size))
    drawn = torch.randint(2**62, (), generator=source, device=source.device)
    return PerSample(int(drawn), "lanes", range(size))
