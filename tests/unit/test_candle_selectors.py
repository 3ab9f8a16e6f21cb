"""Handles of selectors: never the same twice, dead once freed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from libsemantic.engine.errors import ClosedError, InvalidArgumentError
from libsemantic.engine.mlp import UNTRAINED
from libsemantic.ffi.candle.selectors import FIRST_HANDLE, STEP, Selectors


def test_a_freed_handle_is_dead_and_never_comes_back() -> None:
    selectors = Selectors()
    first, second = selectors.add(UNTRAINED), selectors.add(UNTRAINED)
    selectors.remove(first)
    assert selectors.add(UNTRAINED) not in (first, second)
    assert selectors[second] is UNTRAINED
    with pytest.raises(ClosedError, match="freed"):
        selectors[first]
    with pytest.raises(ClosedError, match="freed"):
        selectors.remove(first)
    assert len(selectors) == 2


@pytest.mark.parametrize(
    "handle",
    [0, 1, FIRST_HANDLE - STEP, FIRST_HANDLE + 1, FIRST_HANDLE + STEP, 0xC000000000, 2**64 - 1],
)
def test_what_was_never_a_handle_is_refused(handle: int) -> None:
    selectors = Selectors()
    selectors.add(UNTRAINED)
    with pytest.raises(InvalidArgumentError, match="none of a selector"):
        selectors[handle]
    with pytest.raises(InvalidArgumentError, match="none of a selector"):
        selectors.remove(handle)
    assert len(selectors) == 1


def test_many_threads_get_handles_of_their_own() -> None:
    selectors = Selectors()

    def use(index: int) -> int:
        del index
        handle = selectors.add(UNTRAINED)
        assert selectors[handle] is UNTRAINED
        selectors.remove(handle)
        return handle

    with ThreadPoolExecutor(16) as pool:
        handles = list(pool.map(use, range(2000)))
    assert len(set(handles)) == len(handles)
    assert len(selectors) == 0
