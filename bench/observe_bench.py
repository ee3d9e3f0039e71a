#!/usr/bin/env python3
"""Measures the cost of looking: `lgpu ls` with 100 leases, /metrics and the page's API with 1,000 logical devices.

observe_bench.py BUILD     BUILD: where daemon/ and cli/ of a Release build lie

Least and median of many; the baselines of the same run are `lgpu --version` (a process that starts, links and
ends) and /healthz (an HTTP answer without content)."""

import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROUNDS = 40


def timed(call):
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times), statistics.median(times)


def main():
    build = pathlib.Path(sys.argv[1])
    lgpud, lgpu = build / "daemon/lgpud", build / "cli/lgpu"
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as name:
        (pathlib.Path(name) / "lgpud.toml").write_text(f'[daemon]\nlock_dir = "{name}/locks"\nsocket_group = ""\n')
        daemon = subprocess.Popen([lgpud, "--simulate", "2x4GiB", "--dir", f"{name}/run", "--config",
                                   f"{name}/lgpud.toml", "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            for line in daemon.stderr:
                found = re.search(r"(http://\S+)/metrics", line)
                if found:
                    break
            url = found.group(1)

            def run(*words):
                subprocess.run([lgpu, "--endpoint", f"{name}/run", *words], check=True, stdout=subprocess.DEVNULL)

            def get(path):
                return urllib.request.urlopen(url + path, timeout=20).read()

            rows = []
            for i in range(100):
                run("create", "-q", "-m", "4MiB", "--name", f"lease-{i}")
            rows.append(("lgpu --version", timed(lambda: run("--version")), ""))
            rows.append(("lgpu ls, 100 leases", timed(lambda: run("ls")), "30 ms"))
            rows.append(("lgpu ls --json, 100 leases", timed(lambda: run("ls", "--json")), "30 ms"))
            for i in range(15):
                run("create", "-q", "-m", "4MiB", "-n", "60", "--name", f"wide-{i}")
            series = get("/metrics").decode().count("lgpu_logical_device_memory_limit_bytes{")
            rows.append(("/healthz", timed(lambda: get("/healthz")), ""))
            rows.append((f"/metrics, {series} logical devices", timed(lambda: get("/metrics")), "20 ms"))
            for path in ("stats", "timeline?gpu=0&width=1000", "events", "queue"):
                what = path.split("&")[0]
                rows.append((f"/api/v1/{what}, {series}", timed(lambda: get(f"/api/v1/{path}")), "50 ms"))
            print(f"{'':38}{'least':>9}{'median':>9}  goal")
            for what, (least, median), goal in rows:
                print(f"{what:38}{least:6.1f} ms{median:6.1f} ms  {goal}")
        finally:
            daemon.terminate()
            daemon.communicate()


if __name__ == "__main__":
    main()
