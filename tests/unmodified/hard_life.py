#!/usr/bin/env python3
"""Programs that know nothing of lgpu where things go wrong: hard_life.py LGPUD LGPU CASE LIMIT COMMAND ...

two: the first and the last command run at once, each in a lease of its own.
killed: the first command is killed in the middle; what it had is free, and the next one passes in the same lease.
restart: all commands run at once, the daemon is killed in their middle and started again; they do not notice.
A command is one argument. It has LIMIT bytes, ends with code 0 if all is right, and may go on until the file in
HARD_LIFE_GO_ON is there. lgpud is an own one, on the GPUs that the driver has."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time

LGPUD, LGPU, CASE, LIMIT = sys.argv[1:5]
COMMANDS = [shlex.split(command) for command in sys.argv[5:]]
PATIENCE = 120


class Daemon:
    def __init__(self, directory):
        self.directory = directory
        self.config = os.path.join(directory, "lgpud.toml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(f'[daemon]\nlock_dir = "{directory}/locks"\nstate_dir = "{directory}/state"\n')
        self.runtime = os.path.join(directory, "run")
        self.go_on = os.path.join(directory, "go-on")
        os.environ["LGPU_ENDPOINT"] = self.runtime
        os.environ["HARD_LIFE_GO_ON"] = self.go_on
        self.start()

    def start(self):
        self.process = subprocess.Popen([LGPUD, "--config", self.config, "--dir", self.runtime], stderr=subprocess.DEVNULL)
        wait_for("the daemon", lambda: subprocess.run([LGPU, "ls"], capture_output=True).returncode == 0)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def let_end(self):
        with open(self.go_on, "w", encoding="utf-8"):
            pass


def wait_for(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)


def leases_with_charges():
    answer = subprocess.run([LGPU, "ls", "--json"], capture_output=True, text=True, check=True)
    return sum(any(session["charged_bytes"] > 0 for session in lease["sessions"]) for lease in json.loads(answer.stdout)["leases"])


def held():
    answer = subprocess.run([LGPU, "ls", "--json"], capture_output=True, text=True, check=True)
    return sum(device["held_bytes"] for lease in json.loads(answer.stdout)["leases"] for device in lease["devices"])


def start(commands):
    """Starts them and waits until each has charges, or one has ended."""
    programs = [subprocess.Popen([LGPU, "run", "-q", "--require-attach", "-m", LIMIT, "--", *command]) for command in commands]
    wait_for("the charges of the programs", lambda: leases_with_charges() >= len(programs) or
             any(program.poll() is not None for program in programs))
    return programs


def expect_success(programs):
    codes = [program.wait() for program in programs]
    assert codes == [0] * len(programs), f"exit codes {codes}"


def variables(lease):
    answer = subprocess.run([LGPU, "env", lease, "--format", "json"], capture_output=True, text=True, check=True)
    return dict(os.environ, **json.loads(answer.stdout)["variables"])


def two(daemon):
    programs = start([COMMANDS[0], COMMANDS[-1]])
    daemon.let_end()
    expect_success(programs)


def killed(daemon):
    subprocess.run([LGPU, "create", "-q", "-m", LIMIT, "--name", "hard"], check=True, stdout=subprocess.DEVNULL)
    environment = variables("hard")
    first = subprocess.Popen(COMMANDS[0], env=environment)
    wait_for("its charges", lambda: leases_with_charges() > 0 or first.poll() is not None)
    assert first.poll() is None, f"the program ended with code {first.returncode} before it was killed"
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_for("the memory of the killed program", lambda: held() == 0)
    daemon.let_end()
    expect_success([subprocess.Popen(COMMANDS[0], env=environment)])


def restart(daemon):
    programs = start(COMMANDS)
    daemon.kill()
    daemon.start()
    daemon.let_end()
    expect_success(programs)


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
