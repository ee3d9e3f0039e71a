"""Functions of `lgpu` that work in the current Context: lgpu.current_context() says which one that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

from lgpu import _core
from lgpu._context import Context, _ScopeManager, current


def current_context() -> Context:
    """The Context of the innermost with block of this thread or task. In a thread without a block: the Context that any
    thread entered last. Without any block: the default Context, which the first call makes from lgpu.config, as in TensorFlow."""
    return current()


def constant(value: Any, dtype: Any = None, shape: Optional[Sequence[int]] = None, name: Optional[str] = None) -> _core.Tensor:
    """Context.constant of the current Context."""
    return current().constant(value, dtype, shape, name)


def fill(shape: Sequence[int], value: Union[int, float], dtype: Any = None) -> _core.Tensor:
    """Context.fill of the current Context."""
    return current().fill(shape, value, dtype)


def from_dlpack(array: Any) -> _core.Tensor:
    """Context.from_dlpack of the current Context."""
    return current().from_dlpack(array)


def device(name: Optional[str]) -> _ScopeManager:
    """Context.device of the current Context."""
    return current().device(name)
