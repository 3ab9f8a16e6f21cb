"""What a caller may do to its own work: give it a deadline, and cancel it."""

import threading
import time

from .errors import CancelledError, DeadlineError, NotFoundError, SemanticError


class Ticket:
    """The deadline and cancellation of one call."""

    __slots__ = ("_timeout_ms", "cancelled", "deadline", "wake")

    def __init__(self, timeout_ms: int = 0) -> None:
        self._timeout_ms = timeout_ms
        self.deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else None
        self.cancelled = False
        self.wake: Wake | None = None

    def failure(self) -> SemanticError | None:
        """Return why the work is to stop, or None."""
        if self.cancelled:
            return CancelledError("cancelled by the caller")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return DeadlineError(
                f"timeout_ms {self._timeout_ms} has passed; send less or allow more time"
            )
        return None

    def check(self) -> None:
        """Raise if the work is to stop."""
        failure = self.failure()
        if failure is not None:
            raise failure

    def remaining(self) -> float | None:
        """Return the seconds left, at least 0, or None without a deadline."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic())


class Wake:
    """Called when a ticket is cancelled while its work waits or runs."""

    def interrupt(self) -> None:
        """Make the work look at its ticket now."""
        raise NotImplementedError


class Tickets:
    """All calls under way that can be cancelled, by their keys."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[int, set[Ticket]] = {}
        self._unkeyed: set[Ticket] = set()
