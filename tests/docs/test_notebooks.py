"""The notebooks run from top to bottom in a real kernel, show what they promise, and are stored without outputs."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
TABLE, PICTURE = ["text/html", "text/plain"], ["image/png", "text/plain"]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in; the kernel is this Python, whatever kernels and settings the user has installed."""
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the command sets it for its own process
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def shown(name: str, folder: Path) -> list[list[list[str]]]:
    """Run a notebook in a folder. Of each code cell the kinds of its outputs: `[["image/png", "text/plain"]]` is one
    picture, `[["stdout"]]` printed lines."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[sorted(each["data"]) if "data" in each else [each["name"]] for each in cell.outputs] for cell in cells]


@pytest.mark.fast
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_stored_without_outputs(path: Path) -> None:
    """Outputs would be numbers of one machine, and noise in every change."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert notebook.metadata["kernelspec"]["name"] == "python3"
    assert f'shown("{path.stem}"' in Path(__file__).read_text()  # it has a test


@pytest.mark.fast
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)[^)]*\)", path.read_text())
    assert links
    assert [link for link in links if not (NOTEBOOKS / link).exists()] == []


@pytest.mark.slow
def test_audit_a_model(kernel: Path) -> None:
    """20 s: two networks are trained and attacked."""
    train, audit, numbers, compare, plot, keep = shown("audit_a_model", kernel)
    assert train == []  # neither warnings nor progress
    assert audit == compare == [TABLE]
    assert numbers == [["stdout"], ["text/plain"]]
    assert plot == [PICTURE]
    assert keep == [["text/plain"]]
    assert {each.name for each in kernel.iterdir()} >= {"audits", "audit.html"}


@pytest.mark.slow
def test_three_lines_in_your_loop(kernel: Path) -> None:
    """15 s: two networks are trained."""
    data, train, weights, compare, plot, hedge = shown("three_lines_in_your_loop", kernel)
    assert (data, train, weights) == ([["text/plain"]], [], [["stdout"]])
    assert (compare, plot, hedge) == ([TABLE], [PICTURE], [["text/plain"]])


@pytest.mark.slow
def test_train_on_your_images(kernel: Path) -> None:
    make, data, train, evaluate, plot, report = shown("train_on_your_images", kernel)
    assert make == []
    assert data == train == evaluate == report == [["stdout"]]
    assert plot == [PICTURE]
    assert (kernel / "report.html").is_file()
