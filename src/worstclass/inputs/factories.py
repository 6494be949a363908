"""The user's own code by name: `module.path:factory` or `path/to/file.py:factory`, for models and data. No torch."""

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from worstclass.errors import UserError, reason, unknown
from worstclass.inputs.names import factory_file


def call_factory(name: str, what: str, *, whole: bool = False, **given: Any) -> Any:
    """What the factory returns, called with what of `given` it takes: it must take all where `whole`.

    `what` it is for, in errors: model, data. The current folder, or that of the file, is importable meanwhile.
    This runs the user's code.
    """
    path = factory_file(name)
    with _importing_from("" if path is None else str(path.resolve().parent)):
        factory = _find(name, what)
        return factory(**_accepted(name, what, factory, given, whole))


def need(module: str, what: str, extra: str) -> Any:
    """A module of an optional library, or one line on how to install it. `what` needs it."""
    library = module.partition(".")[0]
    try:
        found = importlib.import_module(module)
        if hasattr(found, "__path__") and getattr(found, "__file__", None) is None:
            raise ImportError("what is called so here is a folder")  # such as datasets/, which Python imports too
        return found
    except Exception as error:  # one that does not fit its torch raises more than ImportError
        raise UserError(f"{what} needs {library} ({reason(error)}): pip install 'worstclass[{extra}]'.") from None


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    """Let modules be imported from a folder, "" for the current one."""
    if folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _accepted(
    name: str, what: str, factory: Callable[..., Any], given: Mapping[str, Any], whole: bool
) -> dict[str, Any]:
    """What of `given` the factory takes: all, one, or nothing. An error inside of the factory stays what it is."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # not every callable tells
        return dict(given)
    errors = []
    for chosen in (given,) if whole else (given, *({key: value} for key, value in given.items()), {}):
        try:
            signature.bind(**chosen)
            return dict(chosen)
        except TypeError as error:
            errors.append(error)
    keys = " and ".join(given)
    if not whole:
        keys += ", one of them, or nothing" if len(given) > 1 else " or nothing"
    raise UserError(f"{what} '{name}' must take {keys}: {errors[0]}.") from None


def _find(name: str, what: str) -> Callable[..., Any]:
    module_name, _, factory_name = name.rpartition(":")
    path = factory_file(name)
    module = _import(module_name, name, what) if path is None else _import_file(path, name, what)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"factory in {'module' if path is None else 'file'} {module_name}", factory_name, names)
    if hasattr(factory, "state_dict") and not isinstance(factory, type):
        raise UserError(
            f"{what} '{name}' is a model, not a function that returns one: def make(): return {factory_name}"
        )
    made: Callable[..., Any] = factory
    return made


def _import(module: str, name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{what} '{name}': cannot import '{error.name}' (looked in the current folder too).") from error


def _import_file(path: Path, name: str, what: str) -> ModuleType:
    """A file as a module under a name of its own: a file called `torch.py` or `model.py` replaces no other module."""
    if not path.is_file():
        raise UserError(f"{what} '{name}': there is no file {path}.")
    own = f"_worstclass_file_{zlib.crc32(str(path.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(own, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[own] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[own]
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{what} '{name}': {path} cannot import '{error.name}'.") from error
        raise
    return module
