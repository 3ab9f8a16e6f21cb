"""The exceptions of the engine, each with exactly one status of the C API.

    SemanticError
    ├── InvalidArgumentError     the caller's input or option is wrong
    ├── NotFoundError            a file, model, prompt or base is not there
    ├── AlreadyExistsError       the name is taken, or the runtime runs with other options
    ├── UnsupportedError         this library, model or provider cannot do it
    ├── NotReadyError            the model is loading or stopping
    ├── ClosedError              the handle was issued and is gone
    ├── OverloadedError          the model's queue is full
    ├── DeadlineError            the caller's time ran out
    ├── TooLongError             a text is longer than allowed
    ├── BadArtifactError         a model folder is damaged or contradicts itself
    ├── DeviceUnavailableError   the device asked for cannot run the model
    ├── OutOfMemoryError         the system refused memory
    ├── InterpreterError         Python could not be started or does not fit
    ├── InternalError            a fault of this library
    └── CancelledError           the caller cancelled the work

A message is one line: what, where and the remedy. It never holds the user's text.
"""

from enum import IntEnum
from typing import ClassVar, Self


class Status(IntEnum):
    """Values of ``semantic_status`` in ``semantic.h``; never renumbered."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    ALREADY_EXISTS = 3
    UNSUPPORTED = 4
    NOT_READY = 5
    CLOSED = 6
    OVERLOADED = 7
    DEADLINE = 8
    TOO_LONG = 9
    BAD_ARTIFACT = 10
    DEVICE_UNAVAILABLE = 11
    OUT_OF_MEMORY = 12
    INTERPRETER = 13
    INTERNAL = 14
    CANCELLED = 15
    PARTIAL = 16


class SemanticError(Exception):
    """An expected failure: a status, a message, and the row it concerns (-1: none)."""

    status: ClassVar[Status] = Status.INTERNAL

    def __init__(self, message: str, *, input_index: int = -1) -> None:
        super().__init__(message)
        self.message = message
        self.input_index = input_index

    def detached(self, input_index: int = -1) -> Self:
        """Copy an error that is to be kept: the frames it was raised in hold the model."""
        return type(self)(self.message, input_index=input_index)


class InvalidArgumentError(SemanticError):
    """The caller's input or option is wrong."""

    status = Status.INVALID_ARGUMENT


class NotFoundError(SemanticError):
    """A file, model, prompt or base model is not there."""

    status = Status.NOT_FOUND


class AlreadyExistsError(SemanticError):
    """The name is taken, or the runtime already runs with other options."""

    status = Status.ALREADY_EXISTS


class UnsupportedError(SemanticError):
    """What was asked cannot be done by this library, model or provider."""

    status = Status.UNSUPPORTED


class NotReadyError(SemanticError):
    """The model is still loading or already stopping."""

    status = Status.NOT_READY


class ClosedError(SemanticError):
    """The handle was issued and its model is gone."""

    status = Status.CLOSED


class OverloadedError(SemanticError):
    """The model's queue is full."""

    status = Status.OVERLOADED


class DeadlineError(SemanticError):
    """The caller's time ran out."""

    status = Status.DEADLINE


class TooLongError(SemanticError):
    """A text is longer than the model or its options allow."""

    status = Status.TOO_LONG


class BadArtifactError(SemanticError):
    """A model folder is damaged or contradicts itself."""

    status = Status.BAD_ARTIFACT


class DeviceUnavailableError(SemanticError):
    """The device asked for cannot run the model."""

    status = Status.DEVICE_UNAVAILABLE


class OutOfMemoryError(SemanticError):
    """The system refused memory."""

    status = Status.OUT_OF_MEMORY


class InterpreterError(SemanticError):
    """Python could not be started, or the running one does not fit."""

    status = Status.INTERPRETER


class InternalError(SemanticError):
    """A fault of this library."""

    status = Status.INTERNAL


class CancelledError(SemanticError):
    """The caller cancelled the work."""

    status = Status.CANCELLED


def as_semantic_error(error: BaseException) -> SemanticError:
    """Give any exception its status.

    Of a fault only type and place are told: its own message could hold the user's text.
    """
    if isinstance(error, SemanticError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemoryError("the system refused memory; send fewer or shorter texts")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        code = trace.tb_frame.f_code
        place = f" in {code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
    return InternalError(f"internal fault: {type(error).__name__}{place}; please report this")
