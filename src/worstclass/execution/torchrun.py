"""What torchrun's environment says of this process, without torch."""

import os


def team_size() -> int:
    """How many processes torchrun has started; 1 without it."""
    words = [os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR")]
    return int(words[0]) if all(words) and words[0].isdecimal() else 1


def follows() -> bool:
    """Whether this is one of torchrun's processes other than the first, which alone writes and speaks."""
    return team_size() > 1 and os.environ.get("RANK", "0") != "0"
