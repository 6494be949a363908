"""The documentation keeps its promises: names, signatures, code, commands and links are those of the package."""

import ast
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worstclass
from scripts import load_script
from worstclass.cli import main as cli
from worstclass.config.methods import METHODS
from worstclass.config.recipe import load_config, parse_settings

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[tuple[str, str]]:
    """The code blocks of a page, each with the text before it."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start()], match[1]) for match in found]


def contains(source: str, part: str) -> bool:
    """Whether consecutive lines of `source` are those of `part`, the indentation of the whole aside."""
    lines, wanted = source.splitlines(), textwrap.dedent(part).splitlines()
    windows = (lines[i : i + len(wanted)] for i in range(len(lines) - len(wanted) + 1))
    return any(textwrap.dedent("\n".join(window)).splitlines() == wanted for window in windows)


def undocumented(path: Path) -> list[str]:
    """The public functions and classes of a file without a docstring; the site shows what has one."""
    body = ast.parse(path.read_text()).body
    public = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    return [f"{path.name}: {node.name}" for node in public if not ast.get_docstring(node)]


def test_every_public_name_has_a_docstring() -> None:
    files = [path for path in (ROOT / "src").rglob("*.py") if path.parent.name != "cli"]
    assert len(files) > 100
    assert [name for path in files for name in undocumented(path)] == []


def test_the_api_page_lists_every_exported_name_once() -> None:
    lists = load_script(ROOT / "tools" / "site_pages.py").NAMES.findall((ROOT / "docs" / "api.md").read_text())
    names = [name for line in lists for name in re.findall(r"`(\w+)`", line)]
    assert sorted([*names, "__version__"]) == sorted(worstclass.__all__)


def test_python_in_the_docs_is_part_of_an_example() -> None:
    """Each block comes after "From `examples/NAME.py`:"; those of the README are run below."""
    for page in PAGES[1:]:
        for before, code in blocks(page.read_text(), "python"):
            example = re.findall(r"`(examples/\w+\.py)`", before)[-1]
            assert contains((ROOT / example).read_text(), code), f"{page.name}: not in {example}:\n{code}"


def test_the_one_call_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (_, code), _ = blocks(README, "python")
    x = ((128 + torch.arange(4).view(4, 1, 1) + 6 * torch.eye(3)) / 255).view(12, 1, 1, 3)
    loader = DataLoader(TensorDataset(x, torch.arange(3).repeat(4)), batch_size=5)
    linear = nn.Linear(3, 3, bias=False)
    nn.init.eye_(linear.weight).data.mul_(5)  # the brightest pixel, by 6/255: a radius of 8/255 breaks every image
    exec(code, {"model": nn.Sequential(nn.Flatten(), linear).eval(), "loader": loader})
    assert re.search(r"AutoAttack +0\.0 ", capsys.readouterr().out)


def test_the_three_lines_run() -> None:
    _, (_, code) = blocks(README, "python")
    assert len(code.splitlines()) == 3
    losses = torch.linspace(0.5, 1.5, 40)
    labels = torch.arange(40) % 10
    correct = (labels != 3) | (torch.arange(40) < 10)  # of class 3 one in four: training fits it, though badly
    names: dict[str, Any] = {"wc": worstclass, "losses": losses, "y": labels, "correct": correct}
    names |= {"class_counts": labels.bincount(), "valid_correct": correct, "valid_labels": labels}
    exec(code, names)
    assert float(names["loss"]) == pytest.approx(float(losses.mean()))  # uniform before the first update
    weights = names["guard"].weights
    assert weights.shape == (10,)
    assert float(weights.sum()) == pytest.approx(1)
    assert int(weights.argmax()) == 3  # the class that is mostly wrong


def commands() -> list[list[str]]:
    lines = [line for page in PAGES for _, code in blocks(page.read_text(), "sh") for line in code.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("worstclass ")]


def test_commands_in_the_docs_exist() -> None:
    group: Any = typer.main.get_command(cli.app)
    for words in commands():
        command = group.commands[words[1]]
        command = command.commands[words[2]] if hasattr(command, "commands") else command
        options = {option for parameter in command.params for option in parameter.opts}
        assert [word for word in words if word.startswith("--") and word not in options] == [], words
        settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        if words[1] == "train" and words[2] != "--resume":
            recipe = words[2] if words[2] != "--fork" else Path(words[3]).name.partition("-seed")[0]
            load_config(recipe, **parse_settings(settings))


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"(?<!!)\[[^\]]+\]\(([^)#]+)\)", page.read_text())]
    assert [each for each in links if ":" not in each[1] and not (each[0].parent / each[1]).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(README.split()) < 900


def long_lines(text: str, most: int = 200) -> list[str]:
    """Lines of more characters, without code blocks, rows of tables and code spans."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for line in prose.splitlines() if line[:1] != "|" and len(re.sub("`[^`]*`", "``", line)) > most]


def test_what_a_long_line_is() -> None:
    long = "word " * 41
    code, table, spans = f"```sh\n{long}\n```\n", f"| {long} |\n", f"- `{long}`: a name\n"
    assert long_lines(code + table + spans) == []
    assert long_lines(f"{code}{long}\n{table}") == [long]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "results" / "README.md", ROOT / "LOG.md", ROOT / "CHANGELOG.md"])
def test_lines_are_short(page: Path) -> None:
    assert long_lines(page.read_text()) == []


def test_an_entry_of_the_log_has_ten_lines() -> None:
    _, *entries = (ROOT / "LOG.md").read_text().split("\n## ")
    lengths = {entry.splitlines()[0]: len([line for line in entry.splitlines()[1:] if line]) for entry in entries}
    assert {title: n for title, n in lengths.items() if n > 10 and "Runs to come" not in title} == {}


def test_the_docs_name_every_method() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(gallery\.md#[\w-]+\) \|", page, re.MULTILINE)
    assert tuple(rows) == tuple(METHODS)


def test_the_coverage_script_prints_the_table_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """With few trials: the same rows and columns, other figures."""
    load_script(ROOT / "tools" / "coverage.py").main(trials=2)
    measured = (ROOT / "docs" / "uncertainty.md").read_text().partition("## Measured coverage")[2]
    table = [line for line in measured.splitlines() if line.startswith("|")]

    def labels(lines: list[str]) -> list[list[str]]:
        return [line.split("|")[1:3] for line in lines]

    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0] == table[0]
    assert labels(lines) == labels(table)
