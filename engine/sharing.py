"""What several models have in common: made once, gone with the last that uses it."""

import threading
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from .errors import NotFoundError
from .ticket import Ticket

Shared = TypeVar("Shared", bound=object)
FileIdentity: TypeAlias = tuple[str, int, int, int, int]


class Shelf(Generic[Shared]):
    """Holds things weakly by a key: it keeps nothing alive, and never makes one thing twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # "with" a condition, an interrupted caller would keep it
        self._changed = threading.Condition(self._lock)
        self._held: dict[Hashable, weakref.ref[Shared]] = {}
        self._in_work: set[Hashable] = set()

    def share(self, key: Hashable, make: Callable[[], Shared], ticket: Ticket) -> Shared:
        """Return what ``key`` stands for; ``make`` it where nobody has it.

        Others who want the same wait until it is made, or make it themselves if that failed.
        Raise as ``make`` does, DeadlineError if the ticket runs out meanwhile.
        """
        with self._lock:
            while True:
                known = self._known(key)
                if known is not None:
                    return known
                if key not in self._in_work:
                    self._in_work.add(key)
                    break
                ticket.check()
                self._changed.wait(ticket.remaining())
        made: Shared | None = None
        try:
            made = make()
            return made
        finally:
            with self._lock:
                self._in_work.discard(key)
                if made is not None:
                    self._held[key] = weakref.ref(made)
                self._changed.notify_all()

    def _known(self, key: Hashable) -> Shared | None:
        """Return what is held; forget all that is gone."""
        for other in [other for other, held in self._held.items() if held() is None]:
            del self._held[other]
        held = self._held.get(key)
        return None if held is None else held()


def file_identity(path: Path) -> FileIdentity:
    """Return what tells a file from any that takes its place."""
    try:
        status = path.stat()
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}; fetch it again") from error
    return str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
