"""Loads, replacements, unloads, cleanups, statistics and all calls, from 32 threads at once."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from libsemantic.engine.errors import Status
from libsemantic.engine.registry import Registry
from tests.conftest import Gate

from ..abi.binding import MODELS, Library
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
    assert seen["semantic_classify"]["OK"] > SECONDS
    for name in COUNTERS:
        assert traffic.tally[name] > 0, name

    assert host.cleanup(30_000) == Status.OK
    stats = host.stats()
    assert (stats["running"], stats["model_count"]) == (0, 0)
    assert stats["results_unfreed"] == unfreed
    traffic.reconcile()
    assert [t.name for t in threading.enumerate() if t.name.startswith("semantic")] == []


class LateCondition(threading.Condition):
    """A condition whose waiters named "late" get the lock back only when they may."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self.waiters = 0
        self.may_go_on = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiters += 1
        woken = super().wait(timeout)
        if threading.current_thread().name == "late":
            self.release()
            assert self.may_go_on.wait(20)
            self.acquire()
        return woken


def thread(name: str, work: Callable[[], object], failed: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    started = threading.Thread(target=run, name=name, daemon=True)
    started.start()
    return started


def test_a_cleanup_that_wakes_late_leaves_the_next_runtime_alone(
    registry: Registry, gate: Gate
) -> None:
    """Of two cleanups one ends, models are loaded, and only then the other one wakes."""
    condition = LateCondition(registry._lock)
    registry._changed = condition
    model = str(MODELS / "bert-seq")
    handle = registry.load(model)
    failed: list[BaseException] = []
    gate.close()
    call = thread("call", lambda: registry.classify(handle, ["math"]), failed)
    gate.wait_for_a_run()
    late, prompt = (
        thread(name, lambda: registry.cleanup(20_000), failed) for name in ("late", "prompt")
    )
    until = time.monotonic() + 20
    while condition.waiters < 2 and time.monotonic() < until:
        time.sleep(0.001)
    gate.open()
    call.join(20)
    prompt.join(20)
    new = registry.load(model)
    condition.may_go_on.set()
    late.join(20)
    assert not any(each.is_alive() for each in (call, late, prompt))
    assert not failed, failed[0]
    assert registry.classify(new, ["math"]).rows.status == (0,)
