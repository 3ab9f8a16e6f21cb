"""Threads that help a caller whose work falls into parts that may run side by side.

The caller does parts itself, one after the other, and idle helpers take others off it; who has no
helper does all of them. So a call never waits for a thread that is busy with another call, and one
with a single part never comes here. A helper that waits in a model's queue takes no CPU, and those
that run are bounded by the models' own limits.
"""

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

# Does one part of a call; must raise nothing but what ends a thread or a process.
Part = Callable[[], None]


class _Parts:
    """The parts of one call that nobody has begun, and how many have not ended."""

    __slots__ = ("_ended", "_lock", "_missing", "_todo")

    def __init__(self, parts: Iterable[Part]) -> None:
        self._todo = deque(parts)
        self._missing = len(self._todo)
        self._lock = threading.Lock()
        # Not an event, which needs memory to be set: the caller waits for it without an end.
        self._ended = threading.Lock()
        self._ended.acquire()

    @property
    def waiting(self) -> int:
        """The number of parts that nobody has begun."""
        return len(self._todo)

    def do_next(self) -> bool:
        """Do a part; tell whether there was one."""
        try:
            part = self._todo.popleft()
        except IndexError:
            return False
        try:
            part()
        finally:
            del part  # it holds a model, which the next line may let go
            self._lock.acquire()  # "with" needs memory
            self._missing -= 1
            if not self._missing:
                self._ended.release()
            self._lock.release()
        return True

    def wait(self) -> None:
        """Return when the last part has ended."""
        with self._ended:
            pass


class Crew:
    """Up to ``most`` helpers, started when they are first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._calls: deque[_Parts] = deque()  # of which helpers may take parts
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    def do(self, parts: Iterable[Part], give_up: Callable[[], None]) -> None:
        """Do all parts, and return when the last one has ended.

        If the caller is interrupted, ``give_up`` is to make parts end soon; they are waited for.
        """
        work = _Parts(parts)
        if not work.waiting:
            return
        try:
            self._offer(work)
            self._finish(work)
        except BaseException:
            give_up()
            self._finish(work)
            raise
        finally:
            with self._changed:
                if work in self._calls:
                    self._calls.remove(work)

    def stop(self) -> None:
        """End the helpers, each after the part that it does; the next call starts others."""
        with self._changed:
            threads, self._threads = self._threads, set()
            self._changed.notify_all()
        for thread in threads:
            thread.join()

    @staticmethod
    def _finish(work: _Parts) -> None:
        while work.do_next():
            pass
        work.wait()

    def _offer(self, work: _Parts) -> None:
        wanted = work.waiting - 1
        if not wanted:
            return
        with self._changed:
            self._calls.append(work)
            for _ in range(min(wanted - self._idle, self._most - len(self._threads))):
                thread = threading.Thread(target=self._help, name="semantic-helper", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system refuses it: the caller does what is left
                    break
                self._threads.add(thread)
            self._changed.notify(wanted)

    def _help(self) -> None:
        # Signals belong to the host's threads.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        own = threading.current_thread()
        while True:
            with self._changed:
                if own not in self._threads:
                    return
                if not self._calls:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    continue
                work = self._calls[0]
                if not work.waiting:
                    self._calls.popleft()
                    continue
            with suppress(BaseException):  # a part keeps what it raises
                work.do_next()
            del work
