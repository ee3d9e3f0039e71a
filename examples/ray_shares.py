#!/usr/bin/env python3
"""Shares of GPU memory as resources of Ray's: Ray counts them, and `lgpu run` keeps each task to its own.

    python examples/ray_shares.py            on this machine: tasks of 600, 400 and 500 MiB, which a GPU of 1 GiB does not have at once

A GPU has a resource of its own, `lgpu0_mib` say: a count for the whole machine would let Ray start a task that fits on no GPU.
On a cluster each node says what it has:

    ray start --address=HEAD:6379 --resources="$(python examples/ray_shares.py --resources)"
"""

import json
import os
import subprocess
import sys

MIB = 1 << 20


def cards():
    """{index: MiB that leases can have} of the GPUs that this machine's lgpud serves."""
    found = json.loads(subprocess.run(["lgpu", "ls", "--json"], check=True, capture_output=True, text=True).stdout)["cards"]
    return {card["index"]: (card["total_bytes"] - card["reserve_bytes"]) // MIB for card in found if card["served"]}


def resources():
    """For ray.init(resources=...) and `ray start --resources=...`."""
    return {f"lgpu{index}_mib": mib for index, mib in cards().items()}


def share(card, mib):
    """For `.options(...)` of a task or an actor that runs commands in a share."""
    return {"num_cpus": 0, "resources": {f"lgpu{card}_mib": mib}}


def run_in_share(card, mib, command):
    """The body of a task: what the command prints. It is a process of its own, so that its limit begins and ends with the task:
    Ray uses the processes of its workers again. The whole share is guaranteed."""
    words = ["lgpu", "run", "-q", "-m", f"{mib}MiB", "--guarantee", f"{mib}MiB", "--gpus", str(card), "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main():
    if sys.argv[1:] == ["--resources"]:
        print(json.dumps(resources()))
        return
    import ray  # only the tasks need it

    ray.init(num_cpus=1, resources=resources(), include_dashboard=False, runtime_env={"env_vars": {
        name: os.environ[name] for name in ("LGPU_ENDPOINT", "PATH") if name in os.environ}})
    task = ray.remote(run_in_share)
    command = ["sh", "-c", "date +%s.%N; lgpu verify; sleep 1; date +%s.%N"]
    running = {mib: task.options(**share(0, mib)).remote(0, mib, command) for mib in (600, 400, 500)}
    spans = {}
    for mib, result in running.items():
        lines = ray.get(result).splitlines()
        spans[mib] = float(lines[0]), float(lines[-1])
        print(f"{mib} MiB: ran for {spans[mib][1] - spans[mib][0]:.1f} s inside its limit")
    most = max(sum(mib for mib, (begin, end) in spans.items() if begin <= now < end) for now, _ in spans.values())
    print(f"at most {most} MiB ran at once")
    ray.shutdown()


if __name__ == "__main__":
    main()
