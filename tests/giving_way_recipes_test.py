#!/usr/bin/env python3
"""The release hooks of docs/giving-way.md say what they are meant to say: each runs with a stand-in for curl.

The stand-in answers as the programs' documentation does, and writes down each request.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

CURL = """#!/usr/bin/env python3
import json, sys
words, seen = sys.argv[1:], {"headers": [], "method": "GET", "body": None, "fails": False}
while words:
    word = words.pop(0)
    if word == "-sf":
        seen["fails"] = True
    elif word == "-X":
        seen["method"] = words.pop(0)
    elif word == "-H":
        seen["headers"].append(words.pop(0))
    elif word == "-d":
        seen["body"], seen["method"] = json.loads(words.pop(0)), "POST"
    elif word.startswith("-"):
        sys.exit(f"unknown flag {word}")
    else:
        seen["url"] = word
print(json.dumps(seen))
"""

# By the heading of the recipe: the address, and the fields that the body must have.
WANTED = {
    "Ollama": ("localhost:11434/api/generate", {"keep_alive": 0}),
    "ComfyUI": ("localhost:8188/free", {"unload_models": True, "free_memory": True}),
    "vLLM": ("localhost:8000/sleep?level=1", None),
    "llama-server": ("localhost:8080/models/unload", {}),
}


def recipes(page):
    block = re.search(r"## Recipes.*?```sh\n(.*?)```", page, re.DOTALL).group(1)
    return dict(re.findall(r"^# ([\w-]+).*\n(.+)$", block, re.MULTILINE))


def main(root):
    found = recipes((pathlib.Path(root) / "docs/giving-way.md").read_text(encoding="utf-8"))
    assert set(found) == set(WANTED), found
    with tempfile.TemporaryDirectory() as directory:
        curl = pathlib.Path(directory) / "curl"
        curl.write_text(CURL, encoding="utf-8")
        curl.chmod(0o755)
        environment = dict(os.environ, PATH=f"{directory}:{os.environ['PATH']}")
        for name, (url, fields) in WANTED.items():
            run = subprocess.run(["/bin/sh", "-c", found[name]], env=environment, capture_output=True, text=True, check=False)
            assert run.returncode == 0, (name, run.stderr)
            seen = json.loads(run.stdout)
            assert seen["url"] == url and seen["method"] == "POST" and seen["fails"], (name, seen)
            if fields is not None:
                assert fields.items() <= seen["body"].items(), (name, seen)
    print(f"{len(WANTED)} recipes")


if __name__ == "__main__":
    main(*sys.argv[1:])
