"""`worstclass watch` in a real browser, with runs of 10, 43 and 200 classes: charts that follow a growing log."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from chromium import NEEDS_CHROMIUM, contrast, emulate, luminance, start
from many_classes import EPOCHS, made_up
from worstclass.report.watch import make_server
from worstclass.runs.saver import ABOUT, LOG

pytestmark = NEEDS_CHROMIUM
NASTY = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched")
    for classes in (10, 43, 200):
        made_up(root / f"run {classes}", classes, method="wat")
    about = json.loads((root / "run 10" / ABOUT).read_text())
    about["class_names"][0] = NASTY
    (root / "run 10" / ABOUT).write_text(json.dumps(about))
    return root


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with make_server(runs) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    browser = start()
    yield browser
    browser.quit()


def visit(browser: webdriver.Chrome, address: str, classes: int) -> None:
    browser.get("about:blank")
    browser.get(f"{address}#run%20{classes}")
    WebDriverWait(browser, 10).until(lambda b: b.find_element(By.TAG_NAME, "body").get_attribute("data-ready"))
    assert browser.find_element(By.ID, "run").text == f"run {classes}"
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize("classes", [10, 43, 200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_every_run_and_the_chosen_one(
    browser: webdriver.Chrome, address: str, runs: Path, classes: int, scheme: str
) -> None:
    emulate(browser, scheme)
    visit(browser, address, classes)
    assert len(browser.find_elements(By.CSS_SELECTOR, "table.runs tbody tr")) == 3
    assert len(browser.find_elements(By.CSS_SELECTOR, "#accuracies svg, #weights svg")) == 2
    last = json.loads((runs / f"run {classes}" / LOG).read_text().splitlines()[-1])["class_robust_accuracy"]
    shown = browser.execute_script(
        "return [...document.querySelectorAll('table.classes td:nth-child(2)')].map(t => Number(t.textContent))"
    )
    assert shown == pytest.approx([100 * value for value in sorted(last)], abs=0.0501)
    behind = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(behind) < 0.05) == (scheme == "dark")
    texts = browser.execute_script(
        """return [...document.querySelectorAll("svg text")].filter(t => t.textContent)
          .map(t => getComputedStyle(t).fill)
          .concat([...document.querySelectorAll("td, th, p, a, h1, h2")].map(t => getComputedStyle(t).color))"""
    )
    assert min(contrast(color, behind) for color in texts) >= 4.5


def test_it_follows_the_log(browser: webdriver.Chrome, address: str, runs: Path) -> None:
    """An epoch that ends is drawn within some seconds; half a line is not."""
    log = runs / "run 10" / LOG
    lines = log.read_text().splitlines(keepends=True)

    def epochs() -> str:
        return str(browser.find_element(By.CSS_SELECTOR, "table.runs tbody tr td:nth-child(2)").text)

    try:
        log.write_text(lines[0] + lines[1][:40])
        visit(browser, address, 10)
        assert epochs() == f"1 / {EPOCHS}"
        before = browser.find_element(By.CSS_SELECTOR, "#accuracies figcaption").text
        assert "kept, 1." in before
        log.write_text("".join(lines[:2]))
        WebDriverWait(browser, 10).until(lambda _: epochs() == f"2 / {EPOCHS}")
        WebDriverWait(browser, 10).until(
            lambda b: "kept, 2." in b.find_element(By.CSS_SELECTOR, "#accuracies figcaption").text
        )
    finally:
        log.write_text("".join(lines))


def test_a_run_is_chosen_by_its_link_and_names_are_words(browser: webdriver.Chrome, address: str) -> None:
    visit(browser, address, 43)
    browser.find_element(By.LINK_TEXT, "run 10").click()
    WebDriverWait(browser, 10).until(lambda b: b.find_element(By.ID, "run").text == "run 10")
    names = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "table.classes td:first-child")]
    assert NASTY in names
    assert not browser.find_elements(By.TAG_NAME, "img")


@pytest.mark.parametrize("classes", [10, 200])
def test_nothing_runs_off_a_small_screen(browser: webdriver.Chrome, address: str, classes: int) -> None:
    browser.set_window_size(500, 900)
    try:
        visit(browser, address, classes)
        inner, content = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
        assert content <= inner
    finally:
        browser.set_window_size(1200, 1000)
