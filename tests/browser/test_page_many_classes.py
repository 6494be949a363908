"""The page of many classes in a real browser: readable with 43 and with 200. Skipped as test_page.py is."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from chromium import NEEDS_CHROMIUM, start
from many_classes import made_up
from worstclass.report import load_results, write_report
from worstclass.report.results import Result

pytestmark = NEEDS_CHROMIUM
PGD = "pgd-20"


@pytest.fixture(scope="module", params=[43, 200])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    root = tmp_path_factory.mktemp("many")
    folders = [made_up(root / method, request.param, method=method) for method in ("trades", "wat")]
    found = load_results(folders)
    write_report(found, root / "report.html", gallery=False)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    browser = start()
    yield browser
    browser.quit()


@pytest.fixture
def opened(browser: webdriver.Chrome, results: list[Result]) -> webdriver.Chrome:
    browser.set_window_size(1200, 1000)
    browser.get((results[0].folder.parent / "report.html").as_uri())
    assert browser.find_element(By.TAG_NAME, "body").get_attribute("data-ready") == "yes"
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    return browser


def labels(browser: webdriver.Chrome, figure: str) -> list[str]:
    bars = browser.find_elements(By.CSS_SELECTOR, f"#{figure} [aria-label='bar'] rect")
    return [str(bar.get_attribute("aria-label")) for bar in bars]


def caption(browser: webdriver.Chrome, figure: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, f"#{figure} figcaption").text


def classes_of(texts: list[str]) -> set[str]:
    return {text.split(", ")[0] for text in texts}


def test_the_lowest_and_the_highest_are_shown(opened: webdriver.Chrome, results: list[Result]) -> None:
    values = np.mean([[each["value"] for each in r.columns[PGD]["classes"]] for r in results], axis=0)
    shown = labels(opened, "classwise")
    assert len(shown) == 2 * 20
    places = [results[0].class_names.index(name) for name in classes_of(shown)]
    ranked = np.sort(values)
    assert np.sort(values[places]).tolist() == pytest.approx([*ranked[:10], *ranked[-10:]])
    assert f"10 lowest and the 10 highest of {len(values)} classes" in caption(opened, "classwise")
    folded = opened.find_element(By.CSS_SELECTOR, "#classwise .chart").text
    assert f"{len(values) - 20} more" in folded


def test_all_classes_on_demand(opened: webdriver.Chrome, results: list[Result]) -> None:
    opened.find_element(By.CSS_SELECTOR, "[name=all]").click()
    assert classes_of(labels(opened, "classwise")) == set(results[0].class_names)


def test_a_class_is_found_by_its_name(opened: webdriver.Chrome, results: list[Result]) -> None:
    """In any case; its confusions are shown too, and nothing where nothing is found."""
    find = opened.find_element(By.CSS_SELECTOR, "[name=find]")
    find.send_keys("SNOW")
    wanted = {name for name in results[0].class_names if "snow" in name}
    assert classes_of(labels(opened, "classwise")) == wanted
    assert all(label.startswith("snow") for label in labels(opened, "confusion"))
    find.send_keys("no such class")
    assert labels(opened, "classwise") == labels(opened, "confusion") == []
    assert "0 of" in caption(opened, "classwise")
    find.clear()
    find.send_keys(" ")
    assert len(labels(opened, "classwise")) == 40


def test_the_largest_confusions_are_a_list(opened: webdriver.Chrome, results: list[Result]) -> None:
    outcomes, names = results[0].outcomes, results[0].class_names
    count = len(names)
    taken = np.bincount(outcomes.labels * count + outcomes.predictions[PGD], minlength=count**2).reshape(count, count)
    np.fill_diagonal(taken, 0)
    i, j = np.unravel_index(taken.argmax(), taken.shape)
    shown = labels(opened, "confusion")
    assert len(shown) == 15
    largest = 100 * taken[i, j] / (outcomes.labels == i).sum()
    assert shown[0].endswith(f": {largest:.1f}%")
    assert not opened.find_elements(By.CSS_SELECTOR, "#confusion [aria-label='cell']")


def test_every_class_is_in_the_order_and_the_tenth_in_the_words(
    opened: webdriver.Chrome, results: list[Result]
) -> None:
    for result in results:
        value, low, high = (100 * result.columns[PGD]["worst_tenth"][end] for end in ("value", "low", "high"))
        assert f"{result.title} {value:.1f}% [{low:.1f}, {high:.1f}]" in caption(opened, "ranks")
        assert f"{value:.1f} [{low:.1f}, {high:.1f}]" in opened.find_element(By.CSS_SELECTOR, "table.measures").text
    assert len(opened.find_elements(By.CSS_SELECTOR, "#ranks [aria-label='line'] path")) == 2
    assert len(opened.find_elements(By.CSS_SELECTOR, "#forest svg")) == 3


def test_names_do_not_cover_each_other(opened: webdriver.Chrome) -> None:
    """The names of the classes, and of what they are taken for, are apart and inside the page."""
    for figure in ("classwise", "confusion"):
        boxes = opened.execute_script(
            f"""const names = document.querySelectorAll("#{figure} svg [aria-label$='y-axis tick label'] text");
            return [...names].map(t => t.getBoundingClientRect()).filter(b => b.width)
              .map(b => [b.left, b.top, b.bottom])"""
        )
        assert len(boxes) >= 15
        assert min(left for left, _, _ in boxes) >= 0
        tops = sorted((top, bottom) for _, top, bottom in boxes)
        assert all(bottom <= top + 1 for (_, bottom), (top, _) in itertools.pairwise(tops)), figure


@pytest.mark.parametrize("width", [500, 768])
def test_nothing_runs_off_a_small_screen(opened: webdriver.Chrome, width: int) -> None:
    opened.set_window_size(width, 900)
    opened.refresh()
    inner, content = opened.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    assert content <= inner
