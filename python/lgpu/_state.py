"""What `with` statements opened: context variables, so that each thread and each task of asyncio has its own."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any, Optional

# The innermost lgpu._core.Scope.
innermost_scope: ContextVar[Any] = ContextVar("lgpu_scope", default=None)
# The open Contexts of this thread or task, the innermost last.
open_contexts: ContextVar[tuple[Any, ...]] = ContextVar("lgpu_contexts", default=())


class Entered:
    """The Contexts whose `with` block runs in any thread, the last one last: threads that opened none work in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contexts: list[Any] = []

    def add(self, context: Any) -> None:
        with self._lock:
            self._contexts.append(context)

    def remove(self, context: Any) -> None:
        with self._lock:
            for at in reversed(range(len(self._contexts))):
                if self._contexts[at] is context:
                    del self._contexts[at]
                    return

    def last(self) -> Optional[Any]:
        with self._lock:
            return self._contexts[-1] if self._contexts else None


entered = Entered()
