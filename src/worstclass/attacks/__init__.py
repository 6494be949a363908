"""Attacks: hyper-parameters in the object, data in the call."""

from collections.abc import Callable
from functools import partial

from worstclass.attacks.apgd import APGD
from worstclass.attacks.breaker import Breaker, Broken
from worstclass.attacks.ensemble import Ensemble, autoattack
from worstclass.attacks.fab import FAB
from worstclass.attacks.pgd import PGD
from worstclass.attacks.square import Square
from worstclass.names import Norm, attack_steps
from worstclass.types import BallAttack

__all__ = [
    "APGD",
    "ATTACKS",
    "FAB",
    "PGD",
    "Breaker",
    "Broken",
    "Ensemble",
    "Square",
    "autoattack",
    "cw",
    "fgsm",
    "make_attack",
    "pgd",
    "trades_attack",
]

_STEP_RATIO = 0.003 / (8 / 255)  # the paper's step of 0.003 at eps = 8/255, scaled with eps


def fgsm(*, eps: float, norm: Norm = "linf") -> PGD:
    """One step of the whole radius from the clean image."""
    return PGD(eps=eps, steps=1, step_size=eps, norm=norm, start="none")


def pgd(steps: int, *, eps: float, norm: Norm = "linf") -> PGD:
    """PGD-N of the tables: cross-entropy, step 0.003 at eps 8/255 and in proportion, uniform start."""
    return PGD(eps=eps, steps=steps, step_size=_STEP_RATIO * eps, norm=norm)


def cw(steps: int = 30, *, eps: float, norm: Norm = "linf") -> PGD:
    """PGD on Carlini-Wagner's margin loss, 30 steps."""
    return PGD(eps=eps, steps=steps, step_size=_STEP_RATIO * eps, norm=norm, loss="cw")


def trades_attack(*, eps: float, steps: int = 10, step_size: float = 0.007) -> PGD:
    """The inner attack of TRADES: ascend KL from x + 0.001 * N(0, 1)."""
    return PGD(eps=eps, steps=steps, step_size=step_size, loss="kl", start="gaussian")


ATTACKS: dict[str, Callable[..., BallAttack]] = {
    "fgsm": fgsm,
    "pgd": pgd,
    "cw": cw,
    "apgd-ce": APGD,
    "apgd-dlr": partial(APGD, loss="dlr"),
    "apgd-t": partial(APGD, loss="targeted-dlr"),
    "fab": partial(FAB, targets=0),
    "fab-t": FAB,
    "square": Square,
    "autoattack": autoattack,
    "autoattack-plus": partial(autoattack, version="plus"),
    "autoattack-rand": partial(autoattack, version="rand"),
}
"""Attacks by family; `names.ATTACK_NAMES` is what a user writes: `pgd-20` and `cw-30` carry their number of steps."""


def make_attack(name: str, *, eps: float, norm: Norm = "linf") -> BallAttack:
    """The attack of that name: `fgsm`, `pgd-N`, `cw`, `cw-N`, `autoattack`, or one of AutoAttack's parts."""
    family, steps = attack_steps(name)
    if steps is not None:
        return ATTACKS[family](steps, eps=eps, norm=norm)
    return ATTACKS[family](eps=eps, norm=norm)
