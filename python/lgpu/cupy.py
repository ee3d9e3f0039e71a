"""CuPy's arrays in logical GPUs. For programs that use lgpu knowingly: a limit for a whole program is `lgpu run`."""

from __future__ import annotations

import threading
from typing import Any, Optional

from lgpu._adaptors import by_cuda_device, library
from lgpu._context import Context, current
from lgpu._memory import LogicalMemory
from lgpu.errors import FailedPreconditionError

cupy = library("cupy", "CuPy")


class _Allocator:
    """Two functions for cupy.cuda.PythonFunctionAllocator."""

    def __init__(self, context: Context, memories: dict[int, tuple[str, LogicalMemory]]) -> None:
        self._context = context  # open as long as CuPy may allocate
        self._memories = memories
        # A garbage collection may begin while a thread has it, and free arrays in that thread.
        self._lock = threading.RLock()
        self._streams: dict[int, Any] = {}  # by handle; what has allocated is never destroyed, for lgpu knows it
        self._stream_of: dict[int, int] = {}  # by address

    def _current(self, device: int) -> int:
        stream = cupy.cuda.get_current_stream(device)
        with self._lock:
            self._streams.setdefault(stream.ptr, stream)
        return stream.ptr

    def malloc(self, nbytes: int, device: int) -> int:
        if device not in self._memories:
            raise FailedPreconditionError(f"lgpu.cupy has no logical GPU on CUDA device {device}; it has some on "
                                          f"{', '.join(map(str, self._memories))}")
        stream = self._current(device)
        address = self._memories[device][1].allocate(nbytes, stream, tag="cupy")
        with self._lock:
            self._stream_of[address] = stream
        return address

    def free(self, address: int, device: int) -> None:
        with self._lock:
            stream = self._stream_of.pop(address)
        memory = self._memories[device][1]
        now = self._current(device)
        try:
            if now != stream:
                memory.use_on(address, now)
        finally:
            memory.free(address, stream)


def enable(context: Optional[Context] = None, *, device: Optional[str] = None) -> None:
    """From now on CuPy's arrays of all threads lie on the Context's logical GPU on their card. A refusal is
    lgpu.OutOfMemoryError, which is a MemoryError. CuPy's own pool is not used, so memory that no array needs can go to other
    programs. Without a Context it is the innermost open one. `device` says which logical GPU where several are on one card.

    An array's memory is ordered behind the stream that was current when it was made, and the one that is current when it goes;
    wait for others yourself. Streams that were current when an array was made live until the process ends.
    cupy.cuda.set_allocator gives CuPy another allocator again. What cuBLAS, cuDNN and the like take of the driver is not in
    the limit."""
    context = context or current()
    made = _Allocator(context, by_cuda_device(context, device, "lgpu.cupy"))
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(made.malloc, made.free).malloc)
