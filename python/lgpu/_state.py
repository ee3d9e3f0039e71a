"""What `with` statements opened: context variables, so that each thread and each task of asyncio has its own."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

# The innermost lgpu._core.Scope.
innermost_scope: ContextVar[Any] = ContextVar("lgpu_scope", default=None)
# The open Contexts of this thread or task, the innermost last.
open_contexts: ContextVar[tuple[Any, ...]] = ContextVar("lgpu_contexts", default=())
