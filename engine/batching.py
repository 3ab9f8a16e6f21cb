"""Runs what callers submit, several short windows at a time, without threads of its own.

A caller whose model is idle runs its work itself, with no hand-over and no timer. While
``parallel_runs`` runs are under way, callers queue; whoever finishes a run wakes the owner
of the next work, and a run takes along what fits. On CPU that pays only for short windows
of near-equal length, up to a budget of padded tokens; long ones run alone.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from .counters import Ran
from .errors import InternalError, OutOfMemoryError, OverloadedError, SemanticError
from .results import Float32, Int64
from .ticket import FOREVER, Ticket
from .watchdog import Watchdog

# A window joins a run if it is at most this much shorter than the longest one.
_SPARE_TOKENS = 4
_SPARE_SHARE = 8
# Longer windows join only their equals: attention over a long padded row needs the memory of all
# its scores, or a loop over them, and on CPU it never pays.
_LONGEST_PADDED = 512
# How far behind the head of the queue a run looks for more to take along.
_LOOK_AHEAD = 32


class Window(Protocol):
    """One sequence to be scored: ``ids`` and ``type_ids`` int64[tokens]."""

    @property
    def ids(self) -> Int64:
        """Token ids."""

    @property
    def type_ids(self) -> Int64:
        """Token types: 0 for the first sequence, 1 for the second where the model has two."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one model's runs and queue; a long text counts once per window."""

    parallel_runs: int
    batch_rows: int
    batch_tokens: int
    queue_rows: int
    queue_tokens: int


class RunStoppedError(Exception):
    """A run ended because ``RunControl.stop`` was called."""


class RunControl:
    """Lets others stop a run once none of its callers waits for it any more.

    ``layer``: after how many layers the run ends, 0 for all. ``alone``: when it began no other was
    under way or waited, so that it may use all CPUs.
    """

    __slots__ = ("alone", "deadline", "layer", "stop", "stopped", "works")

    def __init__(self, works: Sequence["Work"]) -> None:
        self.works = works
        self.stop: Callable[[], None] | None = None
        self.stopped = False
        self.alone = True
        self.deadline = 0.0
        self.layer = works[0].layer if works else 0
        for work in works:
            self.deadline = max(self.deadline, work.ticket.deadline)

    def expire(self) -> None:
        """Stop the run if every caller's ticket has run out."""
        if all(work.ticket.failure() for work in self.works):
            self.stopped = True
            stop = self.stop
            if stop is not None:
                stop()


class RunsUnderWay:
    """Counts the runs of all models that share the CPUs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._expected = 0

    def expect(self, change: int) -> None:
        """Note work that is to run side by side, or with a negative number that it has ended."""
        with self._lock:
            self._expected += change

    def begin(self) -> bool:
        """Add a run; tell whether it is the only one and no two are expected."""
        with self._lock:
            self._count += 1
            return self._count == 1 and self._expected < 2

    def end(self) -> None:
        """Take a run off."""
        with self._lock:
            self._count -= 1


# Scores windows together: one output per window, or RunStoppedError, or a SemanticError.
Run = Callable[[Sequence[Window], RunControl], Sequence[Float32]]


class Work:
    """The windows of one call, their outputs or errors, and the caller that waits.

    Only work of the same ``layer`` shares a run: after how many layers it ends, 0 for all.
    """

    __slots__ = (
        *("errors", "layer", "missing", "outputs", "runs", "started", "ticket", "waiting"),
        *("wake", "windows"),
    )

    def __init__(self, windows: Sequence[Window], ticket: Ticket, layer: int = 0) -> None:
        self.windows = windows
        self.ticket = ticket
        self.layer = layer
        self.runs: list[Ran] = []  # led by this work's caller
        self.started = 0.0  # when its first run began, of the clock that Recorder reads
        self.outputs: list[Float32 | None] = [None] * len(windows)
        self.errors: list[SemanticError | None] = [None] * len(windows)
        self.missing = len(windows)
        self.waiting = False
        self.wake: threading.Lock | None = None  # held while it waits


class _Group(NamedTuple):
    """Windows of one call that may run together, longest first."""

    work: Work
    indices: Sequence[int]
    longest: int
    shortest: int

    @property
    def tokens(self) -> int:
        return self.longest * len(self.indices)


class Batcher:
    """The queue and the runs of one model."""

    def __init__(
        self, run: Run, limits: Limits, watchdog: Watchdog, all_runs: RunsUnderWay | None = None
    ) -> None:
        """Make the queue; ``all_runs`` counts those of other models too."""
        self._run = run
        self._all_runs = all_runs or RunsUnderWay()
        self.limits = limits
        self._watchdog = watchdog
        self._mutex = threading.Lock()
        self._queue: deque[_Group] = deque()
        self._queued_rows = 0
        self._queued_tokens = 0
        self._waiting: dict[Work, None] = {}
        self._runs: set[RunControl] = set()

    def execute(self, work: Work, on_admitted: Callable[[], None]) -> None:
        """Score the work's windows, or note why not; return when all are settled.

        ``on_admitted`` is called once the work is queued. Raise OverloadedError if the queue
        is full.
        """
        groups = self._plan(work)
        with self._mutex:
            control = self._start_at_once(work, groups)
            if control is None:
                self._admit(groups)
        work.ticket.interrupt = partial(self._interrupt, work)
        try:
            on_admitted()
            if control is not None:
                self._lead(work, groups, control)
            while not self._settled(work):
                self._take_part(work)
        except BaseException:
            with self._mutex:
                if control is not None:
                    self._end(control)
                self._withdraw(work)
            raise
        finally:
            work.ticket.interrupt = None

    def _start_at_once(self, work: Work, groups: list[_Group]) -> RunControl | None:
        """Begin the run of work that an idle model can do in one; it never queues."""
        if len(groups) != 1 or self._queue or len(self._runs) >= self.limits.parallel_runs:
            return None
        control = RunControl((work,))
        self._begin(control)
        return control

    def _begin(self, control: RunControl) -> None:
        self._runs.add(control)
        control.alone = self._all_runs.begin() and not self._queue

    def _end(self, control: RunControl) -> None:
        if control in self._runs:
            self._runs.remove(control)
            self._all_runs.end()

    def _take_part(self, work: Work) -> None:
        """Lead the next run if there is room for it, else wait to be woken."""
        with self._mutex:
            taken = self._take()
            control = RunControl([group.work for group in taken])
            if taken:
                self._begin(control)
            elif work.missing and not work.ticket.cancelled:
                work.waiting = True
                work.wake = threading.Lock()
                work.wake.acquire()
                self._waiting[work] = None
            wake = work.wake if work.waiting else None
        if taken:
            self._lead(work, taken, control)
        elif wake is not None:
            self._wait(work, wake)

    def _plan(self, work: Work) -> list[_Group]:
        """Split the windows into runs: near-equal lengths, within the budget."""
        lengths = [len(window.ids) for window in work.windows]
        if len(lengths) == 1:
            return [_Group(work, (0,), lengths[0], lengths[0])]
        limits = self.limits
        groups: list[_Group] = []
        members: list[int] = []
        longest = 0
        order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
        for index in order:
            length = lengths[index]
            if members and not (
                len(members) < limits.batch_rows
                and longest * (len(members) + 1) <= limits.batch_tokens
                and _near(longest, length)
            ):
                groups.append(_Group(work, members, longest, lengths[members[-1]]))
                members = []
            if not members:
                longest = length
            members.append(index)
        if members:
            groups.append(_Group(work, members, longest, lengths[members[-1]]))
        return groups

    def _admit(self, groups: list[_Group]) -> None:
        rows = sum(len(group.indices) for group in groups)
        tokens = sum(group.tokens for group in groups)
        limits = self.limits
        # Work that meets an empty queue is taken on whatever its size: it could never be.
        if self._queue and (
            self._queued_rows + rows > limits.queue_rows
            or self._queued_tokens + tokens > limits.queue_tokens
        ):
            raise OverloadedError(
                f"the queue holds {self._queued_rows} rows and {self._queued_tokens} tokens of "
                f"at most {limits.queue_rows} and {limits.queue_tokens}; send less, or raise "
                "queue_rows and queue_tokens"
            )
        self._queue.extend(groups)
        self._queued_rows += rows
        self._queued_tokens += tokens

    def _take(self) -> list[_Group]:
        """Take the next run off the queue; empty if there is none or no room for it."""
        limits = self.limits
        if not self._queue or len(self._runs) >= limits.parallel_runs:
            return []
        head = self._dequeue(0)
        taken, longest, shortest = [head], head.longest, head.shortest
        rows, position = len(head.indices), 0
        while position < min(len(self._queue), _LOOK_AHEAD):
            other = self._queue[position]
            together = max(longest, other.longest)
            more = rows + len(other.indices)
            if (
                other.work.layer == head.work.layer
                and more <= limits.batch_rows
                and together * more <= limits.batch_tokens
                and _near(together, min(shortest, other.shortest))
            ):
                taken.append(self._dequeue(position))
                longest, shortest, rows = together, min(shortest, other.shortest), more
            else:
                position += 1
        return taken

    def _dequeue(self, position: int) -> _Group:
        group = self._queue[position]
        del self._queue[position]
        self._queued_rows -= len(group.indices)
        self._queued_tokens -= group.tokens
        return group

    def _lead(self, leader: Work, taken: list[_Group], control: RunControl) -> None:
        """Run what was taken and hand out the outputs."""
        members = [(group.work, index) for group in taken for index in group.indices]
        watched = control.deadline < FOREVER
        now = time.perf_counter()
        for group in taken:
            group.work.started = group.work.started or now
        outcomes: list[Float32 | SemanticError] = []
        error: SemanticError | None = None
        try:
            if watched:
                self._watchdog.watch(control)
            if leader.ticket.failure() is not None:  # before the run could be found
                control.expire()
            if not control.stopped:
                self._score(leader, members, control, outcomes)
        except RunStoppedError:
            pass  # every caller has its own reason in its ticket
        except SemanticError as raised:  # no one could watch over the deadline
            error = raised.detached()
        except BaseException:
            error = InternalError("the run failed unexpectedly; please report this")
            raise
        finally:
            if watched:
                self._watchdog.release(control)
            with self._mutex:
                self._end(control)
                self._hand_out(members, outcomes, error)
                self._wake_next()

    def _score(
        self,
        leader: Work,
        members: Sequence[tuple[Work, int]],
        control: RunControl,
        outcomes: list[Float32 | SemanticError],
    ) -> None:
        """Add the outcome of each window; where a run fails, its windows run one by one.

        One text can make a model fail: that is no matter of the texts that shared its run.
        """
        windows = [work.windows[index] for work, index in members]
        lengths = [len(window.ids) for window in windows]
        leader.runs.append(Ran(len(windows), max(lengths) * len(windows) - sum(lengths)))
        try:
            outcomes += self._run(windows, control)
        except MemoryError:
            failed: SemanticError = OutOfMemoryError(
                "the system refused the memory of a run; send shorter texts"
            )
        except SemanticError as raised:
            failed = raised.detached()
        else:
            return
        if len(members) == 1:
            outcomes.append(failed)
            return
        for member in members:
            given_up = member[0].ticket.failure()
            if given_up is None:
                self._score(leader, [member], control, outcomes)
            else:
                outcomes.append(given_up)

    def _hand_out(
        self,
        members: Sequence[tuple[Work, int]],
        outcomes: Sequence[Float32 | SemanticError],
        error: SemanticError | None,
    ) -> None:
        """Settle each window with its outcome; those beyond the outcomes never ran."""
        for position, (work, index) in enumerate(members):
            outcome = outcomes[position] if position < len(outcomes) else None
            if isinstance(outcome, SemanticError):
                work.errors[index] = outcome
            elif outcome is not None:
                work.outputs[index] = outcome
            else:
                work.errors[index] = error or work.ticket.failure() or _stopped_early()
            work.missing -= 1
            if work.missing == 0:
                self._wake(work)

    def _wake_next(self) -> None:
        """Let a waiting caller run the next work, its own if it can be."""
        if not self._queue or len(self._runs) >= self.limits.parallel_runs:
            return
        owner = self._queue[0].work
        if owner.waiting:
            self._wake(owner)
        else:
            waiting = next(iter(self._waiting), None)
            if waiting is not None:
                self._wake(waiting)

    def _wake(self, work: Work) -> None:
        if work.waiting:
            work.waiting = False
            self._waiting.pop(work, None)
            if work.wake is not None:
                work.wake.release()

    def _wait(self, work: Work, wake: threading.Lock) -> None:
        remaining = work.ticket.remaining()
        if wake.acquire(timeout=-1 if remaining is None else remaining):
            return
        with self._mutex:
            if work.waiting:
                work.waiting = False
                self._waiting.pop(work, None)
                return
        wake.acquire()  # woken just as the time ran out

    def _settled(self, work: Work) -> bool:
        """Tell whether nothing is left to do; give up the rest if the ticket has run out."""
        if work.missing == 0:
            return True
        failure = work.ticket.failure()
        if failure is None:
            return False
        with self._mutex:
            for index, output in enumerate(work.outputs):
                if output is None and work.errors[index] is None:
                    work.errors[index] = failure
            self._withdraw(work)
        return True

    def _withdraw(self, work: Work) -> None:
        """Forget work whose caller goes: it neither queues nor waits any more."""
        own = [group for group in self._queue if group.work is work]
        for group in own:
            self._queued_rows -= len(group.indices)
            self._queued_tokens -= group.tokens
        if own:
            self._queue = deque(group for group in self._queue if group.work is not work)
        work.waiting = False
        self._waiting.pop(work, None)
        self._wake_next()

    def _interrupt(self, work: Work) -> None:
        """Look at a cancelled ticket now."""
        with self._mutex:
            self._wake(work)
            runs = [control for control in self._runs if work in control.works]
        for control in runs:
            control.expire()


def _stopped_early() -> InternalError:
    return InternalError("a run was stopped although its caller still waited; please report this")


def _near(longest: int, shortest: int) -> bool:
    if longest > _LONGEST_PADDED:
        return longest == shortest
    return longest - shortest <= max(_SPARE_TOKENS, longest // _SPARE_SHARE)
