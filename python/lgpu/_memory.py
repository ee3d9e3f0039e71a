"""lgpu.LogicalMemory: addresses inside a limit, for kernels of the program's own and for other libraries' allocators."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Optional

from lgpu import _core
from lgpu._arguments import Size, limit, milliseconds, preallocates, sink, size, text
from lgpu._context import Context, _note_daemon, _refuse_after_fork


class LogicalMemory:
    """The memory of one logical device, in blocks that are known by their addresses. On a real GPU these are what every
    CUDA call of the process takes; on a simulated one they are host memory. It has no tensors and no ops.

    memory_limit, guarantee, mode, physical_device: of a device in a new lease. lease, device_of_lease: attaches to that
    device of an existing one. Context.memory gives the memory of a Context's device. The end of a `with` block gives all
    back, also blocks that are live; so does garbage collection. Blocks of Context.memory stay: another Context.memory frees
    them, or they go with the Context.

    A stream is the number of a CUDA stream: 0 or 1 the legacy default stream, 2 the thread's own default stream, else the
    handle of one; objects with __cuda_stream__ or ptr (cuda.core, CuPy) are taken, too. Say forget_stream before you destroy
    one."""

    def __init__(self, memory_limit: Optional[Size] = None, *, guarantee: Size = 0, mode: str = "growth", physical_device: str = "",
                 lease: Optional[str] = None, device_of_lease: int = 0, lease_name: Optional[str] = None,
                 endpoint: Optional[str] = None, allocation_timeout: Optional[float] = None,
                 log_sink: Optional[Callable[[str], None]] = None) -> None:
        at = text(endpoint, "endpoint")
        _refuse_after_fork(at)
        self._keep(_core.Memory(
            memory_limit=limit(memory_limit), guarantee=size(guarantee, "guarantee"),
            preallocate=preallocates(mode), physical_device=str(physical_device), lease=text(lease, "lease"),
            device_of_lease=device_of_lease, lease_name=text(lease_name, "lease_name"), endpoint=at,
            allocation_timeout_ms=milliseconds(allocation_timeout, "allocation_timeout"), log_sink=sink(log_sink)))
        _note_daemon(self)

    @classmethod
    def _of(cls, context: Context, device: str) -> LogicalMemory:
        made = cls.__new__(cls)
        made._keep(_core.Memory(context._core, device))
        return made

    def _keep(self, core: _core.Memory) -> None:
        self._core = core
        # What does not change, also for a memory that has ended.
        self._device, self._cuda_device = core.device, core.cuda_device
        self._lease, self._lease_name = core.lease, core.lease_name

    def __enter__(self) -> LogicalMemory:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self._core.retire()

    def allocate(self, nbytes: Size, stream: Any = 0, *, alignment: int = 256, tag: str = "",
                 timeout: Optional[float] = None) -> int:
        """The address of a block for work on `stream`; 0 for no bytes. OutOfMemoryError when it does not fit. `tag` is its
        owner in refusals and snapshots. timeout: seconds to wait for memory in use elsewhere."""
        return self._core.allocate(size(nbytes, "nbytes"), handle_of(stream), size(alignment, "alignment"), tag,
                                   milliseconds(timeout, "timeout"))

    def free(self, address: int, stream: Any = 0) -> None:
        """Gives a block back, after the last work with it was queued on `stream` or made known by use_on."""
        self._core.free(address, handle_of(stream))

    def use_on(self, address: int, stream: Any) -> None:
        """Work with the block was queued on another stream than the one that it will be freed on."""
        self._core.use_on(address, handle_of(stream))

    def forget_stream(self, stream: Any) -> None:
        """Waits for the stream, which may then be destroyed."""
        self._core.forget_stream(handle_of(stream))

    def find(self, address: int) -> int:
        """The bytes of the live block that starts there."""
        return self._core.find(address)

    def stats(self) -> dict[str, Any]:
        """All figures of the device's memory, in bytes."""
        return self._core.stats()

    def live_blocks(self) -> tuple[int, int, int]:
        """How many blocks are live, their bytes, and how many of them are exported."""
        return self._core.live_blocks()

    def snapshot(self) -> dict[str, Any]:
        """Every block at one moment; docs/allocator.md has the keys."""
        return json.loads(self._core.snapshot_json())

    def trim(self) -> int:
        """Gives memory that no block needs back to the daemon; says how many bytes."""
        return self._core.trim()

    def resize(self, memory_limit: Size, guarantee: Optional[Size] = None) -> None:
        """A new limit for the device while it runs."""
        self._core.resize(size(memory_limit, "memory_limit"),
                          None if guarantee is None else size(guarantee, "guarantee"))

    def close(self) -> None:
        """Gives everything back. FailedPreconditionError while blocks are live. That of a Context goes with its Context."""
        self._core.close()

    @property
    def cuda_device(self) -> int:
        """The device's number for CUDA calls of this process; -1: it is simulated."""
        return self._cuda_device

    @property
    def device(self) -> dict[str, Any]:
        """The device as it was when it was made."""
        return dict(self._device)

    @property
    def lease(self) -> str:
        """The handle of the lease; empty without a daemon."""
        return self._lease

    @property
    def lease_name(self) -> str:
        """The name of the lease."""
        return self._lease_name

    def __repr__(self) -> str:
        limit = _core.format_bytes(self._device["memory_limit"])
        return f"<lgpu.LogicalMemory {limit} on {self._device['card_name']}>"


def handle_of(stream: Any) -> int:
    """The number of a stream: an int, or an object with __cuda_stream__ or ptr. None is the legacy default stream."""
    if stream is None:
        return 0
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    return stream.ptr if hasattr(stream, "ptr") else stream
