#!/usr/bin/env python3
"""Hands a card over, again and again, among programs that each need it nearly whole: real processes, the real lgpud and lgpu
run, on the fake driver. Each program compares all contents of its memory without an end.

handovers_bench.py BUILD [HANDOVERS]     BUILD: a Release build with the fake driver; HANDOVERS: 100

The programs run under `lgpu run --preemptible=always`, with turns shortened by memory.min_run. Printed: comparisons that found
a byte changed and calls that were out of memory (both must be 0), and the time of a handover. The baseline of the same run is
what the driver's own calls take, without lgpud: a program that is suspended and resumed, with as much memory."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

PROGRAMS, MEMORY, CARD, CONTEXT, MIN_RUN = 4, 40 << 20, "64MiB", "2MiB", "200ms"
CYCLES = 20


class Program:
    def __init__(self, words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.stdin.write("exit\n")
        self.process.stdin.close()
        self.process.wait()


def bare_cycle(client):
    """Seconds of a suspension and a resumption by the driver's calls alone."""
    target, suspender = Program([client]), Program([client])
    assert [target.ask("start"), suspender.ask("start"), target.ask(f"alloc {MEMORY}")] == ["ok"] * 3
    begin = time.perf_counter()
    assert suspender.ask(f"cycle {target.process.pid} {CYCLES}") == "ok"
    took = (time.perf_counter() - begin) / CYCLES
    assert target.ask("compare") == "same"
    target.end()
    suspender.end()
    return took


def measure(build, handovers, folder):
    client = str(build / "tests/fake_cuda/checkpoint_client")
    bare = bare_cycle(client)
    (folder / "lgpud.toml").write_text(f'[daemon]\nlock_dir = "{folder}/locks"\nsocket_group = ""\n'
                                       f'[memory]\nmin_run = "{MIN_RUN}"\n[events]\nkept = 100000\n')
    lgpu = [str(build / "cli/lgpu"), "--endpoint", str(folder / "run")]
    daemon = subprocess.Popen([build / "daemon/lgpud", "--dir", folder / "run", "--config", folder / "lgpud.toml"],
                              stderr=subprocess.PIPE, text=True)
    while " ready: " not in (line := daemon.stderr.readline()):
        assert line, "lgpud did not start"
    threading.Thread(target=daemon.stderr.read, daemon=True).start()
    answers, done = [], threading.Event()

    def work(number):
        program = Program([*lgpu, "run", "-q", "--name", f"job{number}", "--preemptible=always", "--", client])
        answers.append(program.ask("start"))
        answers.append(program.ask(f"alloc {MEMORY}"))
        while not done.is_set() and answers[-1] in ("ok", "same"):
            answers.append(program.ask("compare"))
        program.end()

    def moves():
        printed = subprocess.run([*lgpu, "events", "--json"], check=True, capture_output=True, text=True).stdout
        return sum(json.loads(line)["text"].startswith("suspended: ") for line in printed.splitlines())

    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(PROGRAMS)]
    for thread in threads:
        thread.start()
    while (suspended := moves()) < handovers and any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
    took = time.perf_counter() - begin
    done.set()
    for thread in threads:
        thread.join()
    daemon.terminate()
    daemon.wait()
    wrong = answers.count("different")
    refused = len([answer for answer in answers if answer not in ("ok", "same", "different")])
    print(f"{PROGRAMS} programs of {MEMORY >> 20} MiB on a card of {CARD}, at least {MIN_RUN} of work in a turn")
    print(f"{'handovers':44} {suspended:8}")
    print(f"{'comparisons of all contents':44} {answers.count('same'):8}")
    print(f"{'  that found a byte changed (goal: 0)':44} {wrong:8}")
    print(f"{'calls that failed (goal: 0)':44} {refused:8}")
    print(f"{'a handover, with its turn of work':44} {took / max(suspended, 1) * 1e3:8.0f} ms")
    print(f"{'baseline: the calls of the driver alone':44} {bare * 1e3:8.0f} ms")
    return 0 if wrong == 0 and refused == 0 and suspended >= handovers else 1


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    handovers = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    if "LGPU_HANDOVERS_INSIDE" not in os.environ:
        os.environ["LGPU_HANDOVERS_INSIDE"] = "1"
        runner = build / "tests/fake_cuda/fake_cuda_run"
        os.execv(runner, [str(runner), "--cards", "1", "--memory", CARD, "--context", CONTEXT, "--rules", "off", "--", sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory(prefix="lgpu-", dir="/tmp") as name:
        sys.exit(measure(build, handovers, pathlib.Path(name)))


if __name__ == "__main__":
    main()
