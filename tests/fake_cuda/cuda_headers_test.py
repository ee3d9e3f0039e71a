#!/usr/bin/env python3
"""base/cuda/cuda.h says the same as the toolkit's cuda.h.

cuda_headers_test.py SOURCE INCLUDE COMPILER   INCLUDE: where the toolkit's cuda.h is

Every value is compared, the size of every struct, and every call is declared again behind the toolkit's declaration,
which no compiler accepts with another type. Names that an older toolkit lacks are left out."""

import pathlib
import re
import subprocess
import sys
import tempfile

source, include, compiler = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
own = (source / "base/cuda/cuda.h").read_text(encoding="utf-8")
toolkit = (include / "cuda.h").read_text(encoding="utf-8")

values = [pair for pair in re.findall(r"^\s+(CU\w+) = (\d+),", own, re.MULTILINE) if re.search(rf"\b{pair[0]}\b", toolkit)]
calls = re.findall(r"^CUresult cu\w+\([^;]*\);", own, re.MULTILINE)
structs = re.findall(r"^typedef struct (CU\w+)_st \{\n(.*?)^\} CU\w+;", own, re.MULTILINE | re.DOTALL)
if len(values) < 40 or len(calls) < 40 or len(structs) != 4:
    sys.exit(f"only {len(values)} values, {len(calls)} calls, {len(structs)} structs were read")

lines = ["#include <cuda.h>", "#include <cstddef>", "namespace own {"]
lines += [f"struct {name} {{\n{fields}}};" for name, fields in structs]
lines += ["}"]
lines += [f"static_assert(static_cast<int>({name}) == {value});" for name, value in values]
for name, fields in structs:
    lines.append(f"static_assert(sizeof({name}) == sizeof(own::{name}));")
    lines += [f"static_assert(offsetof({name}, {field}) == offsetof(own::{name}, {field}));"
              for field in re.findall(r"^  \S.*?(\w+)(?:\[\d+\])?;", fields, re.MULTILINE)]
lines += ['extern "C" {', *calls, "}"]
with tempfile.TemporaryDirectory() as folder:
    program = pathlib.Path(folder) / "same.cc"
    program.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-isystem", str(include), str(program)], text=True,
                          capture_output=True, check=False)
if done.returncode != 0:
    sys.exit(done.stderr)
print(f"{len(values)} values, {len(calls)} calls and {len(structs)} structs are those of {include}")
