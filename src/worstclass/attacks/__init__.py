"""Attacks: hyper-parameters in the object, data in the call."""

import re
from collections.abc import Callable

from worstclass.attacks.pgd import PGD, Norm
from worstclass.errors import UserError, unknown

__all__ = ["ATTACKS", "PGD", "cw", "fgsm", "make_attack", "pgd", "trades_attack"]

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


ATTACKS: dict[str, Callable[..., PGD]] = {"fgsm": fgsm, "pgd": pgd, "cw": cw}
"""Attacks by name; `pgd-20` and `cw-30` carry their number of steps."""


def make_attack(name: str, *, eps: float, norm: Norm = "linf") -> PGD:
    """The attack called `fgsm`, `pgd-N`, `cw` or `cw-N`."""
    match = re.fullmatch(r"([a-z]+)(?:-(\d+))?", name)
    family, steps = (match[1], match[2]) if match else (name, None)
    if family not in ATTACKS or (family == "fgsm" and steps):
        raise unknown("attack", name, ["natural", "fgsm", "pgd-20", "pgd-100", "pgd-N", "cw", "cw-N"])
    if family == "pgd" and steps is None:
        raise UserError("attack 'pgd' needs its number of steps: pgd-20, pgd-100, pgd-N.")
    if steps is None:
        return ATTACKS[family](eps=eps, norm=norm)
    if int(steps) == 0:
        raise UserError(f"attack '{name}' needs at least one step.")
    return ATTACKS[family](int(steps), eps=eps, norm=norm)
