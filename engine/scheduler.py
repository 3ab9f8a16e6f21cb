"""Shares the CPUs among the runs of all models, the oldest work first, without threads of its own.

Each model bounds its own runs; together they are bounded here, since runs beyond the CPUs only take
turns on them and push each other out of the caches. Whoever ends a run begins the next one on
behalf of a caller that waits, so that no caller who comes later takes its place.
"""

import threading
from collections.abc import Iterator
from itertools import count
from typing import Protocol


class Queue(Protocol):
    """The waiting work of one model."""

    @property
    def oldest(self) -> int:
        """When the work came that is next: a number of ``Scheduler.arrivals``."""

    def can_begin(self) -> bool:
        """Tell whether a run could begin but for other models."""

    def begin(self) -> None:
        """Begin the next run and hand it to a caller that waits."""


class Scheduler:
    """The runs under way and the queues of models that share the CPUs.

    ``limit`` runs at a time, 0 for any number. ``expected`` has an element for each part of a call
    that is to run beside others, and needs no lock. Hold ``mutex``, which guards the queues too, at
    every other step; it is held for microseconds.
    """

    def __init__(self, limit: int = 0) -> None:
        """Share among as many runs; the limit may be set anew while nothing runs."""
        self.limit = limit
        self.mutex = threading.Lock()
        self.runs: set[object] = set()
        self.expected: set[object] = set()
        self.queues: dict[Queue, None] = {}  # that are not empty
        self.arrivals: Iterator[int] = count()

    def has_room(self) -> bool:
        """Tell whether another run may begin."""
        return not self.limit or len(self.runs) < self.limit

    def dispatch(self) -> None:
        """Begin what may begin, the oldest first.

        After every step that could let something begin; then whoever comes to an empty queue and
        finds room may begin at once.
        """
        while self.queues and self.has_room():
            ready = [queue for queue in self.queues if queue.can_begin()]
            if not ready:
                return
            min(ready, key=lambda queue: queue.oldest).begin()
