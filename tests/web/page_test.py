#!/usr/bin/env python3
"""The page in a browser: its values are those of gRPC, leases come and go while it is open, 200 of them, the keyboard.
page_test.py BUILD. Skipped (77) where there is no Chromium."""

import sys
import time

import browser as browsers
from page_daemon import PageDaemon

BUILD = sys.argv[1]
MIB = 1 << 20


def wait(browser, what, script, *arguments):
    """Until the script gives something that is not false; gives it."""
    for _ in range(600):
        value = browser.execute_script(script, *arguments)
        if value:
            return value
        time.sleep(0.1)
    sys.exit(f"{what}: still not so\n{browser.execute_script('return document.body.innerText')[:3000]}\n"
             f"{browsers.complaints(browser)}")


ROW = "return [...document.querySelectorAll('#lease-table tbody tr')].find(row => row.cells[0].textContent === arguments[0])"
VALUES = """
const row = [...document.querySelectorAll('#lease-table tbody tr')].find(row => row.cells[0].textContent === arguments[0]);
return row && Object.fromEntries([...row.cells].filter(cell => cell.dataset.value).map(cell => [cell.dataset.key, cell.dataset.value]));
"""


def values_are_those_of_grpc(browser, daemon, program):
    lease = program.must(f"open c lease_name=train limit={64 * MIB}").split()[1]
    for i in range(6):
        program.must(f"alloc c t{i} {3 * MIB}")
    program.must("free t2")
    program.must("work c 5")
    browser.get(daemon.url + "/")
    keys = ("used_bytes", "held_bytes", "memory_limit_bytes", "peak_used_bytes", "refusals_total")
    for _ in range(600):  # memory is held and goes back in the background, and the page is told now and then
        stats = daemon.stats()
        device, card = stats["leases"][0]["devices"][0], stats["cards"][0]
        values = wait(browser, "the row of train", VALUES, "train")
        figures = browser.execute_script(
            "return Object.fromEntries([...document.querySelectorAll('.gpu dd')].map(each => [each.dataset.key, Number(each.dataset.value)]))")
        totals = ("used", "charged", "held", "promised", "free", "foreign", "total")
        shown = [*(int(values[key]) for key in keys), *(figures[total] for total in totals)]
        told = [*(device[key] for key in keys), device["used_bytes"], device["charged_bytes"],
                *(card[f"{total}_bytes"] for total in totals[2:])]
        if shown == told:
            break
        time.sleep(0.1)
    assert shown == told, f"{keys}, {totals} of the card: {shown}, and gRPC says {told}"
    assert values["pid"] == str(program.process.pid), values
    parts = browser.execute_script("""
      return Object.fromEntries([...document.querySelectorAll('.gpu [data-part]')].map(each => [each.dataset.part, Number(each.dataset.value)]))""")
    assert parts["blocks"] + parts["charged"] == figures["used"], (parts, figures)
    assert parts["slack"] == figures["held"] - figures["used"], (parts, figures)
    assert parts["aside"] == figures["promised"] - figures["held"], (parts, figures)
    assert sum(parts.values()) == card["total_bytes"], parts
    # The map and the placements of the chosen row, in words and in pixels.
    words = wait(browser, "the map", "const t = document.getElementById('map-words').textContent; return t.includes('blocks,') && t")
    assert f"{device['live_blocks']} blocks" in words and " granted to the program" in words, words
    assert "ragm" not in browser.execute_script("return document.getElementById('lease-table').textContent")
    painted = """
      const canvas = document.getElementById(arguments[0]);
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      const colours = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3]) colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
      return colours.size > 2;"""
    wait(browser, "the map in pixels", painted, "map")
    wait(browser, "the placements", "return document.getElementById('placements').getAttribute('aria-label').includes('MatMul 5')")
    wait(browser, "the placements in pixels", painted, "placements")
    # Placements and timeline show one span of time, and an op has one colour in map and placements.
    wait(browser, "one span of time", """
      const [one, other] = ['timeline', 'placements'].map(id => document.getElementById(id).dataset);
      return one.from && one.from === other.from && one.to === other.to;""")
    browser.execute_script("const s = document.getElementById('timeline-window'); s.value = '60'; s.dispatchEvent(new Event('change'))")
    wait(browser, "one shorter span of time", """
      const [one, other] = ['timeline', 'placements'].map(id => document.getElementById(id).dataset);
      return one.from === other.from && one.to === other.to && Math.abs(one.to - one.from - 60) < 3;""")
    wait(browser, "one colour for an op", """
      const colours = (id) => new Map([...document.querySelectorAll(`#${id} li`)].map(entry => [
        entry.textContent.split(' ')[0], entry.firstChild.getContext('2d').getImageData(0, 11, 1, 1).data.join()]));
      const [map, placements] = [colours('map-legend'), colours('placements-legend')];
      const common = [...map.keys()].filter(op => placements.has(op));
      return common.length > 0 && common.every(op => map.get(op) === placements.get(op));""")
    copies = daemon.get(f"/api/v1/placements?lease={lease}")["copies"]
    down = sum(copy["source"].endswith("CPU:0") for copy in copies)
    assert down, copies
    wait(browser, "the copies", """
      const spoken = document.getElementById('placements').getAttribute('aria-label');
      return [...arguments].every(words => spoken.includes(words));""", f"; {len(copies)} copies of ", f"CPU:0 to GPU:0 {down}")
    # A refusal is a mark in the timeline; where the GPU is short, lgpud tells it as an event too.
    assert program.ask(f"alloc c big {1 << 30}").startswith("error")
    daemon.run("create", "-q", "-m", "900MiB", "--preallocate", "--name", "hoard")
    greedy = daemon.program()
    greedy.must(f"open c lease_name=greedy limit={500 * MIB} timeout=100")
    assert greedy.ask(f"alloc c big {400 * MIB}").startswith("error")
    greedy.kill()
    daemon.run("rm", "hoard")
    wait(browser, "the refusal", "return document.querySelector('#events li.refused')")
    browser.execute_script("const s = document.getElementById('timeline-of'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))",
                           f"lease:{lease}")
    wait(browser, "the timeline", "return document.getElementById('timeline').getAttribute('aria-label').includes('1 refused')")


def leases_come_and_go(browser, daemon):
    daemon.run("create", "-q", "-m", "32MiB", "--name", "comes")
    wait(browser, "a lease that was made", ROW, "comes")
    program = daemon.program()
    program.must(f"open c lease_name=dies limit={16 * MIB}")
    wait(browser, "a lease with a program", ROW, "dies")
    program.kill()
    wait(browser, "a lease whose program was killed", "return !(function () {" + ROW + "}).call(null, ...arguments)", "dies")
    daemon.run("rm", "comes")
    wait(browser, "a lease that was removed", "return !(function () {" + ROW + "}).call(null, ...arguments)", "comes")


def the_keyboard_is_enough(browser):
    browser.execute_script("(function () {" + ROW + "}).call(null, ...arguments).focus()", "train")
    active = browser.switch_to.active_element
    assert active.tag_name == "tr"
    active.send_keys("\ue007")  # Enter
    wait(browser, "the chosen row", "return document.activeElement.getAttribute('aria-selected') === 'true'")
    wait(browser, "the map", "return !document.getElementById('map').hidden")
    for _ in range(600):  # a map that its program does not send in time is hidden until the next one
        browser.execute_script("document.getElementById('map').focus()")
        browsers.webdriver.ActionChains(browser).send_keys("\ue014").perform()  # ArrowRight
        if browser.execute_script("return document.getElementById('map-detail').textContent.startsWith('behind ')"):
            break
        time.sleep(0.1)
    else:
        sys.exit("no cell of the map in words")
    # Every part that does something has a name and can be reached.
    unnamed = browser.execute_script("""
      return [...document.querySelectorAll('button, input, select, canvas, [role=img]')]
        .filter(each => !each.closest('#timeline') || each.id === 'timeline')
        .filter(each => !(each.getAttribute('aria-label') || each.labels?.length || each.textContent.trim() || each.classList.contains('swatch')))
        .map(each => each.outerHTML.slice(0, 100))""")
    assert unnamed == [], unnamed


def two_hundred_leases(browser, daemon):
    for i in range(200):
        daemon.run("create", "-q", "-m", "2MiB", "--name", f"many-{i:03}")
    wait(browser, "200 leases", "return document.querySelectorAll('#lease-table tbody tr').length >= 200")
    browser.execute_script("const f = document.getElementById('filter'); f.value = 'many-17'; f.dispatchEvent(new Event('input'))")
    wait(browser, "the filter", "return document.querySelectorAll('#lease-table tbody tr').length === 10")
    browser.execute_script("const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
    # The page answers while they are there: a frame is painted between two messages.
    browser.set_script_timeout(60)
    browser.execute_async_script("""
      const done = arguments[0]; let frames = 0;
      const tick = () => { if (++frames < 20) requestAnimationFrame(tick); else done(); };
      tick();""")


def a_daemon_that_is_gone_is_named(browser, daemon):
    daemon.process.kill()
    daemon.process.wait()
    wait(browser, "the lost daemon", "return document.getElementById('state').classList.contains('lost')")


def main():
    if browsers.missing():
        print(f"skipped: {browsers.missing()} is not installed")
        return 77
    with PageDaemon(BUILD) as daemon:
        browser = browsers.start()
        try:
            program = daemon.program()
            values_are_those_of_grpc(browser, daemon, program)
            the_keyboard_is_enough(browser)
            leases_come_and_go(browser, daemon)
            two_hundred_leases(browser, daemon)
            complaints = browsers.complaints(browser)  # reading them empties the log
            assert complaints == [], complaints
            a_daemon_that_is_gone_is_named(browser, daemon)
        finally:
            browser.quit()
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
