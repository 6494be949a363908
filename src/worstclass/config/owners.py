"""Which recipe uses which key: some belong to a method, or to the value of another key.

A key without an owner is every recipe's. One with owners is used where one of them is there, and foreign elsewhere:
set there, it is an error that names them. `values` are those of a recipe, validated or not, without its defaults.
"""

from collections.abc import Collection, Mapping
from typing import Any

from worstclass.config.methods import METHOD_KEYS, METHODS
from worstclass.errors import UserError, shown
from worstclass.inputs.names import RESIZED, SPLIT, VALIDATED, data_kind

Values = Mapping[str, Any]

_ATTACKED = ("objective", ("pgd-at", "trades", "bat"))

OWNERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "image_size": ("data", RESIZED),
    "test_fraction": ("data", SPLIT),
    "validation": ("data", VALIDATED),
    "lr_milestones": ("schedule", ("piecewise",)),
    "lr_decay": ("schedule", ("piecewise",)),
    "lr_peak": ("schedule", ("one-cycle",)),
    "momentum": ("optimizer", ("sgd",)),
    "nesterov": ("optimizer", ("sgd",)),
    "ema_decay": ("average", ("ema",)),
    "fawa_decay": ("average", ("fawa",)),
    "fawa_threshold": ("average", ("fawa",)),
    "recalibrate": ("average", ("ema", "fawa")),
    "awp_warmup": ("awp_gamma", ()),
    "awp_every": ("awp_gamma", ()),
    "adr_share": ("average", ("ema",)),
    "adr_temperature": ("adr_share", ()),
    "budget": ("base_start", ()),
    "ship": ("base_start", ()),
    "crop_padding": ("crop", ("pad",)),
    "crop_shift": ("crop", ("shift",)),
    "radius_warmup": _ATTACKED,
    "attack_steps": _ATTACKED,
    "early_attack_steps": _ATTACKED,
    "attack_milestones": _ATTACKED,
    "attack_step_size": _ATTACKED,
    "beta": ("objective", ("trades", "bat")),
    "select_smoothing": (
        "select",
        ("worst", "worst-accuracy", "worst-tenth", "worst-loss", "average", "average-and-worst"),
    ),
}
"""Keys that belong to another key: its name, and the values that own them; `()` is any that switches it on. Data own by
their kind."""


def owners_of(key: str) -> list[tuple[str, tuple[str, ...]]]:
    """The owners of a key, methods first; none for a key that every recipe uses."""
    owners = [OWNERS[key]] if key in OWNERS else []
    if key in METHOD_KEYS:
        owners.insert(0, ("method", tuple(name for name, method in METHODS.items() if key in method.keys)))
    return owners


def describe_owners(key: str) -> str:
    """The owners of a key in words: `method 'frl-rw' or 'frl-rwrm'`; empty for a key that every recipe uses."""
    words = []
    for owner, values in owners_of(key):
        *others, last = map(repr, values) if values else [""]
        words.append(f"{owner} {', '.join(others)}{' or ' if others else ''}{last}".rstrip())
    return " or ".join(words)


def is_used(key: str, values: Values, defaults: Values) -> bool:
    """Whether a recipe of these values uses a key."""
    owners = owners_of(key)
    return not owners or any(_owns(wanted, _value(owner, values, defaults)) for owner, wanted in owners)


def check_owners(given: Collection[str], values: Values, defaults: Values) -> None:
    """Raise if a key was given that the recipe does not use."""
    for key in given:
        if not is_used(key, values, defaults):
            owner = owners_of(key)[0][0]
            here = shown(_value(owner, values, defaults))
            raise UserError(f"{key} belongs to {describe_owners(key)}; the {owner} here is {here}.")


def _value(key: str, values: Values, defaults: Values) -> Any:
    """The value of an owner; one that is itself foreign has its default, and an objective left out is the method's."""
    value = values.get(key) if is_used(key, values, defaults) else None
    if value is None and key == "objective":
        method = _value("method", values, defaults)
        return METHODS[method].objective if isinstance(method, str) and method in METHODS else None
    return defaults[key] if value is None else value


def _owns(wanted: tuple[str, ...], value: Any) -> bool:
    if wanted:
        return value in wanted or (isinstance(value, str) and data_kind(value) in wanted)
    try:  # a number may be text yet, such as "0"
        return float(value) != 0
    except (TypeError, ValueError, OverflowError):
        return bool(value)
