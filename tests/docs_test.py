#!/usr/bin/env python3
"""Runs the commands that README.md and docs/*.md show, and compares what they print.

docs_test.py ROOT BUILD [PAGE ...]   BUILD: where daemon/, cli/ and examples/ of the build lie
docs_test.py ROOT --fresh-users      as root: README.md and docs/quickstart.md as they stand, in the folder ROOT, by two users
                                     at the same time who have nothing but a home; from what scripts/demo has built

A block is fenced as ```console. Lines that begin with "$ " are commands (with "> " they go on); the lines below are
what must come out, stdout and stderr together. "..." in a line stands for any text, a line of only "..." for any
lines. The blocks of one page run in one shell, in their order, with a daemon directory of their own in
LGPU_ENDPOINT; a command that ends with "&" has started when it says " ready: ". C++ blocks below a line
"<!-- from: FILE -->" must stand in that file."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

END = "__END_OF_COMMAND__"


def blocks_of(text):
    """(line number, lines) of every console block."""
    found, lines = [], text.splitlines()
    start = None
    for number, line in enumerate(lines):
        if start is None and line.strip() == "```console":
            start = number + 1
        elif start is not None and line.strip() == "```":
            found.append((start + 1, lines[start:number]))
            start = None
    return found


def commands_of(lines):
    """(command, expected lines) pairs of a block."""
    commands = []
    for line in lines:
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif line.startswith("> ") and commands and not commands[-1][1]:
            commands[-1] = (commands[-1][0] + "\n" + line[2:], [])
        elif commands:
            commands[-1][1].append(line)
        else:
            raise ValueError(f"output before any command: {line!r}")
    return commands


def matches(expected, actual):
    if not expected:
        return not actual
    if expected[0].strip() == "...":
        return any(matches(expected[1:], actual[i:]) for i in range(len(actual) + 1))
    if not actual:
        return False
    pattern = ".*".join(re.escape(part) for part in expected[0].rstrip().split("..."))
    # How wide a column is depends on what stands in it.
    pattern = re.sub(r"(\\ )+", r" +", pattern)
    return re.fullmatch(pattern, actual[0].rstrip()) is not None and matches(expected[1:], actual[1:])


# Users without an account, so that the machine stays as it is.
FRESH_USERS = (64123, 64124)


def test_environment(build, directory):
    """The caller's, with a daemon directory of the test's own, and the programs of the build."""
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith(("LGPU_", "CUDA_", "TF_")) and k != "CLICOLOR_FORCE"}
    environment.update(
        LGPU_ENDPOINT=f"{directory}/run", HOME=directory, TMPDIR=directory, TZ="UTC", LC_ALL="C.UTF-8",
        PATH=":".join(f"{build}/{part}" for part in ("daemon", "cli", "examples")) + ":" + environment["PATH"])
    return environment


def fresh_environment(directory):
    """The environment after a login."""
    return {"HOME": directory, "XDG_RUNTIME_DIR": f"{directory}/runtime", "LC_ALL": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin"}


def as_user(user):
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []


class Shell:
    """One bash for the blocks of a page."""

    def __init__(self, root, environment, user=None):
        self.process = subprocess.Popen(as_user(user) + ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=root, env=environment)

    def run(self, command):
        """The command's output."""
        self.process.stdin.write(f"{command}\nprintf '\\n%s\\n' {END}\n")
        self.process.stdin.flush()
        lines, ended, ready = [], False, not command.rstrip().endswith("&")
        while not (ended and ready):
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the shell ended in {command!r}: {lines}")
            if line.strip() == END:
                ended = True
                # The line break of printf, where the output ended with one.
                if lines and lines[-1] == "":
                    lines.pop()
            else:
                lines.append(line.rstrip("\n"))
                ready = ready or " ready: " in line
        return lines

    def close(self):
        self.process.stdin.write("kill $(jobs -p) 2>/dev/null; wait\n")
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.wait()


def run_page(root, build, page, user=None):
    """(blocks run, failures); by a fresh user, if one is given"""
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    failures = []
    if not blocks:
        return 0, failures
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as directory:
        environment = fresh_environment(directory) if user else test_environment(build, directory)
        if user:
            os.mkdir(environment["XDG_RUNTIME_DIR"], 0o700)
            for path in (directory, environment["XDG_RUNTIME_DIR"]):
                os.chown(path, user, user)
        shell = Shell(root, environment, user)
        try:
            for line, lines in blocks:
                for command, expected in commands_of(lines):
                    actual = shell.run(command)
                    if not matches(expected, actual):
                        failures.append("\n".join(
                            [f"{page.relative_to(root)}:{line}: $ {command}", "  the page says:"] +
                            ["    " + entry for entry in expected] + ["  it printed:"] +
                            ["    " + entry for entry in actual]))
        finally:
            shell.close()
    return len(blocks), failures


def check_sources(root, page):
    failures = []
    for file, code in re.findall(r"<!-- from: (\S+) -->\n```cpp\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        if code not in (root / file).read_text(encoding="utf-8"):
            failures.append(f"{page.relative_to(root)}: a block is not in {file} as it stands here")
    return failures


def check_flags(root, build):
    """docs/commands.md has every verb with all of its flags and positional arguments, and no other."""
    import json
    table = json.loads(subprocess.run([f"{build}/cli/lgpu", "help", "--json"], check=True, capture_output=True,
                                      text=True).stdout)
    text = (root / "docs/commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## lgpu ([a-z]+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    failures = []
    verbs = {verb["name"]: verb for verb in table["verbs"]}
    for name in sorted(verbs.keys() | sections.keys()):
        if name not in verbs or name not in sections:
            failures.append(f"docs/commands.md: lgpu {name} is only {'there' if name in sections else 'in the program'}")
            continue
        for flag in verbs[name]["flags"]:
            for flag_name in flag["names"]:
                if not flag["positional"] and flag_name not in ("-h", "--help") and \
                        not re.search(rf"`[^`]*{flag_name}\b[^`]*`", sections[name]):
                    failures.append(f"docs/commands.md: lgpu {name} has {flag_name}")
        known = {flag_name for part in (verbs[name], table) for flag in part["flags"] for flag_name in flag["names"]}
        tables = "\n".join(row for row in sections[name].splitlines() if row.startswith("| `-"))
        for flag_name in re.findall(r"(?<![\w-])--[a-z-]+", tables):
            if flag_name not in known:
                failures.append(f"docs/commands.md: lgpu {name} has no {flag_name}")
        arguments = {flag["value"] for flag in verbs[name]["flags"] if flag["positional"]}
        # A row of the table that is no flag's. `LEASE ...` is LEASE, which may be repeated.
        shown = {row.replace("\\|", "|").removesuffix(" ...")
                 for row in re.findall(r"^\| `([^-`][^`]*)` \|", sections[name], re.MULTILINE)}
        failures += [f"docs/commands.md: lgpu {name} has {argument}" for argument in sorted(arguments - shown)]
        failures += [f"docs/commands.md: lgpu {name} has no {argument}" for argument in sorted(shown - arguments)]
    return failures


def by_fresh_users(root):
    """README.md and docs/quickstart.md, by two users at the same time."""
    for user in FRESH_USERS:
        if subprocess.run(as_user(user) + ["test", "-x", str(root / "build/release/cli/lgpu")], check=False).returncode != 0:
            print(f"skipped: other users may not enter {root}, or scripts/demo has not built it")
            return 0
    failures, counts, threads = [], [], []

    def read(user):
        for page in (root / "README.md", root / "docs/quickstart.md"):
            count, wrong = run_page(root, None, page, user)
            counts.append(count)
            failures.extend(f"user {user}: {failure}" for failure in wrong)

    for user in FRESH_USERS:
        threads.append(threading.Thread(target=read, args=(user,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    for failure in failures:
        print(failure)
    print(f"{sum(counts)} blocks run by two fresh users, {len(failures)} failures")
    return 1 if failures or len(counts) != 4 else 0


def main():
    if sys.argv[2] == "--fresh-users":
        return by_fresh_users(pathlib.Path(sys.argv[1]).resolve())
    root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    only = sys.argv[3:]
    run, failures = 0, []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        if only and page.name not in only:
            continue
        count, wrong = run_page(root, build, page)
        run += count
        failures += wrong + check_sources(root, page)
        if page.name == "README.md" and count < 5:
            failures.append(f"README.md has {count} blocks that can be run; it is to have 5")
    if not only:
        failures += check_flags(root, build)
    for failure in failures:
        print(failure)
    print(f"{run} blocks run, 0 skipped, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
