"""MLP selectors by handle: values that callers made and have not freed yet.

They are no models: they have no session and no name, and neither the registry nor its statistics
know them.
"""

import threading

from libsemantic.engine.errors import ClosedError, InvalidArgumentError
from libsemantic.engine.mlp import MlpSelector

# A handle is a number that callers hold as a pointer. Go's runtime looks at such pointers and
# stops the program where one is small (below 4096) or meets its own data (a static program's, or
# its heap from 0xc000000000 on); these lie between, where no system maps anything.
FIRST_HANDLE = 0x20_0000_0000
STEP = 16


class Selectors:
    """Selectors by handle, safe from any thread; no handle is given out twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = FIRST_HANDLE
        self._selectors: dict[int, MlpSelector] = {}

    def __len__(self) -> int:
        return len(self._selectors)

    def add(self, selector: MlpSelector) -> int:
        """Keep a selector and return its handle."""
        with self._lock:
            handle = self._next
            self._next += STEP
            self._selectors[handle] = selector
        return handle

    def __getitem__(self, handle: int) -> MlpSelector:
        """Return a selector.

        Raise InvalidArgumentError for what was never a handle, ClosedError for one that is freed.
        """
        selector = self._selectors.get(handle)
        if selector is None:
            raise self._missing(handle)
        return selector

    def remove(self, handle: int) -> None:
        """Free a selector; calls that use it go on. Raise as ``[]`` does."""
        with self._lock:
            if self._selectors.pop(handle, None) is None:
                raise self._missing(handle)

    def _missing(self, handle: int) -> Exception:
        offset = handle - FIRST_HANDLE
        if offset % STEP or not 0 <= offset < self._next - FIRST_HANDLE:
            return InvalidArgumentError("the handle is none of a selector; pass what made one")
        return ClosedError("the selector is freed; make a new one")
