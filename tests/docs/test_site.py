"""The site of `make docs` builds without a warning, loads nothing from elsewhere, and agrees with the package."""

import ast
import html.parser
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import worstclass
from scripts import load_script
from worstclass.config.methods import METHODS
from worstclass.config.recipe import load_config
from worstclass.files import read_json

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "worstclass"
PAGES = load_script(ROOT / "tools" / "site_pages.py")
DIAGRAMS = load_script(ROOT / "tools" / "draw_diagrams.py")


def cards() -> dict[str, str]:
    """The sections of the gallery by their heading."""
    _, *sections = re.split(r"^## ", (ROOT / "docs" / "gallery.md").read_text(), flags=re.MULTILINE)
    return {section.partition("\n")[0]: section for section in sections}


def published(recipe: str) -> str:
    """What results/ has of a recipe, as a card says it."""
    folders = [path for path in (ROOT / "results").glob(f"{recipe}-seed*") if path.is_dir()]
    if not folders:
        return "no run yet"
    columns = [read_json(folder / "card.json")["columns"]["autoattack"] for folder in folders]
    average, worst = (100 * sum(c[key]["value"] for c in columns) / len(columns) for key in ("average", "worst"))
    return f"{average:.1f}% average, {worst:.1f}% worst class ({len(columns)} seed{'s' * (len(columns) > 1)})"


def others(recipe: str) -> list[str]:
    """The same of another form of a recipe, where it was run."""
    return [result for result in [published(recipe)] if result != "no run yet"]


@pytest.mark.fast
def test_there_is_a_card_for_every_method() -> None:
    assert list(cards()) == [method.title for method in METHODS.values()]


@pytest.mark.fast
@pytest.mark.parametrize("name", METHODS)
def test_a_card(name: str) -> None:
    """Idea, rule, a recipe of this method, and the result that is in results/."""
    card = cards()[METHODS[name].title]
    recipe, result = re.findall(r"^Recipe: `(.+?)`\. Result: (no run yet|.+?\))\.", card, re.MULTILINE)[0]
    assert load_config(recipe).method == name
    assert result == published(recipe)
    assert re.findall(r" averaged weights: (.+?\))\.", card) == others(f"{recipe}-ema")
    assert re.findall(r" TRADES on, averaged: (.+?\))\.", card) in ([], others(f"{recipe}-ema-fork"))
    rule = re.findall(r"^```text\n(.+?)^```$", card, re.MULTILINE | re.DOTALL)[0]
    assert max(map(len, rule.splitlines())) <= 92  # as wide as a card
    idea = card.split("\n")[2]
    assert len(re.findall(r"\.(?= [A-Z]|$)", re.sub(r" et al\.", " et al", idea))) == 2


def imports(path: Path) -> set[str]:
    """The folders and files of the package that a file of it imports, by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "worstclass":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("worstclass."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("worstclass.")}
    return found


def test_the_rooms_are_as_drawn() -> None:
    """Every folder is in the picture, and imports lead to its own row or down, without a circle."""
    row = {name: i for i, layer in enumerate(DIAGRAMS.LAYERS) for room in layer for name in room.names}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(row)
    assert set(row) <= folders | {path.stem for path in PACKAGE.glob("*.py")} | {DIAGRAMS.GROUND}
    arrows: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if name not in ("__init__", "__main__"):
            arrows.setdefault(name, set()).update(imports(path) - {name, "__version__"})
    bottom = row[DIAGRAMS.GROUND]
    up = [(one, other) for one in arrows for other in arrows[one] if row.get(one, bottom) > row.get(other, bottom)]
    assert up == []
    while free := {name for name in arrows if not arrows[name] & set(arrows)}:  # take away what imports nothing
        for name in free:
            del arrows[name]
    assert arrows == {}


def test_the_parts_of_a_step_are_methods_of_it() -> None:
    names = [words[0] for words in DIAGRAMS.STEPS]
    assert names == ["draw", "perturb", "losses", "reduce", "descend", "follow"]
    code = (PACKAGE / "training" / "step.py").read_text()
    assert [name for name in names if f"{name}(" not in code] == []


@pytest.mark.parametrize("name", DIAGRAMS.DRAWINGS)
def test_a_diagram_is_as_its_script_draws_it(name: str) -> None:
    assert (DIAGRAMS.FOLDER / name).read_text() == DIAGRAMS.DRAWINGS[name](), "run: python tools/draw_diagrams.py"


def test_links_are_written_for_the_place_of_a_page() -> None:
    def moved(link: str, page: str) -> Any:
        return PAGES.site_links(f"[a]({link})", page)[4:-1]

    assert moved("../LOG.md", "theory.md") == "LOG.md"
    assert moved("../results/README.md#reproduce", "methods.md") == "results/README.md#reproduce"
    assert moved("../docs/equations.md", "results/README.md") == "../equations.md"
    assert moved("forest.svg", "results/README.md") == "forest.svg"
    assert moved("docs/extending.md", "CONTRIBUTING.md") == "extending.md"
    assert moved("https://example.org/a.md", "theory.md") == "https://example.org/a.md"


class Loaded(html.parser.HTMLParser):
    """What a page loads when it is shown, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        address = values.get("href") if tag == "link" else values.get("src") if tag != "a" else None
        self.loaded += [address] if address else []


def check_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = {address for page in pages for address in Loaded(page.read_text()).loaded}
    assert any("bundle" in address for address in loaded)  # it does see scripts
    assert [address for address in loaded if re.match(r"(?:\w+:)?//", address)] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", styles) == []


def check_every_name_has_an_entry(site: Path) -> None:
    api = Loaded((site / "api.html").read_text()).ids
    assert [name for name in worstclass.__all__ if name != "__version__" and f"worstclass.{name}" not in api] == []
    modules = {name for page in (site / "reference").glob("*.html") for name in Loaded(page.read_text()).ids}
    assert [module for found in PAGES.rooms().values() for module in found if module not in modules] == []
    assert "worstclass.attacks.pgd.PGD.search" in modules


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs worstclass[docs]")
def test_the_site(tmp_path: Path) -> None:
    """Built strictly: a broken link or anchor, or a page that the navigation lacks, is an error.

    With `--quiet` mkdocs does not count warnings.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    check_nothing_is_loaded_from_elsewhere(tmp_path)
    check_every_name_has_an_entry(tmp_path)
    gallery = Loaded((tmp_path / "gallery.html").read_text()).ids
    assert [m.title for m in METHODS.values() if m.title.lower().replace(" ", "-") not in gallery] == []
    assert (tmp_path / "results" / "forest.svg").read_bytes() == (ROOT / "results" / "forest.svg").read_bytes()
    assert "WAT, eta 0.05</td>" in (tmp_path / "results" / "index.html").read_text()
