#!/usr/bin/env python3
"""Holds what lgpu says of the driver and of NVML against the headers of several toolkits, which come from PyPI:
toolkits_test.py SOURCE COMPILER. The driver's values, structures and calls are compared by cuda_headers_test.py; the type of
each symbol with that of its version, and the own prototypes of NVML, here. 77: PyPI cannot be reached."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

WHEELS = {
    "11.8": ["nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nvml-dev-cu11==11.8.86"],
    "12.4": ["nvidia-cuda-runtime-cu12==12.4.127", "nvidia-nvml-dev-cu12==12.4.127"],
    "12.9": ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79"],
    "13.0": ["nvidia-cuda-runtime==13.0.96", "nvidia-nvml-dev==13.0.87"],
    "13.5": ["nvidia-cuda-runtime==13.5.37", "nvidia-nvml-dev==13.5.37"],
}

COMMON = r"""
#include <cstddef>
#include <cstdio>
#include <string>
#include <type_traits>
template <typename T> std::string Of() {
  if constexpr (std::is_void_v<T>) {
    return " void";
  } else {
    return std::is_pointer_v<T> ? " p" : " " + std::to_string(sizeof(T));
  }
}
template <typename T> struct Call;
template <typename R, typename... A> struct Call<R (*)(A...)> {
  static std::string Text() { return Of<R>() + " (" + (std::string() + ... + Of<A>()) + " )"; }
};
"""

NVML_FIELDS = {
    ("nvmlMemory_v2_t", "MemoryV2"): [("version", "version"), ("total", "total"), ("reserved", "reserved"),
                                      ("free", "free"), ("used", "used")],
    ("nvmlMemory_t", "MemoryV1"): [("total", "total"), ("free", "free"), ("used", "used")],
    ("nvmlPciInfo_t", "PciInfoV3"): [("domain", "domain"), ("bus", "bus"), ("busId", "bus_id")],
    ("nvmlProcessInfo_v2_t", "ProcessInfoV2"): [("pid", "pid"), ("usedGpuMemory", "used_gpu_memory")],
}


def fetch(wheel, cache):
    """The folder with the headers of a wheel, or None."""
    folder = cache / wheel.replace("==", "-")
    if not (folder / "complete").exists():
        with tempfile.TemporaryDirectory() as downloads:
            try:
                done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                                       "--no-deps", "--dest", downloads, wheel], capture_output=True, text=True,
                                      timeout=120, check=False)
            except subprocess.TimeoutExpired:
                print(f"skipped: {wheel} cannot be had within 120 s")
                return None
            if done.returncode != 0:
                print(f"skipped: {wheel} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
                return None
            with zipfile.ZipFile(next(pathlib.Path(downloads).glob("*.whl"))) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".h")])
        (folder / "complete").touch()
    return next(header.parent for name in ("cuda.h", "nvml.h") for header in folder.rglob(name))


def build_and_run(compiler, text, includes):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "check.cc"
        source.write_text(text, encoding="utf-8")
        built = subprocess.run([compiler, "-std=c++20", *(f"-isystem{each}" for each in includes), str(source), "-o",
                                f"{folder}/check"], capture_output=True, text=True, timeout=120, check=False)
        if built.returncode != 0:
            return None, "\n".join(line for line in built.stderr.splitlines() if "error" in line)
        ran = subprocess.run([f"{folder}/check"], capture_output=True, text=True, timeout=20, check=True)
        return ran.stdout.splitlines(), ""


def symbols(path):
    """X(Name, VERSION-or-"symbol", ...) lines of a header."""
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    return re.findall(r"X\((\w+), (\"?\w+\"?), ((?:[^()]|\((?:[^()]|\([^()]*\))*\))+)\)", text)


def cuda_program(source):
    lines = ["#define __CUDA_API_VERSION_INTERNAL", "#include <cuda.h>", "#include <cudaTypedefs.h>",
             "#include <type_traits>"]
    for name, version, symbol in symbols(source / "allocator/device/cuda/cuda_driver.h"):
        kind = f"PFN_cu{name}_v{version}"
        lines.append(f'static_assert(std::is_same_v<decltype(&{symbol.strip(chr(34))}), {kind}>, "{name}");')
    return "\n".join([*lines, "int main() {}"])


def nvml_program(source, header):
    lines = ["#define NVML_NO_UNVERSIONED_FUNC_DEFS", "#include <nvml.h>", COMMON,
             (source / "allocator/device/cuda/nvml_abi.h").read_text(encoding="utf-8"), "using namespace lgpu::nvml;",
             "int main() {"]
    declared = header.read_text(encoding="utf-8")
    for name, symbol, kind in symbols(source / "allocator/device/cuda/nvml_abi.h"):
        symbol = symbol.strip('"')
        # A call of a later NVML than this one: lgpu does without.
        if not re.search(rf"\b{symbol}\s*\(", declared):
            lines.append(f'std::puts("{symbol} is not in this header");')
            continue
        lines.append(f'std::puts(("{name}" + Call<decltype(&{symbol})>::Text() + "|" + Call<{kind}>::Text()).c_str());')
    for (theirs, ours), fields in NVML_FIELDS.items():
        if theirs not in declared:
            continue
        lines.append(f'static_assert(sizeof({theirs}) == sizeof({ours}), "{ours}");')
        lines += [f'static_assert(offsetof({theirs}, {a}) == offsetof({ours}, {b}), "{ours}::{b}");' for a, b in fields]
    return "\n".join([*lines, "}"])


def check(source, compiler, cuda, nvml):
    """The differences from a toolkit's headers."""
    differences = []
    compared = subprocess.run([sys.executable, str(source / "tests/fake_cuda/cuda_headers_test.py"), str(source),
                               str(cuda), compiler], capture_output=True, text=True, timeout=120, check=False)
    print("  ", compared.stdout.strip())
    if compared.returncode != 0:
        differences.append(compared.stderr)
    seen, error = build_and_run(compiler, cuda_program(source), [cuda])
    if seen is None:
        differences.append(error)
    seen, error = build_and_run(compiler, nvml_program(source, nvml / "nvml.h"), [nvml])
    if seen is None:
        return [*differences, error]
    for line in seen:
        theirs, bar, ours = line.partition("|")
        if bar and not theirs.endswith(ours):
            differences.append(line)
        elif not bar:
            print("  ", line)
    return differences


def main():
    source, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lgpu" / "cuda-headers"
    driver = len(symbols(source / "allocator/device/cuda/cuda_driver.h"))
    nvml = len(symbols(source / "allocator/device/cuda/nvml_abi.h"))
    wrong = 0
    for toolkit, wheels in WHEELS.items():
        folders = [fetch(wheel, cache) for wheel in wheels]
        if None in folders:
            return 77
        print(f"CUDA {toolkit}:")
        differences = check(source, compiler, *folders)
        for line in differences:
            print("   NOT the same:", line)
        wrong += len(differences)
    print(f"{driver} calls of the driver and {nvml} of NVML in {len(WHEELS)} toolkits, {wrong} differences")
    return 1 if wrong or driver < 40 or nvml < 12 else 0


if __name__ == "__main__":
    sys.exit(main())
