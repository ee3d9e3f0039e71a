"""The same seed gives the same run, step by step, in any environment, and another seed gives another one.

usage: replay_test.py LGPU_SIMULATION
"""

import os
import subprocess
import sys

# Programs look for lgpud in the folders of PATH.
OTHER = os.environ | {"PATH": "/one:/two:/three:" + os.environ["PATH"]}


def trace(program, seed, environment=None):
    run = subprocess.run([program, "--seed", str(seed), "--trace"], capture_output=True, text=True, timeout=100, env=environment)
    if run.returncode != 0:
        sys.exit(f"seed {seed} ends with {run.returncode}: {run.stderr}")
    return run.stdout.splitlines()


def main():
    program = sys.argv[1]
    for seed in (3, 7):
        first, second = trace(program, seed), trace(program, seed, OTHER)
        if len(first) < 1000:
            sys.exit(f"seed {seed} has {len(first)} steps only")
        for number, (one, other) in enumerate(zip(first, second)):
            if one != other:
                sys.exit(f"seed {seed} has two runs, from line {number} on:\n  {one}\n  {other}")
        if len(first) != len(second):
            sys.exit(f"seed {seed} has runs of {len(first)} and of {len(second)} steps")
    if trace(program, 3)[-1] == trace(program, 7)[-1]:
        sys.exit("two seeds have one run")


if __name__ == "__main__":
    main()
