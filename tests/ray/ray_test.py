#!/usr/bin/env python3
"""examples/ray_shares.py with a real Ray, on an lgpud with one simulated GPU of 1 GiB.

ray_test.py ROOT LGPU   with LGPU_ENDPOINT set; the packages are those of requirements.txt"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main():
    with tempfile.TemporaryDirectory(prefix="lgpu-ray-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "HOME": folder}
        check()


def check():
    root, lgpu = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    os.environ["PATH"] = f"{lgpu.parent}:{os.environ['PATH']}"
    example = [sys.executable, str(root / "examples/ray_shares.py")]
    said = subprocess.run([*example, "--resources"], check=True, capture_output=True, text=True, timeout=60).stdout
    assert json.loads(said) == {"lgpu0_mib": 1024}, said
    ran = subprocess.run(example, capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for mib in (600, 400, 500):
        assert f"\n{mib} MiB: ran for " in "\n" + ran.stdout, ran.stdout + ran.stderr
    most = int(re.search(r"^at most (\d+) MiB ran at once$", ran.stdout, re.MULTILINE).group(1))
    assert most in (600, 900, 1000), ran.stdout
    # lgpud refuses memory that Ray counts wrongly.
    sys.path.insert(0, str(root / "examples"))
    import ray_shares
    try:
        ray_shares.run_in_share(0, 2048, ["true"])
    except RuntimeError as error:
        assert "ended with 125" in str(error) and "1.00GiB" in str(error), error
    else:
        raise AssertionError("2 GiB of a GPU of 1 GiB")
    left = json.loads(subprocess.run(["lgpu", "ls", "--json"], check=True, capture_output=True, text=True).stdout)
    assert left["leases"] == [] and left["cards"][0]["held_bytes"] == 0, left
    print(ran.stdout, end="")


if __name__ == "__main__":
    main()
