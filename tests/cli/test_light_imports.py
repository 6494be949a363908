"""Help, errors and completion answer at once: they import no torch, nor anything else that takes a second."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "scipy", "matplotlib", "jinja2", "PIL", "safetensors", "ray")
PROGRAM = f"""
import contextlib, io, json, os, sys
from worstclass.cli.main import main
import worstclass.cli.console

for arguments, environment in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["worstclass", *arguments]
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    for name in environment:
        del os.environ[name]
    print(json.dumps([code, out.getvalue(), err.getvalue(), [name for name in {HEAVY} if name in sys.modules]]))
"""

Answer = tuple[int, str, str, list[str]]


def run(*commands: str | tuple[str, dict[str, str]], cwd: Path) -> list[Answer]:
    """Commands, some with an environment, one after another in a process of their own: exit code, what each printed,
    and which of the heavy modules are imported by then."""
    pairs = [(command, {}) if isinstance(command, str) else command for command in commands]
    words = json.dumps([(command.split(), environment) for command, environment in pairs])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=words, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep file that is wrong, and with a run, as far as its name goes."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "sweep.toml").write_text('recipes = ["fashion-mini-wat"]\nattacks = "pdg-20"\n')
    (folder / "runs" / "first").mkdir(parents=True)
    (folder / "runs" / "first" / "recipe.toml").write_text("")
    (folder / "runs" / "notes").mkdir()
    (folder / "own.py").write_text("")
    (folder / "w.pt").write_bytes(b"")
    return folder


def test_help_version_and_recipes(here: Path) -> None:
    commands = [
        "train",
        "sweep",
        "watch",
        "evaluate",
        "audit",
        "export",
        "reproduce",
        "certify",
        "report",
        "leaderboard",
        "recipes",
        "demo",
        "bench",
    ]
    commands += ["bench autoattack", "bench train", "bench classes"]
    for command, (code, out, err, heavy) in zip(
        ["", *commands], run("--help", *(f"{command} --help" for command in commands), cwd=here), strict=True
    ):
        assert (code, err, heavy) == (0, "", []), command
        assert out.startswith("Usage: "), command
    for code, out, err, heavy in run("--version", "recipes", cwd=here):
        assert (code, err, heavy) == (0, "", [])
        assert out


ERRORS = {
    "trian": "trian",
    "train --spud": "--spud",
    "train": "give a recipe",
    "train fashion-mini-wta": "Did you mean 'fashion-mini-wat'?",
    "train gone.toml": "no recipe at gone.toml",
    "train fashion-mini-wat --set epocs=3": "Did you mean 'epochs'?",
    "train fashion-mini-wat --set model=resnet17": "Did you mean 'resnet18'?",
    "train fashion-mini-wat --set data=fashion": "Did you mean 'fashion-mini'?",
    "train fashion-mini-wat --set eps=0": "eps = 0",
    "train fashion-mini-wat --device gpu": "unknown device 'gpu'",
    "train --resume gone": "gone is not a run folder",
    "evaluate gone": "gone is not a run folder",
    "evaluate runs/first --attacks pdg-20": "Did you mean 'pgd-20'?",
    "evaluate runs/first --part train": "unknown part 'train'",
    "evaluate own:net --weights w --data mnist --eps 8/255 --out o": "unknown data 'mnist'",
    "train fashion-mini-wat --set data=runs": "data 'runs' is a path: write folder:runs",
    "train fashion-mini-wat --epochs 3": "--epochs is a key of the recipe: write --set epochs=VALUE",
    "evaluate runs/first --base gone": "there is no folder gone",
    "evaluate own --weights w": "'own' is neither a run folder nor module.path:factory",
    "evaluate own.py:net --weights w.pt --data cifar10 --eps 8/255 --out o": "save_file(model.state_dict(), PATH)",
    "audit own": "'own' is neither module.path:factory, path/to/file.py:factory, nor a run folder",
    "audit own:net": "to audit 'own:net', give --data too: fashion-mini, cifar10",
    "audit gone.py:net --data cifar10": "there is no file gone.py",
    "audit own.py:net --data mnist": "unknown data 'mnist'",
    "audit own.py:net --data cifar10 --weights gone": "there are no weights at gone",
    "audit own.py:net --data cifar10 --eps 8": "did you mean 8/255",
    "audit own.py:net --data cifar10 --norm l2": "--norm l2 needs --eps too, such as 0.5",
    "audit own.py:net --data cifar10 --mean half": "--mean takes a number for each channel",
    "audit own.py:net --data cifar10 --attacks quik": "Did you mean 'quick'?",
    "audit own.py:net --data cifar10 --fail-if worst<30": "did you mean 30%",
    "audit own.py:net --data cifar10 --limit 0": "--limit",
    "audit runs/first --data cifar10": "--data is for a model of your own; the run runs/first carries its own",
    "audit runs/notes": "it has no recipe.toml",
    "audit runs/notes --data cifar10": "it has no recipe.toml",
    "evaluate runs/notes --data cifar10": "it has no recipe.toml",
    "evaluate own:net --weights w.pt --data cifar10 --eps 8/255 --out o": "save_file(model.state_dict(), PATH)",
    "evaluate own:net --weights gone --data cifar10 --eps 8/255 --out o": "there are no weights at gone",
    "bench": "`worstclass bench --help`",
    "evaluate own:net --eps 8/255": "--data and --out too",
    "export gone": "gone is not a run folder",
    "export runs/first --to onxn": "Did you mean 'onnx'?",
    "audit timm:resnet18 --data cifar10 --mean 0.5 --std 0.5": "normalises as its configuration says",
    "train fashion-mini-wat --set model=onnx:net.onnx": "audit or evaluate it",
    "certify gone": "gone is not a run folder",
    "sweep gone.toml": "gone.toml",
    "sweep sweep.toml": "Did you mean 'pgd-20'?",
    "reproduce table9 runs/first": "unknown table or figure 'table9'",
    "reproduce table1 runs/first --format word": "unknown format 'word'",
    "bench train --model resnet17": "Did you mean 'resnet18'?",
    "bench train --ways slow": "unknown way 'slow'",
    "bench autoattack gone": "gone is not a run folder",
}


def test_errors(here: Path) -> None:
    for (command, words), (code, out, err, heavy) in zip(ERRORS.items(), run(*ERRORS, cwd=here), strict=True):
        assert (code, out, heavy) == (2, "", []), command
        assert err.startswith("error: "), command
        assert err.count("\n") == 1, command
        assert words in err, command


def test_a_shell_completes_commands_recipes_and_runs(here: Path) -> None:
    def typed(words: str) -> tuple[str, dict[str, str]]:
        """As bash asks what the last of these words may become."""
        asked = {"_WORSTCLASS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return "", asked

    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # else it is the shell that started the tests
    lines = ("rep", "train fashion-mini-w", "evaluate ", "train --resume ru", "report runs/")
    answers = run(*(typed(f"worstclass {line}") for line in lines), ("--show-completion bash", named), cwd=here)
    assert [(code, err, heavy) for code, _, err, heavy in answers] == [(0, "", [])] * 6
    commands, recipes, *runs, script = [out.split() for _, out, _, _ in answers]
    assert commands == ["reproduce", "report"]
    assert "fashion-mini-wat" in recipes
    assert runs == [["runs/first"]] * 3
    assert "complete" in script


def test_import_worstclass_imports_nothing() -> None:
    """And every public name is there when it is asked for."""
    code = (
        "import sys, worstclass\n"
        "print(sorted({'torch', 'numpy', 'pydantic', 'rich', 'typer'} & set(sys.modules)))\n"
        "assert all(hasattr(worstclass, name) for name in worstclass.__all__)\n"
        "assert dir(worstclass) == sorted(worstclass.__all__)\n"
        "from worstclass import PGD\n"
        "assert PGD is worstclass.attacks.PGD\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_backend_of_a_notebook_is_not_the_commands(here: Path) -> None:
    """A notebook hands its Matplotlib backend on to `!worstclass`, which may be installed where there is none of it."""
    program = (
        "import contextlib, sys\n"
        "from worstclass.cli.main import main\n"
        "sys.argv = ['worstclass', '--version']\n"
        "with contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "import matplotlib\n"
    )
    environment = {**os.environ, "MPLBACKEND": "module://not_installed.backend_inline"}
    subprocess.run([sys.executable, "-c", program], cwd=here, env=environment, timeout=60, check=True)
