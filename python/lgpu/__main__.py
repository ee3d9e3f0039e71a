"""`python -m lgpu` is the command lgpu, and `lgpud` its daemon: those of the wheel, else those of the system."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn


def program(name: str) -> str:
    """The path of `lgpu` or `lgpud`."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    if os.access(own, os.X_OK):
        return own
    for folder in os.get_exec_path():
        found = shutil.which(name, path=folder)
        # A script of this package would come back here.
        if found is not None and os.path.dirname(os.path.abspath(found)) != os.path.dirname(sys.executable):
            return found
    sys.exit(f"{name}: error: this installation of the Python package has no program {name}, and PATH has none; "
             f"install the package {name} of the system")


def main() -> NoReturn:
    path = program("lgpu")
    os.execv(path, ["lgpu", *sys.argv[1:]])


def daemon() -> NoReturn:
    path = program("lgpud")
    os.execv(path, ["lgpud", *sys.argv[1:]])


if __name__ == "__main__":
    main()
