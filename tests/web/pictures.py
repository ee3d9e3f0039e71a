"""The pictures of the page: pictures.py BUILD DIRECTORY [--all]. scripts/pictures runs it.

Without --all the two pictures of README and docs; with it all states of the page's checklist, in light, dark and narrow."""

import pathlib
import sys
import time

import browser as browsers
from page_daemon import PageDaemon

MIB = 1 << 20


def busy(daemon):
    """Four leases, one with two logical devices; blocks with holes; ops on GPUs and the CPU."""
    train = daemon.program()
    train.must(f"open c lease_name=train limit={640 * MIB}")
    for i in range(40):
        train.must(f"alloc c t{i} {(1 + i % 7) * 3 * MIB}")
    for i in range(0, 40, 3):
        train.must(f"free t{i}")
    train.must("work c 12")
    train.must("product c 256")
    two = daemon.program()
    two.must(f"open c lease_name=two-towers devices=2 limit={160 * MIB} prealloc=1")
    two.must(f"alloc c a {90 * MIB}")
    two.must("work c 6")
    two.must("move a /GPU:1")
    two.must("move a /GPU:0")
    notebook = daemon.program()
    notebook.must(f"open c lease_name=notebook limit={512 * MIB} card=1")
    notebook.must(f"alloc c big {300 * MIB}")
    daemon.run("create", "-q", "-m", "256MiB", "--guarantee", "128MiB", "--name", "reserved")
    return train, two, notebook


def refused(daemon, programs):
    train = programs[0]
    for _ in range(3):
        assert train.ask(f"alloc c never {800 * MIB}").startswith("error"), "it fits"
        time.sleep(1.5)
    # More than GPU 1 has: lgpud refuses it, and names the holders of the rest. Another request waits.
    greedy = daemon.program()
    greedy.must(f"open c lease_name=greedy limit={900 * MIB} card=1 timeout=500")
    assert greedy.ask(f"alloc c never {700 * MIB}").startswith("error"), "it fits"
    waiting = daemon.program()
    waiting.must(f"open c lease_name=patient limit={900 * MIB} card=1 timeout=600000")
    waiting.process.stdin.write(f"alloc c later {700 * MIB}\n")
    waiting.process.stdin.flush()


def settle(browser):
    time.sleep(3)
    complaints = browsers.complaints(browser)
    if complaints:
        sys.exit(f"the browser's console: {complaints}")


def shoot(browser, path, width, height=None):
    if height is None:
        browser.set_window_size(width, 900)
        time.sleep(0.5)
        height = browser.execute_script("return document.documentElement.scrollHeight") + 140
    browser.set_window_size(width, min(height, 4000))
    settle(browser)
    browser.save_screenshot(str(path))


def theme(browser, name):
    browser.execute_script("localStorage.setItem('lgpu-theme', arguments[0]); location.reload()", name)
    time.sleep(3)


def choose(browser, lease):
    browser.execute_script(
        "[...document.querySelectorAll('#lease-table tbody tr')].find(row => row.cells[0].textContent === arguments[0])?.click()",
        lease)


def all_states(browser, folder, state, lease=None):
    for name in ("light", "dark"):
        for view, width in ((name, 1400), (f"narrow-{name}", 520)):
            theme(browser, name)
            if lease:
                choose(browser, lease)
            shoot(browser, folder / f"{state}-{view}.png", width)


def main():
    build, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if browsers.missing():
        sys.exit(f"pictures: error: {browsers.missing()} is not installed; try: scripts/deps --ci")
    with PageDaemon(build, simulate="2x1GiB") as daemon:
        browser = browsers.start()
        try:
            browser.get(daemon.url + "/")
            settle(browser)
            if "--all" in sys.argv:
                all_states(browser, folder, "empty")
            programs = busy(daemon)
            for i in range(12):
                programs[0].must(f"alloc c w{i} {8 * MIB}")
                programs[0].must("work c 2")
                time.sleep(1)
            if "--all" in sys.argv:
                all_states(browser, folder, "busy", "train")
            refused(daemon, programs)
            if "--all" in sys.argv:
                all_states(browser, folder, "refused", "train")
                return
            theme(browser, "light")
            choose(browser, "train")
            browser.execute_script(
                "const s = document.getElementById('timeline-window'); s.value = '60'; s.dispatchEvent(new Event('change'))")
            shoot(browser, folder / "page.png", 1180, 1130)
            theme(browser, "dark")
            choose(browser, "train")
            shoot(browser, folder / "page-dark.png", 1180, 1130)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
