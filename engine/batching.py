"""Runs what callers submit, several short windows at a time, without threads of its own.

A caller whose model is idle runs its work itself, with no hand-over and no timer. While
``parallel_runs`` runs of the model are under way, or as many of all models as the CPUs take,
callers queue; whoever ends a run begins the next one for one of them, and a run takes along what
fits (``grouping``), the oldest first.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from .counters import Ran
from .errors import InternalError, OutOfMemoryError, OverloadedError, SemanticError
from .grouping import Limits, split
from .results import Float32, Int64
from .scheduler import Scheduler
from .ticket import FOREVER, Ticket
from .watchdog import Watchdog

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


# Scores windows together: one output per window, or RunStoppedError, or a SemanticError.
Run = Callable[[Sequence[Window], RunControl], Sequence[Float32]]


class Work:
    """The windows of one call, their outputs or errors, and the caller that waits.

    Only work of the same ``layer`` shares a run: after how many layers it ends, 0 for all.
    """

    __slots__ = (
        *("arrival", "errors", "layer", "missing", "outputs", "runs", "started", "ticket"),
        *("turn", "waiting", "wake", "windows"),
    )

    def __init__(self, windows: Sequence[Window], ticket: Ticket, layer: int = 0) -> None:
        self.windows = windows
        self.ticket = ticket
        self.layer = layer
        self.arrival = 0
        self.runs: list[Ran] = []  # led by this work's caller
        self.started = 0.0  # when its first run began, of the clock that Recorder reads
        self.outputs: list[Float32 | None] = [None] * len(windows)
        self.errors: list[SemanticError | None] = [None] * len(windows)
        self.missing = len(windows)
        self.waiting = False
        self.wake: threading.Lock | None = None  # held while it waits
        self.turn: _Turn | None = None  # a run that has begun and that this work's caller leads


class _Group(NamedTuple):
    """Windows of one call that may run together, longest first."""

    work: Work
    indices: Sequence[int]
    longest: int
    shortest: int

    @property
    def tokens(self) -> int:
        return self.longest * len(self.indices)

    def left(self) -> "_Group | None":
        """Return the group of those windows that have no outcome yet."""
        work = self.work
        indices = [i for i in self.indices if work.outputs[i] is None and work.errors[i] is None]
        if not indices:
            return None
        longest, shortest = (len(work.windows[i].ids) for i in (indices[0], indices[-1]))
        return _Group(work, indices, longest, shortest)


class _Turn(NamedTuple):
    """A run that has begun, and what was taken off the queue for it."""

    taken: list[_Group]
    control: RunControl


class Batcher:
    """The queue and the runs of one model."""

    def __init__(
        self, run: Run, limits: Limits, watchdog: Watchdog, scheduler: Scheduler | None = None
    ) -> None:
        """Make the queue; ``scheduler`` shares the CPUs with other models."""
        self._run = run
        self._scheduler = scheduler or Scheduler()
        self.limits = limits
        self._watchdog = watchdog
        self._mutex = self._scheduler.mutex
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
        work.ticket.interrupt = partial(self._interrupt, work)
        try:
            with self._mutex:
                if len(groups) == 1 and not self._queue and self._has_room():
                    self._begin(work, groups)  # it never queues
                else:
                    self._admit(work, groups)
            on_admitted()
            while True:
                if work.turn is not None:
                    self._lead(work, work.turn)
                elif self._settled(work):
                    break
                elif work.waiting:
                    self._wait(work)
                else:
                    self._take_part(work)
        except BaseException:
            with self._mutex:
                self._give_back(work)
                self._withdraw(work)
            raise
        finally:
            work.ticket.interrupt = None

    # ---- what the scheduler asks for, under the mutex

    @property
    def oldest(self) -> int:
        """When the work came that is next."""
        return self._queue[0].work.arrival

    def can_begin(self) -> bool:
        """Tell whether a run could begin but for other models: someone must be free to lead it."""
        return bool(self._queue and self._waiting) and len(self._runs) < self.limits.parallel_runs

    def begin(self) -> None:
        """Begin the next run; of those whose work it takes along, one leads it if it can."""
        taken = self._take()
        try:
            for group in taken:
                if group.work.waiting:
                    leader = group.work
                    break
            else:  # they lead other runs; who came last has the longest to wait
                leader = next(reversed(self._waiting))
            self._begin(leader, taken)
        except BaseException:  # Python was refused memory
            self._put_back(taken)
            raise
        self._wake(leader)

    # ---- runs

    def _has_room(self) -> bool:
        return len(self._runs) < self.limits.parallel_runs and self._scheduler.has_room()

    def _begin(self, leader: Work, taken: list[_Group]) -> None:
        """Note a run that begins; where Python is refused memory, nothing is noted."""
        control = RunControl([group.work for group in taken])
        scheduler = self._scheduler
        control.alone = not scheduler.runs and len(scheduler.expected) < 2 and self._only(leader)
        turn = _Turn(taken, control)
        try:
            self._runs.add(control)
            scheduler.runs.add(control)
        except BaseException:
            self._end(control)
            raise
        leader.turn = turn

    def _only(self, work: Work) -> bool:
        """Tell whether nobody else's work waits; that of one call lies together."""
        queue = self._queue
        if not queue:
            return not self._scheduler.queues
        return len(self._scheduler.queues) == 1 and queue[0].work is queue[-1].work is work

    def _end(self, control: RunControl) -> None:
        self._runs.discard(control)
        self._scheduler.runs.discard(control)

    def _give_back(self, work: Work) -> None:
        """Let others lead what is left of the run of a caller who leaves."""
        if work.turn is None:
            return
        taken, control = work.turn
        work.turn = None
        self._end(control)
        others = [group for group in taken if group.work is not work]
        self._put_back([left for group in others if (left := group.left()) is not None])
        for group in others:
            if group.work.missing == 0:
                self._wake(group.work)

    def _put_back(self, taken: Sequence[_Group]) -> None:
        for group in reversed(taken):
            if group.work.ticket.failure() is None:
                self._queue.appendleft(group)
                self._count(group, 1)

    def _plan(self, work: Work) -> list[_Group]:
        """Split the windows into groups for a run each."""
        if len(work.windows) == 1:
            length = len(work.windows[0].ids)
            return [_Group(work, (0,), length, length)]
        lengths = [len(window.ids) for window in work.windows]
        return [
            _Group(work, indices, lengths[indices[0]], lengths[indices[-1]])
            for indices in split(lengths, self.limits)
        ]

    # ---- the queue

    def _admit(self, work: Work, groups: list[_Group]) -> None:
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
        work.arrival = next(self._scheduler.arrivals)
        for group in groups:
            self._queue.append(group)
            self._count(group, 1)

    def _take(self) -> list[_Group]:
        """Take the next run off the queue."""
        head = self._dequeue(0)
        taken, longest, shortest = [head], head.longest, head.shortest
        rows, position = len(head.indices), 0
        while position < min(len(self._queue), _LOOK_AHEAD):
            other = self._queue[position]
            together = max(longest, other.longest)
            least = min(shortest, other.shortest)
            more = rows + len(other.indices)
            if other.work.layer == head.work.layer and self.limits.fits(more, together, least):
                taken.append(self._dequeue(position))
                longest, shortest, rows = together, least, more
            else:
                position += 1
        return taken

    def _dequeue(self, position: int) -> _Group:
        group = self._queue[position]
        del self._queue[position]
        self._count(group, -1)
        return group

    def _count(self, group: _Group, sign: int) -> None:
        """Note that a group has come to the queue or left it."""
        self._queued_rows += sign * len(group.indices)
        self._queued_tokens += sign * group.tokens
        if self._queue:
            self._scheduler.queues[self] = None
        else:
            self._scheduler.queues.pop(self, None)

    # ---- what a caller does

    def _lead(self, leader: Work, turn: _Turn) -> None:
        """Run what was taken and hand out the outputs."""
        taken, control = turn
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
                leader.turn = None  # who is interrupted before gives back what is left
                if leader.missing and leader.ticket.failure() is None:
                    self._let_wait(leader)
                self._scheduler.dispatch()

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

    def _take_part(self, work: Work) -> None:
        """Let the caller lead a run, its own if it can be, as soon as there is room for one."""
        with self._mutex:
            if work.turn is None and work.missing and not work.ticket.cancelled:
                self._let_wait(work)
                self._scheduler.dispatch()

    def _let_wait(self, work: Work) -> None:
        work.wake = threading.Lock()
        work.wake.acquire()
        work.waiting = True
        self._waiting[work] = None

    def _wake(self, work: Work) -> None:
        if work.waiting:
            work.waiting = False
            self._waiting.pop(work, None)
            if work.wake is not None:
                work.wake.release()

    def _wait(self, work: Work) -> None:
        """Wait for a turn, an answer or the end of the time."""
        assert work.wake is not None
        remaining = work.ticket.remaining()
        work.wake.acquire(timeout=-1 if remaining is None else remaining)

    def _settled(self, work: Work) -> bool:
        """Tell whether nothing is left to do; give up the rest if the ticket has run out."""
        if work.missing == 0:
            return True
        failure = work.ticket.failure()
        if failure is None:
            return False
        with self._mutex:
            if work.turn is not None:  # others wait for the run that it was to lead just now
                return False
            for index, output in enumerate(work.outputs):
                if output is None and work.errors[index] is None:
                    work.errors[index] = failure
            self._withdraw(work)
        return True

    def _withdraw(self, work: Work) -> None:
        """Forget work whose caller goes: it neither queues nor waits any more."""
        own = [group for group in self._queue if group.work is work]
        if own:
            self._queue = deque(group for group in self._queue if group.work is not work)
            for group in own:
                self._count(group, -1)
        work.waiting = False
        self._waiting.pop(work, None)
        self._scheduler.dispatch()

    def _interrupt(self, work: Work) -> None:
        """Look at a cancelled ticket now."""
        with self._mutex:
            self._wake(work)
            runs = [control for control in self._runs if work in control.works]
        for control in runs:
            control.expire()


def _stopped_early() -> InternalError:
    return InternalError("a run was stopped although its caller still waited; please report this")
