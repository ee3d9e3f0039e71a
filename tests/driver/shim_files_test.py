#!/usr/bin/env python3
"""The needs and exports of the shim's files: shim_files_test.py ROOT SHIMS [CUDA_ROOT].

SHIMS is a folder of the build or of a package. Programs of every kind load the files, so they need glibc alone, of a version
that is stated in docs/unmodified.md, and export the calls of client/driver/surface.h and used_calls.h and nothing else. With a CUDA toolkit, its headers and its stub say whether the table of calls
is complete."""

import pathlib
import re
import subprocess
import sys

ROOT, SHIMS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
PAGE = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("unmodified.md", "unmodified-reference.md"))
NEWEST_GLIBC = (2, 28)
# Of each image: the last two are empty since 2.34, and before they have what libc has now.
GLIBC = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
NEEDED = {
    "libcuda.so.1": {"liblgpu_real_cuda.so.1"},
    "libnvidia-ml.so.1": {"liblgpu_real_nvidia-ml.so.1"},
    "liblgpu_redirect.so": set(),
}
NVML = {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"}
# Calls that make, take over or map memory, by their names. Each is in the table or in the page.
ALLOCATES = re.compile(
    r"^cu(Mem(Alloc|Create|HostAlloc|HostRegister|PoolCreate|PoolImport|Import|Retain)|Array|MipmappedArray(Create|Destroy)"
    r"|GraphAddMem|GraphInstantiate|ImportExternal|IpcOpenMem|Graphics\w*Register|ModuleLoad|LibraryLoad|LinkComplete"
    r"|CtxCreate|GreenCtxCreate|DevicePrimaryCtxRetain|Multicast(Create|Bind)|CtxSetLimit)")
NO_MEMORY = re.compile(
    r"^cu(Array(GetDescriptor|3DGetDescriptor|GetMemoryRequirements|GetPlane|GetSparseProperties)|Array3DGetDescriptor"
    r"|GraphAddMem(cpy|set)Node|ImportExternalSemaphore)")
# One that libc has since, in two versions: glibc 2.28 has it in another library.
LIBC = next(pathlib.Path("/lib").glob("*-linux-gnu/libc.so.6"))
problems = []


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def exports(library):
    return {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", str(library)).splitlines()}


def calls_of_libc(library):
    """The calls of a version that the library has of libc.so.6, and not of another."""
    text = run("readelf", "-VW", str(library))
    of_libc = re.search(r"File: libc\.so\.6 .*\n((?:.*Name: .*\n)*)", text)
    indices = set(re.findall(r"Version: (\d+)", of_libc.group(1))) if of_libc else set()
    return {call for call, index in re.findall(r"UND (\w+)@\w+_[\w.]+ \((\d+)\)", run("readelf", "--dyn-syms", "-W", str(library)))
            if index in indices}


newest_in_libc = {call: tuple(map(int, version.split("."))) for call, version in re.findall(
    r"\b(\w+)@@GLIBC_(2(?:\.\d+)+)", run("readelf", "--dyn-syms", "-W", str(LIBC)))}


def check(condition, text):
    if not condition:
        problems.append(text)


surface = re.findall(r'X\((\w+),\s+"(\w+)",\s+(\d+),\s+(\w+),', (ROOT / "client/driver/surface.h").read_text(encoding="utf-8"))
symbols = {symbol for symbol, _, _, _ in surface}
check(len(surface) > 40, "surface.h could not be read")
# Calls that the shim passes on, and notes.
used = set(re.findall(r"X\((\w+)\)", (ROOT / "client/driver/used_calls.h").read_text(encoding="utf-8"))) - {"symbol"}
check(len(used) > 100, "used_calls.h could not be read")

for name, real in NEEDED.items():
    library = SHIMS / name
    dynamic = run("readelf", "-dW", str(library))
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    check(real <= needed and needed - real <= GLIBC, f"{name} needs {sorted(needed)}")
    # Each library that it needs would be mapped at each start of a program.
    check(real or needed == {"libc.so.6"}, f"{name} needs {sorted(needed)}, and not libc alone")
    check(not real or re.search(r"\(RUNPATH\).*\[\$ORIGIN\]", dynamic), f"{name} has no RUNPATH $ORIGIN")
    versions = set(re.findall(r"Name: (\w+?)_([\w.]+)", run("readelf", "-VW", str(library))))
    check(bool(versions) == bool(real), f"{name} has {versions or 'no versions'}")
    for kind, version in sorted(versions):
        is_old = kind == "GLIBC" and re.fullmatch(r"2(\.\d+)+", version) and tuple(map(int, version.split("."))) <= NEWEST_GLIBC
        calls = re.findall(rf"\b(\w+)@{kind}_{re.escape(version)}\b", run("readelf", "--dyn-syms", "-W", str(library)))
        check(is_old, f"{name} needs {kind}_{version}, for {', '.join(calls) or 'the loader'}: see client/driver/old_glibc.c")
    # Before 2.30 a loader looks for a call of a version in the library that had it where the program was linked, and in those
    # before it alone.
    for call in calls_of_libc(library):
        check(newest_in_libc.get(call, NEWEST_GLIBC) <= NEWEST_GLIBC,
              f"{name} has {call} of libc.so.6, where glibc 2.28 has none: see lgpu_glibc_stub in client/driver/CMakeLists.txt")
check(f"glibc {NEWEST_GLIBC[0]}.{NEWEST_GLIBC[1]}" in PAGE, "docs/unmodified*.md do not state the glibc that is needed")
check(exports(SHIMS / "libcuda.so.1") == symbols | used,
      f"libcuda.so.1 differs from surface.h and used_calls.h by {sorted(exports(SHIMS / 'libcuda.so.1') ^ (symbols | used))}")
check(exports(SHIMS / "libnvidia-ml.so.1") == NVML, "libnvidia-ml.so.1 exports something else than the page says")
check(exports(SHIMS / "liblgpu_redirect.so") == {"dlopen", "dlmopen"}, "the redirect exports something else than dlopen and dlmopen")
for symbol, name, _, _ in surface:
    check(f"`{name}`" in PAGE, f"docs/unmodified*.md have no `{name}`")

if len(sys.argv) > 3:
    cuda = pathlib.Path(sys.argv[3])
    typedefs = set()
    for header in ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h"):
        path = cuda / "include" / header
        if path.exists():
            typedefs |= set(re.findall(r"\*PFN_(cu\w+)_v(\d+)(_ptsz|_ptds)?\)", path.read_text(encoding="utf-8")))
    for symbol, name, version, stream in surface:
        twin = "_ptsz" if stream == "kPerThread" else ""
        check((name, version, twin) in typedefs, f"{symbol}: cudaTypedefs.h has no version {version} of {name}{twin}")
    known = {(name, version, "_ptsz" if stream == "kPerThread" else "") for _, name, version, stream in surface}
    for name, version, twin in sorted(typedefs):
        check(name not in {n for n, _, _ in known} or (name, version, twin) in known,
              f"surface.h has no version {version} of {name}{twin}")
    names = {name for name, _, _ in typedefs}
    stub = cuda / "lib64/stubs/libcuda.so"
    if stub.exists():
        exported = exports(stub)
        check(symbols <= exported, f"the toolkit's stub does not export {sorted(symbols - exported)}")
        bases = {re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol) for symbol in symbols}
        for other in exported - symbols:
            check(re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", other) not in bases, f"surface.h lacks {other}")
        base_of_used = {re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol) for symbol in used}
        for other in sorted(exported - used):
            check(re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", other) not in base_of_used, f"used_calls.h lacks {other}")
        names |= {re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol) for symbol in exported}
    for name in sorted(names):
        if ALLOCATES.match(name) and not NO_MEMORY.match(name):
            check(f"`{name}`" in PAGE, f"docs/unmodified*.md do not say whether {name} is charged")

for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
