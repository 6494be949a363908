"""In what two recipes differ, in words."""

from worstclass.config.keys import STARTS, WORST, Config
from worstclass.config.methods import METHOD_KEYS
from worstclass.inputs.radius import show_radius

OF_THE_METHOD = METHOD_KEYS | {"method"}


def differing_keys(*configs: Config) -> list[str]:
    """The keys in which configurations differ that use them: WAT and TRADES differ in the method, and not in eta.

    What is open until a run begins (`for_classes`, `from_epoch`, and whether the data bring validation images) does not
    differ from what it can become.
    """
    used = [(config, config.used_keys) for config in configs]
    values = {key: {getattr(config, key) for config, keys in used if key in keys} for key in Config.model_fields}
    if "worst" in values["select"]:
        values["select"] -= {*WORST}
    if "own" in values["validation"]:
        values["validation"].discard("held-out")
    for key in STARTS:
        values[key].discard(None)
    return [key for key, found in values.items() if len(found) > 1]


def compared_settings(config: Config, base: Config) -> str:
    """In what two recipes differ beside method and seed: `select (last, not worst-accuracy)`."""
    keys = [key for key in differing_keys(config, base) if key not in OF_THE_METHOD and key != "seed"]
    return ", ".join(
        f"{key} ({plain(getattr(config, key), key)}, not {plain(getattr(base, key), key)})" for key in keys
    )


def plain(value: object, key: str = "") -> str:
    """A setting in a title, where a comma would look like the next."""
    if isinstance(value, tuple):
        return "/".join(map(plain, value)) or "none"
    if key == "eps" and isinstance(value, float):
        return show_radius(value)
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
