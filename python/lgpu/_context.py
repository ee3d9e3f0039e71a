"""lgpu.Context and what belongs to it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from lgpu import _core, _signatures  # gives the methods of a Tensor signatures
from lgpu._arguments import Size, dimensions, limit, milliseconds, preallocates, sink, size, text, write_line
from lgpu._state import entered, innermost_scope, open_contexts
from lgpu.errors import ExportsInUseError, FailedPreconditionError, InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from lgpu._memory import LogicalMemory
    from lgpu.config import Config

_MOST_DEVICES = 64


def context_or_current(context: Optional[Context]) -> Context:
    """What a parameter `context` means."""
    if context is not None and not isinstance(context, Context):
        raise TypeError(f"context is an lgpu.Context or None, not {context!r}")
    return current() if context is None else context


@dataclass(frozen=True)
class Device:
    """One logical device to ask for. Sizes are bytes or texts such as "2GiB"; without a limit it is all that the card
    can give."""

    memory_limit: Optional[Size] = None
    guarantee: Size = 0
    mode: str = "growth"  # or "preallocate"
    physical_device: str = ""
    name: str = ""
    priority: int = 0

    def _options(self) -> Any:
        return _core.LogicalDeviceOptions(
            memory_limit=limit(self.memory_limit), guarantee=size(self.guarantee, "guarantee"),
            preallocate=preallocates(self.mode), physical_device=str(self.physical_device), name=self.name,
            priority=self.priority)


class LogicalDevice(NamedTuple):
    """TensorFlow's LogicalDevice."""

    name: str
    device_type: str


@dataclass(frozen=True)
class Explanation:
    """Where an op would run, and why. `print` shows it for people."""

    op: str
    dtype: str
    requested: str
    soft_placement: bool
    device: str
    soft_placed: bool
    candidates: list[dict[str, Any]] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)
    error: Optional[Exception] = None
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text


# The process that first spoke with a daemon. Its gRPC does not live in children that it forks.
_spoke_with_daemon: Optional[int] = None


def _note_daemon(holder: Any) -> None:
    global _spoke_with_daemon
    if _spoke_with_daemon is None and holder.lease:
        _spoke_with_daemon = os.getpid()


def _refuse_after_fork(endpoint: Optional[str]) -> None:
    if _spoke_with_daemon in (None, os.getpid()):
        return
    if not (endpoint or os.environ.get("LGPU_ENDPOINT", "")).startswith("local"):
        raise FailedPreconditionError(
            "this process was forked from one that had a Context with lgpud, which cannot be used or opened again here; start "
            'workers with multiprocessing.get_context("spawn"), or open no Context before the fork')


class _ScopeManager:
    """A with statement's device or policy. It may be entered more than once, by any thread or task."""

    def __init__(self, context: Any, asks_for_device: bool, device: Optional[str], policy: Optional[str]) -> None:
        self._given = (context, asks_for_device, device, policy)

    def __enter__(self) -> None:
        innermost_scope.set(_core.Scope(*self._given, innermost_scope.get()))

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        scope = innermost_scope.get()
        innermost_scope.set(None if scope is None else scope.outer)


class _LogSink:
    """Keeps a Context's sink. The library refers to it weakly: the sink may refer to the Context, and both are garbage together
    then. A thread that writes a line keeps this, and never the Context."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write


def _sink(kept: weakref.ref[_LogSink]) -> Callable[[str], None]:
    """Gives lines to the sink without keeping it."""

    def write(line: str) -> None:
        alive = kept()
        (write_line if alive is None else alive.write)(line)

    return write


class Context:
    """The connection of a program to its logical devices. It holds a lease, and gives everything back when it is closed,
    when its `with` block ends, or when it and its tensors are garbage.

    devices: how many, or a list of lgpu.Device. memory_limit: of each, where `devices` is a number. lease: the handle or
    name of a lease to attach to. endpoint: a runtime directory of lgpud, "local", or "local:2x1GiB". config: an
    lgpu.Config, which has the devices; the default is lgpu.config once a setter, or list_logical_devices, was called there.
    The other arguments are merged over it; devices, limits and a lease beside devices that it was told are an error. Without any of them: one device
    on the first GPU. allocation_timeout: seconds that an allocation waits for memory in use elsewhere. log_sink: called with
    each placement line and note, in place of sys.stderr (in a notebook sys.stdout)."""

    def __init__(self, devices: Union[int, Sequence[Device], None] = None, *, memory_limit: Optional[Size] = None,
                 lease: Optional[str] = None, lease_name: Optional[str] = None, endpoint: Optional[str] = None,
                 config: Optional[Config] = None, log_device_placement: Optional[bool] = None,
                 graph_log_format: bool = False, soft_device_placement: Optional[bool] = None,
                 device_policy: Optional[str] = None, pin_small_ops: Optional[bool] = None,
                 allocation_timeout: Optional[float] = None, cast_on_gpu: bool = False, tensor_float_32: bool = False,
                 log_sink: Optional[Callable[[str], None]] = None) -> None:
        text(endpoint, "endpoint")
        _refuse_after_fork(endpoint)
        self._log_sink = _LogSink(sink(log_sink))
        given = {"lease": lease, "lease_name": lease_name, "endpoint": endpoint,
                 "log_device_placement": log_device_placement, "soft_device_placement": soft_device_placement,
                 "device_policy": device_policy, "pin_small_ops": pin_small_ops}
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        timeout = milliseconds(allocation_timeout, "allocation_timeout")
        if timeout is not None:
            options["allocation_timeout_ms"] = timeout
        for name, on in (("cast_on_gpu", cast_on_gpu), ("tensor_float_32", tensor_float_32),
                         ("graph_log_format", graph_log_format)):
            if on is not False:
                options[name] = on
        asked = _devices_of(devices, memory_limit)
        if asked:
            options["devices"] = asked
        source, has_devices = _source_of(config, own_devices=[name for name, value in (
            ("devices", devices), ("memory_limit", memory_limit), ("lease", lease)) if value is not None], endpoint=endpoint)
        if log_sink is not None or source is None:
            options["log_sink"] = _sink(weakref.ref(self._log_sink))
        if source is None:
            self._core = _core.Context(options)
        else:
            with source._core.lock:
                self._core = _core.Context(options, source._core.core, has_devices)
        _note_daemon(self)

    # Life.

    def __enter__(self) -> Context:
        open_contexts.set(open_contexts.get() + (self,))
        entered.add(self)
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        open_contexts.set(tuple(other for other in open_contexts.get() if other is not self))
        entered.remove(self)
        try:
            self.close()
        except (ExportsInUseError, UnavailableError):
            # The last array or block closes it. A daemon that is gone has the memory back when this process is gone.
            self._core.retire()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"the end of the lgpu.Context failed, too: {failure}")

    def close(self) -> None:
        """Gives everything back now. ExportsInUseError, which is a BufferError: arrays of other libraries, or blocks of
        Context.memory, still use memory of this Context; it stays open."""
        self._core.close()

    @property
    def lease(self) -> str:
        """The handle of the lease, which other processes attach to; empty without a daemon."""
        return self._core.lease

    # Tensors and ops.

    def constant(self, value: Any, dtype: Any = None, shape: Optional[Sequence[int]] = None,
                 name: Optional[str] = None) -> _core.Tensor:
        """A tensor with these values: numbers, nested lists, or an array of numpy's. Arrays keep their element type and
        must be C-contiguous; Python's numbers become float32 or int32. shape: the values in another shape, or one value
        everywhere. name: TensorFlow's parameter; it has no effect, as there."""
        if dtype is None and shape is None:
            made = self._core.constant_of_numbers(value)
            if made is not None:
                return made
        from lgpu import _arrays
        element_type, array = _arrays.from_value(value, dtype)
        if shape is not None:
            array = _arrays.in_shape(array, dimensions(shape))
        return self._core.constant(element_type, list(array.shape), _arrays.bytes_of(array))

    def fill(self, shape: Sequence[int], value: Union[int, float], dtype: Any = None) -> _core.Tensor:
        """A tensor of that shape with the value everywhere."""
        return _core.fill(dimensions(shape), self.constant(value, dtype))

    def from_dlpack(self, array: Any) -> _core.Tensor:
        """A tensor with a copy of what an array of another library holds (or a DLPack capsule), which is dense. An array in
        memory of the CPU goes where a constant does. An array on a real GPU is copied there, to a logical GPU of the same
        card: the one of the device block around the call, else the first."""
        if type(array).__name__ == "PyCapsule":
            return _core.from_capsule(self._core, array)
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{type(array).__name__} has no __dlpack__; pass an array, or a DLPack capsule")
        kind, number = array.__dlpack_device__()
        if kind == 2:
            return _core.from_cuda(self._core, array, int(number))
        if kind not in (1, 3):
            raise BufferError(f"the array lies on DLPack device ({int(kind)}, {number}); lgpu takes memory of the CPU and of "
                              "CUDA's GPUs, so copy it there first")
        from lgpu import _arrays
        return _core.from_capsule(self._core, _arrays.capsule_of(array, None))

    def device(self, name: Optional[str]) -> _ScopeManager:
        """`with context.device("GPU:1"):` asks for a device for the ops in the block; None asks for nothing."""
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a device is a name such as 'GPU:1' or None, not {name!r}")
        return _ScopeManager(self._core, True, name, None)

    def device_policy(self, policy: str) -> _ScopeManager:
        """`with context.device_policy("explicit"):` says what happens in the block when an op needs a tensor of another
        device: "silent", "silent_for_int32", "warn", "explicit"."""
        return _ScopeManager(self._core, False, None, policy)

    def explain(self, op: str, *inputs: _core.Tensor, transpose_a: bool = False, transpose_b: bool = False,
                cast_to: Any = None) -> Explanation:
        """Where the op would run on these tensors, and why; nothing runs."""
        if cast_to is not None:
            from lgpu import _arrays
            cast_to = _arrays.name_of(cast_to)
        return Explanation(**self._core.explain(op, list(inputs), transpose_a, transpose_b, cast_to))

    # Devices and memory.

    def logical_devices(self) -> list[dict[str, Any]]:
        """The GPUs as they were when the Context was made."""
        return self._core.logical_devices()

    def list_logical_devices(self, device_type: str = "") -> list[LogicalDevice]:
        """TensorFlow's list: the CPUs, then the GPUs."""
        return [LogicalDevice(*device) for device in self._core.list_logical_devices(device_type)]

    def memory_info(self, device: str = "GPU:0") -> dict[str, int]:
        """TensorFlow's get_memory_info: {"current": ..., "peak": ...} in bytes."""
        return self._core.memory_info(device)

    def memory_stats(self, device: str = "GPU:0") -> dict[str, Any]:
        """All figures of a GPU's memory, in bytes."""
        return self._core.memory_stats(device)

    def reset_memory_stats(self, device: str = "GPU:0") -> None:
        """The peak, the number and the largest of allocations start again."""
        self._core.reset_memory_stats(device)

    def memory_summary(self) -> str:
        """A table for people: each GPU, and the ops that own most of its memory."""
        return self._core.memory_summary()

    def memory(self, device: str = "GPU:0") -> LogicalMemory:
        """The memory of a GPU for kernels of your own: blocks inside the limit that its tensors have, too."""
        from lgpu._memory import LogicalMemory
        return LogicalMemory._of(self, device)

    def exports(self) -> tuple[int, int]:
        """How many arrays of other libraries use memory of this Context, and how many bytes."""
        return self._core.exports()

    def trim(self) -> int:
        """Gives memory that no tensor needs back to the daemon; says how many bytes."""
        return self._core.trim()

    def suspend(self) -> None:
        """Moves the contents of all tensors to host memory and gives the memory of the GPUs back. Until `resume`, calls that
        need a device raise FailedPreconditionError; tensors may go. Arrays of other libraries, blocks and streams of your own
        keep a Context from it (ExportsInUseError, FailedPreconditionError)."""
        self._core.suspend()

    def resume(self) -> None:
        """Moves the contents back, to the same addresses. OutOfMemoryError, ResourceExhaustedError: the memory is not to be had
        now; the Context stays suspended, and `resume` may be called again."""
        self._core.resume()

    def resize(self, device: str, memory_limit: Size, guarantee: Optional[Size] = None) -> None:
        """A new limit for a GPU while it runs."""
        self._core.resize(device, size(memory_limit, "memory_limit"),
                          None if guarantee is None else size(guarantee, "guarantee"))

    def op_counts(self) -> dict[str, tuple[int, int]]:
        """By device: how many ops ran there, and how many of them had asked for another one."""
        return self._core.op_counts()

    def copy_counts(self) -> list[tuple[str, str, int, int]]:
        """Copies between devices: from, to, how many, how many bytes."""
        return self._core.copy_counts()

    def device_mapping(self) -> str:
        """TensorFlow 1's "Device mapping:" block."""
        return self._core.device_mapping()

    def set_device_policy(self, policy: str) -> None:
        """Of threads and tasks without a device_policy block."""
        self._core.set_device_policy(policy)

    def set_log_device_placement(self, on: bool) -> None:
        """Whether each op's device is logged."""
        self._core.set_log_device_placement(on)

    def set_soft_device_placement(self, on: bool) -> None:
        """Whether an op may run on another device than it asked for."""
        self._core.set_soft_device_placement(on)

    def __repr__(self) -> str:
        devices = ", ".join(f"GPU:{i} {_core.format_bytes(device['memory_limit'])}"
                            for i, device in enumerate(self.logical_devices()))
        lease = f" lease={self.lease}" if self.lease else ""
        return f"<lgpu.Context{lease} {devices or 'without GPUs'}>"

    def _repr_html_(self) -> str:
        from lgpu import _html
        return _html.of_context(self)


def _source_of(config: Optional[Config], own_devices: list[str], endpoint: Optional[str]) -> tuple[Optional[Config], bool]:
    """The Config whose settings a Context has, and whether its devices are those of the Config. own_devices: the arguments
    that say devices themselves."""
    given = ", ".join(f"{name}=" for name in own_devices)
    if config is not None:
        from lgpu.config import Config as Kind
        if not isinstance(config, Kind):
            raise TypeError(f"config is an lgpu.Config or None, not {config!r}")
        if own_devices:
            raise InvalidArgumentError(f"a Context has its devices from config= or from {given}; give one of them")
        return config, True
    from lgpu import config as module
    told = module._told()
    if told is None:
        listed = None if own_devices or endpoint else module._listed()
        return listed, listed is not None
    if told.devices and own_devices:
        raise InvalidArgumentError(f"{given} cannot be merged with the devices that lgpu.config was told: set the limits there and "
                                   f"leave {given} out, or make those settings on an lgpu.Config of their own")
    return told.config, told.devices or not (own_devices or endpoint)


def _devices_of(devices: Union[int, Sequence[Device], None], memory_limit: Optional[Size]) -> list[Any]:
    if devices is None:
        return [] if memory_limit is None else [Device(memory_limit=memory_limit)._options()]
    if isinstance(devices, int) and not isinstance(devices, bool):
        if devices < 1:
            raise InvalidArgumentError(f"devices is {devices}; at least 1 is needed")
        if devices > _MOST_DEVICES:
            raise InvalidArgumentError(f"devices is {devices}; it is a number of logical devices, 1 to {_MOST_DEVICES}. A limit is "
                                       f"written memory_limit={devices} (bytes), or memory_limit='2GiB'")
        return [Device(memory_limit=memory_limit)._options()] * devices
    if memory_limit is not None:
        raise InvalidArgumentError("memory_limit goes with a number of devices; each lgpu.Device has its own")
    wanted = list(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else [devices]
    for device in wanted:
        if not isinstance(device, Device):
            raise TypeError(f"devices is a number or a list of lgpu.Device, not {device!r}")
    if not wanted:
        raise InvalidArgumentError("devices is an empty list; at least 1 is needed")
    return [device._options() for device in wanted]


def current() -> Context:
    """The innermost Context of a with block of this thread or task; else the one that any thread entered last; else the
    default one, which the first call makes."""
    contexts = open_contexts.get()
    return contexts[-1] if contexts else entered.last() or _default_context()


_default_lock = threading.Lock()
_default: Optional[Context] = None


def _default_context() -> Context:
    """As TensorFlow's: all that lgpu.config says when the first op needs it. It is closed when the interpreter ends."""
    global _default
    with _default_lock:
        if _default is None:
            from lgpu import config
            _default = Context(config=config._config())
        return _default


def _forget_default() -> None:
    """In a forked child, which makes a Context of its own, and in tests."""
    global _default, _default_lock
    _default, _default_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_default)
