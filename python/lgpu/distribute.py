"""Data parallelism over the logical devices of a Context: TensorFlow's MirroredStrategy, and what a small network needs."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from lgpu import _core
from lgpu._context import Context, LogicalDevice, current
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
        if not 0 < self.timeout < 1 << 31:
            raise InvalidArgumentError(f"timeout is {self.timeout}; it is a number of seconds above 0")
        return _core.MirroredProcesses(self.rank, self.count, os.fspath(self.meeting), max(1, round(self.timeout * 1000)))


class MirroredStrategy(_core.MirroredStrategy):
    """Runs steps on several logical devices of a Context at once, a thread for each. The first argument may be the devices,
    as TensorFlow's is: names, or what list_logical_devices gives; without devices all GPUs. processes: the replicas of several
    processes form one strategy; the constructor returns when all processes have come."""

    def __init__(self, context: Union[Context, Sequence[Union[str, LogicalDevice]], None] = None,
                 devices: Sequence[Union[str, LogicalDevice]] = (), *, processes: Optional[Processes] = None) -> None:
        if context is not None and not isinstance(context, Context):
            context, devices = None, context
        self._context = context or current()
        super().__init__(self._context._core, [one if isinstance(one, str) else one.name for one in devices],
                         None if processes is None else processes._options())

    def run(self, step: Callable[..., Any], args: Sequence[Any] = ()) -> list[Any]:
        """Calls step(replica, *args) once for each replica, at the same time, and returns what they returned, by replica of this process.
        A PerReplica in args is its value for the replica. The exception of the first step that fails is raised; the
        others end at their next all_reduce. Ops of a step run on its replica's device unless it opens a scope."""
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
    return _core.glorot_uniform((context or current())._core, list(shape), seed)


def zeros(shape: Sequence[int], context: Optional[Context] = None) -> _core.Tensor:
    """Zeros as float32."""
    return _core.zeros((context or current())._core, list(shape))
