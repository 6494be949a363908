"""AutoAttack: several attacks in turn, each on the samples that still stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from worstclass.attacks.active_set import predict
from worstclass.attacks.apgd import APGD
from worstclass.attacks.fab import FAB
from worstclass.attacks.first_success import FirstSuccess, own_sources
from worstclass.attacks.square import Square
from worstclass.errors import UserError, unknown
from worstclass.inputs.images import check_answer, check_batch
from worstclass.rng import Randomness
from worstclass.types import Classifier, Norm

Version = Literal["standard", "plus", "rand"]
STANDING, NATURAL_ERROR = -1, -2  # in `Elimination.by`, beside the number of the attack


class Elimination(NamedTuple):
    """The image that broke each sample (x where none did), and which attack it was, (B,)."""

    x_adv: Tensor
    by: Tensor


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Attacks in turn, from the clean image each time; a sample that is broken is not attacked again."""

    attacks: Mapping[str, FirstSuccess]

    def __post_init__(self) -> None:
        if not self.attacks:
            raise UserError("an ensemble needs at least one attack.")
        if len({(attack.eps, attack.norm) for attack in self.attacks.values()}) > 1:
            raise UserError("the attacks of an ensemble share one ball: one eps, one norm.")

    @property
    def eps(self) -> float:
        return next(iter(self.attacks.values())).eps

    @property
    def norm(self) -> Norm:
        return next(iter(self.attacks.values())).norm

    def __call__(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        return self.eliminate(model, x, y, radius_scale=radius_scale, generator=generator).x_adv

    def eliminate(
        self,
        model: Classifier,
        x: Tensor,
        y: Tensor,
        *,
        radius_scale: Tensor | None = None,
        generator: Randomness = None,
        judge: Classifier | None = None,
    ) -> Elimination:
        """Run all attacks. `by` has the number of the attack that broke a sample, -1 where it stands, and -2 where the
        model is wrong without any."""
        y = check_batch(x, y, radius_scale, self.eps, self.norm)
        source = own_sources(generator, len(x))
        x_adv = x.clone()
        logits = predict(judge or model, x)
        check_answer(logits, y)
        wrong = logits.argmax(1) != y
        by = torch.where(wrong, NATURAL_ERROR, STANDING)
        for number, attack in enumerate(self.attacks.values()):
            rows = (by == STANDING).nonzero().squeeze(1)
            if len(rows) == 0:
                break
            radii = None if radius_scale is None else radius_scale[rows]
            own = source.select(rows.tolist())
            broken = attack.breaks(model, x[rows], y[rows], radius_scale=radii, generator=own, judge=judge)
            hit = rows[broken.found]
            x_adv[hit], by[hit] = broken.x_adv[broken.found], number
        return Elimination(x_adv, by)


def autoattack(*, eps: float, norm: Norm = "linf", version: Version = "standard") -> Ensemble:
    """AutoAttack (Croce and Hein, 2020): `standard`, `plus` (six attacks, restarts), `rand` (for random models)."""
    apgd_t, fab_t = APGD(eps=eps, norm=norm, loss="targeted-dlr"), FAB(eps=eps, norm=norm)
    square = Square(eps=eps, norm=norm)
    if version == "standard":
        return Ensemble(
            attacks={"apgd-ce": APGD(eps=eps, norm=norm), "apgd-t": apgd_t, "fab-t": fab_t, "square": square}
        )
    if version == "plus":
        return Ensemble(
            attacks={
                "apgd-ce": APGD(eps=eps, norm=norm, restarts=5),
                "apgd-dlr": APGD(eps=eps, norm=norm, loss="dlr", restarts=5),
                "fab": FAB(eps=eps, norm=norm, targets=0, restarts=5),
                "square": square,
                "apgd-t": apgd_t,
                "fab-t": fab_t,
            }
        )
    if version == "rand":
        return Ensemble(
            attacks={
                "apgd-ce": APGD(eps=eps, norm=norm, eot=20),
                "apgd-dlr": APGD(eps=eps, norm=norm, loss="dlr", eot=20),
            }
        )
    raise unknown("version of autoattack", version, ("standard", "plus", "rand"))
