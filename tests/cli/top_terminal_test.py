#!/usr/bin/env python3
"""`lgpu top` in a real terminal (tmux): keys are sent and the screen is captured. top_terminal_test.py LGPUD LGPU

Skipped (77) where there is no tmux."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

lgpud, lgpu = sys.argv[1:3]


class Terminal:
    def __init__(self, folder, columns, lines):
        self.socket = f"{folder}/tmux"
        self.run("new-session", "-d", "-x", str(columns), "-y", str(lines), "env PS1=ready: sh")
        self.run("set-option", "-g", "status", "off")
        self.run("resize-window", "-x", str(columns), "-y", str(lines))

    def run(self, *words):
        environment = dict(os.environ, LC_ALL="C.UTF-8")
        return subprocess.run(["tmux", "-u", "-f", "/dev/null", "-S", self.socket, *words], check=True, text=True,
                              capture_output=True, env=environment).stdout

    def keys(self, *keys):
        self.run("send-keys", *keys)

    def line(self, text):
        self.run("send-keys", "-l", text)
        self.keys("Enter")

    def screen(self):
        return self.run("capture-pane", "-p")

    def wait(self, *texts, absent=()):
        screen = ""
        for _ in range(600):
            screen = self.screen()
            if all(text in screen for text in texts) and not any(text in screen for text in absent):
                return screen
            time.sleep(0.1)
        sys.exit(f"not on the screen: {texts}, or there: {absent}\n{screen}")


daemons = []


def start_daemon(folder):
    daemon = subprocess.Popen([lgpud, "--simulate", "1x1GiB", "--dir", f"{folder}/run", "--config",
                               f"{folder}/lgpud.toml"], stderr=subprocess.PIPE, text=True)
    daemons.append(daemon)
    for line in daemon.stderr:
        if " ready: " in line:
            return daemon
    sys.exit("lgpud did not start")


def command(folder, *words):
    return subprocess.run([lgpu, "--endpoint", f"{folder}/run", *words], check=True, capture_output=True,
                          text=True).stdout


def main():
    if shutil.which("tmux") is None:
        print("skipped: tmux is not installed")
        return 77
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as folder:
        with open(f"{folder}/lgpud.toml", "w", encoding="utf-8") as file:
            file.write(f'[daemon]\nlock_dir = "{folder}/locks"\nstate_dir = "{folder}/state"\nsocket_group = ""\n')
        daemon = start_daemon(folder)
        terminal = Terminal(folder, 80, 24)
        try:
            command(folder, "create", "-q", "-m", "64MiB", "--name", "train")
            command(folder, "create", "-q", "-m", "128MiB", "--name", "simulate", "--preallocate")
            check_once(folder)
            check_keys(folder, terminal)
            check_restart(folder, terminal, daemon)
            check_signal(folder, terminal)
        finally:
            terminal.run("kill-server")
            for each in daemons:
                each.kill()
                each.wait()
    print("ok")
    return 0


def check_once(folder):
    # No terminal: as --once, and the numbers are those of ls.
    text = command(folder, "top")
    once = command(folder, "top", "--once")
    assert text.splitlines()[1:] == once.splitlines()[1:], f"{text}\n{once}"
    assert "64.00MiB" in text and "128.00MiB" in text and "held 128.00MiB" in text, text
    assert "\033" not in text and "█" not in text, text


def check_keys(folder, terminal):
    terminal.line(f"{lgpu} --endpoint {folder}/run top -i 0.2")
    screen = terminal.wait("lgpu top", "train", "simulate", "[h]elp", "> simulate")
    assert "█" in screen or "▒" in screen, screen
    terminal.keys("Down")
    terminal.wait("> train")
    terminal.keys("Enter")
    terminal.wait("owner", "guarantee", "No processes are attached.")
    terminal.keys("Escape")
    terminal.wait("[h]elp", absent=("guarantee",))
    terminal.keys("a")
    terminal.wait("MEM [=====", absent=("▒",))
    terminal.keys("F6")
    terminal.wait("sort: used")
    terminal.keys("h")
    terminal.wait("this help, and back")
    terminal.keys("h")
    terminal.wait("sort: used", absent=("this help",))
    # A narrow, then a wide screen.
    terminal.run("resize-window", "-x", "200", "-y", "50")
    terminal.wait("ALLOC/S", "STATE", "> train")
    terminal.run("resize-window", "-x", "80", "-y", "24")
    terminal.wait("> train", absent=("ALLOC/S",))
    # No first: the lease goes on.
    terminal.keys("K")
    terminal.wait("End lease train?")
    terminal.keys("n")
    terminal.wait("the lease goes on", "train")
    terminal.keys("F9")
    terminal.wait("End lease train?")
    terminal.keys("y")
    terminal.wait("> simulate", absent=("> train",))
    assert "train" not in command(folder, "ls"), "the lease is there still"
    # A lease that is made meanwhile appears by itself.
    command(folder, "create", "-q", "-m", "32MiB", "--name", "newcomer")
    terminal.wait("newcomer")


def check_restart(folder, terminal, daemon):
    daemon.kill()
    daemon.wait()
    terminal.wait("OLD:", "newcomer")
    start_daemon(folder)
    terminal.wait("newcomer", "[h]elp", absent=("OLD:",))
    terminal.keys("q")
    terminal.wait("ready:", absent=("[h]elp",))


def check_signal(folder, terminal):
    terminal.line(f"{lgpu} --endpoint {folder}/run top --readonly; echo code=$?")
    terminal.wait("[h]elp")
    terminal.keys("K")
    terminal.wait("nothing is ended here")
    pids = subprocess.run(["pgrep", "-f", f"{folder}/run top --readonly"], capture_output=True, text=True).stdout.split()
    for pid in pids:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "lgpu":
            os.kill(int(pid), 15)
    terminal.wait("code=143", absent=("[h]elp",))
    # The terminal shows typed text again: it is as before.
    terminal.line("echo typed-$((40+2))")
    terminal.wait("echo typed-$((40+2))", "typed-42")
    terminal.line(f"NO_COLOR=1 {lgpu} --endpoint {folder}/run top")
    terminal.wait("[h]elp")
    coloured = re.search("\033\\[[0-9;]*3[0-7]m", terminal.run("capture-pane", "-p", "-e"))
    assert not coloured, f"a colour in spite of NO_COLOR: {coloured}"
    terminal.keys("F10")
    terminal.wait("typed-42", absent=("[h]elp",))
    # Below the smallest size it prints once.
    terminal.run("resize-window", "-x", "60", "-y", "24")
    terminal.line(f"clear; {lgpu} --endpoint {folder}/run top; echo ended-$?")
    terminal.wait("ended-0", "newcomer")


if __name__ == "__main__":
    sys.exit(main())
