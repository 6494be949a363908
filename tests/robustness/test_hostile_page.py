"""Names and texts that mean harm stay words on the page: its structure is that of a page of harmless names."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from copied_runs import set_outcomes
from mutate import harm_value
from tiny import tiny_config, write_tiny_npz
from worstclass.cli.console import say
from worstclass.errors import UserError
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.files import write_json
from worstclass.report import figures, load_results, write_report
from worstclass.runs.saver import ABOUT
from worstclass.runs.train import train_run

EVIL = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "-->",
    "]]><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "\u2028alert(1)\u2029",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;&#60;",
    "</title></style></pre></noscript>",
    "javascript:alert(1)",
    "\\u003c/script\\u003e",
]
EVERYTHING = "".join(EVIL)


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes; its words apart; and what is inside its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.words += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment",))

    def handle_data(self, data: str) -> None:
        last = self.tags[-1][0] if self.tags else ""
        (self.scripts if last == "script" else self.words).append(data)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    run = train_run(tiny_config(write_tiny_npz(root / "tiny.npz"), method="trades", epochs=1), root / "run")
    evaluate_target(run_target(run), ["pgd-2"], run.folder)
    return run.folder


def with_texts(source: Path, folder: Path, text: str) -> Path:
    """A copy of a run in which every text that it may choose says `text`."""
    shutil.copytree(source, folder)
    names = [f"{text[:200]} {k}" for k in range(3)]
    card, about = json.loads((folder / CARD).read_text()), json.loads((folder / ABOUT).read_text())
    card["class_names"] = about["class_names"] = names
    card["about"] |= {"data": f"npz:{text}", "weights": text, "images": text, "recipe": {"x": text}}
    card["versions"] = {f"torch{text}": text}
    card["columns"]["pgd-2"]["attack"] = text
    card["findings"] = [{"name": text, "passed": k == 0, "seen": text, "advice": text} for k in range(2)]
    about["engine"] |= {"device": text, "gpu": text}
    write_json(folder / CARD, card)
    write_json(folder / ABOUT, about)
    with np.load(folder / OUTCOMES) as archive:
        arrays: dict[str, Any] = dict(archive)
    labels = arrays["labels"]
    one_class_is_weakest = np.where((labels == 0) & (np.arange(len(labels)) % 2 == 0), 1, labels)
    arrays |= {"predictions/natural": labels, "predictions/pgd-2": one_class_is_weakest}
    arrays[f"predictions/{text[:90].replace('/', '').replace(chr(92), '')}"] = arrays["predictions/pgd-2"]
    np.savez(folder / OUTCOMES, **arrays)
    set_outcomes(folder, Outcomes.load(folder / OUTCOMES))  # the numbers of the card too
    return folder


@pytest.fixture
def fast_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is what matters here."""
    monkeypatch.setattr(figures, "classwise", lambda *_: None)
    monkeypatch.setattr(figures, "training", lambda *_: None)
    monkeypatch.setattr(figures, "save_figure", lambda *_: [])


def page_of(folders: list[Path], out: Path) -> str:
    write_report(load_results(folders), out)
    return out.read_text()


@pytest.mark.usefixtures("fast_figures")
@pytest.mark.parametrize("text", [*EVIL, EVERYTHING])
def test_no_text_changes_the_structure_of_the_page(text: str, evaluated: Path, tmp_path: Path) -> None:
    harmless = with_texts(evaluated, tmp_path / "one" / "run", "word")
    evil = with_texts(evaluated, tmp_path / "other" / text[:80].replace("/", ""), text)
    good, bad = (Structure(page_of([folder, folder], tmp_path / "report.html")) for folder in (harmless, evil))
    assert bad.tags == good.tags
    assert bad.scripts[1:] == good.scripts[1:]  # the first is the data
    data = json.loads(bad.scripts[0])
    assert data["classes"] == [f"{text[:200]} {k}" for k in range(3)]
    assert not re.search(r"[<>&\u2028\u2029]", bad.scripts[0])
    shown = " ".join(bad.words)
    for part in (f"{text[:200]} 0", f"npz:{text}", f": {text}. {text}", f"torch{text} {text}"):
        assert part in shown


def test_the_structure_would_show_it() -> None:
    """Without escaping, each of these is found: as an element, as an attribute, or as the end of a script."""
    plain = Structure('<p title="word">word</p><script>"word"</script>').tags
    for text in EVIL[:1] + EVIL[3:6]:  # the parser takes an open comment for words
        pages = (f'<p title="{text}">word</p>', f"<p title='{text}'>word</p>", f'<p title="word">{text}</p>')
        scripts = ('<script>"word"</script>', f'<script>"{text}"</script>')
        assert any(Structure(p + s).tags != plain for p in pages for s in scripts)


@pytest.mark.usefixtures("fast_figures")
def test_harmed_cards_make_a_page_or_a_clean_error(evaluated: Path, tmp_path: Path) -> None:
    shutil.copytree(evaluated, tmp_path / "run")
    good = json.loads((evaluated / CARD).read_text())
    drawn = made = 0
    while drawn < 100:
        drawn += 1
        write_json(tmp_path / "run" / CARD, harm_value(Random(drawn), good))
        try:
            results = load_results([tmp_path / "run"])
        except UserError:
            continue
        write_report(results, tmp_path / "report.html", gallery=False)
        made += 1
    assert 10 < made < 90


def test_a_terminal_is_not_steered(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b[2Jb\x07\ud800")
    assert "\x1b" not in (printed := capsys.readouterr().out)
    assert "a\\x1b[2Jb\\x07\\ud800" in printed
    assert str(UserError("a\nb\x1b[0m")) == "a\\nb\\x1b[0m"
