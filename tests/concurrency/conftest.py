"""Every test here fails if another thread waits too long for the interpreter lock meanwhile."""

from collections.abc import Iterator

import pytest

from ..ticker import BUSY, LARGEST_GAP, Ticker


@pytest.fixture(autouse=True)
def ticker(request: pytest.FixtureRequest) -> Iterator[None]:
    # The ticker's own thread is there before a test counts threads, and after.
    with Ticker() as running:
        yield
    said = (
        f"{running.gap:.3f} s without the lock, {running.processor_wait:.5f} s without a processor"
    )
    print(f"{request.node.name}: {said}")
    assert running.gap < LARGEST_GAP or running.processor_wait > BUSY, said
