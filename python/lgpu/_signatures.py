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


def _described(function: Any) -> Any:
    return _core._describe_function(function, function.__name__, _doc_of(function, function.__name__, "self"))


def _describe_methods(kind: type) -> None:
    for name, member in list(vars(kind).items()):
        if type(member).__name__ == "nb_method" and not name.startswith("__"):
            _core._describe_method(kind, name, _doc_of(member, name, "$self"))


for _kind in (_core.Tensor, _core.MirroredStrategy, _core.MirroredVariable, _core.PerReplica, _core.Replica, _core.SGD):
    _describe_methods(_kind)
_core._quicken_operators()
_functions = {name: _described(value) for name, value in vars(_core).items()
              if type(value).__name__ == "nb_func" and not name.startswith("_")}


def __getattr__(name: str) -> Any:
    """`lgpu._signatures.matmul` is `lgpu._core.matmul` with a signature."""
    return _functions[name] if name in _functions else getattr(_core, name)
