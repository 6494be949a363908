"""Errors that speak to the person at the keyboard."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any
from unicodedata import category


class UserError(ValueError):
    """Something the caller can put right: one line, shown without a traceback, exit code 2."""

    def __init__(self, text: object = "") -> None:
        super().__init__(visible(str(text)).replace("\n", "\\n"))  # it may quote a file


class AttackError(RuntimeError):
    """An attack broke its own rules (left the ball or the image range, or helped the model)."""


class TrainingError(RuntimeError):
    """Training cannot go on; the last good checkpoint stays on disk."""


class TeamError(RuntimeError):
    """Another process of the same job has gone away."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: whatever Ctrl-C brings about, with another exit code."""


def exit_code(stop: BaseException) -> int:
    """What a shell says of a process that a signal has ended: 128 and the number of the signal."""
    return 143 if isinstance(stop, Terminated) else 130


def visible(text: str) -> str:
    """Text for a terminal: what would steer it (escape sequences, half a surrogate pair) is spelt out."""
    return "".join(c if c == "\n" or category(c) not in ("Cc", "Cs") else ascii(c)[1:-1] for c in text)


def shown(value: object, length: int = 100) -> str:
    """A value as an error quotes it: not endless, and whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits; lists in lists in lists
        text = f"<{type(value).__name__}>"
    return text if len(text) <= length else f"{text[:length]}..."


def class_called(k: int, names: Sequence[str]) -> str:
    """A class as an error calls it: by its name, or by its index where names are not known."""
    return f"class '{names[k]}'" if names else f"class {k}"


def reason(error: BaseException) -> str:
    """What an exception says, as part of a line: its first, not endless, without a full stop."""
    text = str(error).partition("\n")[0]
    return text[:300].rstrip(". ") or type(error).__name__


def what_failed(error: OSError) -> str:
    """An error of the file system in one line."""
    return f"{error.filename}: {error.strerror}." if error.filename else str(error)


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that is not one of `allowed`, with the nearest match."""
    names = list(allowed)
    near = get_close_matches(given[:100], names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} {shown(given)}.{hint} Allowed: {_some(names)}.")


def _some(names: Sequence[str], length: int = 700) -> str:
    """Names as a line has room for them."""
    count = len(names)
    while count > 1 and sum(len(name) + 2 for name in names[:count]) > length:
        count -= 1
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if count < len(names) else "")


def choose(kind: str, given: Any, allowed: Sequence[str]) -> Any:
    """`given`, if it is allowed."""
    if given not in allowed:
        raise unknown(kind, str(given), allowed)
    return given
