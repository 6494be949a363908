"""The site's pages that are not files of docs/, and links between the two: a hook of mkdocs (mkdocs.yml).

Pages in docs/ link to files of the repository (`../LOG.md`), as GitHub needs it. Some of these files belong to the site
as well, at their path in the repository; a link is written anew for the place of its page. Names in docs/api.md and the
modules become entries with signature and docstring, by mkdocstrings.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "worstclass"
TEXTS = ("CHANGELOG.md", "CONTRIBUTING.md", "LOG.md", "CITATION.cff", "LICENSE")
MOUNTED = (*TEXTS, "results/*.*", "examples/*.py", "examples/notebooks/*.ipynb")
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")
NAMES = re.compile(r"^`\w+`(?:,\s`\w+`)*\.?$", re.MULTILINE)
HIDDEN = {"index.md": ["navigation", "toc"], "results/README.md": ["toc"]}  # the leaderboard is wide
COMMAND = "cli"  # described by --help and the pages on each command


def mounted() -> list[str]:
    """Files outside of docs/ that are part of the site, by their path in the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for glob in MOUNTED for path in ROOT.glob(glob) if path.is_file())


def rooms() -> dict[str, list[str]]:
    """The modules of each folder of the package, and of the files beside the folders (`ground`), by import path."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        *folders, name = path.relative_to(PACKAGE).with_suffix("").parts
        if name == "__main__" or (name == "__init__" and not folders) or folders[:1] == [COMMAND]:
            continue
        parts = ["worstclass", *folders] + ([] if name == "__init__" else [name])
        found.setdefault(folders[0] if folders else "ground", []).append(".".join(parts))
    return found


def site_links(markdown: str, page: str) -> str:
    """The links of a page of the site, given by its path there, from where the repository has their targets."""
    source = page if page in mounted() else f"docs/{page}"

    def move(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        target = target.removeprefix("docs/") if target.startswith("docs/") else target
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    return LINK.sub(move, markdown)


def api_entries(markdown: str) -> str:
    """Each list of names on a line or more of their own, as entries of the public package."""
    return NAMES.sub(lambda match: "\n".join(map(api_entry, re.findall(r"`(\w+)`", match[0]))), markdown)


def api_entry(name: str) -> str:
    """The keys of a recipe have descriptions as values and no docstrings; other values are long, and say little."""
    shown = "show_if_no_docstring: true" if name == "Config" else "show_attribute_values: false"
    return f"::: worstclass.{name}\n    options:\n      {shown}\n"


def cards(markdown: str) -> str:
    """Each section of the gallery in a box."""
    head, *sections = re.split(r"^(?=## )", markdown, flags=re.MULTILINE)
    return head + "".join(f'<div class="card" markdown>\n\n{section}\n</div>\n\n' for section in sections)


def module_page(room: str, modules: list[str]) -> str:
    """Every module of a room; its `__init__` without the names that it passes on."""
    lines = ["# Ground files" if room == "ground" else f"# worstclass.{room}"]
    for module in modules:
        lines += ["", f"::: {module}", "    options:", "      heading_level: 2", "      show_root_full_path: true"]
        init = ROOT.joinpath("src", *module.split("."), "__init__.py")
        if init.exists():
            lines.append(f"      members: {json.dumps(own_names(init))}")
    return "\n".join(lines) + "\n"


def own_names(path: Path) -> list[str]:
    """The public names that a file defines, in order."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in found if not name.startswith("_")]


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    from mkdocs.structure.files import File

    for path in mounted():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for room, modules in rooms().items():
        files.append(File.generated(config, f"reference/{room}.md", content=module_page(room, modules)))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    path = page.file.src_uri
    if path.startswith("reference/"):
        return markdown
    if path in HIDDEN:
        page.meta["hide"] = HIDDEN[path]
    if path == "api.md":
        markdown = api_entries(markdown)
    if path == "gallery.md":
        markdown = cards(markdown)
    return site_links(markdown, path)
