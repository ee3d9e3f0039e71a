#!/usr/bin/env python3
"""Checks which folder includes which: the arrows of docs/design.md.

    allocator <- proto <- daemon      allocator <- kernels <- client -> proto      cli -> proto, client

Also: gRPC's headers appear in a few .cc files only, and no installed header includes gRPC, protobuf, CUDA, Boost
or nlohmann. `layering_test.py ROOT` checks a tree; `layering_test.py ROOT --prove` checks that planted violations
are found."""

import pathlib
import re
import sys
import tempfile

# A folder may include its own headers and those of the folders named here.
ALLOWED = {
    "allocator": set(),
    "proto": {"allocator"},
    "kernels": {"allocator"},
    "daemon": {"allocator", "proto"},
    "client": {"allocator", "kernels", "proto"},
    "cli": {"allocator", "proto", "kernels", "client"},
}
# The sources that may see gRPC; each one keeps it behind an interface of lgpu's.
GRPC_FILES = {
    "client/control_client.cc",
    "cli/connection.cc",
    "daemon/control_server.cc",
    "daemon/control_service.cc",
    "proto/status_codec.cc",
}
GRPC_HEADERS = {
    "cli/connection.h",
    "daemon/control_service.h",
}
FORBIDDEN_IN_INSTALLED = re.compile(
    r"^(grpc|google/protobuf|lgpu/v1/|cuda|cublas|nvml|nvrtc|boost/|nlohmann/|spdlog/|CLI/|toml)|\.pb\.h$")
GRPC = re.compile(r"^grpc|\.grpc\.pb\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def sources(root):
    for layer in ALLOWED:
        for path in sorted((root / layer).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".inc"):
                yield layer, path


def public_owner(root, name):
    """The layer that a public header such as lgpu/pool.h lives in; messages belong to proto."""
    if name.startswith("lgpu/v1/"):
        return "proto"
    for layer in ALLOWED:
        if (root / layer / "include" / name).exists():
            return layer
    return None


def owner(root, including, name):
    first = name.split("/")[0]
    if first in ALLOWED:
        return first
    if first == "lgpu":
        return public_owner(root, name)
    if (including.parent / name).exists():
        return including.relative_to(root).parts[0]
    return None


def violations(root):
    for layer, path in sources(root):
        place = path.relative_to(root).as_posix()
        installed = "include" in path.relative_to(root).parts
        for name in INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")):
            target = owner(root, path, name)
            if target is not None and target != layer and target not in ALLOWED[layer]:
                yield f"{place}: includes {name}, but {layer}/ may not use {target}/"
            if GRPC.search(name) and place not in GRPC_FILES | GRPC_HEADERS:
                yield f"{place}: includes {name}; gRPC belongs into {', '.join(sorted(GRPC_FILES))}"
            if installed and FORBIDDEN_IN_INSTALLED.search(name):
                yield f"{place}: an installed header includes {name}"
            if installed and target is not None and not name.startswith("lgpu/"):
                yield f"{place}: an installed header includes {name}, which is not installed"


PLANTED = {
    "allocator/pool.cc": '#include "lgpu/v1/session.pb.h"\n',
    "proto/channel.cc": '#  include "daemon/broker.h"\n',
    "daemon/broker.cc": '#include "client/lease.h"\n',
    "client/context.cc": '#include "daemon/config.h"\n',
    "kernels/op.cc": '#include "proto/session_channel.h"\n',
    "cli/main.cc": '#include "daemon/config.h"\n',
    "client/tensor.cc": "#include <grpcpp/grpcpp.h>\n",
    "client/include/lgpu/tensor.h": "#include <nlohmann/json.hpp>\n",
    "client/include/lgpu/context.h": '#include "client/lease.h"\n',
    "allocator/include/lgpu/bytes.h": '#include "lgpu/tensor.h"\n',
    "allocator/ledger.h": '#include "lgpu/tensor.h"\n',
}
CLEAN = {
    "client/executor.cc": '#include "kernels/op.h"\n#include "lgpu/bytes.h"\n#include "proto/session_channel.h"\n',
    "proto/session_channel.cc": '#include "allocator/unique_fd.h"\n#include "lgpu/v1/session.pb.h"\n',
    "daemon/control_server.cc": "#include <grpcpp/grpcpp.h>\n",
}


def prove():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for place, text in {**CLEAN, **PLANTED}.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(text)
        found = list(violations(root))
        missed = [place for place in PLANTED if not any(line.startswith(place + ":") for line in found)]
        wrong = [line for line in found if line.split(":")[0] in CLEAN]
    for place in missed:
        print(f"the planted violation in {place} was not found")
    for line in wrong:
        print(f"a clean file was blamed: {line}")
    return not missed and not wrong


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2:] == ["--prove"]:
        ok = prove()
        print("planted violations: " + ("all found" if ok else "NOT all found"))
        return 0 if ok else 1
    checked = sum(1 for _ in sources(root))
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"{checked} files, {len(found)} violations")
    return 0 if checked and not found else 1


if __name__ == "__main__":
    sys.exit(main())
