"""The same seed gives the same run, step by step, in any environment, and another seed gives another one.

usage: replay_test.py LGPU_SIMULATION
       replay_test.py LGPU_SIMULATION OTHER FIRST-LAST

OTHER: the same program of another build, as one with sanitizers. For these seeds both have the same trace, byte for byte.
"""

import concurrent.futures
import os
import subprocess
import sys

# Programs look for lgpud in the folders of PATH.
OTHER_ENVIRONMENT = os.environ | {"PATH": "/one:/two:/three:" + os.environ["PATH"]}


def trace(program, seed, environment=None):
    run = subprocess.run([program, "--seed", str(seed), "--trace"], capture_output=True, text=True, timeout=300, env=environment)
    if run.returncode != 0:
        sys.exit(f"seed {seed} of {program} ends with {run.returncode}: {run.stderr}")
    return run.stdout.splitlines(keepends=True)


def compare(seed, first, second):
    if len(first) < 1000:
        sys.exit(f"seed {seed} has {len(first)} steps only")
    for number, (one, other) in enumerate(zip(first, second), 1):
        if one != other:
            sys.exit(f"seed {seed} has two runs, from line {number} on:\n  {one}  {other}")
    if len(first) != len(second):
        sys.exit(f"seed {seed} has runs of {len(first)} and of {len(second)} steps")


def compare_builds(first, second, seeds):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in [pool.submit(lambda seed: compare(seed, trace(first, seed), trace(second, seed)), seed) for seed in seeds]:
            done.result()
    print(f"seeds {seeds[0]} to {seeds[-1]} have the same traces in {first} and {second}")


def main():
    program = sys.argv[1]
    if len(sys.argv) > 2:
        first, last = map(int, sys.argv[3].split("-"))
        return compare_builds(program, sys.argv[2], range(first, last + 1))
    for seed in (3, 7):
        compare(seed, trace(program, seed), trace(program, seed, OTHER_ENVIRONMENT))
    if trace(program, 3)[-1] == trace(program, 7)[-1]:
        sys.exit("two seeds have one run")


if __name__ == "__main__":
    main()
