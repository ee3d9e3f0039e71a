"""The functions and types of the module in C++ as the package shows them: with signatures for inspect.signature, help and
notebooks, which know none of nanobind's functions."""

from __future__ import annotations

import ast
import re
from typing import Any

from lgpu import _core


def _doc_of(function: Any, name: str, first: str) -> str:
    """A docstring that begins with the signature, as those of Python's own functions in C do."""
    signature, doc, defaults = function.__nb_signature__[0]
    text = re.sub(r"\\(\d+)", lambda match: repr(defaults[int(match[1])]), signature)
    arguments = ast.parse(f"{text}: ...").body[0].args  # type: ignore[attr-defined]
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return f"{name}({re.sub('^self', first, ast.unparse(arguments))})\n--\n\n{doc or ''}"


def _described(value: Any) -> Any:
    if type(value).__name__ == "nb_func":
        return _core._describe_function(value, value.__name__, _doc_of(value, value.__name__, "self"))
    if isinstance(value, type):
        for name, member in list(vars(value).items()):
            if type(member).__name__ == "nb_method" and not name.startswith("__"):
                _core._describe_method(value, name, _doc_of(member, name, "$self"))
    return value


_shown = {name: _described(value) for name, value in vars(_core).items() if not name.startswith("_")}


def __getattr__(name: str) -> Any:
    """`lgpu._signatures.matmul` is `lgpu._core.matmul` with a signature."""
    try:
        return _shown[name]
    except KeyError:
        raise AttributeError(f"module 'lgpu._signatures' has no attribute {name!r}") from None
