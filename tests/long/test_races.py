"""Loads, replacements, unloads, cleanups, statistics and all calls, from 32 threads at once."""

import threading
from collections.abc import Iterator

import pytest

from libsemantic.engine.errors import Status

from ..abi.binding import Library
from .size import sized
from .traffic import COUNTERS, Host, Traffic, spread

THREADS = 32
SECONDS = sized(60, least=5)


@pytest.fixture
def library() -> Iterator[Library]:
    opened = Library()
    yield opened
    assert opened.lib.semantic_cleanup(30_000, opened.ffi.NULL) == Status.OK


@pytest.mark.parametrize("seed", [1])
def test_everything_at_once(library: Library, seed: int) -> None:
    host = Host(library)
    unfreed = host.stats()["results_unfreed"]
    traffic = Traffic(library, THREADS, seed)
    traffic.start()
    looks = traffic.watch(SECONDS)
    traffic.stop()
    traffic.reconcile()
    assert looks > SECONDS
    seen = spread(traffic.calls)
    print({what: dict(statuses) for what, statuses in sorted(seen.items())}, dict(traffic.tally))
    for what in ("load", "replace", "unload", "cleanup"):
        assert seen[what]["OK"] > 0, what
    assert seen["semantic_classify"]["OK"] > 10 * SECONDS
    for name in COUNTERS:
        assert traffic.tally[name] > 0, name

    assert host.cleanup(30_000) == Status.OK
    stats = host.stats()
    assert (stats["running"], stats["model_count"]) == (0, 0)
    assert stats["results_unfreed"] == unfreed
    traffic.reconcile()
    assert [t.name for t in threading.enumerate() if t.name.startswith("semantic")] == []
