"""The RAPIDS memory manager in logical GPUs. For programs that use lgpu knowingly: a limit for a whole program is
`lgpu run`."""

from __future__ import annotations

import re
from typing import Any, Optional

from lgpu._adaptors import by_cuda_device, library
from lgpu._context import Context, current
from lgpu._memory import LogicalMemory
from lgpu.errors import FailedPreconditionError

rmm = library("rmm", "RMM")


# The first that tells a resource of Python's the stream.
_OLDEST = (24, 4)


def _check_version() -> None:
    numbers = re.match(r"(\d+)\.(\d+)", rmm.__version__)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        raise FailedPreconditionError(f"RMM {rmm.__version__} does not tell a memory resource the stream; lgpu.rmm needs RMM "
                                      f"{_OLDEST[0]}.{_OLDEST[1]:02} or later")


def _split(arguments: tuple[Any, ...]) -> tuple[list[int], Any]:
    """The numbers, in their order, and the stream: (size, stream) or, in later versions of RMM, (stream, size, alignment)."""
    numbers = [argument for argument in arguments if isinstance(argument, int)]
    streams = [argument for argument in arguments if not isinstance(argument, int)]
    if len(streams) != 1 or not numbers:
        raise TypeError(f"RMM {rmm.__version__} calls a memory resource with {arguments!r}; lgpu.rmm knows (size, stream) and "
                        "(stream, size, alignment)")
    return numbers, streams[0]


def resource(memory: LogicalMemory) -> Any:
    """A resource of RMM's over a LogicalMemory, for rmm.mr.set_current_device_resource or as the upstream of others. A
    refusal is a MemoryError with lgpu's text. The memory of a Context ends with the Context, which you keep."""
    return _resource(memory, None)


class _Calls:
    """What a resource calls. It keeps the Context, which stays open as long as RMM may allocate."""

    def __init__(self, memory: LogicalMemory, context: Optional[Context]) -> None:
        self._memory, self._context = memory, context

    def allocate(self, *arguments: Any) -> int:
        numbers, stream = _split(arguments)
        return self._memory.allocate(numbers[0], stream, tag="rmm")

    def deallocate(self, *arguments: Any) -> None:
        numbers, stream = _split(arguments)
        self._memory.free(numbers[0], stream)


def _resource(memory: LogicalMemory, context: Optional[Context]) -> Any:
    _check_version()
    calls = _Calls(memory, context)
    return rmm.mr.CallbackMemoryResource(calls.allocate, calls.deallocate)


def enable(context: Optional[Context] = None, *, device: Optional[str] = None) -> None:
    """From now on what RMM (24.04 or later) allocates lies on the Context's logical GPU on its card, as whose resource RMM has it.
    Without a Context it is the innermost open one. `device` says which logical GPU where several are on one card."""
    context = context or current()
    for number, (_, memory) in by_cuda_device(context, device, "lgpu.rmm").items():
        rmm.mr.set_per_device_resource(number, _resource(memory, context))
