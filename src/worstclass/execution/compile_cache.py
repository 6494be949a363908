"""What torch's compiler made, as one file that a later process, or another machine of the same kind, starts from.

Such a file is code: compiled kernels, and pickles inside. It is read from the user's own cache folder or from one that
was named, and never from the folder of a run, which may be anybody's. A file only saves time: torch looks each graph up
by a key of the graph, the device, the settings and its own code, and compiles what it does not find.
"""

import contextlib
import hashlib
import importlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from worstclass.errors import reason
from worstclass.inputs.names import VERSION

FOLDER = "WORSTCLASS_CACHE"  # the environment variable that names another folder; empty, nothing is kept
SUFFIX = ".compiled"
MAX_FILES = 32  # in a folder; the longest unused go first
MAX_HEADER = 2**12  # bytes
GRAPHS = ("aot_autograd", "inductor")  # kinds of artifacts that take long to make again
Found = Literal["hit", "part", "miss"]


def cache_folder() -> Path | None:
    """The user's own folder: the one that `WORSTCLASS_CACHE` names, or that of the system's caches; None: no cache."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return Path(named) if named else None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worstclass"
    except RuntimeError:  # a user without a home
        return None


def machine_kind(device: torch.device) -> dict[str, str]:
    """What a file must agree in with the process that reads it."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = f"{torch.cuda.get_device_name(device)} sm{major}{minor}"
    else:
        name = f"{device.type} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "worstclass": VERSION,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or torch.version.hip),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": name,
    }


class CompileCache:
    """The file of one kind of work on one kind of machine. Whatever is wrong with it, or with writing it, `tell` hears
    in a line, and the compiler does its work anew."""

    def __init__(self, folder: Path, work: str, device: torch.device, tell: Callable[[str], None]) -> None:
        self._kind = machine_kind(device) | {"work": hashlib.sha256(work.encode()).hexdigest()}
        self._tell = tell
        digest = hashlib.sha256(json.dumps(self._kind, sort_keys=True).encode()).hexdigest()[:16]
        name = f"{self._kind['device']}-torch{self._kind['torch']}-{digest}"
        self.path = folder / ("".join(c if c.isalnum() or c in "-.+" else "-" for c in name) + SUFFIX)
        self._known: set[tuple[str, str]] = set()  # artifacts in the file

    def load(self) -> None:
        """Give the compiler what the file holds, if there is one."""
        if not hasattr(torch.compiler, "load_cache_artifacts"):  # torch before 2.7
            return
        try:
            content = self._read()
            if content is None:
                return
            info = torch.compiler.load_cache_artifacts(content)
            if info is None:
                raise ValueError("torch cannot read it")
            self._known = _names(info)
            os.utime(self.path)
        except Exception as error:  # torch unpacks it, and may fail in any way
            self._tell(f"{self.path} is not used ({reason(error)}): compiling anew.")

    def save(self) -> Found:
        """Write what this process has compiled or found, unless the file holds it all: a `hit`. What earlier runs of
        the process compiled is part of it: a small function is compiled once for all of them."""
        found: Found = "miss"
        try:
            content, info = _recorded()
            made, known = _names(info), self._known
            graphs = {each for each in made if each[0] in GRAPHS}
            if graphs & known:
                found = "hit" if graphs <= known else "part"
            if not made <= known:
                self._write(content)
                self._known = made
        except Exception as error:  # torch packs it
            self._tell(f"what was compiled is not kept at {self.path}: {reason(error)}.")
        return found

    def save_news(self) -> None:
        """The same, if anything was compiled since."""
        if _has_news():
            self.save()

    def _read(self) -> bytes | None:
        """What torch saved, or None where there is no file."""
        if not self.path.exists():
            return None
        if not self.path.is_file():
            raise ValueError("it is not a file")
        with self.path.open("rb") as file:
            line = file.readline(MAX_HEADER)
            header = json.loads(line) if line.endswith(b"\n") else None
            if not isinstance(header, dict) or header.get("kind") != self._kind:
                raise ValueError("it is of another version or machine, or damaged")
            content = file.read()
        if hashlib.sha256(content).hexdigest() != header.get("sha256"):
            raise ValueError("it is damaged: its content does not match its digest")
        return content

    def _write(self, content: bytes) -> None:
        """Whole or not at all, and by as many processes at once as there may be: the last one's stays."""
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        header = {"kind": self._kind, "sha256": hashlib.sha256(content).hexdigest()}
        handle, partial = tempfile.mkstemp(prefix=self.path.name, suffix=f".partial{SUFFIX}", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n" + content)
            os.replace(partial, self.path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # another process may tidy up too
            files = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
            for old in files[:-MAX_FILES]:
                old.unlink(missing_ok=True)


def _names(info: Any) -> set[tuple[str, str]]:
    """The artifacts that torch speaks of, by kind and key."""
    return {(kind, key) for kind, keys in info.artifacts.items() for key in keys} if info is not None else set()


def _recorded() -> tuple[bytes, Any]:
    """What the compiler has made or found in this process, and torch's list of it."""
    save = getattr(torch.compiler, "save_cache_artifacts", lambda: None)
    return save() or (b"", None)


def _has_news() -> bool:
    """Whether the compiler has made anything since it was last asked for what it made, which packs all of it."""
    with contextlib.suppress(ImportError, AttributeError):
        manager: Any = importlib.import_module("torch.compiler._cache").CacheArtifactManager
        return bool(manager.need_serialize())
    return True
