"""Which build of torch `make demo` installs, decided by tools/install.sh: pip, python and nvidia-smi are stand-ins."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIN = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"
PIP = """#!/bin/sh
echo "$*" >> calls
case "$*" in *--dry-run*) echo "{\\"name\\": \\"torch\\"}, {\\"name\\": \\"$OFFERED\\"}";; esac
"""
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")


@dataclass(frozen=True)
class Done:
    code: int
    said: str
    torch: list[str]  # calls of pip that install torch
    package: list[str]  # and the package


def stand_in(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def install(
    folder: Path,
    *extra: str,
    driver: bool = False,
    offered: str = "nvidia-cublas",
    installed: str = "",
    system: str = "Linux",
    torch: str = "",
) -> Done:
    """Run the script in a folder, on a machine with or without a driver, with a pip that offers CUDA or not."""
    (folder / "constraints.txt").write_text(f"{PIN}\n")
    stand_in(folder / "bin/nvidia-smi", f"#!/bin/sh\nexit {0 if driver else 9}\n")
    stand_in(folder / "bin/uname", f"#!/bin/sh\necho {system}\n")
    stand_in(folder / "venv/bin/pip", PIP)
    stand_in(folder / "venv/bin/python", f"#!/bin/sh\necho {installed}\n")
    outcome = subprocess.run(
        ["bash", ROOT / "tools/install.sh", "venv", *extra],
        cwd=folder,
        env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OFFERED": offered, "TORCH": torch},
        capture_output=True,
        text=True,
    )
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    calls = [call for call in calls if "--dry-run" not in call]
    package = [call for call in calls if "--editable" in call]
    return Done(outcome.returncode, outcome.stdout + outcome.stderr, [c for c in calls if c not in package], package)


def test_an_ordinary_pc_gets_the_cpu_build(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.code == 0
    assert len(done.torch) == 1
    assert CPU_INDEX in done.torch[0]
    assert done.torch[0].endswith(PIN)
    assert f"{PIN} for the CPU" in done.said
    assert "TORCH=cuda" in done.said


def test_a_driver_that_answers_gets_the_cuda_build(tmp_path: Path) -> None:
    done = install(tmp_path, driver=True)
    assert done.code == 0
    assert len(done.torch) == 1
    assert "--index-url" not in done.torch[0]
    assert f"{PIN} for CUDA" in done.said
    assert "TORCH=cpu" in done.said


@pytest.mark.parametrize("driver", [False, True])
def test_one_word_chooses_the_other(driver: bool, tmp_path: Path) -> None:
    done = install(tmp_path, driver=driver, torch="cpu" if driver else "cuda")
    assert (CPU_INDEX in done.torch[0]) is driver
    assert ("for CUDA" in done.said) is not driver


@pytest.mark.parametrize("driver", [False, True])
def test_a_pip_that_finds_a_cpu_build_needs_no_index(driver: bool, tmp_path: Path) -> None:
    done = install(tmp_path, driver=driver, offered="sympy")
    assert done.code == 0
    assert "--index-url" not in done.torch[0]
    assert f"{PIN} for the CPU" in done.said
    assert ("no CUDA build" in done.said) is driver


def test_macos_is_plain(tmp_path: Path) -> None:
    done = install(tmp_path, system="Darwin")
    assert len(done.torch) == 1
    assert "--index-url" not in done.torch[0]
    assert "CUDA" not in done.said


@pytest.mark.parametrize("driver", [False, True])
@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_what_is_installed_stays_unless_the_other_is_asked_for(build: str, driver: bool, tmp_path: Path) -> None:
    assert install(tmp_path, installed=build, driver=driver).torch == []
    assert install(tmp_path, installed=build, driver=driver, torch=build).torch == []
    assert len(install(tmp_path, installed=build, torch="cuda" if build == "cpu" else "cpu").torch) == 1


def test_the_demo_needs_no_test_tools(tmp_path: Path) -> None:
    assert [call.split()[-1] for call in install(tmp_path).package] == ["."]
    (tmp_path / "calls").unlink()
    assert [call.split()[-1] for call in install(tmp_path, "test").package] == [".[test]"]


def test_another_word_is_refused(tmp_path: Path) -> None:
    done = install(tmp_path, torch="gpu")
    assert (done.code, done.said) == (2, "TORCH is cpu or cuda, not 'gpu'.\n")
    assert done.torch == done.package == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_installs_as_much_as_is_needed(tmp_path: Path) -> None:
    """`make demo` the package, `make test` the test tools, `make docs` those of the site; a second call nothing, and
    with TORCH=... again."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    stand_in(tmp_path / "tools/install.sh", 'mkdir -p .venv && echo "$* $TORCH" >> calls\n')

    def make(*words: str) -> list[str]:
        (tmp_path / "calls").write_text("")
        subprocess.run(["make", *words], cwd=tmp_path, capture_output=True, check=True)
        return [line.strip() for line in (tmp_path / "calls").read_text().splitlines()]

    assert make(".venv/.installed-demo") == [".venv"]
    assert make(".venv/.installed-demo") == []
    assert make(".venv/.installed-demo", "TORCH=cuda") == [".venv cuda"]
    assert make("setup") == [".venv test"]
    assert make("setup") == []
    assert make(".venv/.installed-demo") == []
    assert make(".venv/.installed-docs") == [".venv docs"]
    assert make(".venv/.installed-docs") == []
