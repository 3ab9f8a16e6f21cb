"""Ends runs whose deadline passes while they are inside ONNX Runtime."""

import signal
import threading
import time
from typing import Protocol

from .errors import OutOfMemoryError
from .memory import MORE_THREADS

_AGAIN_SECONDS = 0.01  # after which the thread looks again if Python was refused memory


class Watched(Protocol):
    """A run in flight."""

    deadline: float

    def expire(self) -> None:
        """Stop it; called once its deadline has passed."""


class Watchdog:
    """One thread, started by the first deadline, that sleeps until the nearest one.

    It is woken only for a deadline nearer than the one it sleeps for, so a stream of calls
    with like timeouts costs it one look per timeout.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # "with" a condition, an interrupted caller would keep it
        self._changed = threading.Condition(self._lock)
        self._watched: set[Watched] = set()
        self._wakes_at = float("-inf")  # not sleeping
        self._thread: threading.Thread | None = None

    def watch(self, run: Watched) -> None:
        """Expire the run at its deadline unless it is released before.

        Raise OutOfMemoryError if the system refuses the thread; the next deadline tries again.
        """
        with self._lock:
            self._watched.add(run)
            if self._thread is None:
                thread = threading.Thread(
                    target=self._guard, name="semantic-deadlines", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # all that Python says of a refused thread
                    self._watched.discard(run)
                    raise OutOfMemoryError(
                        f"the system refused the thread that keeps timeout_ms; {MORE_THREADS}, or "
                        "give no timeout_ms"
                    ) from None
                self._thread = thread
            elif run.deadline < self._wakes_at:
                self._changed.notify()

    def release(self, run: Watched) -> None:
        """Forget a run that has ended."""
        with self._lock:
            self._watched.discard(run)

    def stop(self) -> None:
        """End the thread, unless a run is watched; the next deadline starts another."""
        with self._lock:
            if self._watched:  # by a runtime that was started anew meanwhile
                return
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _guard(self) -> None:
        # Signals belong to the host's threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        guarding = True
        while guarding:
            try:
                guarding = self._look()
            except (MemoryError, RuntimeError):  # Python was refused memory, or a lock
                time.sleep(_AGAIN_SECONDS)

    def _look(self) -> bool:
        """Expire what is due, else sleep until something may be; tell whether to look again."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return False
            now = time.monotonic()
            expired = [run for run in self._watched if run.deadline <= now]
            if not expired:
                self._wakes_at = min((run.deadline for run in self._watched), default=float("inf"))
                try:
                    self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
                finally:
                    self._wakes_at = float("-inf")
        for run in expired:
            run.expire()
            self.release(run)
        return True
