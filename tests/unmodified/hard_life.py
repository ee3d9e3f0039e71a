#!/usr/bin/env python3
"""numba-cuda's own driver tests where things go wrong: hard_life.py LGPUD LGPU CASE LIST

two: two suites run at once, each in a lease of its own.
killed: a suite is killed in the middle; what it had is free, and the next one passes in the same lease.
restart: the daemon is killed in the middle of a suite and started again; the suite does not notice.
It has an lgpud of its own, on the GPUs that the driver has."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

LGPUD, LGPU, CASE, LIST = sys.argv[1:5]
SUITE = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "numba_tests.py"), LIST]
PATIENCE = 120


class Daemon:
    def __init__(self, directory):
        self.directory = directory
        self.config = os.path.join(directory, "lgpud.toml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'[daemon]\nlock_dir = "{directory}/locks"\nstate_dir = "{directory}/state"\n')
        self.runtime = os.path.join(directory, "run")
        os.environ["LGPU_ENDPOINT"] = self.runtime
        self.start()

    def start(self):
        self.process = subprocess.Popen([LGPUD, "--config", self.config, "--dir", self.runtime], stderr=subprocess.DEVNULL)
        wait_for("the daemon", lambda: subprocess.run([LGPU, "ls"], capture_output=True).returncode == 0)

    def kill(self):
        self.process.kill()
        self.process.wait()


def wait_for(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)


def charged():
    """Bytes that programs have charged, in all leases."""
    answer = subprocess.run([LGPU, "ls", "--json"], capture_output=True, text=True, check=True)
    return sum(session["charged_bytes"] for lease in json.loads(answer.stdout)["leases"] for session in lease["sessions"])


def held():
    answer = subprocess.run([LGPU, "ls", "--json"], capture_output=True, text=True, check=True)
    return sum(device["held_bytes"] for lease in json.loads(answer.stdout)["leases"] for device in lease["devices"])


def start(limit):
    return subprocess.Popen([LGPU, "run", "-q", "--require-attach", "-m", limit, "--", *SUITE])


def variables(lease):
    answer = subprocess.run([LGPU, "env", lease, "--format", "json"], capture_output=True, text=True, check=True)
    return dict(os.environ, **json.loads(answer.stdout)["variables"])


def two(_):
    suites = [start("400MiB"), start("400MiB")]
    assert [suite.wait() for suite in suites] == [0, 0]


def killed(_):
    subprocess.run([LGPU, "create", "-q", "-m", "512MiB", "--name", "hard"], check=True, stdout=subprocess.DEVNULL)
    environment = variables("hard")
    first = subprocess.Popen(SUITE, env=environment)
    wait_for("its charges", lambda: charged() > 0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_for("the memory of the killed suite", lambda: held() == 0)
    assert subprocess.run(SUITE, env=environment).returncode == 0


def restart(daemon):
    suite = start("512MiB")
    wait_for("its charges", lambda: charged() > 0)
    daemon.kill()
    daemon.start()
    assert suite.wait() == 0


def main():
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LGPU_LEASE"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as directory:
        daemon = Daemon(directory)
        try:
            {"two": two, "killed": killed, "restart": restart}[CASE](daemon)
        finally:
            daemon.kill()
    print(CASE, "ok")


if __name__ == "__main__":
    main()
