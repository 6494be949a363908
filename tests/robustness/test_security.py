"""Nothing runs that should not: rules for the source, and code that a file may name but not start."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from copied_runs import set_recipe
from tiny import tiny_config, write_tiny_npz
from worstclass.config.recipe import MAX_RECIPE, make_config, to_toml
from worstclass.data.pictures import FORMATS, MAX_PIXELS
from worstclass.errors import UserError
from worstclass.evaluation.targets import evaluate_target, model_target, run_target
from worstclass.files import MAX_RATIO, MAX_TEXT, SMALL_ARCHIVE
from worstclass.report import load_results, write_report
from worstclass.runs.run import open_run
from worstclass.runs.saver import MAX_LOG, SELECTED
from worstclass.runs.train import train_run
from worstclass.theory.certify import certify_run
from worstclass.training.checkpoint import load_tensors, save_tensors

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
FORBIDDEN = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "pickletools"}
CALLS = {"eval", "exec", "compile", "__import__"}
CALLS |= {f"builtins.{name}" for name in CALLS}
CALLS |= {"torch.load", "os.system", "os.popen", "tempfile.mktemp", "yaml.load"}
UNPACKS = {"extract", "extractall", "unpack_archive"}  # of a tar or zip file, to wherever its names lead


def offences(code: str) -> Iterator[str]:
    """What in a source text may run what a file says."""
    names: dict[str, str] = {}  # as imported here: what it is
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            if (node.module or "").partition(".")[0] in FORBIDDEN:
                yield str(node.module)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            head, dot, tail = ast.unparse(node.func).partition(".")
            called = names.get(head, head) + dot + tail
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in CALLS or called.rpartition(".")[2] in UNPACKS:
                yield called
            elif called == "numpy.load" and given.get("allow_pickle") != "False":
                yield "numpy.load without allow_pickle=False"
            elif given.get("allow_pickle", "False") != "False":
                yield f"{called} with allow_pickle"
            elif given.get("shell", "False") != "False":
                yield f"{called} with shell"


BAD = [
    "import pickle",
    "import pickle as p",
    "import os, dill",
    "from pickle import loads",
    "from joblib.numpy_pickle import load",
    "def f():\n    import marshal",
    "import torch\ntorch.load('x')",
    "import torch as t\nt.load('x', weights_only=True)",
    "from torch import load\nload('x')",
    "import numpy as np\nnp.load('x')",
    "import numpy as np\nnp.load('x', allow_pickle=True)",
    "import numpy as np\nnp.load('x', allow_pickle=flag)",
    "import numpy as np\nnp.lib.format.read_array(f, allow_pickle=True)",
    "eval('1')",
    "exec(code, {})",
    "compile('1', '', 'eval')",
    "__import__('os')",
    "import builtins\nbuiltins.eval('1')",
    "import os\nos.system('ls')",
    "from os import system as run\nrun('ls')",
    "import subprocess\nsubprocess.run('ls', shell=True)",
    "import yaml\nyaml.load(text)",
    "import tempfile\ntempfile.mktemp()",
    "import tarfile\ntar = tarfile.open('x')\ntar.extractall('.')",
    "import shutil\nshutil.unpack_archive('x')",
]
GOOD = [
    "model.eval()",
    "import torch\ntorch.compile(f)",
    "import re\nre.compile('x')",
    "import numpy as np\nnp.load('x', allow_pickle=False)",
    "import subprocess\nsubprocess.run(['ls'], check=True)",
    "import json\njson.load(file)",
]


@pytest.mark.parametrize("code", BAD)
def test_the_rules_find(code: str) -> None:
    assert list(offences(code))


@pytest.mark.parametrize("code", GOOD)
def test_the_rules_leave_alone(code: str) -> None:
    assert not list(offences(code))


def test_the_source_keeps_the_rules() -> None:
    assert len(SOURCES) > 50
    found = {str(path.relative_to(ROOT)): list(offences(path.read_text())) for path in SOURCES}
    assert {path: what for path, what in found.items() if what} == {}


# --- code that a file names ---


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_npz(tmp_path_factory.mktemp("security") / "tiny.npz")


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module, importable from here, that leaves a mark when it is imported."""
    (tmp_path / "hostile_model.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('mark').mkdir()\n"
        "def build(num_classes, in_channels):\n"
        "    from worstclass.models import SmallCNN\n    return SmallCNN(num_classes, in_channels)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "hostile_model", raising=False)
    return tmp_path / "mark"


@pytest.mark.parametrize("name", ["hostile_model:build", "os:system"])
def test_a_recipe_does_not_start_code_by_itself(name: str, marked: Path, data: Path, tmp_path: Path) -> None:
    """Training, continuing, evaluating, reporting and certifying: with the name of a factory put into a good run."""
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    evaluate_target(run_target(run), ["pgd-2"], run.folder)
    evil = make_config(run.config.recipe() | {"model": name})
    with pytest.raises(UserError, match="--allow-code"):
        train_run(evil, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    set_recipe(run.folder, to_toml(evil))
    forged = open_run(run.folder)
    with pytest.raises(UserError, match="--allow-code"):
        train_run(forged.config, run.folder, resume=True)
    for checkpoint in ("selected", "last"):
        with pytest.raises(UserError, match="--allow-code"):
            forged.load_model(checkpoint)
    with pytest.raises(UserError, match="--allow-code"):
        run_target(forged)
    assert "--allow-code" in str(certify_run(forged)[2].assumptions)
    write_report(load_results([run.folder]), tmp_path / "report.html")
    assert "pass --allow-code" in (tmp_path / "report.html").read_text()
    assert not marked.exists()


def test_with_consent_it_does(marked: Path, data: Path, tmp_path: Path) -> None:
    """The mark works: it is the consent that is missing above."""
    train_run(tiny_config(data, epochs=1, model="hostile_model:build"), tmp_path / "run", allow_code=True)
    assert marked.is_dir()


def test_a_checkpoint_names_no_code(marked: Path, data: Path, tmp_path: Path) -> None:
    """Not in our header, whose digest fits, nor in anybody's metadata: neither is looked at."""
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    tensors, header = load_tensors(run.folder / SELECTED)
    evil: dict[str, Any] = {"model": "hostile_model:build", "factory": "hostile_model:build", "allow_code": True}
    save_tensors(run.folder / SELECTED, tensors, header | evil)
    model, epoch = open_run(run.folder).load_model()
    assert (type(model).__name__, epoch) == ("SmallCNN", 1)
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(weights, tmp_path / "w.safetensors", metadata={key: str(value) for key, value in evil.items()})
    target = model_target(
        "worstclass.models:SmallCNN", weights=tmp_path / "w.safetensors", data=run.config.data, eps=0.1
    )
    assert torch.equal(target.model.state_dict()["conv1.weight"], weights["conv1.weight"])
    assert not marked.exists()


@pytest.mark.parametrize("words", [["train", "evil.toml"], ["train", "--resume", "run"], ["evaluate", "run"]])
def test_the_command_refuses_in_one_line(words: list[str], data: Path, tmp_path: Path) -> None:
    """In a process of its own."""
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    evil = to_toml(make_config(run.config.recipe() | {"model": "os:system"}))
    (tmp_path / "evil.toml").write_text(evil)
    set_recipe(run.folder, evil)
    command = [sys.executable, "-m", "worstclass", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: model 'os:system' runs code of your own; pass --allow-code if you trust it.\n"


def test_the_limits_are_those_of_the_docs() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert "TOML | 32 KiB" in page
    assert MAX_RECIPE == 32 * 2**10
    assert "checked | 32 MiB" in page
    assert MAX_TEXT == 32 * 2**20
    assert "checked | 256 MiB" in page
    assert MAX_LOG == 256 * 2**20
    assert "over 64 MiB not more than 100 times the file" in page
    assert (SMALL_ARCHIVE, MAX_RATIO) == (64 * 2**20, 100)
    assert "2^24 pixels" in page
    assert MAX_PIXELS == 2**24
    assert set(FORMATS) == {"PNG", "JPEG", "BMP", "WEBP"}
