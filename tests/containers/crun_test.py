#!/usr/bin/env python3
"""lgpu-hook with podman and crun, which starts hooks elsewhere than runc and makes a root read-only before.

crun_test.py ROOT BUILD [CASE ...]   ends with 77 where it cannot run, and says why

The world and the driver are limit_test.py's. crun wants control groups of one kind, version 1 or 2: each podman has a mount of
version 2 alone, and its containers join no group."""

import shutil
import subprocess
import sys

from limit_test import CARD, LIMITED, NAME, OPEN, run, small_root
from podman_test import LIMITS, expect, why_not

ONE_KIND = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
            'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && exec "$@"', "sh"]
PODMAN = [*ONE_KIND, "podman", "--cgroup-manager=cgroupfs", "--runtime", "crun"]
LEASE = f"lgpu.io/lease={NAME}"
CASES = []


def case(function):
    CASES.append(function)
    return function


def inside(world, *flags, devices=(CARD, LEASE), root=None):
    flags = [*(word for device in devices for word in ("--device", device)), *flags]
    return subprocess.run([*PODMAN, "run", "--rm", "--cgroups=disabled", *LIMITS, *flags, "--rootfs", root or "/:O", *world.program()],
                          capture_output=True, text=True, check=False, timeout=120)


def both(world, *flags, root=None):
    for devices, wanted in (((CARD,), OPEN), ((CARD, LEASE), LIMITED), ((LEASE, CARD), LIMITED)):
        result = inside(world, *flags, devices=devices, root=root)
        expect(result.stdout.strip() == wanted, f"{devices} {flags}: {result.stdout}{result.stderr}")


@case
def each_form_of_a_container_is_limited(world):
    both(world)
    both(world, "--user", "4711", "--cap-drop", "all", "--security-opt", "no-new-privileges")
    both(world, "-e", "LD_PRELOAD=libnvidia-ml.so.1", "-e", "LGPU_SHIM=off", "-e", "LGPU_LEASE=l-00000000")


@case
def a_read_only_root_is_limited(world):
    root = small_root(world, world.folder / "crun", 0)
    expect(not (root / "usr/lib/lgpu").exists(), "the root has the folder of lgpu's copies")
    result = inside(world, devices=(CARD,), root=root)  # makes the links of the driver
    expect(result.stdout.strip() == OPEN, result.stdout + result.stderr)
    both(world, "--read-only", root=root)


@case
def a_second_lease_and_a_container_without_a_driver_are_refused(world):
    for devices in ((LEASE,), (CARD, LEASE, f"{LEASE}-second")):
        result = inside(world, devices=devices)
        expect(result.returncode != 0 and "error executing hook" in result.stderr, f"{devices}: {result.stdout}{result.stderr}")


def why_no_crun():
    if shutil.which("crun") is None:
        return "crun is not installed (scripts/deps --ci)"
    tried = subprocess.run([*PODMAN, "run", "--rm", "--cgroups=disabled", *LIMITS, "--rootfs", "/:O", "true"], capture_output=True,
                           text=True, check=False, timeout=60)
    return f"crun starts no container here: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else None


if __name__ == "__main__":
    sys.exit(run(CASES, why_not() or why_no_crun()))
