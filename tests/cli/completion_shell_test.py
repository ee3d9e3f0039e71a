#!/usr/bin/env python3
"""A shell's completions with the script of `lgpu completion SHELL`, asked of the shell itself.

completion_shell_test.py SHELL LGPU     with LGPU_ENDPOINT set to a daemon with two GPUs. 77: no such shell here."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

BASH = r"""
source <(lgpu completion bash)
ask() {
  COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
  COMPREPLY=()
  _lgpu
  printf '%s\n' "${COMPREPLY[@]}"
}
ask "$1"
"""


def bash(line):
    run = subprocess.run(["bash", "-c", BASH, "bash", line], capture_output=True, text=True, check=True)
    return run.stdout.split()


def fish(line):
    run = subprocess.run(
        ["fish", "--no-config", "-c", "lgpu completion fish | source; complete -C $argv[1]", line],
        capture_output=True, text=True, check=True)
    return [found.split("\t")[0] for found in run.stdout.splitlines()]


def zsh(line):
    """An interactive zsh behind a terminal: the words that it lists after a Tab, or writes into the line."""
    with tempfile.TemporaryDirectory() as home:
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(HOME=home, ZDOTDIR=home, TERM="dumb", PS1="PROMPT>", COLUMNS="200")
            os.execvp("zsh", ["zsh", "-f", "-i"])
        shown = ""

        def read_until(pattern):
            nonlocal shown
            deadline = time.monotonic() + 60
            while not re.search(pattern, shown):
                ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
                if not ready:
                    raise AssertionError(f"zsh did not show {pattern!r} but {shown!r}")
                shown += os.read(terminal, 4096).decode(errors="replace")
            text, shown = shown, ""
            return text

        try:
            setup = ("autoload -Uz compinit; compinit -u -D; source <(lgpu completion zsh); "
                     "zstyle ':completion:*' verbose no; setopt auto_list no_list_ambiguous; LISTMAX=10000; "
                     "show() { zle -I; print -r -- LINE:$BUFFER:END }; zle -N show; bindkey '^X' show; "
                     "print READ''Y\n")
            os.write(terminal, setup.encode())
            read_until("READY")
            # One key completes, the next one shows the line as it is then; a list comes in between.
            os.write(terminal, (line + "\t\x18").encode())
            text = read_until("LINE:.*:END")
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)
        return re.findall(r"[\w:=.-]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x07\r]", " ", text))


def main():
    shell, lgpu = sys.argv[1:3]
    if shutil.which(shell) is None:
        print(f"skipped: {shell} is not installed (scripts/deps --ci installs it)")
        return 77
    os.environ["PATH"] = os.path.dirname(lgpu) + ":" + os.environ["PATH"]
    subprocess.run([lgpu, "create", "-q", "-m", "8MiB", "-n", "2", "--name", "train:a"], check=False,
                   capture_output=True)
    subprocess.run([lgpu, "create", "-q", "-m", "8MiB", "-n", "2", "--name", "trainer"], check=True,
                   capture_output=True)
    uuid = subprocess.run([lgpu, "ls", "--query", "gpu.uuid", "--format=csv,noheader"], check=True,
                          capture_output=True, text=True).stdout.split()[0]
    ask = {"bash": bash, "zsh": zsh, "fish": fish}[shell]
    cases = [
        ("lgpu ins", {"inspect"}, {"ls"}),
        ("lgpu ls --le", {"--lease"}, {"--user"}),
        ("lgpu rm trai", {"trainer"}, {"GPU:0"}),
        ("lgpu run --gpus GPU-", {uuid}, {"trainer"}),
        ("lgpu resize trainer -d GPU:", {"GPU:0", "GPU:1"}, {"CPU:0"}),
        ("lgpu ls --color=al", {"--color=always"}, {"--color=auto"}),
        ("lgpu run -m 8MiB -- prin", {"printf"}, {"trainer"}),
    ]
    failures = 0
    for line, wanted, unwanted in cases:
        found = set(ask(line))
        if shell == "bash":
            # Readline keeps what stands before the last word break.
            wanted = {re.split("[:=]", word)[-1] if re.search("[:=]", line.split()[-1]) else word for word in wanted}
        missing = wanted - found
        wrong = unwanted & found
        print(f"{'ok' if not missing and not wrong else 'FAILED'}: {shell}: {line!r} -> {sorted(found)[:12]}")
        failures += bool(missing or wrong)
    subprocess.run([lgpu, "rm", "trainer"], check=False, capture_output=True)
    print(f"{len(cases)} completions, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
