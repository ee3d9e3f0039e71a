#!/usr/bin/env python3
"""Holds lgpu against the libraries of the vendor's own drivers, which load and answer without a GPU:
real_driver_test.py DRIVER LOOKUPS SHIM REDIRECT SOURCE. DRIVER is a folder of scripts/vendor-driver, LOOKUPS the program
driver_lookups, SHIM the folder with lgpu's libraries. 77: the driver's libraries are not there."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

RUNTIMES = {"12": ("nvidia-cuda-runtime-cu12==12.9.79", "libcudart.so.12"),
            "13": ("nvidia-cuda-runtime==13.0.96", "libcudart.so.13")}
NOT_FOUND = "500"

# Asks the runtime for the number of GPUs; prints its answer.
COUNT = """
import ctypes, sys
count = ctypes.c_int(-1)
print(ctypes.CDLL(sys.argv[1]).cudaGetDeviceCount(ctypes.byref(count)))
"""
# NVML's answer to its start, and its texts.
NVML = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlErrorString.restype = ctypes.c_char_p
print(nvml.nvmlInit_v2(), [nvml.nvmlErrorString(code).decode() for code in range(0, 30)])
"""


def keep_from_making_device_files():
    """Run by root, these libraries make /dev/nvidiactl, which stays and looks like a driver of this machine's. The processes
    that are started from here on cannot."""
    bounding_set_drop, cap_mknod = 24, 27
    ctypes.CDLL(None).prctl(bounding_set_drop, cap_mknod, 0, 0, 0)


def fetch_runtime(wheel, library):
    """The library of a wheel from PyPI, in the user's cache; None: it cannot be had."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "lgpu" / "runtimes"
    kept = cache / wheel.replace("==", "-") / library
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                                   "--no-deps", "--dest", folder, wheel], capture_output=True, text=True, timeout=120,
                                  check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return None
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/" + library))
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(archive.read(name))
    return kept


class Checks:
    def __init__(self):
        self.wrong = 0

    def expect(self, right, text):
        if not right:
            self.wrong += 1
            if self.wrong < 30:
                print("not so:", text)


def links(folder, driver, shim):
    """The folder of links that `lgpu run` makes."""
    for name, target in (("libcuda.so.1", shim / "libcuda.so.1"), ("libcuda.so", shim / "libcuda.so.1"),
                         ("libnvidia-ml.so.1", shim / "libnvidia-ml.so.1"),
                         ("liblgpu_real_cuda.so.1", driver / "libcuda.so.1"),
                         ("liblgpu_real_nvidia-ml.so.1", driver / "libnvidia-ml.so.1")):
        (folder / name).symlink_to(target)
    return folder


def run(argv, path, preload=None):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(path)}
    for name in ("LGPU_LEASE", "LGPU_SHIM", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"):
        environment.pop(name, None)
    if preload:
        environment["LD_PRELOAD"] = str(preload)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        print(f"{argv[0]} ended with {done.returncode}: {done.stderr}")
        sys.exit(1)
    return done.stdout.splitlines()


def read_lookups(lines):
    answers, exports, version = {}, {}, 0
    for line in lines:
        words = line.split()
        if words[0] == "version":
            version = int(words[1])
        elif words[0] == "export":
            exports[words[1]] = words[2] == "there"
        else:
            answers[tuple(words[:4])] = words[4:]
    return version, exports, answers


def surface(source):
    """The calls that the shim changes, with their versions, and those that it makes for itself."""
    text = (source / "client/driver/surface.h").read_text()
    changed, used = text.split("#define LGPU_SHIM_OWN_USE(X)")
    return ({symbol: int(version) for symbol, version in re.findall(r'X\((\w+),\s*"\w+",\s*(\d+)', changed)},
            re.findall(r"X\((\w+),", used))


def check_exports(checks, source, version, exports):
    changed, used = surface(source)
    for symbol, since in changed.items():
        checks.expect(exports[symbol] or since > version, f"the driver, of CUDA {version}, exports {symbol}")
    for symbol in used:
        if symbol in ("cuStreamGetDevice", "cuCtxFromGreenCtx", "cuMipmappedArrayGetMemoryRequirements",
                      "cuArrayGetMemoryRequirements", "cuDeviceGetUuid_v2"):
            continue  # of later versions; the shim does without them
        checks.expect(exports[symbol], f"the driver exports {symbol}")


def check_symbols_of_lgpu(checks, driver, source, version):
    import ctypes  # pylint: disable=import-outside-toplevel
    cuda, nvml = ctypes.CDLL(str(driver / "libcuda.so.1")), ctypes.CDLL(str(driver / "libnvidia-ml.so.1"))
    table = (source / "allocator/device/cuda/cuda_driver.h").read_text()
    for since, symbol in re.findall(r'X\(\w+, (\d+), "(\w+)"\)', table):
        checks.expect(hasattr(cuda, symbol) or int(since) > version, f"libcuda has {symbol}")
    needed = (source / "allocator/device/cuda/nvml_abi.h").read_text().split("SystemGetDriverVersion")[0]
    for symbol in re.findall(r'X\(\w+, "(nvml\w+)"', needed):
        checks.expect(hasattr(nvml, symbol), f"libnvidia-ml has {symbol}")


def check_lookups(checks, bare, through, exports):
    slips = 0
    of_shim = {symbol for symbol, there in exports.items() if there}
    places = {}
    for words in through.values():
        if len(words) == 4:
            places[words[2]] = words[3]
    for key, words in through.items():
        expected = bare.get(key)
        if expected is None and key[0] == "v2":  # a driver without cuGetProcAddress_v2: the older call answers
            older = bare.get(("v1",) + key[1:])
            if older is None:
                continue
            found = older[0] == "0"
            expected = ["0", "0" if found else "1", older[2]] if older[0] in ("0", NOT_FOUND) else [older[0], words[1], older[2]]
        checks.expect(expected is not None and words[:3] == expected[:3], f"{' '.join(key)}: {words} bare: {expected}")
        if len(words) == 3 and words[2] in places:
            slips += 1
            checks.expect(False, f"{' '.join(key)} comes past the shim to {places[words[2]]}")
    checks.expect(len(through) >= len(bare), "each look-up has an answer")
    print(f"{len(through)} look-ups, {slips} past the shim, {len(of_shim)} calls known")


def main():
    driver, lookups, shim, redirect, source = map(pathlib.Path, sys.argv[1:6])
    if not (driver / "libcuda.so.1").exists():
        missing = driver.parent / "missing"
        reason = missing.read_text() if missing.exists() else "scripts/vendor-driver has not been run"
        print(f"skipped: no libraries of driver {driver.name}: {reason.strip()}")
        return 77
    keep_from_making_device_files()
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        limited = links(pathlib.Path(folder), driver, shim)
        names = source / "tests/fake_cuda/driver_names.txt"
        version, exports, bare = read_lookups(run([lookups, names], driver))
        _, _, through = read_lookups(run([lookups, names], limited, redirect))
        print(f"driver {driver.name}, of CUDA {version}")
        check_exports(checks, source, version, exports)
        check_symbols_of_lgpu(checks, driver, source, version)
        check_lookups(checks, bare, through, exports)
        nvml = run([sys.executable, "-c", NVML], limited, redirect)
        checks.expect(nvml == run([sys.executable, "-c", NVML], driver), f"NVML says the same: {nvml}")
        checks.expect(nvml[0].startswith("9 ") and "Driver Not Loaded" in nvml[0], f"NVML's texts: {nvml}")
        for number, (wheel, library) in RUNTIMES.items():
            file = fetch_runtime(wheel, library)
            if file is None:
                print(f"without libcudart {number}, which PyPI did not give")
                continue
            count = [sys.executable, "-c", COUNT, str(file)]
            answer = run(count, limited, redirect)
            checks.expect(answer == run(count, driver), f"libcudart {number} gets the same answer: {answer}")
            print(f"libcudart {number} answers {answer[0]}")
    print(f"{checks.wrong} wrong")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
