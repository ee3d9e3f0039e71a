#!/usr/bin/env python3
"""Checks the one thing about braces that clang-format leaves open:

    if (body) fits;             a body that fits on the line of its condition has no braces
    if (condition) {            every other body has
      body that does not;
    }

It holds for if, for and while; a body with an else, with a declaration or with a comment has braces in any
case, and so has an assertion of googletest's, whose macro has an else.
`brace_style_test.py ROOT` checks a tree; `brace_style_test.py ROOT --prove` checks that planted violations are found."""

import pathlib
import re
import sys

LIMIT = 110
FOLDERS = ("allocator", "base", "bench", "cli", "client", "daemon", "examples", "kernels", "proto", "python", "tests", "tools")
BRACED_ALWAYS = re.compile(r"//|^(if|for|while|switch|do|case) |^return \[|^#|^LGPU_ASSIGN|^(EXPECT|ASSERT)_|^(const|static|auto) |^std::\w+ \w+ =")


def rest_of_head(line):
    """What follows the condition that closes on this line, or None."""
    head = re.match(r"\s*(if|for|while)( constexpr)? \(", line)
    depth, at, quote = 0, line.find("("), None
    while head and at < len(line):
        char = line[at]
        if quote:
            at += char == "\\"
            quote = None if char == quote else quote
        elif char == '"' or (char == "'" and not line[at - 1].isalnum()):
            quote = char
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return line[at + 1:]
        at += 1
    return None


def has_needless_braces(before, line, body, close, after):
    indent = line[:len(line) - len(line.lstrip())]
    text = body.strip()
    return (rest_of_head(line) == " {" and close == indent + "}" and body.startswith(indent + "  ") and body[len(indent) + 2] != " " and
            text.endswith(";") and not BRACED_ALWAYS.search(text) and not before.endswith(("else", "\\")) and
            not after.strip().startswith("else") and len(line) - 1 + len(text) <= LIMIT)


def lacks_braces(line, body):
    return rest_of_head(line) == "" and not line.endswith("\\") and not body.strip().startswith(("[[", "{"))


def violations(text):
    lines = ["", *text.split("\n"), "", "", ""]
    for number in range(1, len(lines) - 3):
        before, line, body, close, after = lines[number - 1:number + 4]
        if has_needless_braces(before, line, body, close, after):
            yield number, "the body fits on the line of its condition: no braces"
        elif lacks_braces(line, body):
            yield number, "the body is on a line of its own: braces"


def check(root):
    found = 0
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(root, folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                for number, what in violations(path.read_text()):
                    found += 1
                    print(f"{path.relative_to(root)}:{number}: {what}")
    print(f"{found} violations")
    return found == 0


def prove():
    planted = "if (a) {\n  b();\n}\nfor (;;)\n  c();\nif (d) e();\nif (f) {\n  g();\n} else {\n  h();\n}\n"
    numbers = [number for number, _ in violations(planted)]
    print(f"planted in lines 1 and 4, found in {numbers}")
    return numbers == [1, 4]


if __name__ == "__main__":
    sys.exit(0 if (prove() if "--prove" in sys.argv else check(sys.argv[1])) else 1)
