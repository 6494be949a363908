"""A headless Chromium for the tests of pages, and what several of them ask it."""

import os
import re
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

DRIVER = shutil.which("chromedriver")
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DRIVER is None and os.environ.get("BROWSER") != "required", reason="needs chromium and chromium-driver"
    ),
]


def start(width: int = 1200, height: int = 1000) -> webdriver.Chrome:
    """A browser of its own, which keeps what pages complain of and ask the network for."""
    options = Options()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    browser.set_window_size(width, height)
    return browser


def emulate(browser: webdriver.Chrome, scheme: str, media: str = "") -> None:
    """The system prefers this colour scheme; `media` may be `print`."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def luminance(color: str) -> float:
    """Of `rgb(r, g, b)`, as WCAG defines it."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (int(number) / 255 for number in re.findall(r"\d+", color)[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Of two colours, from 1 to 21; text needs 4.5."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
