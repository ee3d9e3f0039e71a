"""07_digits on one, two and four logical GPUs: it learns, and the weights are those of one device but for rounding."""

import pathlib
import re
import subprocess
import sys
import tempfile


def learn(program, folder, devices):
    plot = folder / f"plot-{devices}.svg"
    out = subprocess.run([program, "--devices", str(devices), "--epochs", "20", "--plot", plot],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    accuracy = float(re.search(rf"test accuracy ([0-9.]+) on {devices} logical GPU", out).group(1))
    assert accuracy >= 0.95, out
    assert len(re.findall(r"^epoch \d+/20  loss [0-9.]+  accuracy [0-9.]+  \d+ steps/s(  GPU:\d [0-9.]+[KM]?i?B)+$",
                          out, re.M)) == 20, out
    assert plot.read_text().count("<polyline") == 2


def weights(program, folder, devices):
    """After a few steps: later a rounding that turns a Relu on or off has grown."""
    file = folder / f"weights-{devices}"
    subprocess.run([program, "--devices", str(devices), "--epochs", "2", "--weights", file], check=True,
                   stdout=subprocess.DEVNULL)
    return [float(line) for line in file.read_text().splitlines()]


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        alone = weights(program, folder, 1)
        for devices in (2, 4):
            learn(program, folder, devices)
            difference = max(abs(a - b) for a, b in zip(alone, weights(program, folder, devices), strict=True))
            print(f"{devices} devices: weights differ by at most {difference:g}")
            assert difference < 1e-5, difference
        wrong = subprocess.run([program, "--data", folder / "missing"], stderr=subprocess.PIPE, text=True)
        assert wrong.returncode == 1 and "name the file with --data" in wrong.stderr, wrong.stderr


main()
