"""lgpu: one GPU, many logical GPUs with hard memory limits.

`import lgpu` is cheap: the library liblgpu is loaded when the first name that needs it is used."""

from __future__ import annotations

from lgpu.errors import (AbortedError, AlreadyExistsError, DeadlineExceededError, Error, ExportsInUseError,
                         FailedPreconditionError, InternalError, InvalidArgumentError, NotFoundError, OutOfMemoryError,
                         PermissionDeniedError, ResourceExhaustedError, UnavailableError, UnimplementedError)

# Of typing, whose import would take longer than all of this. Jedi, which completes names, skips the block after a plain False.
TYPE_CHECKING = bool()
if TYPE_CHECKING:
    from lgpu import config, cupy, debugging, distribute, numba, rmm, torch
    from lgpu._context import Context, Device, Explanation, LogicalDevice
    from lgpu._core import (Tensor, add, add_n, cast, concat, copy_to_device, divide, format_bytes, identity, matmul, multiply,
                            negative, parse_bytes, rank_of, reduce_mean, reduce_sum, relu, relu_grad, reshape, shape_of, size_of,
                            slice_rows, sparse_softmax_cross_entropy_with_logits, subtract, tanh, tanh_grad, transpose)
    from lgpu._leases import leases
    from lgpu._memory import LogicalMemory
    from lgpu._toplevel import constant, device, fill, from_dlpack, current_context
    from lgpu.config import Config, LogicalDeviceConfiguration, PhysicalDevice
    from lgpu.distribute import MirroredStrategy

__version__ = "0.1.0"

_HOMES = {
    "_context": ("Context", "Device", "Explanation", "LogicalDevice"),
    "_signatures": ("Tensor", "add", "add_n", "cast", "concat", "copy_to_device", "divide", "format_bytes", "identity",
                    "matmul", "multiply", "negative", "parse_bytes", "rank_of", "reduce_mean", "reduce_sum", "relu",
                    "relu_grad", "reshape", "shape_of", "size_of", "slice_rows", "sparse_softmax_cross_entropy_with_logits",
                    "subtract", "tanh", "tanh_grad", "transpose"),
    "_leases": ("leases",),
    "_memory": ("LogicalMemory",),
    "_toplevel": ("constant", "current_context", "debugging", "device", "fill", "from_dlpack"),
    "config": ("Config", "LogicalDeviceConfiguration", "PhysicalDevice"),
    "distribute": ("MirroredStrategy",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("config", "debugging", "distribute")
# They need a library that may not be there, so they are in no list of names.
_ADAPTORS = ("cupy", "numba", "rmm", "torch")

# A literal: type checkers and editors read it and run nothing.
__all__ = [
    "AbortedError", "AlreadyExistsError", "Config", "Context", "DeadlineExceededError", "Device", "Error",
    "Explanation", "ExportsInUseError", "FailedPreconditionError", "InternalError", "InvalidArgumentError",
    "LogicalDevice", "LogicalDeviceConfiguration", "LogicalMemory", "MirroredStrategy", "NotFoundError",
    "OutOfMemoryError", "PermissionDeniedError", "PhysicalDevice", "ResourceExhaustedError", "Tensor",
    "UnavailableError", "UnimplementedError", "add", "add_n", "cast", "concat", "config", "constant", "copy_to_device",
    "current_context", "debugging", "device", "distribute", "divide", "fill", "format_bytes", "from_dlpack", "identity", "leases",
    "matmul", "multiply", "negative", "parse_bytes", "rank_of", "reduce_mean", "reduce_sum", "relu", "relu_grad",
    "reshape", "shape_of", "size_of", "slice_rows", "sparse_softmax_cross_entropy_with_logits", "subtract", "tanh",
    "tanh_grad", "transpose",
]


if not TYPE_CHECKING:  # a type checker knows the names above, and no others
    def __getattr__(name: str) -> object:
        import importlib

        if name in _MODULES:
            return importlib.import_module(f"lgpu.{name}")
        if name in _ADAPTORS:
            try:
                return importlib.import_module(f"lgpu.{name}")
            except ImportError as error:  # hasattr and getattr with a default know AttributeError alone
                raise AttributeError(str(error)) from error
        if name not in _HOME_OF:
            raise AttributeError(f"module 'lgpu' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"lgpu.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
