"""Between tensors and numpy. Imported when the first values go in or out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, Optional

import numpy as np

from lgpu import errors

_NAMES = ("float32", "float64", "int32", "int64", "bfloat16", "float16")
# The element types of arrays; a dtype in foreign byte order is not among them.
_NAME_OF = {np.dtype(name): name for name in _NAMES if name != "bfloat16"}
_LONGEST_PRINTED = 1000  # elements
_MOST_COPIED_TO_PRINT = 1 << 20  # bytes
_NO_NUMBERS = "the values are not numbers of at most 64 bits, or their rows differ in length"


def dtype_of(name: str) -> np.dtype:
    """numpy's dtype of an element type of lgpu."""
    if name != "bfloat16":
        return np.dtype(name)
    found = _bfloat16()
    if found is None:
        raise TypeError("numpy has bfloat16 by the package ml_dtypes, which is not installed: pip install ml_dtypes")
    return found


def _bfloat16() -> Optional[np.dtype]:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def name_of(dtype: Any) -> str:
    """lgpu's name of an element type, given as a name or as anything that numpy.dtype takes."""
    if isinstance(dtype, np.dtype) and dtype in _NAME_OF:  # to compare a dtype with a text takes microseconds
        return _NAME_OF[dtype]
    if isinstance(dtype, str) and dtype == "bfloat16":
        return "bfloat16"
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{dtype!r} is not an element type: {error}") from None
    if found.name in _NAMES and found.isnative:
        return found.name
    what = found.name if found.isnative else f"{found.str}, in foreign byte order,"
    raise errors.InvalidArgumentError(f"{what} is not an element type of lgpu; convert it with astype to one of {', '.join(_NAMES)}")


def from_value(value: Any, dtype: Any) -> tuple[str, np.ndarray]:
    """The element type and the dense values of what the caller gave. Arrays are taken as they are; Python's numbers
    become int32 or float32, as in TensorFlow."""
    name = None if dtype is None else name_of(dtype)
    if hasattr(value, "dtype") and hasattr(value, "__array__"):
        array = np.asarray(value)
    else:
        array = _of_numbers(value, None if name is None else dtype_of(name))
        if name is None:
            array = _as_tensorflow(array)
    if array.dtype.kind in "OSU":
        raise errors.InvalidArgumentError(_NO_NUMBERS)
    if name is None:
        name = name_of(array.dtype)
    elif array.dtype != dtype_of(name):  # the name alone hides a foreign byte order
        array = array.astype(dtype_of(name))
    if not array.flags.c_contiguous:
        raise errors.InvalidArgumentError(
            f"the array of shape {array.shape} is not C-contiguous (strides {array.strides}); "
            "numpy.ascontiguousarray makes a dense copy")
    return name, array


def _of_numbers(value: Any, dtype: Optional[np.dtype]) -> np.ndarray:
    try:
        return np.array(value, dtype)
    except OverflowError as error:
        raise errors.InvalidArgumentError(f"a value does not fit the element type: {error}") from None
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgumentError(f"{_NO_NUMBERS} ({error})") from error


def in_shape(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The values in that shape; one value is everywhere."""
    to = tuple(shape)
    if any(one < 0 for one in to):
        raise errors.InvalidArgumentError(f"shape={to} has a dimension below 0")
    if array.size == 1:
        try:
            return np.full(to, array.reshape(()), array.dtype)
        except (MemoryError, ValueError) as error:
            raise errors.InvalidArgumentError(f"the host has no room for a constant of shape={to}, which lgpu.fill makes on the "
                                              f"device: {error}") from None
    if array.size != math.prod(to):
        raise errors.InvalidArgumentError(f"{array.size} values do not fit shape={to}, which has room for {math.prod(to)}")
    return array.reshape(to)


def _as_tensorflow(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64 and (array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)):
        return array.astype(np.int32)
    return array


def number_beside(tensor: Any, number: Any) -> Optional[bytes]:
    """The bytes of a number beside a tensor, in the tensor's element type, as TensorFlow takes it; None: it is no number."""
    value = number.item() if isinstance(number, np.generic) else number
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    name = tensor.dtype_name
    if isinstance(value, float) and name in ("int32", "int64"):
        raise TypeError(f"{value} beside a Tensor of {name} would be rounded: write lgpu.cast(tensor, 'float32') in place of the "
                        "tensor, or a whole number")
    try:
        return np.array(value, dtype_of(name)).tobytes()
    except OverflowError:
        larger = "a smaller number" if name == "int64" else "lgpu.cast(tensor, 'int64') in place of the tensor"
        raise errors.InvalidArgumentError(f"{value} does not fit {name}, the element type of the Tensor beside it: write "
                                          f"{larger}") from None


# lgpu's functions by the names of numpy's.
_FUNCTIONS = {"add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide", "negative": "negative",
              "matmul": "matmul", "dot": "matmul", "sum": "reduce_sum", "mean": "reduce_mean", "transpose": "transpose",
              "concatenate": "concat", "reshape": "reshape"}
_REVERSED = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__"}


def refuse_function(tensor: Any, function: Any) -> NoReturn:
    """A function of numpy's was called with a Tensor."""
    name = getattr(function, "__name__", "the function")
    own = f"lgpu.{_FUNCTIONS[name]}, or " if name in _FUNCTIONS else ""
    raise TypeError(f"numpy.{name} would copy the Tensor to the host silently: write {own}numpy.{name} of tensor.numpy(), which is "
                    "a copy, or of numpy.from_dlpack(tensor), which shares the memory")


def of_ufunc(tensor: Any, function: Any, inputs: tuple[Any, ...]) -> Any:
    """numpy sends `number * tensor` here where the number is its own, and every call of a ufunc with a Tensor."""
    name = getattr(function, "__name__", None)
    if name in _REVERSED and len(inputs) == 2 and isinstance(inputs[0], np.generic) and inputs[1] is tensor:
        return getattr(tensor, _REVERSED[name])(inputs[0])
    if any(isinstance(one, np.ndarray) for one in inputs):
        raise TypeError("one operation has a Tensor and an array of numpy's: write lgpu.constant(array) in place of the "
                        "array, or tensor.numpy() in place of the Tensor")
    refuse_function(tensor, function)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """The same memory as bytes; the view has Python's buffer, which bfloat16 has not."""
    return array.reshape(-1).view(np.uint8)


def to_numpy(tensor: Any) -> np.ndarray:
    array = np.empty(tensor.shape, dtype_of(tensor.dtype_name))
    if array.size != 0:
        tensor.copy_into(bytes_of(array))
    return array


def array_of(tensor: Any, dtype: Any, copy: Optional[bool]) -> np.ndarray:
    if copy is False:
        raise ValueError("an array of a Tensor is a copy; numpy.from_dlpack(tensor) shares its memory")
    array = to_numpy(tensor)
    return array if dtype is None else array.astype(dtype, copy=False)


def capsule_of(array: Any, stream: Optional[int]) -> Any:
    """The DLPack capsule of a producer of any version. stream: CUDA's, which waits for the array; None for the CPU."""
    asked = {} if stream is None else {"stream": stream}
    try:
        return array.__dlpack__(max_version=(1, 0), **asked)
    except TypeError:
        return array.__dlpack__(**asked)


def _printed(tensor: Any) -> np.ndarray:
    """The values to print. bfloat16 without ml_dtypes: as float32, whose upper half it is."""
    if tensor.dtype_name != "bfloat16" or _bfloat16() is not None:
        return to_numpy(tensor)
    halves = np.empty(tensor.shape, np.uint16)
    if halves.size != 0:
        tensor.copy_into(bytes_of(halves))
    return np.asarray(halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def text_of(tensor: Any) -> str:
    where = tensor.device.rsplit("/device:", 1)[-1]
    head = f"<lgpu.Tensor shape={tensor.shape} dtype={tensor.dtype_name} device={where}"
    if tensor.nbytes > _MOST_COPIED_TO_PRINT:
        return f"{head}>"
    try:
        values = np.array2string(_printed(tensor), threshold=_LONGEST_PRINTED, max_line_width=1 << 30)
    except errors.Error as error:
        return f"{head} without values: {str(error).splitlines()[0]}>"
    return f"{head} {' '.join(values.split())}>"
