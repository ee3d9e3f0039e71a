#!/usr/bin/env python3
"""The README shows examples/01_hello.cc, verbatim, and names only files that exist."""
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

for page in [root / "README.md", root / "bench/README.md", *sorted((root / "docs").glob("*.md"))]:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not (page.parent / target).exists():
            failures.append(f"{page.relative_to(root)}: links to {target}, which does not exist")

print("\n".join(failures) if failures else "README and links: ok")
sys.exit(1 if failures else 0)
