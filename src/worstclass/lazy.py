"""Public names of a package that are imported when they are first asked for: torch takes seconds to import."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` (PEP 562) of a package, from each of its modules to the names it gives, separated by blanks.

    A module is an attribute of the package too. Type checkers read imports under `TYPE_CHECKING` instead.
    """
    place = {name: module for module, names in modules.items() for name in names.split()}
    assert place.keys().isdisjoint(modules)  # once imported, the module would stand in the place of the name

    def find(name: str) -> Any:
        if name in place:
            return getattr(importlib.import_module(f"{package}.{place[name]}"), name)
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return find
