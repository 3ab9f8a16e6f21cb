"""Memory that Python itself is refused, at each of its allocations in turn: no run keeps its place.

A run that begins and that nobody ends would make all later calls of its model wait for ever, and
so would a lease whoever unloads the model.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from libsemantic.engine.batching import Batcher, RunControl, Window
from libsemantic.engine.config import RunOptions
from libsemantic.engine.crew import Crew
from libsemantic.engine.grouping import Limits
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Answers, Float32
from libsemantic.engine.scheduler import Scheduler
from libsemantic.engine.ticket import Ticket
from libsemantic.engine.together import ModelRequest
from libsemantic.engine.tokenization import Encoded, Tokenizer
from libsemantic.engine.watchdog import Watchdog

from ..unit.test_batching import work

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
        assert not scheduler.runs, f"a run keeps its place since allocation {position}"
        assert not scheduler.queues, f"work stays in the queue since allocation {position}"
        position += 1
    assert refused > 5


def ignore() -> None:
    """Stand for what is told when the work is admitted."""


KEY = 7
ASKED = RunOptions(cancel_key=KEY)
CALLS: dict[str, Callable[[Registry, int], object]] = {
    "a call": lambda registry, model: registry.classify(model, ["math"], ASKED),
    "a call of bad texts": lambda registry, model: registry.classify(model, [None, "math"], ASKED),
    "requests": lambda registry, model: registry.run_models(
        [
            ModelRequest(model, ASKED),
            ModelRequest(model, RunOptions(cancel_key=KEY, threshold=0.9)),
        ],
        ["math"],
    ),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_that_is_refused_memory_leaves_nothing_behind(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without the packages that it calls, some of which end the process then."""
    model = registry.load(str(Path(__file__).parents[1] / "golden" / "models" / "bert-seq"))
    entry = registry._entries[model]
    assert entry.model is not None
    encoded = entry.model.tokenizer.encode(["math"], False)
    output = np.zeros(len(entry.model.info.labels), np.float32)

    def encode(tokenizer: Tokenizer, texts: Sequence[str], offsets: bool) -> list[Encoded]:
        del tokenizer, texts, offsets
        return encoded

    def score(windows: Sequence[Window], control: RunControl) -> Sequence[Float32]:
        del control
        return [output] * len(windows)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    monkeypatch.setattr(entry.model.batcher, "_run", score)
    call = CALLS[kind]
    refused = unhurt = position = 0
    while unhurt < 20:  # behind the last allocation
        _testcapi.set_nomemory(position, position + 1)
        answer: object = None
        try:
            answer = call(registry, model)
        except Exception:
            pass
        finally:
            _testcapi.remove_mem_hooks()
        hurt = answer is None or (isinstance(answer, Answers) and answer.first_error() is not None)
        refused, unhurt = (refused + 1, 0) if hurt else (refused, unhurt + 1)
        assert not entry.leases, f"a lease is left since allocation {position}"
        assert not registry.cancel(KEY), f"a ticket is left since allocation {position}"
        stats = registry.stats()
        assert stats.in_flight.sum() == 0, f"rows are in flight since allocation {position}"
        expected = registry._shelves.scheduler.expected
        assert not expected, f"runs are expected since allocation {position}"
        position += 1
    assert refused > 20
    call(registry, model)
    registry.unload(model, 0)


def test_a_caller_hears_of_the_end_of_its_parts_without_memory() -> None:
    """It waits for it without an end, and nobody else would tell it."""
    for position in range(40):
        ended = threading.Event()

        def part(position: int = position) -> None:
            _testcapi.set_nomemory(position, position + 1)

        def call(ended: threading.Event = ended) -> None:
            try:
                Crew(1).do([part], lambda: None)
            except (MemoryError, RuntimeError):
                pass
            finally:
                _testcapi.remove_mem_hooks()
            ended.set()

        threading.Thread(target=call, daemon=True).start()
        heard = ended.wait(5)
        _testcapi.remove_mem_hooks()
        assert heard, f"the caller waits for ever since allocation {position}"


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
