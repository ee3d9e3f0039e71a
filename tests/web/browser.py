"""Chromium without a screen, for the tests of the page and for scripts/pictures."""

import shutil

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
except ImportError:
    webdriver = None


def missing():
    """The names of missing programs; empty: none is missing."""
    if webdriver is None:
        return "python3-selenium"
    return " and ".join(name for name in ("chromium", "chromedriver") if shutil.which(name) is None)


def start(width=1400, height=1000, dark=False):
    options = Options()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--window-size={width},{height}"):
        options.add_argument(argument)
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)


def complaints(browser):
    """Lines of the console that are errors or warnings: scripts that failed, what the page's policy forbade. A 404 of the
    API is none: a lease may end just before the page asks for it."""
    lines = [line["message"] for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
    return [line for line in lines if not ("/api/v1/" in line and "404 (Not Found)" in line)]
