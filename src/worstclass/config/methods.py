"""The methods by name: what each is called in tables, and the class strategy that it trains with.

A method of your own is one more entry of `METHODS` (docs/extending.md); nothing else knows them by name. Strategies are
imported when one is made: the names alone need no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from worstclass.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from worstclass.types import ClassStrategy

Settings: TypeAlias = Any
"""The keys of a recipe, as `Config` has them."""

ObjectiveName = Literal["natural", "pgd-at", "trades", "bat"]


@dataclass(frozen=True)
class Method:
    """A way to train: its name in tables, its strategy for training images of these counts (K,), what of its settings
    belongs to the name, the keys of a recipe that are its own, and its base loss where the recipe names none.

    `balanced`: how it makes classes weigh alike before it has learned anything, or nearly so, however many images each
    has; None if it does not. `aims`: its strategy has targets, which not every objective can aim at. `hard_labels`: its
    `reduce` has a loss of its own on the labels, which neither smoothing nor self-distillation reaches.
    """

    title: str
    make: Callable[[Settings, Tensor], ClassStrategy]
    detail: Callable[[Settings], str] = lambda config: ""
    keys: tuple[str, ...] = ()
    objective: ObjectiveName = "trades"
    aims: bool = False
    hard_labels: bool = False
    balanced: Callable[[Settings], Literal["weight", "sample"] | None] = lambda config: None


def check_method(name: str) -> str:
    """The name, if there is a method of that name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return name


def _uniform(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import uniform

    return uniform(len(class_counts))


def _wat(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import WAT

    return WAT(class_counts, eta=config.eta, variant=config.variant)


def _frl(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import FRL

    margin_rate = config.frl_margin_rate if config.method == "frl-rwrm" else 0.0
    return FRL(len(class_counts), tau=config.frl_tau, rate=config.frl_rate, margin_rate=margin_rate)


def _csl(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import CSL

    return CSL(len(class_counts), rate=config.csl_rate)


def _fixed(config: Settings, class_counts: Tensor) -> ClassStrategy:
    import torch

    from worstclass.strategies import Fixed, focus

    num_classes, sample = len(class_counts), config.fixed_mode == "sample"
    if config.class_weights == "balanced":
        even = torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
        return Fixed(class_counts, even, sample=sample)
    if config.class_weights is not None:
        if len(config.class_weights) != num_classes:
            raise UserError(f"class_weights has {len(config.class_weights)} numbers, the data {num_classes} classes.")
        return Fixed(class_counts, torch.tensor(config.class_weights, dtype=torch.float64), sample=sample)
    assert config.focus_class is not None
    assert config.focus_weight is not None
    if config.focus_class >= num_classes:
        raise UserError(f"focus_class is {config.focus_class}, the data's classes are 0..{num_classes - 1}.")
    return Fixed(class_counts, focus(num_classes, config.focus_class, config.focus_weight), sample=sample)


def _focus(config: Settings) -> str:
    sampled = " by sampling" if config.fixed_mode == "sample" else ""
    if config.class_weights == "balanced":
        return f", balanced{sampled}"
    focused = "" if config.focus_weight is None else f", {config.focus_weight:g} on class {config.focus_class}"
    return focused + sampled


def _dafa(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import DAFA

    given, num_classes = config.dafa_weights, len(class_counts)
    if given is not None and len(given) != num_classes:
        raise UserError(f"dafa_weights has {len(given)} numbers, the data {num_classes} classes.")
    return DAFA(
        num_classes,
        strength=config.dafa_strength,
        warmup=config.dafa_warmup,
        refresh=config.dafa_refresh,
        part=config.dafa_part,
        level=config.dafa_level,
        given=given,
        weigh_robust=config.base_objective == "pgd-at",
    )


def _cfa(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import CFA

    beta = config.beta if config.base_objective == "trades" else 0.0
    return CFA(len(class_counts), beta=beta, radius=config.cfa_radius, share=config.cfa_beta, start=config.cfa_start)


def _faal(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import FAAL

    return FAAL(len(class_counts), tau=config.faal_tau)


def _cfol(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import CFOL

    return CFOL(len(class_counts), eta=config.cfol_eta, gamma=config.cfol_gamma, mode=config.cfol_mode)


def _csr(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import CSR

    return CSR(len(class_counts), alpha=config.csr_alpha, part=config.csr_part, diagonal=config.csr_diagonal)


def _fair_tat(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import FairTAT

    return FairTAT(len(class_counts), sharpness=config.fair_tat_sharpness, radius=config.fair_tat_radius)


def _guarded(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import Guarded

    return Guarded(
        class_counts,
        radius=config.guarded_radius,
        tilt=config.guarded_tilt,
        prior=config.guarded_prior,
        slack=config.guarded_slack,
        memory=config.guarded_memory,
        balanced=config.guarded_base == "balanced",
        sample=config.guarded_mode == "sample",
    )


def _trix(config: Settings, class_counts: Tensor) -> ClassStrategy:
    from worstclass.strategies import TRIX

    return TRIX(len(class_counts), strength=config.trix_strength)


_FRL_KEYS = ("objective", "frl_tau", "frl_rate")

METHODS: dict[str, Method] = {
    "natural": Method("Natural", _uniform, objective="natural"),
    "pgd-at": Method("PGD-AT", _uniform, objective="pgd-at"),
    "trades": Method("TRADES", _uniform),
    "fixed": Method(
        "Fixed weights",
        _fixed,
        _focus,
        keys=("objective", "class_weights", "fixed_mode", "focus_class", "focus_weight"),
    ),
    "wat": Method(
        "WAT",
        _wat,
        lambda config: " (reference)" if config.variant == "reference" else "",
        keys=("objective", "eta", "variant"),
        balanced=lambda config: "weight" if config.variant == "paper" else None,
    ),
    "frl-rw": Method("FRL-RW", _frl, keys=_FRL_KEYS),
    "frl-rwrm": Method("FRL-RWRM", _frl, keys=(*_FRL_KEYS, "frl_margin_rate")),
    "csl": Method("CSL", _csl, keys=("objective", "csl_rate")),
    "guarded": Method(
        "Guarded",
        _guarded,
        keys=(
            "objective",
            "guarded_radius",
            "guarded_tilt",
            "guarded_prior",
            "guarded_slack",
            "guarded_memory",
            "guarded_base",
            "guarded_mode",
        ),
        balanced=lambda config: config.guarded_mode if config.guarded_base == "balanced" else None,
    ),
    "dafa": Method(
        "DAFA",
        _dafa,
        lambda config: " (levelled)" if config.dafa_level else "",
        keys=("objective", "dafa_strength", "dafa_warmup", "dafa_refresh", "dafa_part", "dafa_level", "dafa_weights"),
    ),
    "cfa": Method("CFA", _cfa, keys=("objective", "cfa_radius", "cfa_beta", "cfa_start")),
    "faal": Method("FAAL", _faal, keys=("objective", "faal_tau")),
    "cfol": Method(
        "CFOL",
        _cfol,
        keys=("objective", "cfol_eta", "cfol_gamma", "cfol_mode"),
        balanced=lambda config: "sample" if config.cfol_mode == "sample" else None,
    ),
    "csr": Method("CSR", _csr, keys=("csr_alpha", "csr_part", "csr_diagonal"), hard_labels=True),
    "fair-tat": Method("FAIR-TAT", _fair_tat, keys=("objective", "fair_tat_sharpness", "fair_tat_radius"), aims=True),
    "trix": Method("TRIX", _trix, keys=("objective", "trix_strength"), aims=True),
    "bat": Method("BAT", _uniform, objective="bat"),
}
"""The methods by name, as a recipe's `method` has them. Add an entry for a method of your own."""

METHOD_KEYS = frozenset(key for method in METHODS.values() for key in method.keys)
"""The keys that belong to methods. A method of your own chooses among them; any other key is every recipe's."""
