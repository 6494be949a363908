"""Searches that end at the first success: lanes, broken samples leave, survivors are packed together again.

A lane is one attempt on one sample: a target class, or a restart. All lanes of a batch step together. Every few steps
those that claim a success are judged; the lanes of broken samples leave once they are a share of the batch. Success is
absorbing, so where search and judge are one model, the verdict is that of running every lane to its end.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from worstclass.attacks.ball import column
from worstclass.errors import UserError
from worstclass.inputs import check_answer
from worstclass.rng import PerSample
from worstclass.types import Classifier

Lanes = dict[str, Tensor]
"""Tensors with one row a lane. Always there: `sample` (its row in the batch), `found`, and `fooling`, the image."""

LOOK_EVERY = 5  # steps between two looks at what has been found: each is a host sync
WORTH_PACKING = 1 / 32  # of the lanes: for each size of a batch a GPU plans its convolutions anew


Look = Callable[[float, int], None]
"""Told now and then which share of an attack is done, and how many samples still stand."""


class Hunt:
    """The samples of a batch, with the radius and the randomness of each, and what has been found on them.

    `judge` decides what counts: the model, in strict float32. A forward of a search has at most `rows` lanes.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        judge: Classifier,
        radius: Tensor,
        source: PerSample,
        rows: int,
        look: Look | None,
    ) -> None:
        self.x, self.y, self.judge, self.radius, self.source, self.look = x, y, judge, radius, source, look
        self.rows = max(rows, len(x))
        self.x_adv = x.clone()
        self.logits = predict(judge, x)
        check_answer(self.logits, y)
        self.predicted = self.logits.argmax(1)
        self.found = self.predicted != y  # wrong as it is: nothing to search

    def standing(self) -> Tensor:
        """Rows of the samples not broken yet."""
        return (~self.found).nonzero().squeeze(1)

    def settle(self, lanes: Lanes) -> Lanes:
        """Judge the claims, record those that hold, and return the lanes that go on: those of samples that still stand,
        and as long as they are few, of others."""
        claims = (lanes["found"] & ~self.found[lanes["sample"]]).nonzero().squeeze(1)
        if len(claims) == 0:
            return lanes
        images, sample = lanes["fooling"][claims], lanes["sample"][claims]
        logits = predict(self.judge, filled_up(images))[: len(images)]
        predicted = refuse_nan(logits, "attacked images").argmax(1)
        holds = predicted != self.y[sample]
        lanes["found"][claims] = False
        images, sample, predicted = images[holds], sample[holds], predicted[holds]
        for number, row in reversed(list(enumerate(sample.tolist()))):  # of two lanes, the first is kept
            self.x_adv[row], self.predicted[row] = images[number], predicted[number]
        self.found[sample] = True
        stands = ~self.found[lanes["sample"]]
        worth_it = int((~stands).sum()) >= WORTH_PACKING * len(stands)
        return select(lanes, stands) if worth_it else lanes

    def new_lanes(self, sample: Tensor) -> Lanes:
        """A lane for each entry of `sample`, with what every search needs."""
        x = self.x[sample]
        found = torch.zeros_like(sample, dtype=torch.bool)
        return {
            "sample": sample,
            "x": x,
            "y": self.y[sample],
            "radius": self.radius[sample],
            "fooling": x,
            "found": found,
        }

    def draw(self, lanes: Lanes, draws: Sequence[Callable[[Tensor, PerSample], Tensor]]) -> Tensor:
        """One draw for each attempt of each sample, in the order of the lanes: a sample draws for its attempts in turn,
        whether they run side by side or one after another."""
        x = lanes["x"][:: len(draws)]
        own = self.source.select(lanes["sample"][:: len(draws)].tolist())
        return torch.stack([draw(x, own) for draw in draws], dim=1).flatten(0, 1)

    def attempts(self, targets: Tensor | None, restarts: int) -> Iterator[tuple[Lanes, range, tuple[float, float]]]:
        """Lanes for every target and restart of the samples that stand, which attempts these are, and their share.

        Attempts number `restarts` for each target in turn. As many as fit into the rows of a forward run side by side.
        """
        count = restarts if targets is None else restarts * targets.shape[1]
        done = 0
        while done < count and len(standing := self.standing()):
            width = max(1, min(count - done, self.rows // len(standing)))
            turns = range(done, done + width)
            lanes = self.new_lanes(standing.repeat_interleave(width))
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
            if number % LOOK_EVERY == 0 or number == steps:
                lanes = self.settle(lanes)
                if self.look:
                    self.look(share[0] + (share[1] - share[0]) * number / steps, int((~self.found).sum()))


def select(lanes: Lanes, keep: Tensor) -> Lanes:
    """The lanes of a mask."""
    rows = keep.nonzero().squeeze(1)
    return {name: values[rows] for name, values in lanes.items()}


def filled_up(images: Tensor) -> Tensor:
    """The images, up to an eighth of them twice: of a few sizes and not of any."""
    unit = 1 << max(len(images).bit_length() - 4, 0)
    return torch.cat((images, images[: -len(images) % unit]))


def refuse_nan(logits: Tensor, where: str) -> Tensor:
    """The logits, unless one of them is NaN: it has an argmax too, and would pass for a prediction."""
    if bool(logits.isnan().any()):
        raise UserError(f"the model returns NaN on {where}: nothing can be measured.")
    return logits


@torch.no_grad()
def predict(model: Classifier, x: Tensor) -> Tensor:
    """Logits, without a graph."""
    logits: Tensor = model(x)
    return logits


def claim(lanes: Lanes, images: Tensor, fools: Tensor) -> None:
    """Note images that fool the model; the latest of a lane is the one that is judged."""
    lanes["fooling"] = torch.where(column(fools, images), images, lanes["fooling"])
    lanes["found"] = lanes["found"] | fools


def target_ranks(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The `count` likeliest wrong classes of each sample, in order, (B, min(count, K - 1))."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.topk(min(count, logits.shape[1] - 1), dim=1).indices
