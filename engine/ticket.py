"""What a caller may do to its own work: give it a deadline, and cancel it."""

import threading
import time
from collections.abc import Callable

from .errors import (
    CancelledError,
    DeadlineError,
    InvalidArgumentError,
    SemanticError,
)

FOREVER = float("inf")


class Ticket:
    """The deadline and the cancellation of one call.

    ``interrupt`` is set while the work waits or runs: calling it makes whoever holds the
    work look at the ticket again.
    """

    __slots__ = ("cancelled", "deadline", "interrupt", "key", "timeout_ms")

    def __init__(self, timeout_ms: int = 0, key: int = 0) -> None:
        self.timeout_ms = timeout_ms
        self.key = key
        self.deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else FOREVER
        self.cancelled = False
        self.interrupt: Callable[[], None] | None = None

    def failure(self) -> SemanticError | None:
        """Return why the work is to stop, or None."""
        if self.cancelled:
            return CancelledError("cancelled by the caller")
        if self.deadline < FOREVER and time.monotonic() >= self.deadline:
            return DeadlineError(
                f"timeout_ms {self.timeout_ms} has passed; send less or allow more time"
            )
        return None

    def check(self) -> None:
        """Raise if the work is to stop."""
        failure = self.failure() if self.cancelled or self.deadline < FOREVER else None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else it and its traceback keep each other, and a model, alive

    def remaining(self) -> float | None:
        """Return the seconds left, as a lock can wait for them, or None without a deadline."""
        if self.deadline == FOREVER:
            return None
        return min(max(0.0, self.deadline - time.monotonic()), threading.TIMEOUT_MAX)

    def cancel(self) -> None:
        """Stop the work as soon as it can stop."""
        self.cancelled = True
        interrupt = self.interrupt
        if interrupt is not None:
            interrupt()


class Tickets:
    """The calls under way, so that they can be cancelled.

    Adding to and removing from a set are single steps of the interpreter: no lock.
    """

    def __init__(self) -> None:
        self._open: set[Ticket] = set()

    def open(self, timeout_ms: int, key: int) -> Ticket:
        """Start a call."""
        ticket = Ticket(timeout_ms, key)
        self.add(ticket)
        return ticket

    def add(self, *tickets: Ticket) -> None:
        """Start a call that has several tickets: whoever cancels finds all of them, or none."""
        self._open.update(tickets)

    def close(self, ticket: Ticket) -> None:
        """End a call."""
        self._open.discard(ticket)

    def cancel(self, key: int) -> bool:
        """Cancel every call that carries the key; tell whether there was one."""
        if key == 0:
            raise InvalidArgumentError("cancel_key is 0, which no work carries; pass its key")
        if not self._open:
            return False
        found = [ticket for ticket in self._open.copy() if ticket.key == key]
        for ticket in found:
            ticket.cancel()
        return bool(found)

    def cancel_all(self) -> None:
        """Cancel every call."""
        for ticket in self._open.copy():
            ticket.cancel()
