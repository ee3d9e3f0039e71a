"""Data parallelism over the logical devices of a Context: TensorFlow's MirroredStrategy, and what a small network needs."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from lgpu import _core
from lgpu._arguments import dimensions, milliseconds
from lgpu._context import Context, LogicalDevice, context_or_current
from lgpu._state import open_contexts
from lgpu.errors import InvalidArgumentError

if TYPE_CHECKING:
    from lgpu._core import (SGD, MirroredVariable, PerReplica, Replica, dense, dense_grad, mean_squared_error,
                            sparse_categorical_crossentropy)
else:
    from lgpu._signatures import (SGD, MirroredVariable, PerReplica, Replica, dense, dense_grad, mean_squared_error,
                                  sparse_categorical_crossentropy)

__all__ = ["SGD", "MirroredStrategy", "MirroredVariable", "PerReplica", "Processes", "Replica", "dense", "dense_grad",
           "glorot_uniform", "mean_squared_error", "sparse_categorical_crossentropy", "zeros"]


@dataclass(frozen=True)
class Processes:
    """The processes that form one strategy: of one user, and of one lease where there is a daemon. Each has equally many
    replicas, and makes the same calls in the same order. rank: of this process, from 0 on. meeting: the path of a socket that
    process 0 makes, in a folder of the user's own. timeout: seconds that a process waits for the others, at the meeting and in
    each sum."""

    rank: int
    count: int
    meeting: str
    timeout: float = 60

    def _options(self) -> _core.MirroredProcesses:
        timeout = milliseconds(self.timeout, "timeout")
        if not timeout:
            raise InvalidArgumentError(f"timeout is {self.timeout}; it is a number of seconds above 0")
        return _core.MirroredProcesses(self.rank, self.count, os.fspath(self.meeting), timeout)


def _names(devices: Sequence[Union[str, LogicalDevice]]) -> list[str]:
    names = [one.name if isinstance(one, LogicalDevice) else one for one in devices] if isinstance(devices, Sequence) else devices
    if isinstance(devices, str) or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"devices is a list of names or of what list_logical_devices gives, not {devices!r}")
    return names


class MirroredStrategy(_core.MirroredStrategy):
    """Runs steps on several logical devices of a Context at once, a thread for each. The first argument may be the devices,
    as TensorFlow's is: names, or what list_logical_devices gives; without devices all GPUs. processes: the replicas of several
    processes form one strategy; the constructor returns when all processes have come."""

    def __init__(self, context: Union[Context, Sequence[Union[str, LogicalDevice]], None] = None,
                 devices: Sequence[Union[str, LogicalDevice]] = (), *, processes: Optional[Processes] = None) -> None:
        if isinstance(context, Sequence):
            context, devices = None, context
        self._context = context_or_current(context)
        if processes is not None and not isinstance(processes, Processes):
            raise TypeError(f"processes is an lgpu.distribute.Processes or None, not {processes!r}")
        super().__init__(self._context._core, _names(devices), None if processes is None else processes._options())

    def run(self, step: Callable[..., Any], args: Sequence[Any] = ()) -> list[Any]:
        """Calls step(replica, *args) once for each replica, at the same time, and returns what they returned, by replica of this process.
        A PerReplica in args is its value for the replica. The exception of the first step that fails is raised; the
        others end at their next all_reduce. Ops of a step run on its replica's device unless it opens a scope."""
        if not isinstance(args, Sequence):
            raise TypeError(f"args is a tuple of what the step takes after the replica, not {args!r}; write args=(value,)")
        results: list[Any] = [None] * len(self.devices)

        def one(replica: Replica) -> None:
            own = [arg[replica.id] if isinstance(arg, PerReplica) else arg for arg in args]

            def call() -> None:
                open_contexts.set((self._context,))
                results[replica.id] = step(replica, *own)

            # Scopes of the caller do not count within.
            contextvars.Context().run(call)

        super().run(one)
        return results


def glorot_uniform(shape: Sequence[int], seed: int, context: Optional[Context] = None) -> _core.Tensor:
    """Keras' glorot_uniform for a kernel [inputs,units], as float32; the same for the same seed."""
    return _core.glorot_uniform(context_or_current(context)._core, dimensions(shape), seed)


def zeros(shape: Sequence[int], context: Optional[Context] = None) -> _core.Tensor:
    """Zeros as float32."""
    return _core.zeros(context_or_current(context)._core, dimensions(shape))
