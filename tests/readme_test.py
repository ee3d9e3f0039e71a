#!/usr/bin/env python3
"""The README shows examples/01_hello.cc, verbatim; pages link to what exists; docs/ops.md has every op of the library."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
readme = (root / "README.md").read_text(encoding="utf-8")
failures = []

block = re.search(r"<!-- 01_hello\.cc -->\n```cpp\n(.*?)```", readme, re.DOTALL)
hello = (root / "examples/01_hello.cc").read_text(encoding="utf-8")
if block is None or block.group(1) != hello:
    failures.append("README.md: the first program is not examples/01_hello.cc, verbatim")

declared = re.findall(r"^LGPU_API [\w:<>]+ (\w+)\(", (root / "client/runtime/include/lgpu/ops.h").read_text(encoding="utf-8"), re.MULTILINE)
listed = (root / "docs/ops.md").read_text(encoding="utf-8")
failures += [f"docs/ops.md: {op} of lgpu/ops.h is not listed" for op in declared if f"`{op}(" not in listed]
if len(declared) < 20:
    failures.append(f"lgpu/ops.h: only {len(declared)} ops were read")

for page in [root / "README.md", root / "bench/README.md", *sorted((root / "docs").glob("*.md"))]:
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        if not (page.parent / target).exists():
            failures.append(f"{page.relative_to(root)}: links to {target}, which does not exist")

print("\n".join(failures) if failures else "README and links: ok")
sys.exit(1 if failures else 0)
