"""Searches that end at the first success: an active set of attempts; those on broken samples leave, the rest is packed
together again.

A row is one attempt on one sample: a target class, or a restart. All rows of a batch step together. Every few steps
those that claim a success are judged; the attempts on broken samples leave once they are a share of the batch. Success
is absorbing, so where search and judge are one model, the verdict is that of running every attempt to its end.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from worstclass.attacks.ball import column
from worstclass.errors import UserError
from worstclass.inputs.images import check_answer
from worstclass.rng import PerSample
from worstclass.types import Classifier

ActiveSet = dict[str, Tensor]
"""Tensors with one row an attempt. Always there: `sample` (its row in the batch), `found`, and `fooling`, the image."""

LOOK_EVERY = 5  # steps between two looks at what has been found: each is a host sync
WORTH_PACKING = 1 / 32  # of the attempts: for each size of a batch a GPU plans its convolutions anew


Look = Callable[[float, int], None]
"""Told now and then which share of an attack is done, and how many samples still stand."""


class Search:
    """The samples of a batch, with the radius and the randomness of each, and what has been found on them.

    `judge` decides what counts: the model, in strict float32. A forward of a search has at most `rows` active.
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

    def settle(self, active: ActiveSet) -> ActiveSet:
        """Judge the claims, record those that hold, and return the attempts that go on: those of samples that still
        stand, and as long as they are few, of others."""
        claims = (active["found"] & ~self.found[active["sample"]]).nonzero().squeeze(1)
        if len(claims) == 0:
            return active
        images, sample = active["fooling"][claims], active["sample"][claims]
        logits = predict(self.judge, filled_up(images))[: len(images)]
        predicted = refuse_nan(logits, "attacked images").argmax(1)
        holds = predicted != self.y[sample]
        active["found"][claims] = False
        images, sample, predicted = images[holds], sample[holds], predicted[holds]
        for number, row in reversed(list(enumerate(sample.tolist()))):  # of two attempts, the first is kept
            self.x_adv[row], self.predicted[row] = images[number], predicted[number]
        self.found[sample] = True
        stands = ~self.found[active["sample"]]
        worth_it = int((~stands).sum()) >= WORTH_PACKING * len(stands)
        return select(active, stands) if worth_it else active

    def activate(self, sample: Tensor) -> ActiveSet:
        """An attempt for each entry of `sample`, with what every search needs."""
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

    def draw(self, active: ActiveSet, draws: Sequence[Callable[[Tensor, PerSample], Tensor]]) -> Tensor:
        """One draw for each attempt of each sample, in the order of the set: a sample draws for its attempts in
        turn, whether they run side by side or one after another."""
        x = active["x"][:: len(draws)]
        own = self.source.select(active["sample"][:: len(draws)].tolist())
        return torch.stack([draw(x, own) for draw in draws], dim=1).flatten(0, 1)

    def attempts(self, targets: Tensor | None, restarts: int) -> Iterator[tuple[ActiveSet, range, tuple[float, float]]]:
        """ActiveSet for every target and restart of the samples that stand, which attempts these are, and their share.

        Attempts number `restarts` for each target in turn. As many as fit into the rows of a forward run side by side.
        """
        count = restarts if targets is None else restarts * targets.shape[1]
        done = 0
        while done < count and len(standing := self.standing()):
            width = max(1, min(count - done, self.rows // len(standing)))
            turns = range(done, done + width)
            active = self.activate(standing.repeat_interleave(width))
            if targets is not None:
                active["target"] = targets[standing][:, [turn // restarts for turn in turns]].flatten()
            yield active, turns, (done / count, (done + width) / count)
            done += width

    def run(
        self, active: ActiveSet, step: Callable[[ActiveSet, int], None], steps: int, share: tuple[float, float]
    ) -> None:
        """Take all steps with a set that shrinks. `step` writes into the set it is given; `share` is the part of the
        whole attack, from and to, that these steps are."""
        for number in range(1, steps + 1):
            if len(active["sample"]) == 0:
                return
            step(active, number - 1)
            if number % LOOK_EVERY == 0 or number == steps:
                active = self.settle(active)
                if self.look:
                    self.look(share[0] + (share[1] - share[0]) * number / steps, int((~self.found).sum()))


def select(active: ActiveSet, keep: Tensor) -> ActiveSet:
    """The attempts of a mask."""
    rows = keep.nonzero().squeeze(1)
    return {name: values[rows] for name, values in active.items()}


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


def claim(active: ActiveSet, images: Tensor, fools: Tensor, rows: Tensor | None = None) -> None:
    """Note images that fool the model; the latest of an attempt is the one that is judged."""
    active["fooling"] = replaced(active["fooling"], images, fools, rows)
    active["found"] = replaced(active["found"], fools, fools, rows)


def replaced(old: Tensor, new: Tensor, chosen: Tensor, rows: Tensor | None = None) -> Tensor:
    """`old` with the `chosen` entries of `new`, a mask; `new` holds the attempts `rows`, or all.

    On a CPU nothing is copied where nothing is chosen; on a GPU, finding out would make the host wait.
    """
    if old.is_cuda:
        assert rows is None
        return torch.where(column(chosen, new), new, old)
    some = chosen.nonzero().squeeze(1)
    if len(some) == 0:
        return old
    return old.index_copy(0, some if rows is None else rows[some], new[some])


def target_ranks(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """The `count` likeliest wrong classes of each sample, in order, (B, min(count, K - 1))."""
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.topk(min(count, logits.shape[1] - 1), dim=1).indices
