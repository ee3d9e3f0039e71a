#!/usr/bin/env python3
"""docs/design.md is the map of the tree: each of its questions names a file and a symbol in it, and every file that
the page names exists. `design_questions_test.py ROOT` checks the page; `design_questions_test.py ROOT --prove` checks
that broken pages are found."""

import pathlib
import re
import sys
import tempfile

PAGE = "docs/design.md"
QUESTIONS = 13
ROW = re.compile(r"^\| ([^|]*\?) \| `([^`|]+)` \| `([^`|]+)` \|$", re.MULTILINE)
# A file or folder in backticks: with a slash, and an ending or a slash at its end.
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?)`")


def violations(root):
    text = (root / PAGE).read_text(encoding="utf-8")
    rows = ROW.findall(text)
    if len(rows) != QUESTIONS:
        yield f"{PAGE}: {len(rows)} rows of question, file and symbol instead of {QUESTIONS}"
    if len({question for question, _, _ in rows}) != len(rows):
        yield f"{PAGE}: a question is there twice"
    for question, name, symbol in rows:
        path = root / name
        if path.is_file() and symbol not in path.read_text(encoding="utf-8"):
            yield f"{PAGE}: {name} does not contain {symbol}: {question}"
    for name in sorted({name for _, name, _ in rows} | set(PATH.findall(text))):
        if not (root / name).exists():
            yield f"{PAGE}: {name} does not exist"


def page(rows, more=""):
    return "".join(f"| {question} | `{name}` | `{symbol}` |\n" for question, name, symbol in rows) + more


def prove():
    rows = [(f"Where is {i}?", "base/known.cc", "Known::Call") for i in range(QUESTIONS)]
    broken = {
        "a question too few": page(rows[1:]),
        "a question twice": page(rows[1:] + rows[1:2]),
        "a file that is gone": page(rows[1:] + [("Where is it?", "base/gone.cc", "Known::Call")]),
        "a symbol that is gone": page(rows[1:] + [("Where is it?", "base/known.cc", "Gone::Call")]),
        "a row without a symbol": page(rows[1:], "| Where is it? | `base/known.cc` |\n"),
        "a file in the text": page(rows, "See `base/gone.cc`.\n"),
        "a folder in the text": page(rows, "| `gone/` | nothing |\n"),
    }
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for folder in ("docs", "base"):
            (root / folder).mkdir()
        (root / "base/known.cc").write_text("void Known::Call() {}\n")
        (root / PAGE).write_text(page(rows, "See `base/known.cc`, `base/` and `-z nodelete`.\n"))
        failures = [f"a clean page was blamed: {line}" for line in violations(root)]
        for what, text in broken.items():
            (root / PAGE).write_text(text)
            if not list(violations(root)):
                failures.append(f"not found: {what}")
    return failures


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    found = prove() if sys.argv[2:] == ["--prove"] else list(violations(root))
    print("\n".join(found) if found else "ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
