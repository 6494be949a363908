"""In what two recipes differ, in words."""

from worstclass.config.keys import Config, differing_keys
from worstclass.config.methods import METHOD_KEYS
from worstclass.inputs.radius import show_radius

OF_THE_METHOD = METHOD_KEYS | {"method"}


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
