"""Threads that help a caller whose work falls into parts that may run side by side.

The caller does parts itself, one after the other, and idle helpers take others off it; who has no
helper does all of them. So a call never waits for a thread that is busy with another call, and one
with a single part never comes here. A helper that waits in a model's queue takes no CPU, and those
that run are bounded by the models' own limits.
"""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

# Does one part of a call; must raise nothing but what ends a thread or a process.
Part = Callable[[], None]
_AGAIN_SECONDS = 0.01  # after which a helper looks again if Python was refused memory
_EMPTY = (IndexError, MemoryError)  # of a deque: the error itself may be refused memory


class _Parts:
    """The parts of one call that nobody has begun, and those that have not ended.

    A caller in a Python host may be interrupted after each call of a function, and either thread
    refused memory: so what counts is one step that needs none.
    """

    __slots__ = ("_ended", "_others", "_todo")

    def __init__(self, parts: Iterable[Part]) -> None:
        self._todo = deque(parts)
        self._others = deque([None] * (len(self._todo) - 1))  # one less than have to end
        self._ended = threading.Lock()
        self._ended.acquire()

    @property
    def waiting(self) -> int:
        """The number of parts that nobody has begun."""
        return len(self._todo)

    def do_next(self) -> bool:
        """Do a part; tell whether there was one."""
        taken, part = True, None
        try:
            part = self._todo.popleft()
            part()
        except _EMPTY:
            taken = part is not None
            if taken:
                raise
        finally:
            part = None  # it holds a model, which the next lines may let go
            if taken:
                try:
                    self._others.pop()
                except _EMPTY:  # all others have ended
                    self._ended.release()
        return taken

    def wait(self) -> None:
        """Return when the last part has ended."""
        with self._ended:
            pass


class Crew:
    """Up to ``most`` helpers, started when they are first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()  # "with" a condition, an interrupted caller would keep it
        self._changed = threading.Condition(self._lock)
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
            with self._lock:
                if work in self._calls:
                    self._calls.remove(work)

    def stop(self) -> None:
        """End the helpers, each after the part that it does; the next call starts others."""
        with self._lock:
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
        with self._lock:
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
            with self._lock:
                if own not in self._threads:
                    return
                if not self._calls:
                    self._idle += 1
                    try:
                        self._changed.wait()
                    except (MemoryError, RuntimeError):  # Python was refused memory, or a lock
                        time.sleep(_AGAIN_SECONDS)
                    finally:
                        self._idle -= 1
                    continue
                work = self._calls[0]
                if not work.waiting:
                    self._calls.popleft()
                    continue
            with suppress(BaseException):  # a part keeps what it raises
                work.do_next()
            del work
