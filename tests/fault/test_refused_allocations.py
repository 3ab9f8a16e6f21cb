"""Memory that Python itself is refused, at each of its allocations in turn: nothing is kept.

A run that begins and that nobody ends would make all later calls of its model wait for ever, and
so would a call that keeps its lease everybody who unloads the model.
"""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from libsemantic.engine import tasks, together
from libsemantic.engine.batching import Batcher, RunControl, Window
from libsemantic.engine.crew import Crew
from libsemantic.engine.errors import OutOfMemoryError
from libsemantic.engine.grouping import Limits
from libsemantic.engine.model import Model
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Float32
from libsemantic.engine.scheduler import Scheduler
from libsemantic.engine.ticket import Ticket
from libsemantic.engine.together import ModelRequest
from libsemantic.engine.watchdog import Watchdog

from ..unit.test_batching import work
from ..unit.test_registry import MEAN, SEQ

_testcapi = pytest.importorskip("_testcapi")  # some builds of Python leave it out
LIMITS = Limits(
    parallel_runs=2, batch_rows=2, batch_tokens=64, queue_rows=1000, queue_tokens=100_000
)
SOON_MS = 10_000


def length_of_each(windows: Sequence[Window], control: RunControl) -> list[Float32]:
    del control
    return [np.array([len(window.ids)], np.float32) for window in windows]


@pytest.mark.parametrize("lengths", [(3,), (3, 9, 3, 20, 3)], ids=["at once", "queued"])
def test_a_run_that_is_refused_memory_makes_way_for_the_next(
    watchdog: Watchdog, lengths: tuple[int, ...]
) -> None:
    scheduler = Scheduler(2)
    batcher = Batcher(length_of_each, LIMITS, watchdog, scheduler)
    # Starts the thread of the watchdog: Python waits for ever for one that is refused memory.
    batcher.execute(work(1, ticket=Ticket(SOON_MS)), ignore)
    refused = unhurt = position = 0
    while unhurt < 20:  # behind the last allocation
        asked = work(*lengths)
        _testcapi.set_nomemory(position, position + 1)
        try:
            batcher.execute(asked, ignore)
        except (MemoryError, RuntimeError):  # a lock that is refused is a RuntimeError
            refused += 1
        finally:
            _testcapi.remove_mem_hooks()
        unhurt = unhurt + 1 if asked.missing == 0 and not any(asked.errors) else 0
        again = work(*lengths, ticket=Ticket(SOON_MS))
        batcher.execute(again, ignore)
        assert again.errors == [None] * len(lengths), position
        assert again.outputs == [[length] for length in lengths]
        assert not scheduler.under_way, f"a run keeps its place since allocation {position}"
        assert not scheduler.queues, f"work stays in the queue since allocation {position}"
        position += 1
    assert refused > 5


def ignore() -> None:
    """Stand for what is told when the work is admitted."""


class Refused:
    """A run that Python is refused memory to stop, the first time."""

    def __init__(self) -> None:
        self.deadline = 0.0  # long past
        self.asked = 0
        self.stopped = threading.Event()

    def expire(self) -> None:
        self.asked += 1
        if self.asked == 1:
            raise MemoryError
        self.stopped.set()


def test_a_watchdog_that_is_refused_memory_tries_again(watchdog: Watchdog) -> None:
    for _ in range(2):  # the second one needs the thread that the first one started
        run = Refused()
        watchdog.watch(run)
        assert run.stopped.wait(10)
        assert run.asked == 2


def remember(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """Let a function answer for a model what it did the first time.

    The libraries below it end the process where Python refuses them memory.
    """
    known: dict[str, object] = {}
    function: Callable[..., object] = getattr(module, name)

    def remembering(model: Model, *arguments: object) -> object:
        if model.info.name not in known:
            known[model.info.name] = function(model, *arguments)
        return known[model.info.name]

    monkeypatch.setattr(module, name, remembering)


@pytest.mark.parametrize("calls", ["one model", "models together"])
def test_a_call_that_is_refused_memory_keeps_no_lease(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, calls: str
) -> None:
    handles = [registry.load(path) for path in (SEQ, MEAN)]
    requests = [ModelRequest(handle) for handle in handles]
    known: dict[str, Callable[[], bool]] = {  # which tell whether all was answered
        "one model": lambda: bool(registry.classify(handles[0], ["math"])),
        "models together": lambda: not registry.run_models(requests, ["math"]).first_error(),
    }
    call = known[calls]
    # Python waits for ever for a thread that is refused memory.
    monkeypatch.setattr(registry, "_crew", Crew(0))
    remember(monkeypatch, tasks, "answer")
    remember(monkeypatch, tasks, "score")
    remember(monkeypatch, together, "prepare")
    for _ in range(3):
        call()
    refused = unhurt = position = 0
    while unhurt < 20:  # behind the last allocation
        _testcapi.set_nomemory(position, position + 1)
        try:
            answered = call()
        except (MemoryError, OutOfMemoryError, RuntimeError):  # a lock is the last
            answered = False
        finally:
            _testcapi.remove_mem_hooks()
        refused, unhurt = (refused, unhurt + 1) if answered else (refused + 1, 0)
        kept = [len(registry._entries[handle].leases) for handle in handles]
        assert kept == [0, 0], position
        assert registry._shelves.scheduler.expected == 0, position
        position += 1
    assert refused > 5
    assert call()
    assert registry.stats().in_flight.sum() == 0
