"""The arguments that a caller gave, checked: sizes, times, shapes, texts."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, Optional, Union

from lgpu import _core
from lgpu.errors import InvalidArgumentError

Size = Union[int, str]
_SMALLEST_LIMIT = 2 << 20


def size(value: Size, name: str) -> int:
    """A number of bytes, given as an int or as the command takes it: "2GiB"."""
    if isinstance(value, str):
        return _core.parse_bytes(value)
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f'{name} is {value!r}; a size is a whole number of bytes or a text such as "2GiB"')
    if not 0 <= number < 1 << 64:
        raise InvalidArgumentError(f"{name} is {number}; a size is 0 or more, and below 2**64")
    return number


def milliseconds(value: Optional[float], name: str) -> Optional[int]:
    """A time given in seconds."""
    if value is None:
        return None
    try:
        seconds = None if isinstance(value, (bool, str)) else float(value)
    except (OverflowError, TypeError):
        seconds = None
    if seconds is None:
        raise TypeError(f"{name} is {value!r}; it is a number of seconds")
    if not 0 <= seconds < 1 << 31:
        raise InvalidArgumentError(f"{name} is {value}; it is a number of seconds, 0 or more and below 2**31")
    return math.ceil(seconds * 1000)


def dimensions(shape: Any) -> list[int]:
    """A shape as the caller gave it."""
    try:
        return [one.__index__() for one in shape]
    except (AttributeError, TypeError):
        raise TypeError(f"shape is {shape!r}; it is a list of whole numbers such as [2, 3]") from None


def limit(value: Optional[Size]) -> Optional[int]:
    """A memory_limit in bytes; None: all that the card can give."""
    if value is None:
        return None
    number = size(value, "memory_limit")
    if number == 0:
        raise InvalidArgumentError("memory_limit is 0, which allows nothing; leave it out for all that the card can give")
    if number < _SMALLEST_LIMIT:
        megabytes = f"'{number}MiB' or " if number == value and 1 < number < 1 << 20 else ""
        raise InvalidArgumentError(f"memory_limit={value!r} is {_core.format_bytes(number)}; the smallest is 2MiB, one chunk of a "
                                   f"card. A limit is a number of bytes or a text: write {megabytes}'2GiB'")
    return number


def text(value: Optional[str], name: str) -> str:
    """A text that may be left out."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it is a text, or None")
    return value or ""


def preallocates(mode: str) -> bool:
    """What a parameter `mode` means."""
    if not isinstance(mode, str) or mode not in ("growth", "preallocate"):
        raise InvalidArgumentError(f'mode is {mode!r}; it is "growth" or "preallocate"')
    return mode == "preallocate"


def write_line(line: str) -> None:
    # A notebook shows stderr in red, as if lines of the log were errors.
    in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    print(line, file=sys.stdout if in_notebook else sys.stderr)


def sink(log_sink: Optional[Callable[[str], None]]) -> Callable[[str], None]:
    """What a parameter `log_sink` means; None: write_line."""
    if log_sink is not None and not callable(log_sink):
        raise TypeError(f"log_sink is a function that is called with a line, or None, not {log_sink!r}")
    return write_line if log_sink is None else log_sink
