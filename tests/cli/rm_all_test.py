#!/usr/bin/env python3
"""`lgpu rm --all`: asks on a terminal, needs --yes without one, and leaves managed leases alone.
rm_all_test.py LGPU, with LGPU_ENDPOINT of a lgpud"""

import json
import os
import pty
import subprocess
import sys

lgpu = sys.argv[1]


def run(*words):
    return subprocess.run([lgpu, *words], text=True, capture_output=True, stdin=subprocess.DEVNULL)


def leases():
    return sorted(lease["name"] for lease in json.loads(run("ls", "--json").stdout)["leases"])


def on_a_terminal(answer, *words):
    """The exit code and all that the terminal shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(lgpu, [lgpu, *words])
    shown = b""
    while b"[y/N] " not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, answer.encode())
    try:
        while more := os.read(terminal, 4096):
            shown += more
    except OSError:  # the other end is closed
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def main():
    for name in ("eval", "train"):
        assert run("create", "-m", "8MiB", "--name", name).returncode == 0
    managed = os.getuid() == 0
    if managed:
        assert run("create", "-m", "8MiB", "--managed", "--owner", "root", "--name", "job").returncode == 0

    silent = run("rm", "--all")
    assert silent.returncode == 2 and "there is no terminal to ask on" in silent.stderr, silent
    both = run("rm", "--all", "--yes", "train")
    assert both.returncode == 2 and "either --all or leases" in both.stderr, both
    assert run("rm", "--yes", "train").returncode == 2
    assert leases()[:2] == ["eval", "job"] if managed else leases() == ["eval", "train"]

    for answer in ("\n", "n\n", "\4"):
        code, shown = on_a_terminal(answer, "rm", "--all")
        assert code == 1 and "no lease was removed" in shown, (code, shown)
    assert "train" in leases()
    code, shown = on_a_terminal("y\n", "rm", "--all")
    assert code == 0 and "Remove 2 leases: " in shown and "lease train is removed" in shown, (code, shown)
    assert leases() == (["job"] if managed else []), leases()

    assert run("create", "-m", "8MiB", "--name", "again").returncode == 0
    assert run("rm", "--all", "-y").returncode == 0
    none = run("rm", "--all", "--yes")
    assert none.returncode == 0 and "you have no leases" in none.stderr, none
    if managed:
        assert run("rm", "job").returncode == 0
    assert leases() == []
    print("ok")


if __name__ == "__main__":
    main()
