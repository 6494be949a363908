"""The report in a real browser: `make test-all`. Skipped where there is no Chromium, unless BROWSER=required."""

import itertools
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from chromium import NEEDS_CHROMIUM, contrast, start
from tiny import tiny_config, write_tiny_npz
from worstclass.config.recipe import make_config, read_recipe
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.metrics.percentages import percent
from worstclass.report import load_results, write_report
from worstclass.runs.run import open_run
from worstclass.runs.train import train_run

pytestmark = NEEDS_CHROMIUM
NASTY = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short runs on the data that ships with the package, evaluated under two attacks."""
    root = tmp_path_factory.mktemp("page")
    for method in ("trades", "wat"):
        config = make_config(read_recipe(f"fashion-mini-{method}") | {"epochs": 2, "lr_milestones": [1]})
        run = train_run(config, root / method)
        evaluate_target(run_target(run), ["pgd-5", "cw-5"], root / method)
    return [root / "trades", root / "wat"]


@pytest.fixture(scope="module")
def page(folders: list[Path]) -> Path:
    out = folders[0].parent / "report.html"
    write_report(load_results(folders), out, hourly_price=2.0)
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    browser = start()
    yield browser
    browser.quit()


@pytest.fixture
def opened(browser: webdriver.Chrome, page: Path) -> webdriver.Chrome:
    browser.get(page.as_uri())
    assert browser.find_element(By.TAG_NAME, "body").get_attribute("data-ready") == "yes"
    return browser


def bars(browser: webdriver.Chrome) -> dict[str, WebElement]:
    """The bars of the class-wise chart by their labels."""
    found = browser.find_elements(By.CSS_SELECTOR, "#classwise [aria-label='bar'] rect")
    return {str(bar.get_attribute("aria-label")): bar for bar in found}


def expected_labels(folders: list[Path], attack: str) -> set[str]:
    labels = set()
    for folder, title in zip(folders, ("TRADES", "WAT"), strict=True):
        column = json.loads((folder / "card.json").read_text())["columns"][attack]
        for each in column["classes"]:
            value, low, high = (f"{100 * each[key]:.1f}" for key in ("value", "low", "high"))
            labels.add(f"{each['class']}, {title}: {value}% [{low}, {high}]")
    return labels


def choose(browser: webdriver.Chrome, name: str, value: str) -> None:
    control = browser.find_element(By.CSS_SELECTOR, f"input[name={name}][value='{value}']")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", control)
    control.click()


def test_it_opens_without_a_complaint_and_without_the_network(opened: webdriver.Chrome, page: Path) -> None:
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    messages = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("file:", "data:", "chrome:", "about:"))] == []
    assert page.stat().st_size < 3e6


@pytest.mark.parametrize("attack", ["natural", "pgd-5", "cw-5"])
def test_the_numbers_are_those_of_the_cards(opened: webdriver.Chrome, folders: list[Path], attack: str) -> None:
    """Each bar says its class, run, accuracy and interval; so do the caption and the table."""
    choose(opened, "attack", attack)
    assert bars(opened).keys() == expected_labels(folders, attack)
    caption = opened.find_element(By.CSS_SELECTOR, "#classwise figcaption").text
    table = opened.find_element(By.CSS_SELECTOR, "table.measures").text
    for folder in folders:
        worst = json.loads((folder / "card.json").read_text())["columns"][attack]["worst"]
        value, low, high = (f"{100 * worst[key]:.1f}" for key in ("value", "low", "high"))
        assert f"weakest {worst['class']}, {value}% [{low}, {high}]" in caption
        assert f"{value} [{low}, {high}]" in table


def test_a_bar_is_as_high_as_its_number(opened: webdriver.Chrome) -> None:
    choose(opened, "attack", "natural")
    sizes = {label: bar.rect["height"] for label, bar in bars(opened).items()}
    values = {label: float(re.findall(r": ([\d.]+)%", label)[0]) for label in sizes}
    highest = max(values, key=lambda label: values[label])
    for label, value in values.items():
        assert sizes[label] == pytest.approx(sizes[highest] * value / values[highest], abs=1.5)


def test_hovering_shows_the_value(opened: webdriver.Chrome) -> None:
    label, bar = next(iter(bars(opened).items()))
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", bar)
    ActionChains(opened).move_to_element(bar).perform()
    tip = opened.find_element(By.CSS_SELECTOR, "#classwise [aria-label='tip']")
    assert "".join(tip.text.split()) == "".join(label.split())


def test_runs_are_switched_off_and_on_and_one_stays(opened: webdriver.Chrome) -> None:
    both = bars(opened).keys()
    choose(opened, "shown", "0")
    assert bars(opened).keys() == {label for label in both if ", WAT:" in label}
    assert len(opened.find_elements(By.CSS_SELECTOR, "#plane [aria-label='dot'] circle")) == 1
    choose(opened, "shown", "1")
    assert bars(opened)
    choose(opened, "shown", "0")
    assert bars(opened).keys() == both


def test_methods_are_a_forest_plot(opened: webdriver.Chrome, folders: list[Path]) -> None:
    """Two panels, a row a method: the mean with its interval, and a dot for each seed."""
    choose(opened, "attack", "cw-5")
    panels = opened.find_elements(By.CSS_SELECTOR, "#forest svg")
    for panel, key, title in zip(panels, ("average", "worst"), ("average", "worst class"), strict=True):
        ticks = panel.find_elements(By.CSS_SELECTOR, "[aria-label='tick'] line")
        texts = [str(tick.get_attribute("aria-label")) for tick in ticks]
        labels = {text.split(",")[0]: text for text in texts}
        for folder, method in zip(folders, ("TRADES", "WAT"), strict=True):
            cell = json.loads((folder / "card.json").read_text())["columns"]["cw-5"][key]
            shown = [float(number) for number in re.findall(r"\d+\.\d", labels[method])]
            assert labels[method].startswith(f"{method}, {title}: ")
            assert shown == pytest.approx([100 * cell[end] for end in ("value", "low", "high")], abs=0.06)
        assert len(panel.find_elements(By.CSS_SELECTOR, "[aria-label='dot'] circle")) == 2


def test_one_run_in_depth(opened: webdriver.Chrome, folders: list[Path]) -> None:
    """Confusion and epochs follow the run; the shares are those of the outcomes."""
    from worstclass.evaluation.outcomes import Outcomes

    choose(opened, "attack", "pgd-5")
    for index, folder in enumerate(folders):
        choose(opened, "run", str(index))
        cells = opened.find_elements(By.CSS_SELECTOR, "#confusion [aria-label='cell'] rect[aria-label]")
        labels = {str(cell.get_attribute("aria-label")) for cell in cells}
        outcomes = Outcomes.load(folder / "outcomes.npz")
        of_shirts = outcomes.labels == 6
        share = (outcomes.predictions["pgd-5"][of_shirts] == 4).mean()
        assert f"shirt taken for coat: {100 * round(share, 4):.1f}%" in labels
        assert len(labels) == 100
        title = ("TRADES", "WAT")[index]
        for figure in ("confusion", "weights", "accuracies"):
            assert opened.find_element(By.CSS_SELECTOR, f"#{figure} figcaption").text.startswith(title)


def test_the_plane_places_the_runs(opened: webdriver.Chrome, folders: list[Path]) -> None:
    choose(opened, "attack", "pgd-5")
    dots = opened.find_elements(By.CSS_SELECTOR, "#plane [aria-label='dot'] circle")
    labels = [str(dot.get_attribute("aria-label")) for dot in dots]
    assert labels[0].startswith("TRADES: average ")
    rho = re.search(r"rho (-?[\d.]+)", labels[1])
    result = load_results(folders)[1].columns["pgd-5"]["against_base"]["rho"]["value"]
    assert (rho is None) == (result is None)  # where a class of the base is at zero there is none
    if rho is not None:
        assert float(rho[1]) == pytest.approx(result, abs=6e-4)
        assert opened.find_elements(By.CSS_SELECTOR, "#plane [aria-label='link'] path")


def test_names_in_charts_can_be_read(opened: webdriver.Chrome) -> None:
    """On white, each with a contrast of 4.5 at least."""
    fills = opened.execute_script(
        """return ["#plane", "#weights", "#accuracies"].flatMap(id =>
          [...document.querySelectorAll(id + " svg text")].filter(t => t.textContent)
            .map(t => [id, t.textContent, getComputedStyle(t).fill]))"""
    )
    assert {("#plane", "TRADES"), ("#plane", "WAT")} <= {(place, text) for place, text, _ in fills}
    assert {place for place, _, _ in fills} == {"#plane", "#weights", "#accuracies"}
    for place, text, fill in fills:
        assert contrast(fill, "rgb(255, 255, 255)") >= 4.5, (place, text, fill)


def test_the_keyboard_is_enough(opened: webdriver.Chrome, folders: list[Path]) -> None:
    """Tab reaches the controls, arrows choose the attack, space switches a run."""
    body = opened.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert str(opened.switch_to.active_element.get_attribute("href")).endswith("#answer")
    opened.switch_to.active_element.send_keys(Keys.TAB)
    assert opened.switch_to.active_element.get_attribute("name") == "attack"
    before = bars(opened).keys()
    opened.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert bars(opened).keys() != before
    opened.switch_to.active_element.send_keys(Keys.TAB)
    assert opened.switch_to.active_element.get_attribute("name") == "shown"
    opened.switch_to.active_element.send_keys(Keys.SPACE)
    assert all(", WAT:" in label for label in bars(opened))
    opened.switch_to.active_element.send_keys(Keys.SPACE)


def test_what_a_screen_reader_finds(opened: webdriver.Chrome) -> None:
    """Every image has words, every chart a name, every control a label, and headings come in order."""
    images = opened.find_elements(By.TAG_NAME, "img")
    assert len(images) == 3 * len(opened.find_elements(By.CLASS_NAME, "three"))
    assert all(image.get_attribute("alt") for image in images)
    for chart in opened.find_elements(By.CSS_SELECTOR, "figure svg:not([aria-hidden])"):
        assert chart.get_attribute("aria-label")
    for control in opened.find_elements(By.TAG_NAME, "input"):
        assert control.find_element(By.XPATH, "./ancestor::label").text.strip()
    levels = [int(str(h.tag_name)[1]) for h in opened.find_elements(By.CSS_SELECTOR, "h1, h2, h3, h4")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert opened.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"


def test_the_gallery_is_of_the_weakest_class(opened: webdriver.Chrome, folders: list[Path]) -> None:
    text = opened.find_element(By.TAG_NAME, "main").text
    for folder, title in zip(folders, ("TRADES", "WAT"), strict=True):
        weakest = json.loads((folder / "card.json").read_text())["columns"]["cw-5"]["worst"]["class"]
        assert f"{title}: {weakest}" in text
    widths = opened.execute_script("return [...document.images].map(i => i.complete ? i.naturalWidth : 0)")
    assert set(widths) == {open_run(folders[0]).about["image_size"][1]}


@pytest.mark.parametrize("width", [360, 768])
def test_on_a_phone_nothing_runs_off_the_page(page: Path, width: int) -> None:
    """Only what scrolls by itself may be wider than the screen."""
    browser = start(width, 800)
    try:
        browser.get(page.as_uri())
        inner, content = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
        assert content <= inner
    finally:
        browser.quit()


def test_printed_it_has_everything(opened: webdriver.Chrome) -> None:
    """A PDF of some pages, with the charts in it."""
    printed = opened.print_page()
    assert len(printed) > 100_000


def test_names_are_words_and_never_code(browser: webdriver.Chrome, tmp_path: Path) -> None:
    import numpy as np

    data = write_tiny_npz(tmp_path / "tiny.npz")
    arrays: dict[str, Any] = dict(np.load(data))
    arrays["class_names"] = np.array([NASTY, "'\"&amp;", "{{ 7 * 7 }}"])
    np.savez(data, **arrays)
    run = train_run(tiny_config(data, epochs=1), tmp_path / "run")
    evaluate_target(run_target(run), ["pgd-5"], run.folder)
    write_report(load_results([run.folder]), tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    assert browser.find_element(By.TAG_NAME, "body").get_attribute("data-ready") == "yes"
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert any(label.startswith(NASTY) for label in bars(browser))
    assert any(label.startswith("{{ 7 * 7 }}") for label in bars(browser))


def test_the_page_rounds_as_python_does(browser: webdriver.Chrome) -> None:
    """Every share of up to 400 images: among them are ties, which toFixed alone would take up."""
    script = files("worstclass.report").joinpath("charts.js").read_text()
    (rule,) = re.findall(r"^const percent = .*$", script, re.MULTILINE)
    shares = sorted({k / n for n in range(1, 401) for k in range(n + 1)})
    assert browser.execute_script(f"{rule} return arguments[0].map(percent);", shares) == [percent(x) for x in shares]
