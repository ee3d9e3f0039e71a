"""Functions of `lgpu` that work in the innermost open Context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

from lgpu import _core
from lgpu._context import Context, _ScopeManager, current


def current_context() -> Context:
    """The innermost Context of a with block."""
    return current()


def constant(value: Any, dtype: Any = None) -> _core.Tensor:
    """Context.constant of the innermost open Context."""
    return current().constant(value, dtype)


def fill(shape: Sequence[int], value: Union[int, float], dtype: Any = None) -> _core.Tensor:
    """Context.fill of the innermost open Context."""
    return current().fill(shape, value, dtype)


def from_dlpack(array: Any) -> _core.Tensor:
    """Context.from_dlpack of the innermost open Context."""
    return current().from_dlpack(array)


def device(name: Optional[str]) -> _ScopeManager:
    """Context.device of the innermost open Context."""
    return current().device(name)
