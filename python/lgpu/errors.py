"""The exceptions of lgpu. Each is an lgpu.Error and one of Python's own."""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, which import lgpu does without
if TYPE_CHECKING:
    from typing import Any, Optional


class Error(Exception):
    """Every error of lgpu. `code` is the name of its status: "INVALID_ARGUMENT".

    `refusal` is a dict where memory was refused, else None. Its keys are those of `lgpu --json`
    (docs/statistics.md, "Of a refusal"); an unknown number is absent."""

    code = "UNKNOWN"

    def __init__(self, message: str = "", refusal: Optional[dict[str, Any]] = None) -> None:
        super().__init__(message)
        self.refusal = refusal

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.refusal))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidArgumentError(Error, ValueError):
    """An argument is wrong, whatever the state."""

    code = "INVALID_ARGUMENT"


class NotFoundError(Error, LookupError):
    """There is no such lease, card or device."""

    code = "NOT_FOUND"


class AlreadyExistsError(Error, ValueError):
    """There is one of that name."""

    code = "ALREADY_EXISTS"


class PermissionDeniedError(Error, PermissionError):
    """The daemon does not allow it."""

    code = "PERMISSION_DENIED"


class UnavailableError(Error, ConnectionError):
    """No daemon is there, or it went away; the one error after which to try again."""

    code = "UNAVAILABLE"


class FailedPreconditionError(Error, RuntimeError):
    """It is wrong now: a closed Context, or one from before a fork."""

    code = "FAILED_PRECONDITION"


class ExportsInUseError(Error, BufferError):
    """Arrays of other libraries, or blocks of Context.memory, still use memory of the Context that was to be closed."""

    code = "FAILED_PRECONDITION"


class UnimplementedError(Error, NotImplementedError):
    """lgpu does not have it."""

    code = "UNIMPLEMENTED"


class DeadlineExceededError(Error, TimeoutError):
    """The daemon took too long."""

    code = "DEADLINE_EXCEEDED"


class ResourceExhaustedError(Error, RuntimeError):
    """Something other than memory is used up: leases, sessions, descriptors."""

    code = "RESOURCE_EXHAUSTED"


class OutOfMemoryError(Error, MemoryError):
    """Memory was refused; `refusal` says why, and `refusal["advice"]` what would help."""

    code = "RESOURCE_EXHAUSTED"


class InternalError(Error, RuntimeError):
    """The driver or the system broke a promise."""

    code = "INTERNAL"


class AbortedError(Error, RuntimeError):
    """Another replica, or another process, of the step failed or was interrupted."""

    code = "ABORTED"


# By the numbers of absl::StatusCode.
_BY_NUMBER: dict[int, type[Error]] = {
    1: AbortedError,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: AlreadyExistsError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: AbortedError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    16: PermissionDeniedError,
}


def _make(number: int, message: str, refusal: Optional[dict[str, Any]]) -> Error:
    """The exception for a status of the library."""
    if refusal is not None:
        return OutOfMemoryError(message, refusal)
    return _BY_NUMBER.get(number, Error)(message)
