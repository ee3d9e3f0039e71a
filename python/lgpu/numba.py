"""Numba's device arrays in logical GPUs: numba.cuda.set_memory_manager(lgpu.numba.MemoryManager), or
NUMBA_CUDA_MEMORY_MANAGER=lgpu.numba without a word in the program. For programs that use lgpu knowingly: a limit for a whole
program, with all that it takes of the driver, is `lgpu run`."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Optional

from lgpu._adaptors import by_cuda_device, library
from lgpu._context import Context
from lgpu._memory import LogicalMemory
from lgpu._state import open_contexts
from lgpu.errors import FailedPreconditionError, UnimplementedError

cuda = library("numba.cuda", "Numba")

_lock = threading.Lock()
# The Context, and (device name, memory) by CUDA device. Once for the process, as Numba takes one manager.
_used: Optional[tuple[Context, dict[int, tuple[str, LogicalMemory]]]] = None


def use(context: Optional[Context] = None, *, device: Optional[str] = None) -> None:
    """Device arrays will lie on the logical GPUs of this Context, or of the innermost open one. `device` says which logical GPU
    where several are on one card. Without this call it is the innermost Context that is open at the first use of CUDA; if there
    is none, one is opened for the process, by LGPU_LEASE or lgpu.config."""
    with _lock:
        if _used is not None:
            raise FailedPreconditionError("lgpu.numba has its Context already; call lgpu.numba.use before Numba first uses CUDA")
        _use(context, device)


def _use(context: Optional[Context], device: Optional[str]) -> dict[int, tuple[str, LogicalMemory]]:
    global _used
    if context is None:
        context = open_contexts.get()[-1] if open_contexts.get() else Context()
    _used = (context, by_cuda_device(context, device, "lgpu.numba"))
    return _used[1]


def _memory_of(number: int) -> LogicalMemory:
    with _lock:
        memories = _use(None, None) if _used is None else _used[1]
    if number not in memories:
        raise FailedPreconditionError(f"lgpu.numba has no logical GPU on CUDA device {number}; it has some on "
                                      f"{', '.join(map(str, memories))}")
    return memories[number][1]


class MemoryManager(cuda.HostOnlyCUDAMemoryManager):
    """Numba's EMM plugin. A refusal is lgpu.OutOfMemoryError, which is a MemoryError. Memory that an array gives back is
    ordered behind the legacy default stream, which waits for all streams that Numba makes; wait for others yourself."""

    interface_version = 1

    def memalloc(self, size: int) -> Any:
        memory = _memory_of(self.context.device.id)
        address = memory.allocate(size, tag="numba")
        return cuda.MemoryPointer(self.context, ctypes.c_void_p(address), size, finalizer=lambda: memory.free(address))

    def initialize(self) -> None:
        _memory_of(self.context.device.id)

    def get_memory_info(self) -> Any:
        """What the limit leaves, and the limit."""
        stats = _memory_of(self.context.device.id).stats()
        return cuda.MemoryInfo(free=stats["limit"] - stats["used"], total=stats["limit"])

    def get_ipc_handle(self, memory: Any) -> Any:
        raise UnimplementedError("lgpu gives no CUDA IPC handles of its memory; copy through the host, or attach the other process "
                                 "to the lease and copy there")


_numba_memory_manager = MemoryManager
