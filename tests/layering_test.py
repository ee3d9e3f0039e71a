#!/usr/bin/env python3
"""Checks which folder includes which: the arrows of docs/design.md.

    base <- allocator <- kernels                       base, proto/wire <- proto
    allocator, proto <- daemon                         allocator, proto <- client/session
    proto/wire <- client/link (no abseil, no protobuf) <- client/session, client/driver (no abseil, no protobuf) <- client/hook
    proto <- client/distribute
    proto <- client/control <- cli                     client/session, client/control, kernels <- client/runtime <- cli, client/distribute
    installed headers <- python

Also: gRPC's headers appear in a few .cc files only, a daemon includes nothing of the devices' work, and no installed
header includes gRPC, protobuf, CUDA, Boost or nlohmann. `layering_test.py ROOT` checks a tree;
`layering_test.py ROOT --prove` checks that planted violations are found."""

import pathlib
import re
import sys
import tempfile

# A folder may include its own headers and those of the folders named here. A file belongs to the longest folder
# that its path begins with.
ALLOWED = {
    "base": set(),
    "allocator": {"base"},
    "allocator/device": {"base", "allocator"},
    "allocator/broker": {"base", "allocator", "allocator/device"},
    "proto/wire": {"base"},
    "proto": {"base", "proto/wire"},
    "kernels": {"base", "allocator", "allocator/device"},
    "daemon": {"base", "allocator", "allocator/device", "allocator/broker", "proto", "proto/wire"},
    "client/link": {"base", "proto/wire"},
    "client/session": {"base", "allocator", "allocator/device", "allocator/broker", "proto", "proto/wire", "client/link"},
    "client/control": {"base", "proto", "proto/wire"},
    "client/driver": {"base", "proto/wire", "client/link"},
    "client/hook": {"base", "client/driver"},
    "client/runtime": {"base", "allocator", "allocator/device", "proto", "proto/wire", "kernels", "client/session", "client/control"},
    "client/distribute": {"base", "allocator", "proto", "proto/wire", "kernels", "client/runtime"},
    "cli": {"base", "allocator", "allocator/device", "proto", "proto/wire", "kernels", "client/session", "client/control", "client/runtime",
            "client/driver"},
    "python": {"base", "allocator", "kernels", "client/runtime", "client/distribute"},
}
TOP = sorted({layer.split("/")[0] for layer in ALLOWED})
# Programs that load liblgpu may have a protobuf of their own: the library knows no generated message.
MESSAGES = re.compile(r"^google/protobuf/|\.pb\.h$")
MESSAGE_LAYERS = {"proto", "daemon", "cli"}
# The layers of the driver's shim, which any program may load, use the C and C++ library alone.
PLAIN_LAYERS = {"proto/wire", "client/link", "client/driver"}
NOT_PLAIN = re.compile(r"^(absl|boost|google|nlohmann)/|^lgpu/(?!v1/)")
# The sources that may see gRPC; each one keeps it behind an interface of lgpu's.
GRPC_FILES = {
    "client/control/control_client.cc",
    "daemon/server/control_server.cc",
    "daemon/server/control_service.cc",
    "daemon/server/lease_wait_call.cc",
    "daemon/server/watch_stream.h",
}
# A daemon and its broker have the memory of devices and none of their work: they do not open these.
PROGRAMS_ONLY = re.compile(r"^allocator/device/(device_work|device_backend|simulated/simulated_backend|cuda/cuda_backend)\.h$")
GRPC_HEADERS = {
    "daemon/server/control_service.h",
    "daemon/server/grpc_status.h",
    "daemon/server/lease_wait_call.h",
}
FORBIDDEN_IN_INSTALLED = re.compile(
    r"^(grpc|google/protobuf|lgpu/v1/|cuda|cublas|nvml|nvrtc|boost/|nlohmann/|spdlog/|CLI/|toml)|\.pb\.h$")
GRPC = re.compile(r"^grpc|\.grpc\.pb\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def layer_of(place):
    """The longest layer that the path lies in, or None."""
    parts = place.split("/")
    for length in (2, 1):
        layer = "/".join(parts[:length])
        if len(parts) > length and layer in ALLOWED:
            return layer
    return None


def sources(root):
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".cu", ".cuh", ".inc"):
                yield path


def public_owner(root, name):
    """The layer that a public header such as lgpu/pool.h lives in; messages belong to proto."""
    if name.startswith("lgpu/v1/"):
        return "proto"
    for layer in ALLOWED:
        if (root / layer / "include" / name).exists():
            return layer
    return None


def owner(root, including, name):
    if name.startswith("lgpu/"):
        return public_owner(root, name)
    if name.split("/")[0] in TOP:
        return layer_of(name)
    if (including.parent / name).exists():
        return layer_of((including.parent / name).relative_to(root).as_posix())
    return None


def is_plain(root, including, name, seen=None):
    """Whether a header of the tree, and all that it includes, needs the C++ library alone."""
    seen = set() if seen is None else seen
    path = root / name if (root / name).exists() else including.parent / name
    if not path.exists() or path in seen:
        return True
    seen.add(path)
    names = INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace"))
    return not any(NOT_PLAIN.search(n) or MESSAGES.search(n) or not is_plain(root, path, n, seen) for n in names)


def violations(root):
    for path in sources(root):
        place = path.relative_to(root).as_posix()
        layer = layer_of(place)
        if layer is None:
            yield f"{place}: lies in no layer; tests/layering_test.py names them"
            continue
        installed = "include" in path.relative_to(root).parts
        for name in INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")):
            target = owner(root, path, name)
            if target is not None and target != layer and target not in ALLOWED[layer]:
                yield f"{place}: includes {name}, but {layer}/ may not use {target}/"
            if layer in ("daemon", "allocator/broker") and PROGRAMS_ONLY.search(name):
                yield f"{place}: includes {name}, but a daemon has device_memory.h only"
            if GRPC.search(name) and place not in GRPC_FILES | GRPC_HEADERS:
                yield f"{place}: includes {name}; gRPC belongs into {', '.join(sorted(GRPC_FILES))}"
            if MESSAGES.search(name) and layer not in MESSAGE_LAYERS:
                yield f"{place}: includes {name}; generated messages belong into {', '.join(sorted(MESSAGE_LAYERS))}"
            if layer in PLAIN_LAYERS and (NOT_PLAIN.search(name) or not is_plain(root, path, name)):
                yield f"{place}: includes {name}, which needs more than the C++ library"
            if layer == "python" and target not in (None, layer) and not name.startswith("lgpu/"):
                yield f"{place}: includes {name}, which is not installed; the Python module is a program of liblgpu"
            if installed and FORBIDDEN_IN_INSTALLED.search(name):
                yield f"{place}: an installed header includes {name}"
            if installed and target is not None and not name.startswith("lgpu/"):
                yield f"{place}: an installed header includes {name}, which is not installed"


PLANTED = {
    "python/module/ops.cc": '#include "client/runtime/executor.h"\n',
    "base/text.cc": '#include "allocator/ledger.h"\n',
    "allocator/pool/pool.cc": '#include "lgpu/v1/session.pb.h"\n',
    "allocator/page_map.cc": '#include "allocator/device/device_backend.h"\n',
    "daemon/server/device_registry.h": '#include "allocator/device/device_backend.h"\n',
    "allocator/ledger.cc": '#include "allocator/broker/broker.h"\n',
    "allocator/broker/broker.cc": '#include "daemon/recovery/journal.h"\n',
    "proto/channel.cc": '#  include "daemon/server/config.h"\n',
    "proto/pages.cc": '#include "allocator/ledger.h"\n',
    "proto/wire/channel.cc": '#include "absl/status/status.h"\n',
    "proto/wire/pages.cc": '#include "base/heavy.h"\n',
    "proto/wire/frames.cc": '#include "proto/mapped_region.h"\n',
    "client/link/handshake.cc": '#include "base/heavy.h"\n',
    "client/driver/frames.cc": '#include "absl/status/status.h"\n',
    "client/driver/calls.cc": '#include "client/session/endpoint.h"\n',
    "client/session/frames.cc": '#include "lgpu/v1/session.pb.h"\n',
    "daemon/server/config.cc": '#include "client/runtime/device.h"\n',
    "client/session/region.cc": '#include "client/runtime/device.h"\n',
    "client/control/calls.cc": '#include "client/session/endpoint.h"\n',
    "client/runtime/context.cc": '#include "daemon/server/config.h"\n',
    "client/stray.cc": "#include <vector>\n",
    "kernels/op.cc": '#include "proto/wire/frame_channel.h"\n',
    "cli/main.cc": '#include "daemon/server/config.h"\n',
    "client/runtime/tensor.cc": "#include <grpcpp/grpcpp.h>\n",
    "client/runtime/include/lgpu/tensor.h": "#include <nlohmann/json.hpp>\n",
    "client/runtime/include/lgpu/context.h": '#include "client/runtime/device.h"\n',
    "base/include/lgpu/bytes.h": '#include "lgpu/tensor.h"\n',
    "allocator/ledger.h": '#include "lgpu/tensor.h"\n',
}
CLEAN = {
    "base/heavy.h": '#include "absl/status/status.h"\n',
    "base/light.h": "#include <string>\n",
    "proto/wire/encoding.h": '#include "base/light.h"\n',
    "client/runtime/executor.cc":
        '#include "kernels/op.h"\n#include "lgpu/bytes.h"\n#include "proto/wire/frame_channel.h"\n',
    "client/session/endpoint.h": '#include "base/unique_fd.h"\n',
    "proto/session_channel.cc": '#include "base/unique_fd.h"\n#include "lgpu/v1/session.pb.h"\n',
    "daemon/server/control_server.cc": "#include <grpcpp/grpcpp.h>\n",
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
