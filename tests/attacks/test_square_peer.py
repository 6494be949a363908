"""Square against the public one, query by query, with the same draws; and that L2 signs are each sample's own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pyautoattack.square import SquareAttack
from torch import Tensor, nn

from worstclass.attacks import Square, square
from worstclass.attacks.square import Patch
from worstclass.rng import PerSample
from worstclass.types import Norm

SHAPE = (3, 10, 10)  # of a multiple of 5: the public start fails on others
QUERIES = 40
PEER_NORM = {"linf": "Linf", "l2": "L2"}


class Firm(nn.Module):
    """A linear model of two classes that is never fooled, so that every query of every sample is asked."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(2, 3 * 10 * 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.weight, self.seen = nn.Parameter(weight), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return x.flatten(1) @ self.weight.T + torch.tensor([1e4, 0.0], dtype=x.dtype)


def images(size: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(size, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.zeros(size, dtype=torch.int64)


class Scripted(SquareAttack):  # type: ignore[misc]
    """The public attack, with draws that were written down."""

    def __init__(
        self, *args: Any, starts: list[Tensor], turns: list[bool], patches: list[Patch], signs: Tensor
    ) -> None:
        super().__init__(*args, norm="L2", eps=1.0, n_queries=QUERIES, resc_schedule=False, device="cpu")
        self.starts, self.turns, self.patches, self.signs = starts, turns, patches, signs
        self.places = [
            torch.tensor([part[axis].start])
            for patch in patches
            for part in (patch.window, patch.twin)
            for axis in (2, 3)
        ]
        self.asked = 0

    def random_choice(self, shape: list[int]) -> Tensor:
        if self.starts:
            return self.starts.pop(0)
        self.asked += 1
        return self.signs[self.asked - 1, :, :, None, None].double()

    def random_int(self, low: int = 0, high: int = 1, shape: Any = None) -> Tensor:
        return self.places.pop(0)

    def eta(self, side: int) -> Tensor:
        turned = self.turns.pop(0)
        return square._bump(side, turned).double()


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The public code makes float32 tensors here and there; in float64 two right programs agree to rounding."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
def test_l2_queries_are_those_of_the_public_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same images are tried at each of 40 queries, to 1e-9 in float64, from the same draws."""
    x, y = images(6)
    starts, turns, patches, signs = list[Tensor](), list[bool](), list[Patch](), list[Tensor]()
    patch_of, signs_of, start_of, bump_like = Square._patch, Square._signs, square._random_signs, square._bump_like

    def keep(store: list[Any], function: Any) -> Any:
        def kept(*args: Any) -> Any:
            store.append(function(*args))
            return store[-1]

        return kept

    def bump(x: Tensor, side: int, turned: bool) -> Tensor:
        turns.append(turned)
        return bump_like(x, side, turned)

    monkeypatch.setattr(Square, "_patch", keep(patches, patch_of))
    monkeypatch.setattr(Square, "_signs", keep(signs, signs_of))
    monkeypatch.setattr(square, "_random_signs", keep(starts, start_of))
    monkeypatch.setattr(square, "_bump_like", bump)
    ours, theirs = Firm(), Firm()
    Square(eps=1.0, norm="l2", queries=QUERIES).breaks(ours, x, y, generator=PerSample(0, "s", range(6)), judge=Firm())
    peer = Scripted(theirs, starts=starts, turns=turns, patches=patches, signs=signs[0])
    peer.init_hyperparam(x)
    peer.attack_single_run(x, y)
    assert len(ours.seen) == len(theirs.seen) == 1 + QUERIES
    for own, other in zip(ours.seen, theirs.seen, strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-9)
    assert (ours.seen[-1] - ours.seen[0]).abs().max() > 0.01


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_signs_are_shared_where_the_public_one_shares_them(norm: Norm) -> None:
    """Of one image many times over, a patch's first try is the same for all in L-inf, and each sample's own in L2."""
    x, y = images(1)
    x, y = x.expand(32, -1, -1, -1), y.expand(32)
    drawn = Square(eps=0.1, norm=norm, queries=QUERIES)._signs(
        x, torch.arange(32), PerSample(0, "s", range(32)), torch.Generator().manual_seed(0)
    )
    theirs = list[tuple[int, ...]]()

    class Watched(SquareAttack):  # type: ignore[misc]
        def random_choice(self, shape: list[int]) -> Tensor:
            theirs.append(tuple(shape))
            signs: Tensor = super().random_choice(shape)
            return signs

    peer = Watched(Firm(), norm=PEER_NORM[norm], eps=0.1, n_queries=1, resc_schedule=False, device="cpu")
    peer.init_hyperparam(x)
    with torch.random.fork_rng():
        peer.attack_single_run(x, y)
    assert (theirs[-1][0] == 32) == (drawn.dim() == 3) == (norm == "l2")
    assert set(drawn.unique().tolist()) == {-1, 1}
    if norm == "l2":
        assert (drawn[:, 1:] != drawn[:, :1]).any(0).any(1).all()  # nobody follows the first sample


def test_l2_does_not_depend_on_the_batch() -> None:
    """A sample tries the same images alone and among others."""
    x, y = images(5)
    weak = nn.Sequential(nn.Flatten(), nn.Linear(3 * 10 * 10, 2).double())
    with torch.no_grad():
        y = weak(x).argmax(1)
    attack = Square(eps=2.0, norm="l2", queries=30)
    whole = attack(weak, x, y, generator=PerSample(3, "s", range(5)))
    for row in range(5):
        alone = attack(weak, x[row : row + 1], y[row : row + 1], generator=PerSample(3, "s", [row]))
        assert torch.allclose(alone, whole[row : row + 1], rtol=0, atol=1e-12)
