"""Counters and histograms per model and kind of call.

The unit is the row. ``accepted`` is never stored: it is the sum of completed, failed,
expired, cancelled and in flight, so that the books balance at any moment.
"""

import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
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

    A call only notes what is to be counted, a single step of the interpreter. Notes are counted
    in their order before anyone reads, and as soon as there are many: to count at once, with caches
    that the run has emptied, took a tenth of what a call costs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[Call, CallCounters] = {}
        self._notes: deque[Callable[[], None]] = deque()

    def note(self, count: Callable[[], None], *, soon: bool = False) -> None:
        """Let ``count`` be called under the lock: again if it was interrupted or refused memory."""
        self._notes.append(count)
        if soon or len(self._notes) >= _MOST_NOTES:
            with suppress(MemoryError), self._lock:  # it is noted: the next one may count it
                self._count_notes()

    def snapshot(self) -> dict[Call, CallCounters]:
        """Return a consistent copy."""
        copy: dict[Call, CallCounters] = {}
        with self._lock:
            self._count_notes()
            for call, counters in self._calls.items():
                copy[call] = CallCounters()
                copy[call].add(counters)
        return copy

    def absorb(self, other: dict[Call, CallCounters]) -> None:
        """Add the counters of a model that is gone."""
        with self._lock:
            for call, counters in other.items():
                self.of(call).add(counters)

    def _count_notes(self) -> None:
        notes = self._notes
        while notes:
            notes[0]()
            notes.popleft()

    def of(self, call: Call) -> CallCounters:
        """Return the counters of a kind of call; under the lock."""
        counters = self._calls.get(call)
        if counters is None:  # making one takes 15 µs
            counters = self._calls[call] = CallCounters()
        return counters


class Recorder:
    """Notes what becomes of one call's rows, and when.

    What is noted counts once, whatever is noted twice or counted again: a call may be interrupted,
    or refused memory, at any step.
    """

    __slots__ = (
        "_call",
        "_counters",
        "_is_admitted",
        "_is_ended",
        "_last",
        "_phases",
        "_rows",
        "_started",
        "_was_admitted",
        "runs",
    )

    def __init__(self, counters: Counters, call: Call, rows: int) -> None:
        self._counters = counters
        self._call = call
        self._rows = rows
        self._is_admitted = self._is_ended = False  # as far as it is counted
        self._was_admitted = False
        self._started = self._last = time.perf_counter()
        self._phases: dict[Phase, float] = {}
        self.runs: Sequence[Ran] = ()  # of the model, led by this call

    def admitted(self) -> None:
        """Note that the queue took the rows."""
        self._was_admitted = True
        self._counters.note(self._count_admitted)

    def _count_admitted(self) -> None:
        counters = self._counters.of(self._call)
        if not self._is_admitted:
            counters.in_flight += self._rows
            self._is_admitted = True

    def ended(self, phase: Phase, when: float = 0.0) -> None:
        """Note the end of a phase, by default now: it began when the one before it ended."""
        now = when or time.perf_counter()
        self._phases[phase] = now - self._last
        self._last = now

    def answered(self, rows: Rows) -> None:
        """Note a result, the end of the last phase."""
        self.ended(Phase.DECODE)
        times = Times(self._last - self._started, self._phases)
        many = rows.count > _MOST_NOTED_ROWS
        self._counters.note(partial(self._count_answer, rows, times), soon=many)

    def _count_answer(self, rows: Rows, times: Times) -> None:
        if any(rows.status):
            ended: Mapping[str, int] = Tally(_ENDED_AS.get(each, "failed") for each in rows.status)
        else:
            ended = {"completed": rows.count}
        # Counting tokens scores none.
        tokens = 0 if self._call is Call.COUNT_TOKENS else sum(rows.scored_token_count)
        self._count_end(ended, times, tokens, sum(rows.truncated))

    def failed(self, error: BaseException) -> None:
        """Note that the whole call failed, or was not taken on at all, unless it has answered."""
        status = error.status if isinstance(error, SemanticError) else Status.INTERNAL
        taken_on = self._was_admitted or status is Status.INTERNAL or status in _ENDED_AS
        name = _ENDED_AS.get(status, "failed") if taken_on else "refused"
        times = Times(time.perf_counter() - self._started, self._phases) if taken_on else None
        self._counters.note(partial(self._count_end, {name: self._rows}, times))

    def _count_end(
        self, ended: Mapping[str, int], times: Times | None, tokens: int = 0, truncated: int = 0
    ) -> None:
        """Count rows by what became of them; ``times`` is None for a call that was refused."""
        counters = self._counters.of(self._call)
        if self._is_ended:
            return
        count = ended.get
        # All or nothing: nothing can come between the values and what holds them.
        (
            counters.in_flight,
            counters.completed,
            counters.failed,
            counters.expired,
            counters.cancelled,
            counters.refused,
            counters.tokens,
            counters.truncated,
            self._is_ended,
        ) = (
            counters.in_flight - (self._rows if self._is_admitted else 0),
            counters.completed + count("completed", 0),
            counters.failed + count("failed", 0),
            counters.expired + count("expired", 0),
            counters.cancelled + count("cancelled", 0),
            counters.refused + count("refused", 0),
            counters.tokens + tokens,
            counters.truncated + truncated,
            True,
        )
        if times is not None:
            counters.note(times, self.runs)
