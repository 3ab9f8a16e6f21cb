"""A witness of how long other threads keep the interpreter lock."""

import threading
import time
from pathlib import Path

LARGEST_GAP = 0.05  # seconds that nobody may keep the lock from another thread
# Where a thread that wakes waits longer for a processor on average, in seconds, other programs stop
# whoever holds the lock, and the waits for the lock say nothing of the library.
BUSY = 0.0003


class Ticker:
    """A thread that wants the interpreter lock every millisecond and notes its waits.

    ``gap`` is the longest wait in seconds, without the time that the thread was ready to run but no
    processor was free for it; ``processor_wait`` is the mean of that time.
    """

    def __init__(self) -> None:
        self.gap = 0.0
        self.processor_wait = 0.0
        self._ended = False
        self._thread = threading.Thread(target=self._tick)

    def __enter__(self) -> "Ticker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    def _tick(self) -> None:
        last, waited = time.perf_counter(), _processor_wait()
        began, ticks = waited, 0
        while not self._ended:
            time.sleep(0.001)
            now, so_far = time.perf_counter(), _processor_wait()
            self.gap = max(self.gap, now - last - (so_far - waited))
            last, waited = now, so_far
            ticks += 1
        self.processor_wait = (waited - began) / max(1, ticks)


def _processor_wait() -> float:
    """Return the seconds this thread has waited for a processor; 0 where nobody counts them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
