#!/usr/bin/env python3
"""The libraries that come into a process with a library, read from the ELF files themselves.

closure_test.py LIBRARY: no protobuf, gRPC, OpenSSL, re2 or OpenBLAS in the closure of liblgpu; what is there is
abseil, c-ares, zlib and the C and C++ runtime. A sanitizer that the build itself asked for comes in as well.
closure_test.py LIBRARY --libc-alone: the C library and the loader only.
closure_test.py PROGRAM --session-alone: as the first, and nothing of gRPC, protobuf, kernels or TensorFlow's names is
linked into the program itself."""

import pathlib
import re
import subprocess
import sys

RUNTIME = r"(ld-linux[-\w]*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so\.\d+"
CLANGS_SANITIZERS = r"libclang_rt\.\w+-\w+\.so"
SANITIZERS = rf"lib(asan|ubsan|tsan)\.so\.\d+|{CLANGS_SANITIZERS}"
ALLOWED = re.compile(rf"({RUNTIME}|{SANITIZERS}|libabsl_\w+\.so[.\d]*|libcares\.so\.2|libz\.so\.1|liblgpu\.so\.0)$")
LIBC_ALONE = re.compile(r"(libc|ld-linux[-\w]*)\.so\.\d+$")


def needed(path):
    text = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def places():
    """Where the loader finds a name."""
    text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = {}
    for name, path in re.findall(r"^\s*(\S+) \(.*x86-64.*\) => (\S+)$", text, re.MULTILINE):
        found.setdefault(name, path)
    return found


def closure(path):
    found, waiting, where = set(), needed(path), places()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if re.fullmatch(CLANGS_SANITIZERS, name):  # in a folder of clang's, by RUNPATH
            continue
        if name not in where:
            sys.exit(f"{name}, which {path} needs, is not where the loader looks")
        waiting += needed(where[name])
    return sorted(found)


def imported(path):
    text = subprocess.run(["nm", "-DC", "--undefined-only", path], capture_output=True, text=True, check=True).stdout
    return [line.split(" U ", 1)[1] for line in text.splitlines() if " U " in line]


def linked_in(path):
    """Symbols of its own that a program of client/session alone must not have."""
    text = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    symbols = {line.split(" ", 2)[2] for line in text.splitlines() if line.count(" ") >= 2}
    assert any(symbol.startswith("lgpu::DevicePool::") for symbol in symbols), f"{path} has no symbols"
    layers = re.compile(r"(grpc_|grpc::|google::protobuf::|lgpu::v1::|lgpu::internal::|lgpu::KernelRegistry|cblas_)")
    names = ["a device name of TensorFlow's"] if b"/job:localhost" in pathlib.Path(path).read_bytes() else []
    return sorted(symbol for symbol in symbols if layers.match(symbol)) + names


def main():
    path = sys.argv[1]
    alone = sys.argv[2:] == ["--libc-alone"]
    names = closure(path)
    print(f"{path}: {len(names)} shared libraries come with it: {' '.join(names)}")
    bad = [name for name in names if not (LIBC_ALONE if alone else ALLOWED).match(name)]
    foreign = [symbol for symbol in imported(path) if re.match(r"(google::protobuf|grpc|upb_|cblas_|SSL_)", symbol)]
    for name in bad:
        print(f"{name} must not be among them")
    for symbol in foreign:
        print(f"{symbol} would be bound to another library's")
    unwanted = linked_in(path) if sys.argv[2:] == ["--session-alone"] else []
    for name in unwanted:
        print(f"{name} is linked into it")
    return 1 if bad or foreign or unwanted or not names else 0


if __name__ == "__main__":
    sys.exit(main())
