"""Attacks: hyper-parameters in the object, data in the call."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

from worstclass.attacks.apgd import APGD
from worstclass.attacks.ensemble import Ensemble, autoattack
from worstclass.attacks.fab import FAB
from worstclass.attacks.first_success import Broken, FirstSuccess
from worstclass.attacks.pgd import PGD
from worstclass.attacks.square import Square
from worstclass.errors import choose
from worstclass.inputs.names import Norm, attack_steps
from worstclass.inputs.radius import check_radius, trades_step
from worstclass.types import BallAttack

__all__ = [
    "APGD",
    "ATTACKS",
    "FAB",
    "PGD",
    "Broken",
    "Ensemble",
    "FirstSuccess",
    "Square",
    "autoattack",
    "cw",
    "fgsm",
    "make_attack",
    "pgd",
    "step_ratio",
    "trades_attack",
    "validation_cw",
    "validation_pgd",
]

PAPER_STEPS, PAPER_RATIO = 20, 0.003 / (8 / 255)  # PGD-20 and longer step by 0.003 at eps = 8/255, scaled with eps


def fgsm(*, eps: float, norm: Norm = "linf") -> PGD:
    """One step of the whole radius from the clean image."""
    return PGD(eps=eps, steps=1, step_size=eps, norm=norm, start="none")


def step_ratio(steps: int) -> float:
    """The step of an attack of so many steps, as a share of eps.

    From 20 steps on the paper's 0.0956: PGD-20, CW-30 and PGD-100 are those of the tables. So small a step needs 20 of
    them to cross the ball, so fewer steps are longer: 2 / N, with which N steps lead from any start to any point.
    """
    return PAPER_RATIO if steps >= PAPER_STEPS else 2 / max(steps, 1)


def pgd(steps: int, *, eps: float, norm: Norm = "linf") -> PGD:
    """PGD-N of the tables: cross-entropy, uniform start, a step of `step_ratio(N)` * eps."""
    return PGD(eps=eps, steps=steps, step_size=step_ratio(steps) * check_radius(eps, norm), norm=norm)


def cw(steps: int = 30, *, eps: float, norm: Norm = "linf") -> PGD:
    """PGD on Carlini-Wagner's margin loss, 30 steps; a step of `step_ratio(N)` * eps."""
    return PGD(eps=eps, steps=steps, step_size=step_ratio(steps) * check_radius(eps, norm), norm=norm, loss="cw")


def validation_pgd(*, eps: float, norm: Norm = "linf") -> PGD:
    """What training validates with: PGD on cross-entropy, 20 steps of eps / 4. Stronger than `pgd-20`, and not it."""
    return PGD(eps=eps, steps=20, step_size=check_radius(eps, norm) / 4, norm=norm)


def validation_cw(*, eps: float, norm: Norm = "linf") -> PGD:
    """The same steps on Carlini-Wagner's margin loss: nearer to AutoAttack, and its gap differs less by class."""
    return replace(validation_pgd(eps=eps, norm=norm), loss="cw")


def trades_attack(*, eps: float, steps: int = 10, step_size: float | None = None, norm: Norm = "linf") -> PGD:
    """The inner attack of TRADES: ascend KL from x + 0.001 * N(0, 1), by steps of `trades_step(eps)` unless given."""
    step = trades_step(check_radius(eps, norm)) if step_size is None else step_size
    return PGD(eps=eps, steps=steps, step_size=step, norm=norm, loss="kl", start="gaussian")


ATTACKS: dict[str, Callable[..., BallAttack]] = {
    "fgsm": fgsm,
    "pgd": pgd,
    "cw": cw,
    "validation-pgd": validation_pgd,
    "validation-cw": validation_cw,
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
    """The attack of that name: `fgsm`, `pgd-N`, `cw`, `cw-N`, `validation-pgd`, `autoattack`, or a part of that."""
    choose("norm", norm, get_args(Norm))
    family, steps = attack_steps(name)
    if steps is not None:
        return ATTACKS[family](steps, eps=eps, norm=norm)
    return ATTACKS[family](eps=eps, norm=norm)
