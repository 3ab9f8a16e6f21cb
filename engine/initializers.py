"""Values that a graph needs and no file has: made when a session is opened, and handed over."""

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .errors import OutOfMemoryError


@dataclass(frozen=True, slots=True, eq=False)
class Initializer:
    """A value of a graph in pages of its own."""

    name: str
    values: NDArray[np.generic]
    pages: mmap.mmap

    def drop(self) -> None:
        """Give the pages back to the system; the values become 0."""
        self.pages.madvise(mmap.MADV_DONTNEED)


# Makes some of a graph's initializers.
Make: TypeAlias = Callable[[], Sequence[Initializer]]


def make_zeros(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Initializer:
    """Return an initializer of zeros, to be written; refused memory is ``OutOfMemoryError``."""
    size = prod(shape) * np.dtype(dtype).itemsize
    try:
        # Pages that are not private keep their content when they are dropped.
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        raise OutOfMemoryError(
            f"the system refused {-(-size >> 20)} MiB for weights in int8; free some"
        ) from None
    return Initializer(name, np.frombuffer(pages, dtype).reshape(shape), pages)
