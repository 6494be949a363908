"""What was compiled is found by the next process; a file that is not as it should be costs time, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worstclass.cli.watched import ready_line
from worstclass.config.recipe import make_config
from worstclass.execution import compile_cache
from worstclass.execution.compile_cache import FOLDER, MAX_FILES, SUFFIX, CompileCache, cache_folder, machine_kind
from worstclass.runs.run import Run
from worstclass.runs.saver import SELECTED
from worstclass.runs.train import train_run
from worstclass.training.engine import Engine

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "load_cache_artifacts"), reason="needs torch 2.7")


class Compiler:
    """Stands for torch's: what it was given to load, and what it has made, graphs by name."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.made: list[str] = []

    def save(self) -> tuple[bytes, Any] | None:
        info = SimpleNamespace(artifacts={"inductor": self.made, "autotune": [f"{name}.json" for name in self.made]})
        return (json.dumps(self.made).encode(), info) if self.made else None

    def load(self, content: bytes) -> Any:
        self.loaded.append(content)
        return SimpleNamespace(artifacts={"inductor": json.loads(content)})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    fake = Compiler()
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", fake.save)
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", fake.load)
    return fake


def refuse(line: str) -> None:
    raise AssertionError(line)


def test_what_one_process_compiled_the_next_one_loads(tmp_path: Path, compiler: Compiler) -> None:
    first = CompileCache(tmp_path / "new", "step", CPU, refuse)
    first.load()
    assert first.save() == "miss"  # nothing was compiled, and nothing is written
    assert not first.path.exists()
    compiler.made = ["forward", "backward"]
    assert first.save() == "miss"
    assert first.path.parent.stat().st_mode & 0o077 == 0
    second = CompileCache(tmp_path / "new", "step", CPU, refuse)
    second.load()
    assert compiler.loaded == [b'["forward", "backward"]']
    assert second.save() == "hit"
    compiler.made = ["forward", "third"]
    assert second.save() == "part"
    CompileCache(tmp_path / "new", "step", CPU, refuse).load()
    assert json.loads(compiler.loaded[-1]) == ["forward", "third"]


def test_other_work_and_another_machine_have_files_of_their_own(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.made = ["graph"]
    CompileCache(tmp_path, "step", CPU, refuse).save()
    CompileCache(tmp_path, "other step", CPU, refuse).load()
    for key in machine_kind(CPU):
        other = machine_kind(CPU) | {key: "other"}
        monkeypatch.setattr(compile_cache, "machine_kind", lambda device, kind=other: kind)
        CompileCache(tmp_path, "step", CPU, refuse).load()
    assert not compiler.loaded


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "cut": lambda good: good[:-5],
    "cut header": lambda good: good[:40],
    "one byte": lambda good: good[:-1] + bytes([good[-1] ^ 1]),
    "foreign": lambda good: b"\x80\x04" + os.urandom(5000),
    "a list": lambda good: b"[]\n",
    "deep": lambda good: b"[" * 4000 + b"\n",
    "of another machine": lambda good: good.replace(json.dumps(torch.__version__).encode(), b'"2.0"'),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_is_not_as_it_should_be_is_a_line_and_is_replaced(
    how: str, tmp_path: Path, compiler: Compiler
) -> None:
    compiler.made = ["graph"]
    cache = CompileCache(tmp_path, "step", CPU, refuse)
    cache.save()
    good = cache.path.read_bytes()
    cache.path.write_bytes(DAMAGE[how](good))
    said: list[str] = []
    after = CompileCache(tmp_path, "step", CPU, said.append)
    after.load()
    assert not compiler.loaded
    assert [line.rpartition(": ")[2] for line in said] == ["compiling anew."]
    assert "\n" not in said[0]
    assert after.save() == "miss"
    assert cache.path.read_bytes() == good


def test_a_file_that_torch_refuses_is_a_line(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.made = ["graph"]
    CompileCache(tmp_path, "step", CPU, refuse).save()
    for answer in (lambda content: None, lambda content: 1 / 0):
        said: list[str] = []
        monkeypatch.setattr(torch.compiler, "load_cache_artifacts", answer)
        cache = CompileCache(tmp_path, "step", CPU, said.append)
        cache.load()
        assert len(said) == 1
        assert cache.save() == "miss"


def test_a_folder_that_cannot_be_written_is_a_line(tmp_path: Path, compiler: Compiler) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    compiler.made = ["graph"]
    cache = CompileCache(tmp_path / "file", "step", CPU, said.append)
    cache.load()
    cache.save()
    assert len(said) == 1
    assert "\n" not in said[0]


def test_many_at_once_leave_one_whole_file(tmp_path: Path, compiler: Compiler) -> None:
    compiler.made = [f"graph {number}" for number in range(20_000)]

    def save_and_load(_: int) -> None:
        cache = CompileCache(tmp_path, "step", CPU, refuse)
        cache.load()
        cache.save()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save_and_load, range(40)))
    assert [path.name for path in tmp_path.iterdir()] == [CompileCache(tmp_path, "step", CPU, refuse).path.name]


def test_the_longest_unused_files_go(tmp_path: Path, compiler: Compiler) -> None:
    compiler.made = ["graph"]
    caches = [CompileCache(tmp_path, f"step {number}", CPU, refuse) for number in range(MAX_FILES + 2)]
    for number, cache in enumerate(caches):
        cache.save()
        os.utime(cache.path, (number, number))
    (tmp_path / "somebody's.txt").touch()
    CompileCache(tmp_path, "step 2", CPU, refuse).load()  # used now
    CompileCache(tmp_path, "one more", CPU, refuse).save()
    left = {path.name for path in tmp_path.glob(f"*{SUFFIX}")}
    assert len(left) == MAX_FILES
    assert caches[2].path.name in left
    assert not left & {cache.path.name for cache in (caches[0], caches[1], caches[3])}
    assert (tmp_path / "somebody's.txt").exists()


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER, "")
    assert cache_folder() is None
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_folder() == tmp_path / "caches" / "worstclass"


def test_a_compiled_run_says_how_it_started() -> None:
    start = {"seconds": 12.34, "prepare_seconds": 9.87, "compile_cache": "hit"}
    fast: dict[str, Any] = {"engine": {"fast": True}, "start": start}
    line = "Started in 12.3 s, 9.9 s to compile and capture, all from the compile cache."
    assert ready_line(fast) == line
    assert ready_line({"engine": {"fast": False}, "resumed": [fast]}) == line
    assert ready_line(fast | {"engine": {"fast": False}}) == ""
    assert ready_line({"engine": {"fast": True}}) == ""  # of a run from before


def test_a_run_keeps_what_it_compiled_and_says_so(
    tmp_path: Path, tiny_values: dict[str, Any], compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast engine as far as a CPU can take it: nothing is compiled or captured."""

    def compile_nothing(function: Any, **_: Any) -> Any:
        compiler.made.append("graph")
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr(Engine, "prepare", lambda self, work, *_: work)

    def train(name: str, engine: Engine, cache: Path | None, **changes: Any) -> Run:
        compiler.made = []
        config = make_config(tiny_values | changes)
        return train_run(config, tmp_path / name, engine=engine, compile_cache=cache, on_fallback=refuse)

    fast, folder = Engine(fast=True), tmp_path / "cache"
    runs = [train("first", fast, folder), train("again", fast, folder), train("without", fast, None)]
    assert [run.about["start"].get("compile_cache") for run in runs] == ["miss", "hit", None]
    assert len({(run.folder / SELECTED).read_bytes() for run in runs}) == 1
    sweep = train("seed and rate", fast, folder, seed=7, eta=0.5, lr=0.01, epochs=2)
    assert sweep.about["start"]["compile_cache"] == "hit"
    assert train("batch", fast, folder, batch_size=10).about["start"]["compile_cache"] == "miss"
    assert len(list(folder.iterdir())) == 2
    eager = train("eager", Engine(), folder).about["start"]
    assert "compile_cache" not in eager
    assert 0 <= eager["prepare_seconds"] <= eager["seconds"]


PROCESS = """
import sys, pathlib, torch
from torch._dynamo.utils import counters
from worstclass.execution.compile_cache import CompileCache
cache = CompileCache(pathlib.Path(sys.argv[1]), "sine", torch.device("cpu"), print)
cache.load()
x = torch.linspace(-3, 3, 1000, requires_grad=True)
y = torch.compile(lambda x: (x.sin() * x).exp().cumsum(0), dynamic=False)(x)
y.sum().backward()
numbers = [counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")]
print(cache.save(), *numbers, y.detach().numpy().tobytes().hex() + x.grad.numpy().tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_torch_finds_its_graphs_in_a_new_process_with_nothing_else_at_hand(tmp_path: Path) -> None:
    """Forward and backward: compiled by the first process, found by the second, compiled anew where the file is cut."""

    def run(number: int) -> list[str]:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"inductor{number}")}
        command = [sys.executable, "-W", "ignore", "-c", PROCESS, str(tmp_path / "cache")]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()

    (first,), (second,) = run(1), run(2)
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    said, third = run(3)
    assert [line.split()[:3] for line in (first, second, third)] == [
        ["miss", "0", "2"],
        ["hit", "2", "0"],
        ["miss", "0", "2"],
    ]
    assert first.split()[3] == second.split()[3] == third.split()[3]
    assert said.endswith("compiling anew.")
