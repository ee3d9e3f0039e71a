#!/usr/bin/env python3
"""Every figure of a GPU in the documentation names the report that it comes from.

A line of README.md, docs/*.md or docs/hardware/README.md that has a measured figure (a number with a unit of time,
throughput or ratio) and names a GPU or CUDA must link a report, docs/hardware/NAME.md, in the same paragraph, and the
report must exist. A report itself must say its date, GPU and driver. `gpu_figures_test.py ROOT` checks a tree;
`gpu_figures_test.py ROOT --prove` checks that planted violations are found."""

import pathlib
import re
import sys
import tempfile

FIGURE = re.compile(r"\b\d[\d,.]*\s*(?:us|µs|ms|ns|s|seconds|GB/s|GiB/s|TB/s|TFLOP/s|GFLOP/s|%|x faster)(?![\w-])")
GPU = re.compile(r"\b(H200|H100|A100|B200|RTX ?\w*|Hopper|Blackwell|GPU-[0-9a-f]+|on a (?:real )?GPU|real (?:GPU|card)s?|"
                 r"CUDA|cuMem\w+)\b")
REPORT = re.compile(r"(?:docs/)?hardware/([\w.-]+)\.md")
# "under 10 ms" and the like are goals and limits, not results.
GOAL = re.compile(r"\b(?:goal|target|at most|within|under|less than|below|every|after|for)\s+(?:about\s+)?\d")


def paragraphs(text):
    fenced = False
    block, start = [], 1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        separates = not line.strip() or (line.startswith("|") and not fenced)
        if separates and block:
            yield start, "\n".join(block)
            block = []
        if line.strip() and not fenced:
            if line.startswith("|"):
                yield number, line
                continue
            if not block:
                start = number
            block.append(line)
    if block:
        yield start, "\n".join(block)


def violations(root):
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    for page in pages:
        if not page.exists():
            continue
        name = page.relative_to(root).as_posix()
        for number, text in paragraphs(page.read_text(encoding="utf-8")):
            figures = [m for m in FIGURE.finditer(text)
                       if not GOAL.search(text[max(0, m.start() - 24):m.start() + 1])]
            if not figures or not GPU.search(text):
                continue
            reports = REPORT.findall(text)
            if not reports:
                yield f"{name}:{number}: a figure of a GPU ({figures[0].group(0)}) that names no report"
            for report in reports:
                if not (root / "docs" / "hardware" / f"{report}.md").exists():
                    yield f"{name}:{number}: the report {report} does not exist"
    for report in sorted((root / "docs" / "hardware").glob("*.md")):
        if report.name == "README.md":
            continue
        text = report.read_text(encoding="utf-8")
        for key in ("date", "gpu", "driver"):
            if not re.search(rf"^\|? ?{key} ?[|:]", text, re.MULTILINE | re.IGNORECASE):
                yield f"{report.relative_to(root).as_posix()}: a report without its {key}"


PLANTED = {
    "docs/one.md": "A grant takes 250 us on a real GPU.\n",
    "docs/two.md": "| H200 | 3.1 ms |\n",
    "docs/three.md": "On an H200 a copy reaches 2.9 TB/s, see [the report](hardware/none.md).\n",
    "docs/hardware/bare.md": "# A report that says nothing\n",
}
CLEAN = {
    "docs/four.md": "A simulated grant takes 50 us.\n\nOn a real GPU nothing was measured yet.\n",
    "docs/five.md": "On an H200 a grant takes 250 us ([report](hardware/good.md)).\n",
    "docs/six.md": "A GPU's memory is asked for every 20 ms by CUDA, within 2 s.\n",
    "docs/hardware/good.md": "date: 2026-01-01\ngpu: H200\ndriver: 580\n",
}


def prove():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for place, text in {**PLANTED, **CLEAN}.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_text(text)
        found = list(violations(root))
    missed = [place for place in PLANTED if not any(line.startswith(place) for line in found)]
    wrong = [line for line in found if line.split(":")[0] in CLEAN]
    for place in missed:
        print(f"the planted violation in {place} was not found")
    for line in wrong:
        print(f"a clean page was blamed: {line}")
    return not missed and not wrong


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if sys.argv[2:] == ["--prove"]:
        ok = prove()
        print("planted violations: " + ("all found" if ok else "NOT all found"))
        return 0 if ok else 1
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
