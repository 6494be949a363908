"""The page with 10, 43 and 200 classes: its answer, light, dark and on paper, links to figures, tables to copy."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import presence_of_element_located
from selenium.webdriver.support.ui import WebDriverWait

from chromium import NEEDS_CHROMIUM, contrast, emulate, luminance, start
from many_classes import made_up
from worstclass.report import Group, Result, group_results, load_results, write_report
from worstclass.report.answer import answers, comparison
from worstclass.report.leaderboard import render_leaderboard
from worstclass.report.tables import render_table

pytestmark = NEEDS_CHROMIUM
PGD = "pgd-20"
RUNS = (("trades", 1), ("trades", 2), ("wat", 1), ("wat", 2))


@pytest.fixture(scope="module", params=[10, 43, 200])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    root = tmp_path_factory.mktemp("modes")
    made = [made_up(root / f"{method}{seed}", request.param, method=method, seed=seed) for method, seed in RUNS]
    return load_results(made)


@pytest.fixture(scope="module")
def groups(results: list[Result]) -> list[Group]:
    return group_results(results)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    browser = start()
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def page(results: list[Result], groups: list[Group]) -> Path:
    out = results[0].folder.parent / "report.html"
    write_report(results, out, groups=groups, gallery=False)
    return out


def visit(browser: webdriver.Chrome, page: Path, scheme: str = "light", media: str = "", place: str = "") -> None:
    emulate(browser, scheme, media)
    browser.get("about:blank")  # another fragment alone would not load the page again
    browser.get(page.as_uri() + place)
    assert browser.find_element(By.TAG_NAME, "body").get_attribute("data-ready") == "yes"
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def background(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


def test_the_answer_is_what_one_sees_first(browser: webdriver.Chrome, page: Path, groups: list[Group]) -> None:
    visit(browser, page)
    cards = browser.find_elements(By.CSS_SELECTOR, ".answers li")
    for card, answer in zip(cards, answers(groups, PGD), strict=True):
        assert card.text.startswith(answer.title)
        assert f"{answer.weakest} {answer.worst}" in card.text
        assert answer.taken in card.text
        assert answer.confused in card.text
    lead = browser.find_element(By.CSS_SELECTOR, ".lead")
    assert lead.text == comparison(groups, PGD)
    assert lead.location["y"] + lead.size["height"] < 600  # no scrolling
    assert not browser.find_element(By.CSS_SELECTOR, "details.theory ul").is_displayed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read(browser: webdriver.Chrome, page: Path, scheme: str) -> None:
    """In either scheme, with a contrast of 4.5 to what is behind it."""
    visit(browser, page, scheme)
    behind = background(browser)
    assert (luminance(behind) < 0.05) == (scheme == "dark")
    texts = browser.execute_script(
        """return [...document.querySelectorAll("figure:not(#confusion) svg text, #confusion [aria-label*=axis] text")]
          .filter(t => t.textContent && t.getBoundingClientRect().width)
          .map(t => [t.textContent, getComputedStyle(t).fill])"""
    )
    texts += browser.execute_script(
        """return [...document.querySelectorAll("h1, h2, h3, p, td, th, li, label, button, figcaption, summary")]
          .map(t => [t.textContent, getComputedStyle(t).color])"""
    )
    assert len(texts) > 50
    assert [(text, color) for text, color in texts if contrast(color, behind) < 4.5] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_and_lines_stand_out(browser: webdriver.Chrome, page: Path, scheme: str) -> None:
    visit(browser, page, scheme)
    fills = browser.execute_script(
        """return [...document.querySelectorAll("#classwise [aria-label=bar] rect")]
          .map(r => getComputedStyle(r).fill)"""
    )
    assert len(set(fills)) == len(RUNS)
    assert min(contrast(fill, background(browser)) for fill in fills) > 2.2


def test_cells_of_a_matrix_can_be_read(browser: webdriver.Chrome, page: Path, results: list[Result]) -> None:
    if len(results[0].class_names) > 10:
        pytest.skip("many classes have no matrix")
    for scheme in ("light", "dark"):
        visit(browser, page, scheme)
        pairs = browser.execute_script(
            """const cells = [...document.querySelectorAll("#confusion [aria-label=cell] rect[aria-label]")];
            return [...document.querySelectorAll("#confusion [aria-label=text] text")].map(t => {
              const b = t.getBoundingClientRect(), x = b.x + b.width / 2, y = b.y + b.height / 2;
              const cell = cells.find(c => { const r = c.getBoundingClientRect();
                return r.x <= x && x <= r.right && r.y <= y && y <= r.bottom; });
              return [getComputedStyle(t).fill, getComputedStyle(cell).fill]; })"""
        )
        assert len(pairs) > 20
        assert min(contrast(*pair) for pair in pairs) > 4


def test_the_button_changes_the_scheme_and_keeps_nothing(browser: webdriver.Chrome, page: Path) -> None:
    for scheme, other in (("light", "dark"), ("dark", "light")):
        visit(browser, page, scheme)
        button = browser.find_element(By.CSS_SELECTOR, "button.theme")
        assert button.text == f"{other.capitalize()} mode"
        button.click()
        assert button.text == f"{scheme.capitalize()} mode"
        assert (luminance(background(browser)) < 0.05) == (other == "dark")
        button.click()
        assert (luminance(background(browser)) < 0.05) == (scheme == "dark")
    assert browser.execute_script("return localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_paper_is_light_and_unfolded(browser: webdriver.Chrome, page: Path) -> None:
    """By style alone; what is for a screen is not there, and nothing is wider than the paper."""
    browser.set_window_size(760, 1000)
    try:
        visit(browser, page, "dark", "print")
        assert background(browser) == "rgb(255, 255, 255)"
        folded = browser.execute_script(
            """return [...document.querySelectorAll("details:not(.theory) > :not(summary)")]
              .map(e => e.getBoundingClientRect().height)"""
        )
        assert folded
        assert min(folded) > 10
        for selector in ("button", ".anchor", "details.theory", "[name=find]"):
            for each in browser.find_elements(By.CSS_SELECTOR, selector):
                assert not each.is_displayed(), selector
        wide = browser.execute_script(
            """return [...document.querySelectorAll("table, figure svg, pre, .answers")]
              .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
        )
        assert wide == []
    finally:
        browser.set_window_size(1200, 1000)
    emulate(browser, "dark")
    assert len(browser.print_page()) > 50_000


def test_a_link_to_a_figure_leads_to_it(browser: webdriver.Chrome, page: Path) -> None:
    visit(browser, page)
    links = [str(link.get_attribute("href")) for link in browser.find_elements(By.CSS_SELECTOR, "figure .anchor")]
    places = [link.rpartition("#")[2] for link in links]
    figures = [str(figure.get_attribute("id")) for figure in browser.find_elements(By.TAG_NAME, "figure")]
    assert places == figures
    for place in ("confusion", "plane"):
        visit(browser, page, place=f"#{place}")
        top, height = browser.execute_script(
            f"return [document.getElementById('{place}').getBoundingClientRect().top, innerHeight]"
        )
        assert 0 <= top < height / 2


@pytest.mark.parametrize("allowed", [True, False])
def test_tables_are_copied_as_format_prints_them(
    browser: webdriver.Chrome, page: Path, results: list[Result], groups: list[Group], allowed: bool
) -> None:
    """By the clipboard, or where a browser refuses that, by a selection."""
    visit(browser, page)
    browser.execute_script(
        """navigator.clipboard.writeText = async t => { if (!arguments[0]) throw new Error("no"); window.copied = t; };
        document.addEventListener("copy", () => { const a = document.activeElement;
          window.copied = a.value.slice(a.selectionStart, a.selectionEnd); });""",
        allowed,
    )
    for table, kind in itertools.product(("methods", "measures"), ("markdown", "latex")):
        button = browser.find_element(By.CSS_SELECTOR, f"[data-copy={table}][data-kind={kind}]")
        browser.execute_script("window.copied = ''; arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        copied = WebDriverWait(browser, 5).until(lambda b: b.execute_script("return window.copied"))
        if table == "methods":
            assert copied == render_leaderboard(groups, ["natural", PGD], kind)
        else:
            assert copied == render_table(results, kind)
        words = f"//*[@role='status'][text()='Copied as {button.text}.']"
        WebDriverWait(browser, 5).until(presence_of_element_located((By.XPATH, words)))


def test_classes_are_in_order_of_their_accuracy(browser: webdriver.Chrome, page: Path, results: list[Result]) -> None:
    """From the lowest to the highest, averaged over the runs."""
    visit(browser, page)
    bars = browser.execute_script(
        """return [...document.querySelectorAll("#classwise [aria-label=bar] rect")]
          .map(r => [r.getAttribute("aria-label"), r.getBoundingClientRect().left, r.getBoundingClientRect().top])"""
    )
    axis = 1 if len(results[0].class_names) < 20 else 2
    names = list(dict.fromkeys(bar[0].split(", ")[0] for bar in sorted(bars, key=lambda bar: bar[axis])))
    values = {
        name: sum(r.columns[PGD]["classes"][k]["value"] for r in results)
        for k, name in enumerate(results[0].class_names)
    }
    shown = [values[name] for name in names]
    assert shown == pytest.approx(sorted(shown))
    assert len(shown) == min(20, len(values))


@pytest.mark.parametrize("width", [500, 768])
def test_nothing_runs_off_a_small_screen(browser: webdriver.Chrome, page: Path, width: int) -> None:
    browser.set_window_size(width, 900)
    try:
        visit(browser, page)
        inner, content = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
        assert content <= inner
    finally:
        browser.set_window_size(1200, 1000)
