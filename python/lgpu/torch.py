"""PyTorch's CUDA tensors in logical GPUs. For programs that use lgpu knowingly: a limit for a whole program, with all that
its libraries take of the driver, is `lgpu run`.

`enable` gives every CUDA tensor of the process memory of a Context; `pool` those that a with block makes."""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from lgpu import _core
from lgpu._adaptors import by_cuda_device, library
from lgpu._context import Context, current
from lgpu._memory import LogicalMemory
from lgpu.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError

torch = library("torch", "PyTorch")

_LIBRARIES = ("libc10.so", "libc10_cuda.so", "libtorch_python.so")

# What `enable` was given: the Context, and (device name, memory) by CUDA device. Once for the process, as PyTorch takes it.
_enabled: Optional[tuple[Context, dict[int, tuple[str, LogicalMemory]]]] = None


def enable(context: Optional[Context] = None, *, device: Optional[str] = None) -> None:
    """From now on every CUDA tensor of this process lies on the Context's logical GPU on its card, within the limit. A refusal
    is torch.OutOfMemoryError with lgpu's text, holders and advice. torch.cuda.memory_allocated, max_memory_allocated,
    memory_reserved, memory_stats and reset_peak_memory_stats have lgpu's figures, and memory_summary is the Context's.
    mem_get_info and the total_memory of get_device_properties are the limit's. torch.cuda.empty_cache gives idle memory back.
    Tensor.record_stream is heard, and for memory that is not lgpu's it does nothing.

    Call it before the first CUDA tensor; PyTorch takes one allocator per process and keeps it, and this module keeps the
    Context. Without a Context it is the innermost open one. `device` says which logical GPU where several are on one card.

    PyTorch has no CUDA graphs, MemPools, memory snapshots and sharing of tensors over CUDA IPC with an allocator that is not
    its own. What cuBLAS, cuDNN and NCCL take of the driver themselves is not in the limit."""
    global _enabled
    if _enabled is not None:
        raise FailedPreconditionError("lgpu.torch is enabled already; PyTorch takes one allocator per process")
    context = context or current()
    memories = by_cuda_device(context, device, "lgpu.torch")
    _refuse_peers(list(memories))
    _find_errors()
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, "lgpu_torch_malloc", "lgpu_torch_free")
    _set_hooks(allocator.allocator())
    for number, (_, memory) in memories.items():
        _core.torch_use(number, memory._core)
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        for number in memories:
            _core.torch_leave(number)
        raise FailedPreconditionError(f"PyTorch has its allocator already ({error}); call lgpu.torch.enable before the first "
                                      "CUDA tensor") from error
    _enabled = (context, memories)
    _keep_statistics()


def _find_errors() -> None:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    try:
        _core.torch_find_errors([os.path.join(folder, name) for name in _LIBRARIES])
    except NotFoundError as error:
        raise NotFoundError(f"PyTorch {torch.__version__} has no {error}, by which lgpu would raise torch.OutOfMemoryError; lgpu "
                            "knows the CUDA builds of PyTorch 2.9 to 2.11") from None


def _set_hooks(allocator: Any) -> None:
    own = ctypes.CDLL(_core.__file__)

    def address(name: str) -> Optional[int]:
        return ctypes.cast(getattr(own, name), ctypes.c_void_p).value

    allocator.set_record_stream_fn(address("lgpu_torch_record_stream"))
    allocator.set_reset_fn(address("lgpu_torch_empty_cache"))
    allocator.set_memory_fraction_fn(address("lgpu_torch_memory_fraction"))
    allocator.set_begin_allocate_to_pool(address("lgpu_torch_no_pools"))


def _keep_statistics() -> None:
    # PyTorch has no hook for these. Its names in torch._C are private: torch_test.py looks whether they are there.
    torch._C._cuda_memoryStats = _memory_stats
    torch._C._cuda_resetPeakMemoryStats = _reset
    torch._C._cuda_resetAccumulatedMemoryStats = _reset
    torch.cuda.memory_summary = torch.cuda.memory.memory_summary = _memory_summary
    torch.cuda.mem_get_info = torch.cuda.memory.mem_get_info = _mem_get_info
    torch.cuda.get_device_properties = _get_device_properties


def _refuse_peers(numbers: list[int]) -> None:
    """Between such cards PyTorch copies by kernels of one that read the memory of the other. lgpu's memory is open to its own
    card."""
    driver = ctypes.CDLL("libcuda.so.1")
    answer = ctypes.c_int()
    handles = {}
    for number in numbers:
        driver.cuDeviceGet(ctypes.byref(answer), number)
        handles[number] = answer.value
    for reader in numbers:
        for owner in numbers:
            if reader == owner:
                continue
            result = driver.cuDeviceCanAccessPeer(ctypes.byref(answer), handles[reader], handles[owner])
            if result != 0 or answer.value != 0:
                raise FailedPreconditionError(
                    f"CUDA devices {min(reader, owner)} and {max(reader, owner)} are peers: PyTorch lets one read the memory of the "
                    'other, and lgpu\'s memory is open to its own card only; give device="GPU:0", or run one process for each card')


def _reset(device: int) -> None:
    assert _enabled is not None
    context, memories = _enabled
    if device in memories:
        context.reset_memory_stats(memories[device][0])


def _memory_stats(device: int) -> dict[str, Any]:
    assert _enabled is not None
    _, memories = _enabled
    return stats_of(memories[device][1].stats()) if device in memories else {}


def _memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The Context's, in place of PyTorch's: all its devices."""
    assert _enabled is not None
    return _enabled[0].memory_summary()


# PyTorch's own; these are replaced when lgpu.torch is enabled.
_mem_get_info_of_card = torch.cuda.mem_get_info
_get_properties_of_card = torch.cuda.get_device_properties


def _mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) of the logical GPU in place of its card's."""
    assert _enabled is not None
    _, memories = _enabled
    number = torch.cuda._utils._get_device_index(device, optional=True)
    if number not in memories:
        return _mem_get_info_of_card(device)
    numbers = memories[number][1].stats()
    return numbers["limit"] - numbers["used"], numbers["limit"]


class _Properties:
    """A card's properties, with the memory of its logical GPU."""

    def __init__(self, card: Any, memory: LogicalMemory) -> None:
        self._card, self._memory = card, memory

    @property
    def total_memory(self) -> int:
        return self._memory.stats()["limit"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._card, name)

    def __repr__(self) -> str:
        return re.sub(r"total_memory=\d+MB", f"total_memory={self.total_memory >> 20}MB", repr(self._card))


def _get_device_properties(device: Any = None) -> Any:
    """The card's, with the limit as its total_memory."""
    assert _enabled is not None
    _, memories = _enabled
    card = _get_properties_of_card(device)
    number = torch.cuda._utils._get_device_index(device, optional=True)
    return _Properties(card, memories[number][1]) if number in memories else card


def stats_of(numbers: dict[str, Any]) -> dict[str, Any]:
    """The figures of a logical GPU by PyTorch's names, nested as PyTorch nests them. What lgpu does not count is not there."""
    return {
        "allocated_bytes": {"all": {"current": numbers["used"], "peak": numbers["peak_used"]}},
        "active_bytes": {"all": {"current": numbers["used"], "peak": numbers["peak_used"]}},
        "requested_bytes": {"all": {"current": numbers["requested"]}},
        "reserved_bytes": {"all": {"current": numbers["held"]}},
        "inactive_split_bytes": {"all": {"current": numbers["slack"]}},
        "allocation": {"all": {"current": numbers["live_blocks"], "allocated": numbers["num_allocs"]}},
        "active": {"all": {"current": numbers["live_blocks"], "allocated": numbers["num_allocs"]}},
        "num_ooms": numbers["num_refusals"],
    }


class _Pool:
    """A MemPool of PyTorch's over one logical GPU."""

    def __init__(self, memory: LogicalMemory) -> None:
        self.number = memory.cuda_device
        slot = _core.torch_take_pool(memory._core)
        # Last: PyTorch frees what no tensor has when the pool goes.
        self._leave = weakref.finalize(self, _core.torch_leave_pool, slot)
        self._leave.atexit = False
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            _core.__file__, f"lgpu_torch_pool_malloc_{slot}", f"lgpu_torch_pool_free_{slot}")
        self.pool = torch.cuda.MemPool(self._allocator.allocator())


_pools: weakref.WeakKeyDictionary[Context, dict[str, _Pool]] = weakref.WeakKeyDictionary()


@contextmanager
def pool(context: Optional[Context] = None, device: str = "GPU:0") -> Iterator[None]:
    """`with lgpu.torch.pool(ctx, "GPU:1"):` puts the CUDA tensors that this thread makes in the block on that logical GPU.

    The backward pass is not in it: autograd makes its tensors in threads of its own, outside of every limit of lgpu's. Nor are
    tensors that other threads make. Inside, PyTorch caches memory in segments of 2 and 20 MiB, gives them back when the
    Context is gone and their tensors are, and counts them in its own statistics. A refusal is torch.OutOfMemoryError with
    lgpu's text."""
    context = context or current()
    if _enabled is not None:
        raise FailedPreconditionError("lgpu.torch.enable was called, and PyTorch has no pools with it")
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(variable, "").lower().replace(" ", ""):
            raise InvalidArgumentError(f"{variable} asks for expandable_segments, with which PyTorch's pools do not work; remove "
                                       "it from the variable")
    of_context = _pools.setdefault(context, {})
    if device not in of_context:
        (_, memory), = by_cuda_device(context, device, "lgpu.torch").values()
        _find_errors()
        of_context[device] = _Pool(memory)
    made = of_context[device]
    with torch.cuda.use_mem_pool(made.pool, device=made.number):
        yield
