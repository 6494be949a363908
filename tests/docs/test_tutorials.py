"""Every command of the tutorials runs, in order and in one folder, on fewer images."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts import load_script
from worstclass.cli import main as cli

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))
LESS = {"quick": "pgd-2", "pgd-20": "pgd-2", "200": "40", "epochs=10": "epochs=3"}
LESS_OF: dict[str, dict[str, Any]] = {
    "audit_a_model.py": {"folder": Path(), "epochs": 1, "limit": 40, "attacks": "pgd-2"},
    "photos.py": {"folder": Path("photos"), "per_class": 25},
    "plain_loop.py": {"epochs": 1, "limit": 300},
    "worst_class_loop.py": {"epochs": 1, "limit": 300},
}
LEFT_BEHIND = {
    "tutorial-audit.md": ["audit.html", "audit/card.json", "audited/card.json", "audited.html"],
    "tutorial-loop.md": [],
    "tutorial-train.md": ["runs/photos/card.json", "report.html"],
}


def commands(page: Path) -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


@pytest.mark.slow  # they train, attack and draw reports
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for program, *words in commands(page):
        assert program in ("python", "worstclass")
        with torch.random.fork_rng():
            if program == "python":
                load_script(Path(words[0])).main(**LESS_OF[words[0]])
            else:
                cli.app([LESS.get(word, word) for word in words], standalone_mode=False)
    assert [name for name in LEFT_BEHIND[page.name] if not Path(name).is_file()] == []
