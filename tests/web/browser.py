"""Chromium without a screen, for the tests of the page and for scripts/pictures."""

import os
import shutil
import socket

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


def free_port():
    """Below the ports that the kernel gives to connections: chromedriver takes it some time later."""
    for port in range(20000 + os.getpid() % 8000, 32000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port for chromedriver")


def start(width=1400, height=1000, dark=False):
    options = Options()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--window-size={width},{height}"):
        options.add_argument(argument)
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(service=Service(shutil.which("chromedriver"), port=free_port()), options=options)


def complaints(browser):
    """Lines of the console that are errors or warnings: scripts that failed, what the page's policy forbade. A 404 of the
    API is none: a lease may end just before the page asks for it. Nor is a map that a slow program does not send in time."""
    lines = [line["message"] for line in browser.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
    none = (("/api/v1/", "404 (Not Found)"), ("/api/v1/map?", "503 (Service Unavailable)"))
    return [line for line in lines if not any(path in line and status in line for path, status in none)]
