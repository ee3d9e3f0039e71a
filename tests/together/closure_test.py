#!/usr/bin/env python3
"""What comes into a process with a library, read from the ELF files themselves.

closure_test.py LIBRARY: no protobuf, gRPC, OpenSSL, re2 or OpenBLAS in the closure of liblgpu; what is there is
abseil, c-ares, zlib and the C and C++ runtime.
closure_test.py LIBRARY --libc-alone: the C library and the loader only."""

import re
import subprocess
import sys

RUNTIME = r"(ld-linux[-\w]*|libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|libstdc\+\+)\.so\.\d+"
ALLOWED = re.compile(rf"({RUNTIME}|libabsl_\w+\.so[.\d]*|libcares\.so\.2|libz\.so\.1|liblgpu\.so\.0)$")
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
        if name not in where:
            sys.exit(f"{name}, which {path} needs, is not where the loader looks")
        waiting += needed(where[name])
    return sorted(found)


def imported(path):
    text = subprocess.run(["nm", "-DC", "--undefined-only", path], capture_output=True, text=True, check=True).stdout
    return [line.split(" U ", 1)[1] for line in text.splitlines() if " U " in line]


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
    return 1 if bad or foreign or not names else 0


if __name__ == "__main__":
    sys.exit(main())
