"""What lgpu.torch, lgpu.cupy, lgpu.rmm and lgpu.numba have in common."""

from __future__ import annotations

import importlib
from typing import Any, Optional

from lgpu._context import Context, context_or_current
from lgpu._memory import LogicalMemory
from lgpu.errors import InvalidArgumentError


def by_cuda_device(context: Optional[Context], device: Optional[str], adaptor: str) -> dict[int, tuple[str, LogicalMemory]]:
    """The logical GPUs that an adaptor takes memory of, (name, memory) by the number of their card for CUDA. `device`: only
    this one."""
    context = context_or_current(context)
    names = [device] if device else [f"GPU:{i}" for i in range(len(context.logical_devices()))]
    found: dict[int, tuple[str, LogicalMemory]] = {}
    for name in names:
        memory = context.memory(name)
        number = memory.cuda_device
        if number < 0:
            raise InvalidArgumentError(f"{name} is simulated; {adaptor} needs a Context on real GPUs")
        if number in found:
            raise InvalidArgumentError(f"{found[number][0]} and {name} are both on CUDA device {number}, of which {adaptor} takes "
                                       f'one; say which: device="{name}"')
        found[number] = (name, memory)
    if not found:
        raise InvalidArgumentError(f"the Context has no GPU; {adaptor} needs one")
    return found


def library(name: str, project: str) -> Any:
    """The library that an adaptor is for."""
    top = name.partition(".")[0]
    try:
        importlib.import_module(top)
    except ModuleNotFoundError as error:
        if error.name != top:
            raise
        raise ModuleNotFoundError(f"lgpu.{top} needs {project}, which is not installed here", name=top) from None
    return importlib.import_module(name)
