"""Counters per model and kind of call.

The unit is the row. ``accepted`` is never stored: it is the sum of completed, failed,
expired, cancelled and in flight, so that the books balance at any moment.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum

import numpy as np

from .config import Task
from .errors import SemanticError, Status
from .results import Rows, Stats, UInt64

# Upper bounds in seconds; the last bucket is open. Fixed within an ABI version.
BUCKET_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Call(IntEnum):
    """Kinds of calls; values of ``semantic_call``."""

    CLASSIFY = 1
    CLASSIFY_PAIRS = 2
    CLASSIFY_TOKENS = 3
    CLASSIFY_TOKEN_PAIRS = 4
    EMBED = 5
    COUNT_TOKENS = 6


class State(IntEnum):
    """States of a model; values of ``semantic_model_state``."""

    LOADING = 1
    READY = 2
    STOPPING = 3


@dataclass(slots=True)
class CallCounters:
    """Counters of one kind of call to one model."""

    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    in_flight: int = 0
    refused: int = 0
    tokens: int = 0
    truncated: int = 0
    batches: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS) + 1))

    @property
    def accepted(self) -> int:
        """Rows that were taken on, whatever became of them."""
        return self.completed + self.failed + self.expired + self.cancelled + self.in_flight

    def add(self, other: "CallCounters") -> None:
        """Add another model's counters to these."""
        for each in fields(self):
            if each.name == "latency":
                self.latency = [a + b for a, b in zip(self.latency, other.latency, strict=True)]
            else:
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


_ENDED_AS = {
    Status.OK: "completed",
    Status.DEADLINE: "expired",
    Status.CANCELLED: "cancelled",
}


class Counters:
    """The counters of one model, safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Call, CallCounters] = {}

    def begin(self, call: Call, rows: int) -> None:
        """Note rows that were admitted and are now in flight."""
        with self._lock:
            self._of(call).in_flight += rows

    def end(self, call: Call, in_flight: int, rows: Rows, runs: int, seconds: float) -> None:
        """Note the end of a call that returned row by row, and the runs that it led."""
        with self._lock:
            counters = self._of(call)
            counters.in_flight -= in_flight
            counters.batches += runs
            if any(rows.status):
                for status in rows.status:
                    self._count(counters, Status(status), 1)
            else:
                counters.completed += rows.count
            if call is not Call.COUNT_TOKENS:  # which scores none
                counters.tokens += sum(rows.scored_token_count)
            counters.truncated += sum(rows.truncated)
            counters.latency[bisect_left(BUCKET_BOUNDS, seconds)] += 1

    def end_failed(
        self, call: Call, in_flight: int, rows: int, status: Status, runs: int, seconds: float
    ) -> None:
        """Note the end of a call that failed as a whole, and the runs that it led."""
        with self._lock:
            counters = self._of(call)
            counters.in_flight -= in_flight
            counters.batches += runs
            self._count(counters, status, rows)
            counters.latency[bisect_left(BUCKET_BOUNDS, seconds)] += 1

    def refuse(self, call: Call, rows: int) -> None:
        """Note rows that were not taken on."""
        with self._lock:
            self._of(call).refused += rows

    def snapshot(self) -> dict[Call, CallCounters]:
        """Return a consistent copy."""
        copy: dict[Call, CallCounters] = {}
        with self._lock:
            for call, counters in self._calls.items():
                copy[call] = CallCounters()
                copy[call].add(counters)
        return copy

    def absorb(self, other: dict[Call, CallCounters]) -> None:
        """Add the counters of a model that is gone."""
        with self._lock:
            for call, counters in other.items():
                self._of(call).add(counters)

    def _of(self, call: Call) -> CallCounters:
        counters = self._calls.get(call)
        if counters is None:
            counters = self._calls[call] = CallCounters()
        return counters

    @staticmethod
    def _count(counters: CallCounters, status: Status, rows: int) -> None:
        name = _ENDED_AS.get(status, "failed")
        setattr(counters, name, getattr(counters, name) + rows)


class Recorder:
    """Notes what becomes of one call's rows."""

    __slots__ = ("_call", "_counters", "_in_flight", "_rows", "_started", "runs")

    def __init__(self, counters: Counters, call: Call, rows: int) -> None:
        self._counters = counters
        self._call = call
        self._rows = rows
        self._in_flight = 0
        self._started = time.perf_counter()
        self.runs = 0  # of the model, led by this call

    def admitted(self) -> None:
        """Note that the queue took the rows."""
        self._in_flight = self._rows
        self._counters.begin(self._call, self._rows)

    def answered(self, rows: Rows) -> None:
        """Note a result."""
        seconds = time.perf_counter() - self._started
        self._counters.end(self._call, self._in_flight, rows, self.runs, seconds)

    def failed(self, error: BaseException) -> None:
        """Note that the whole call failed, or was not taken on at all."""
        status = error.status if isinstance(error, SemanticError) else Status.INTERNAL
        taken_on = self._in_flight or status is Status.INTERNAL or status in _ENDED_AS
        if not taken_on:
            self._counters.refuse(self._call, self._rows)
            return
        seconds = time.perf_counter() - self._started
        self._counters.end_failed(
            self._call, self._in_flight, self._rows, status, self.runs, seconds
        )


def column(values: Iterable[int]) -> UInt64:
    """Make one unsigned column of a result."""
    return np.array(list(values), np.uint64)


def tabulate(
    running: bool,
    models: Sequence[tuple[int, str, Task, State]],
    calls: Sequence[tuple[int, str, Mapping[Call, CallCounters]]],
    memory: Sequence[tuple[str, int]],
) -> Stats:
    """Lay out the statistics in columns.

    ``models``: handle, name, task, state; ``calls``: handle, name and counters of each model;
    ``memory``: owner and bytes.
    """
    states = [state for _, _, _, state in models]
    entries = [
        (handle, name, call, counters)
        for handle, name, by_call in calls
        for call, counters in sorted(by_call.items())
    ]

    def counted(count: Callable[[CallCounters], int]) -> UInt64:
        return column(count(counters) for _, _, _, counters in entries)

    return Stats(
        running=running,
        models_loading=states.count(State.LOADING),
        models_ready=states.count(State.READY),
        models_stopping=states.count(State.STOPPING),
        model_id=column(handle for handle, _, _, _ in models),
        model_name=tuple(name for _, name, _, _ in models),
        model_task=np.array([task for _, _, task, _ in models], np.int32),
        model_state=np.array(states, np.int32),
        call_model_id=column(handle for handle, _, _, _ in entries),
        call_model_name=tuple(name for _, name, _, _ in entries),
        call=np.array([call for _, _, call, _ in entries], np.int32),
        accepted=counted(lambda c: c.accepted),
        completed=counted(lambda c: c.completed),
        failed=counted(lambda c: c.failed),
        expired=counted(lambda c: c.expired),
        cancelled=counted(lambda c: c.cancelled),
        in_flight=counted(lambda c: c.in_flight),
        refused=counted(lambda c: c.refused),
        tokens=counted(lambda c: c.tokens),
        truncated=counted(lambda c: c.truncated),
        batches=counted(lambda c: c.batches),
        bucket_bounds=np.array(BUCKET_BOUNDS, np.float64),
        latency=np.array([counters.latency for _, _, _, counters in entries], np.uint64).reshape(
            len(entries), len(BUCKET_BOUNDS) + 1
        ),
        memory_owner=tuple(owner for owner, _ in memory),
        memory_bytes=np.array([size for _, size in memory], np.int64),
    )
