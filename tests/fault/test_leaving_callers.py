"""Callers that leave by an exception, and inputs that would keep others waiting."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from libsemantic.engine.batching import Batcher, RunControl, Work
from libsemantic.engine.config import LoadOptions, LogLevel, RuntimeOptions, Task
from libsemantic.engine.errors import (
    InvalidArgumentError,
    OutOfMemoryError,
    TooLongError,
)
from libsemantic.engine.grouping import Limits
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Float32
from libsemantic.engine.ticket import Ticket
from libsemantic.engine.together import ModelRequest
from libsemantic.engine.watchdog import Watchdog
from libsemantic.engine.windows import Window

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "models"


def test_texts_that_are_no_list_cost_no_lease(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"))
    generator: Any = (text for text in ["a"])
    with pytest.raises(TypeError):
        registry.classify(handle, generator)
    with pytest.raises(InvalidArgumentError, match=r"pass \[text\]"):
        registry.classify(handle, "abc")
    registry.unload(handle, 0)  # would be DEADLINE for ever with a lost lease


def windows(count: int, tokens: int = 200) -> list[Window]:
    ids = np.ones(tokens, np.int64)
    return [Window(ids, ids, 0, tokens, 0, -1) for _ in range(count)]


def batcher(run: Callable[..., Sequence[Float32]]) -> Batcher:
    return Batcher(run, Limits(1, 32, 256, 1000, 1 << 20), Watchdog())


def outputs(batch: Sequence[Window]) -> list[Float32]:
    return [np.zeros(2, np.float32) for _ in batch]


def test_what_a_leaving_caller_had_queued_is_forgotten() -> None:
    ran = []

    def run(batch: Sequence[Window], control: RunControl) -> Sequence[Float32]:
        del control
        ran.append(len(batch))
        if len(ran) == 1:
            raise KeyboardInterrupt
        return outputs(batch)

    queue = batcher(run)
    with pytest.raises(KeyboardInterrupt):
        queue.execute(Work(windows(3), Ticket()), lambda: None)
    work = Work(windows(1), Ticket())
    queue.execute(work, lambda: None)
    assert work.outputs[0] is not None
    assert ran == [1, 1]  # the other two windows of the first caller ran for nobody


def test_an_interrupted_waiter_is_not_woken_in_place_of_another() -> None:
    entered, leave = threading.Event(), threading.Event()

    def run(batch: Sequence[Window], control: RunControl) -> Sequence[Float32]:
        del control
        entered.set()
        assert leave.wait(10)
        return outputs(batch)

    class Interrupted(Work):
        """Work whose caller is interrupted while it waits."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "waiting" and value:
                raise KeyboardInterrupt

    queue = batcher(run)
    others = [Work(windows(1), Ticket()) for _ in range(3)]
    threads = [threading.Thread(target=queue.execute, args=(work, lambda: None)) for work in others]
    threads[0].start()
    assert entered.wait(10)
    with pytest.raises(KeyboardInterrupt):
        queue.execute(Interrupted(windows(1), Ticket()), lambda: None)
    for thread in threads[1:]:
        thread.start()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_a_leader_that_is_interrupted_at_its_end_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a Python host Ctrl-C may come between any two steps."""

    def run(batch: Sequence[Window], control: RunControl) -> Sequence[Float32]:
        del control
        return outputs(batch)

    queue = batcher(run)
    end = queue._end
    interrupted: list[RunControl] = []

    def end_late(control: RunControl) -> None:
        if not interrupted:
            interrupted.append(control)
            raise KeyboardInterrupt
        end(control)

    monkeypatch.setattr(queue, "_end", end_late)
    with pytest.raises(KeyboardInterrupt):
        queue.execute(Work(windows(1), Ticket()), lambda: None)
    next_one = threading.Thread(
        target=queue.execute, args=(Work(windows(1), Ticket()), lambda: None), daemon=True
    )
    next_one.start()
    next_one.join(5)
    assert not next_one.is_alive()


def test_refused_memory_is_told_as_what_it_is() -> None:
    def run(batch: Sequence[Window], control: RunControl) -> Sequence[Float32]:
        del batch, control
        raise MemoryError

    work = Work(windows(1), Ticket())
    batcher(run).execute(work, lambda: None)
    assert isinstance(work.errors[0], OutOfMemoryError)


def test_a_pair_cannot_ask_for_windows_without_bound(registry: Registry) -> None:
    options = LoadOptions(queue_tokens=10_000)
    handle = registry.load(str(GOLDEN / "bert-token"), options)
    answer, context = "math " * 58, "law " * 1000  # leaves room for a token or so of the context
    with pytest.raises(TooLongError, match="windows of 64 tokens, the queue takes 10000 tokens"):
        registry.classify_token_pairs(handle, [context], [answer])
    assert registry.classify_token_pairs(handle, ["law"], ["math"]).rows.status == (0,)


def test_a_cleanup_that_wakes_late_leaves_the_next_runtime_alone(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two waiting cleanups the second wakes only after a new start and a new load."""
    handle = registry.load(str(GOLDEN / "bert-seq"))
    condition = registry._changed
    late, wait = threading.Event(), condition.wait
    loaded = []

    def waits(timeout: float | None = None) -> bool:
        if threading.current_thread().name != "late":
            return wait(timeout)
        condition.release()
        late.set()
        try:
            assert ready.wait(20)
        finally:
            condition.acquire()
        return True

    ready = threading.Event()
    registry._entries[handle].leases.add(Ticket())
    monkeypatch.setattr(condition, "wait", waits)
    sleeper = threading.Thread(target=registry.cleanup, args=(20_000,), name="late")
    sleeper.start()
    assert late.wait(10)
    with registry._lock:
        registry._entries[handle].leases.clear()
    registry.cleanup(20_000)
    loaded.append(registry.load(str(GOLDEN / "bert-seq")))
    ready.set()
    sleeper.join(10)
    assert registry.classify(loaded[0], ["math"]).rows.status == (0,)


def test_a_folder_name_that_is_no_utf8_is_refused(tmp_path: Path, registry: Registry) -> None:
    folder = os.fsencode(tmp_path / "model") + b"\xff"
    Path(os.fsdecode(folder)).mkdir()
    with pytest.raises(InvalidArgumentError, match="rename"):
        registry.load(os.fsdecode(folder))
    with pytest.raises(InvalidArgumentError, match="rename"):
        registry.load(os.fsdecode(folder), LoadOptions(name="plain"))
    assert registry.list_models().count == 0


def test_a_log_line_is_one_line(registry: Registry) -> None:
    lines: list[str] = []
    registry.log.send_to(lambda _, message: lines.append(message))
    registry.init(RuntimeOptions(log_level=LogLevel.INFO))
    registry.load(str(GOLDEN / "bert-seq"), LoadOptions(name="two\nlines\r\0x", task=Task.AUTO))
    assert [line for line in lines if "two lines  x" in line]
    assert not any(character in line for line in lines for character in "\n\r\0")


@pytest.mark.parametrize("several", [False, True], ids=["one model", "several models"])
def test_an_interrupted_caller_leaves_nothing_behind(registry: Registry, several: bool) -> None:
    """Ctrl-C in a Python host comes after any step; a second alarm ends a call that hangs."""
    handles = [registry.load(str(GOLDEN / n)) for n in ("bert-seq", "bert-embed-mean")]
    requests = [ModelRequest(handle) for handle in handles]
    scheduler, random, ended = registry._shelves.scheduler, Random(1), 0

    def interrupt(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 20)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(5000):
            started = time.monotonic()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
                    if several:
                        registry.run_models(requests, ["math", "law"])
                    else:
                        registry.classify(handles[0], ["math", "law"])
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                ended += 1
            assert time.monotonic() < started + 10
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ended > 500
    assert (scheduler.runs, scheduler.expected, dict(scheduler.queues)) == (set(), set(), {})
    assert registry.run_models(requests, ["math"]).status == (0, 0)
    assert registry.stats().in_flight.sum() == 0
    for handle in handles:
        registry.unload(handle, 0)  # would be DEADLINE for ever with a lost lease
