#!/usr/bin/env python3
"""Runs those of numba-cuda's own driver tests that a file lists: numba_tests.py LIST [--write]

The list has the tests that pass on the fake driver itself; kernels do nothing there, so tests that want a kernel's
results are not in it. Through the shim exactly these have to pass. --write runs them all and writes the list.
"""

import sys
import unittest

SUITE = "numba.cuda.tests.cudadrv"


class Passed(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test.id())


def run(names):
    loader = unittest.defaultTestLoader
    suite = loader.loadTestsFromNames(names)
    return unittest.TextTestRunner(resultclass=Passed, stream=sys.stderr, verbosity=1).run(suite)


def main():
    path = sys.argv[1]
    import numba.cuda.testing  # noqa: F401  sets numba's tests up

    if sys.argv[2:] == ["--write"]:
        passed = sorted(run([SUITE]).passed)
        with open(path, "w", encoding="utf-8") as listed:
            listed.write("".join(f"{name}\n" for name in passed))
        print(f"{len(passed)} tests passed and are in {path}")
        return 0
    with open(path, encoding="utf-8") as listed:
        names = listed.read().split()
    passed = set(run(names).passed)
    missing = [name for name in names if name not in passed]
    for name in missing:
        print("did not pass:", name)
    print(f"{len(names) - len(missing)} of {len(names)} tests passed")
    return 1 if missing or not names else 0


if __name__ == "__main__":
    sys.exit(main())
