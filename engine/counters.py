"""Counters and histograms per model and kind of call.

The unit is the row. ``accepted`` is never stored: it is the sum of completed, failed,
expired, cancelled and in flight, so that the books balance at any moment.
"""

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from .errors import SemanticError, Status
from .results import Rows

# Upper bounds in seconds; the last bucket is open. Fixed within an ABI version.
BUCKET_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
# The same for the texts and windows of a run.
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
# A call leaves two notes. One call in so many adds them up, which takes 0.1 ms.
_MOST_NOTES = 32
_MOST_NOTED_ROWS = 32  # a note of more would hold memory that nobody knows of


class Call(IntEnum):
    """Kinds of calls; values of ``semantic_call``."""

    CLASSIFY = 1
    CLASSIFY_PAIRS = 2
    CLASSIFY_TOKENS = 3
    CLASSIFY_TOKEN_PAIRS = 4
    EMBED = 5
    COUNT_TOKENS = 6


class Phase(IntEnum):
    """What a call does one after the other; values of ``semantic_phase``."""

    TOKENIZE = 1
    QUEUE = 2
    RUN = 3
    DECODE = 4


class Ran(NamedTuple):
    """One run of a model: its texts and windows, and the padding that it computed, in tokens."""

    rows: int
    padding_tokens: int


@dataclass(slots=True)
class Histogram:
    """How often values fell between ``bounds``, the last bucket being open, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def note(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: "Histogram") -> None:
        """Add what another one has counted, between the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def _of_seconds() -> Histogram:
    return Histogram(BUCKET_BOUNDS)


@dataclass(slots=True)
class CallCounters:
    """Counters of one kind of call to one model.

    ``latency`` counts calls by their time, ``phases`` those that came so far by the time of each
    phase, ``batch_rows`` runs by the texts and windows in them.
    """

    completed: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    in_flight: int = 0
    refused: int = 0
    tokens: int = 0
    truncated: int = 0
    padding_tokens: int = 0
    latency: Histogram = field(default_factory=_of_seconds)
    phases: dict[Phase, Histogram] = field(
        default_factory=lambda: {phase: _of_seconds() for phase in Phase}
    )
    batch_rows: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS))

    @property
    def batches(self) -> int:
        """Runs of the model, shared ones counted once."""
        return sum(self.batch_rows.counts)

    @property
    def accepted(self) -> int:
        """Rows that were taken on, whatever became of them."""
        return self.completed + self.failed + self.expired + self.cancelled + self.in_flight

    def add(self, other: "CallCounters") -> None:
        """Add another model's counters to these."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name == "phases":
                for phase in Phase:
                    mine[phase].add(theirs[phase])
            elif isinstance(mine, Histogram):
                mine.add(theirs)
            else:
                setattr(self, each.name, mine + theirs)

    def note(self, times: "Times", runs: Iterable[Ran]) -> None:
        """Note how long a call took, and the runs that it led."""
        self.latency.note(times.total)
        for phase, seconds in times.phases.items():
            self.phases[phase].note(seconds)
        for run in runs:
            self.batch_rows.note(run.rows)
            self.padding_tokens += run.padding_tokens

    def settle(
        self, in_flight: int, ended: Mapping[str, int], tokens: int = 0, truncated: int = 0
    ) -> None:
        """Take rows that were in flight off, and add those that ``ended`` by the counter's name.

        All or nothing: what Python is refused the memory to count is counted another time.
        """
        left = self.in_flight - in_flight
        tokens += self.tokens
        truncated += self.truncated
        sums = [(name, getattr(self, name) + count) for name, count in ended.items()]
        for name, value in sums:  # no step from here on needs memory
            setattr(self, name, value)
        self.in_flight = left
        self.tokens = tokens
        self.truncated = truncated


class Times(NamedTuple):
    """Seconds of a call, and of the phases that it came to."""

    total: float
    phases: Mapping[Phase, float]


_ENDED_AS: Mapping[int, str] = {
    Status.OK: "completed",
    Status.DEADLINE: "expired",
    Status.CANCELLED: "cancelled",
}


class Counters:
    """The counters of one model, safe from any thread.

    A call only notes what is to be counted, a single step of the interpreter. Notes are added up
    in their order before anyone reads, and as soon as there are many: to count at once, with caches
    that the run has emptied, took a tenth of what a call costs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Call, CallCounters] = {}
        self._notes: deque[Callable[[], None]] = deque()

    def begin(self, call: Call, rows: int) -> None:
        """Note rows that were admitted and are now in flight."""
        self._notes.append(partial(self._begun, call, rows))

    def _begun(self, call: Call, rows: int) -> None:
        self._of(call).in_flight += rows

    def end(
        self, call: Call, in_flight: int, rows: Rows, runs: Sequence[Ran], times: Times
    ) -> None:
        """Note the end of a call that returned row by row, and the runs that it led."""
        self._notes.append(partial(self._ended, call, in_flight, rows, runs, times))
        if len(self._notes) >= _MOST_NOTES or rows.count > _MOST_NOTED_ROWS:
            with suppress(MemoryError), self._lock:  # it is noted: the next one may add it up
                self._add_up()

    def _ended(
        self, call: Call, in_flight: int, rows: Rows, runs: Sequence[Ran], times: Times
    ) -> None:
        counters = self._of(call)
        ended: dict[str, int] = {}
        if any(rows.status):
            for status in rows.status:
                name = _ENDED_AS.get(status, "failed")
                ended[name] = ended.get(name, 0) + 1
        else:
            ended["completed"] = rows.count
        # Counting tokens scores none.
        tokens = 0 if call is Call.COUNT_TOKENS else sum(rows.scored_token_count)
        counters.note(times, runs)
        counters.settle(in_flight, ended, tokens, sum(rows.truncated))

    def end_failed(
        self,
        call: Call,
        in_flight: int,
        rows: int,
        status: Status,
        runs: Sequence[Ran],
        times: Times,
    ) -> None:
        """Note the end of a call that failed as a whole, and the runs that it led."""
        with self._lock:
            self._add_up()
            counters = self._of(call)
            counters.note(times, runs)
            counters.settle(in_flight, {_ENDED_AS.get(status, "failed"): rows})

    def refuse(self, call: Call, rows: int) -> None:
        """Note rows that were not taken on."""
        with self._lock:
            self._of(call).refused += rows

    def snapshot(self) -> dict[Call, CallCounters]:
        """Return a consistent copy."""
        copy: dict[Call, CallCounters] = {}
        with self._lock:
            self._add_up()
            for call, counters in self._calls.items():
                copy[call] = CallCounters()
                copy[call].add(counters)
        return copy

    def absorb(self, other: dict[Call, CallCounters]) -> None:
        """Add the counters of a model that is gone."""
        with self._lock:
            for call, counters in other.items():
                self._of(call).add(counters)

    def _add_up(self) -> None:
        """Count what was noted; under the lock."""
        notes = self._notes
        while notes:
            notes[0]()  # taken off once it is counted, which Python may be refused the memory for
            notes.popleft()

    def _of(self, call: Call) -> CallCounters:
        counters = self._calls.get(call)
        if counters is None:  # making one takes 15 µs
            counters = self._calls[call] = CallCounters()
        return counters


class Recorder:
    """Notes what becomes of one call's rows, and when."""

    __slots__ = (
        "_call",
        "_counters",
        "_in_flight",
        "_is_noted",
        "_last",
        "_phases",
        "_rows",
        "_started",
        "runs",
    )

    def __init__(self, counters: Counters, call: Call, rows: int) -> None:
        self._counters = counters
        self._call = call
        self._rows = rows
        self._in_flight = 0
        self._is_noted = False
        self._started = self._last = time.perf_counter()
        self._phases: dict[Phase, float] = {}
        self.runs: Sequence[Ran] = ()  # of the model, led by this call

    def admitted(self) -> None:
        """Note that the queue took the rows."""
        self._counters.begin(self._call, self._rows)
        self._in_flight = self._rows  # once they are counted: they are taken off again

    def ended(self, phase: Phase, when: float = 0.0) -> None:
        """Note the end of a phase, by default now: it began when the one before it ended."""
        now = when or time.perf_counter()
        self._phases[phase] = now - self._last
        self._last = now

    def answered(self, rows: Rows) -> None:
        """Note a result, the end of the last phase."""
        self.ended(Phase.DECODE)
        times = Times(self._last - self._started, self._phases)
        self._counters.end(self._call, self._in_flight, rows, self.runs, times)
        self._is_noted = True

    def failed(self, error: BaseException) -> None:
        """Note that the whole call failed, or was not taken on at all, unless it has answered."""
        if self._is_noted:
            return
        status = error.status if isinstance(error, SemanticError) else Status.INTERNAL
        taken_on = self._in_flight or status is Status.INTERNAL or status in _ENDED_AS
        if not taken_on:
            self._counters.refuse(self._call, self._rows)
            return
        times = Times(time.perf_counter() - self._started, self._phases)
        self._counters.end_failed(self._call, self._in_flight, self._rows, status, self.runs, times)
