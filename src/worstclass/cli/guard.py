"""Around a command: what went wrong as one line on standard error, and an exit code."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer

from worstclass.config.keys import Config
from worstclass.errors import (
    AttackError,
    TeamError,
    Terminated,
    TrainingError,
    UserError,
    exit_code,
    visible,
    what_failed,
)
from worstclass.execution.torchrun import follows, team_size


@contextmanager
def guarded() -> Iterator[None]:
    """Around a command: errors become one line and an exit code, and SIGTERM stops as Ctrl-C does."""
    atexit.register(gc.freeze)  # at the end Python would look through all objects, for a second if it has compiled
    # torchrun ends its processes by SIGTERM, and one that waits for another in C++ would not hear a handler of Python
    before = signal.signal(signal.SIGTERM, _terminate if team_size() == 1 else signal.SIG_DFL)
    try:
        yield
    except UserError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(what_failed(error), 2)
    except (TrainingError, AttackError, TeamError) as error:
        _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort) as stop:
        _fail("stopped.", exit_code(stop))
    except typer.Exit as left:
        sys.exit(left.exit_code)
    except Exception as error:  # the parser's usage errors have no public base class; anything else is a bug
        if not hasattr(error, "format_message"):
            raise
        _fail(_usage(error), 2)
    finally:
        signal.signal(signal.SIGTERM, before)


def _usage(error: Any) -> str:
    """What the parser of options says, in one line that ends in what to do."""
    context = getattr(error, "ctx", None)
    key = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if key in Config.model_fields and context is not None and context.command.name == "train":
        return f"{error.option_name} is a key of the recipe: write --set {key}=VALUE."
    text = str(error.format_message())
    stop = "" if text.endswith((".", "?")) else "."
    return f"{text}{stop}" + (f" See `{context.command_path} --help`." if context else "")


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _fail(message: str, code: int) -> NoReturn:
    who = f" in process {os.environ.get('RANK')}" if follows() else ""
    print(f"error{who}: {visible(message)}", file=sys.stderr)
    sys.exit(code)
