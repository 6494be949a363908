"""Files outside of the package, examples and tools, as modules."""

import importlib.util
from pathlib import Path
from typing import Any


def load_script(path: Path) -> Any:
    """A Python file as a module, run anew."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
