"""The queue and the runs: what runs together, what is refused, expired, cancelled or failed."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libsemantic.engine.batching import (
    Batcher,
    RunControl,
    RunStoppedError,
    Work,
)
from libsemantic.engine.batching import Window as AnyWindow
from libsemantic.engine.counters import Ran
from libsemantic.engine.errors import (
    CancelledError,
    DeadlineError,
    InternalError,
    OutOfMemoryError,
    OverloadedError,
    SemanticError,
)
from libsemantic.engine.grouping import Limits
from libsemantic.engine.results import Float32
from libsemantic.engine.scheduler import Scheduler
from libsemantic.engine.ticket import Ticket, Tickets
from libsemantic.engine.watchdog import Watchdog

SOON = 10.0  # seconds that nothing here takes unless it hangs
LIMITS = Limits(
    parallel_runs=1, batch_rows=32, batch_tokens=256, queue_rows=1000, queue_tokens=100_000
)


@dataclass(frozen=True, slots=True)
class Window:
    """A window that is known by its first id."""

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]


def window(name: int, length: int) -> Window:
    return Window(np.full(length, name, np.int64), np.zeros(length, np.int64))


def work(*lengths: int, ticket: Ticket | None = None, first: int = 1, layer: int = 0) -> Work:
    windows = [window(first + index, length) for index, length in enumerate(lengths)]
    return Work(windows, ticket or Ticket(), layer)


def names(windows: Sequence[AnyWindow]) -> list[int]:
    return [int(each.ids[0]) for each in windows]


def answers(done: Work) -> list[float | None]:
    """Return what came back for each window: twice its name, or None."""
    return [None if output is None else float(output[0]) for output in done.outputs]


def right(done: Work) -> bool:
    return answers(done) == [2.0 * name for name in names(done.windows)] and not any(done.errors)


class Runs:
    """A run function that notes each batch, and waits for as long as ``holds`` says so."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.lengths: list[list[int]] = []
        self.threads: set[int] = set()
        self.alone: list[bool] = []
        self.entered = threading.Semaphore(0)
        self.holds: Callable[[list[int]], bool] = self.no_one
        self.stopped = threading.Event()
        self.error: BaseException | None = None
        self.fails: set[int] = set()  # windows that fail with the error; all if there are none
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self, windows: Sequence[AnyWindow], control: RunControl) -> list[Float32]:
        with self._lock:
            self.batches.append(names(windows))
            self.lengths.append([len(each.ids) for each in windows])
            self.threads.add(threading.get_ident())
            self.alone.append(control.alone)
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
        stop = threading.Event()
        control.stop = stop.set
        try:
            self.entered.release()
            while self.holds(names(windows)):
                if stop.wait(0.002) or control.stopped:
                    self.stopped.set()
                    raise RunStoppedError
            if self.error is not None and (
                not self.fails or self.fails.intersection(names(windows))
            ):
                raise self.error
            return [np.array([2.0 * name], np.float32) for name in names(windows)]
        finally:
            with self._lock:
                self.at_once -= 1

    @staticmethod
    def no_one(_: list[int]) -> bool:
        return False

    def close(self) -> None:
        self.holds = lambda _: True

    def open(self) -> None:
        self.holds = self.no_one

    def wait_for_a_run(self) -> None:
        assert self.entered.acquire(timeout=SOON)


class Caller(threading.Thread):
    """A caller in a thread of its own."""

    def __init__(self, batcher: Batcher, own: Work) -> None:
        super().__init__(daemon=True)
        self.batcher = batcher
        self.own = own
        self.error: BaseException | None = None
        self.took = 0.0
        self.admitted = 0
        self.start()

    def run(self) -> None:
        started = time.monotonic()
        try:
            self.batcher.execute(self.own, self.note)
        except BaseException as error:
            self.error = error
        self.took = time.monotonic() - started

    def note(self) -> None:
        self.admitted += 1

    def finish(self) -> Work:
        self.join(SOON)
        assert not self.is_alive(), "the caller hangs"
        return self.own


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.001)


def kinds(done: Work) -> list[type[BaseException] | None]:
    return [None if error is None else type(error) for error in done.errors]


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def batcher(runs: Runs, watchdog: Watchdog) -> Batcher:
    return Batcher(runs, LIMITS, watchdog)


def ignore() -> None:
    pass


# A caller alone


def test_a_single_caller_runs_its_own_work_at_once(batcher: Batcher, runs: Runs) -> None:
    before = threading.enumerate()
    own = work(5)
    noted: list[list[list[int]]] = []
    batcher.execute(own, lambda: noted.append(list(runs.batches)))
    assert right(own)
    assert runs.threads == {threading.get_ident()}
    assert threading.enumerate() == before
    assert noted == [[]]  # admitted once, before anything ran
    assert own.runs == [Ran(1, 0)]
    assert own.wake is None  # it never waited


def test_only_a_run_beside_no_other_of_any_model_is_alone(runs: Runs, watchdog: Watchdog) -> None:
    scheduler = Scheduler()
    first, second = (Batcher(runs, LIMITS, watchdog, scheduler) for _ in range(2))
    runs.close()
    callers = [Caller(first, work(5, first=1))]
    runs.wait_for_a_run()
    callers.append(Caller(second, work(5, first=2)))
    runs.wait_for_a_run()
    # These two cannot share a run: the first of them leaves the other one waiting.
    callers += [Caller(first, work(length, first=3)) for length in (100, 200)]
    until(lambda: len(first._queue) == 2)
    runs.open()
    for caller in callers:
        assert right(caller.finish())
    assert runs.alone[:3] == [True, False, False]
    runs.error = InternalError("out of order")
    first.execute(work(5), ignore)
    second.execute(work(5), ignore)
    assert runs.alone[4:] == [True, True]


def test_nothing_to_do_runs_nothing(batcher: Batcher, runs: Runs) -> None:
    own = work()
    batcher.execute(own, ignore)
    assert (own.runs, runs.batches) == ([], [])


# What runs together


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=80),
    rows=st.integers(1, 40),
    tokens=st.integers(1, 600),
)
def test_runs_are_near_equal_and_within_the_budget(
    lengths: list[int], rows: int, tokens: int
) -> None:
    runs = Runs()
    batcher = Batcher(runs, Limits(1, rows, tokens, 1000, 10**6), Watchdog())
    own = work(*lengths)
    batcher.execute(own, ignore)
    assert right(own)
    assert sorted(name for batch in runs.batches for name in batch) == names(own.windows)
    assert own.runs == [
        Ran(len(batch), max(batch) * len(batch) - sum(batch)) for batch in runs.lengths
    ]
    for batch in runs.lengths:
        longest, shortest = max(batch), min(batch)
        assert len(batch) <= rows
        assert len(batch) == 1 or longest * len(batch) <= tokens
        assert longest - shortest <= (max(4, longest // 8) if longest <= 512 else 0)


def test_runs_are_filled(batcher: Batcher, runs: Runs) -> None:
    batcher.execute(work(*[8] * 64), ignore)
    assert [len(batch) for batch in runs.batches] == [32, 32]
    runs.batches.clear()
    batcher.execute(work(*[100] * 5), ignore)
    assert [len(batch) for batch in runs.batches] == [2, 2, 1]  # 256 tokens
    runs.batches.clear()
    batcher.execute(work(*[129] * 3), ignore)
    assert [len(batch) for batch in runs.batches] == [1, 1, 1]
    runs.batches.clear()
    batcher.execute(work(64, 56, 55), ignore)  # up to an eighth shorter
    assert [len(batch) for batch in runs.batches] == [2, 1]


def test_long_windows_are_never_padded(watchdog: Watchdog, runs: Runs) -> None:
    batcher = Batcher(runs, Limits(1, 32, 10**6, 1000, 10**6), watchdog)
    batcher.execute(work(513, 512, 513, 512, 511, 900, 899), ignore)
    assert runs.lengths == [[900], [899], [513, 513], [512, 512, 511]]


def test_windows_of_several_callers_run_together(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    leader = Caller(batcher, work(8))
    runs.wait_for_a_run()
    others = [Caller(batcher, work(8, 8, first=10 * number)) for number in (1, 2, 3)]
    long = Caller(batcher, work(200, first=99))
    until(lambda: all(each.own.waiting for each in (*others, long)))
    runs.open()
    for each in (leader, *others, long):
        assert right(each.finish())
        assert each.admitted == 1
    assert runs.batches[0] == [1]
    assert sorted(map(sorted, runs.batches)) == [[1], [10, 11, 20, 21, 30, 31], [99]]
    assert sum(len(each.own.runs) for each in (leader, *others, long)) == 3


def test_only_runs_to_the_same_layer_are_shared(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    leader = Caller(batcher, work(8))
    runs.wait_for_a_run()
    others = [
        Caller(batcher, work(8, first=10 * number, layer=number % 2)) for number in (1, 2, 3, 4)
    ]
    until(lambda: all(each.own.waiting for each in others))
    runs.open()
    for each in (leader, *others):
        assert right(each.finish())
    assert sorted(map(sorted, runs.batches)) == [[1], [10, 30], [20, 40]]


def test_runs_keep_within_the_parallel_limit_and_use_it(watchdog: Watchdog) -> None:
    runs = Runs()
    batcher = Batcher(runs, Limits(2, 4, 64, 1000, 10**6), watchdog)
    runs.close()
    callers = [Caller(batcher, work(20, first=number)) for number in range(5)]
    for _ in range(2):
        runs.wait_for_a_run()
    until(lambda: sum(each.own.waiting for each in callers) == 3)
    assert not runs.entered.acquire(timeout=0.05)
    runs.open()
    assert all(right(each.finish()) for each in callers)
    assert runs.most_at_once == 2


# Overload


@pytest.mark.parametrize(
    ("limits", "queued", "refused"),
    [
        (Limits(1, 32, 256, 3, 10**6), [8, 8], [8, 8]),
        (Limits(1, 32, 256, 1000, 100), [60], [50]),
    ],
    ids=["rows", "tokens"],
)
def test_a_full_queue_refuses_at_once(
    watchdog: Watchdog, limits: Limits, queued: list[int], refused: list[int]
) -> None:
    runs = Runs()
    batcher = Batcher(runs, limits, watchdog)
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    waiting = Caller(batcher, work(*queued, first=10))
    until(lambda: waiting.own.waiting)
    late = Caller(batcher, work(*refused, first=20))
    late.finish()
    assert isinstance(late.error, OverloadedError)
    assert late.took < 1
    assert late.admitted == 0
    size = f"{len(queued)} rows and {sum(queued)} tokens"
    assert size in late.error.message
    assert "queue_rows" in late.error.message
    fits = Caller(batcher, work(refused[0] - 10 if limits.queue_tokens == 100 else 8, first=30))
    until(lambda: fits.own.waiting)
    runs.open()
    assert all(right(each.finish()) for each in (running, waiting, fits))
    assert not {20, 21} & {name for batch in runs.batches for name in batch}


def test_what_runs_does_not_count_as_queued_and_an_empty_queue_takes_anything(
    watchdog: Watchdog,
) -> None:
    runs = Runs()
    batcher = Batcher(runs, Limits(1, 32, 256, 2, 20), watchdog)
    big = work(*[50] * 10)
    batcher.execute(big, ignore)
    assert right(big)
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    waiting = Caller(batcher, work(*[50] * 10, first=100))  # the queue is empty
    until(lambda: waiting.own.waiting)
    late = Caller(batcher, work(1, first=200))
    late.finish()
    assert isinstance(late.error, OverloadedError)
    runs.open()
    assert right(running.finish())
    assert right(waiting.finish())


# Deadlines


def test_a_deadline_while_queued_drops_the_work(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    waiting = Caller(batcher, work(8, 8, ticket=Ticket(60), first=10))
    done = waiting.finish()
    assert 0.05 < waiting.took < 2
    assert waiting.error is None
    assert kinds(done) == [DeadlineError, DeadlineError]
    assert "timeout_ms 60" in str(done.errors[0])
    after = Caller(batcher, work(8, first=20))
    until(lambda: after.own.waiting)
    runs.open()
    assert right(running.finish())
    assert right(after.finish())
    assert runs.batches == [[1], [20]]  # the expired never ran


def test_expired_work_gives_its_place_in_the_queue_back(watchdog: Watchdog) -> None:
    runs = Runs()
    batcher = Batcher(runs, Limits(1, 32, 256, 2, 1000), watchdog)
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    Caller(batcher, work(8, 8, ticket=Ticket(30), first=10)).finish()
    next_one = Caller(batcher, work(8, first=20))
    until(lambda: next_one.own.waiting)
    third = Caller(batcher, work(8, first=30))
    until(lambda: third.own.waiting)
    runs.open()
    assert all(right(each.finish()) for each in (running, next_one, third))


def test_a_deadline_in_flight_stops_the_run(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    caller = Caller(batcher, work(8, 8, ticket=Ticket(300)))
    done = caller.finish()
    assert 0.25 < caller.took < 10
    assert runs.stopped.is_set()
    assert kinds(done) == [DeadlineError, DeadlineError]
    runs.open()
    after = work(8)
    batcher.execute(after, ignore)
    assert right(after)


def test_rows_that_were_done_before_the_deadline_are_kept(batcher: Batcher, runs: Runs) -> None:
    runs.holds = lambda names: 2 in names
    caller = Caller(batcher, work(200, 8, ticket=Ticket(100)))  # two runs, the long one first
    done = caller.finish()
    assert answers(done) == [2.0, None]
    assert kinds(done) == [None, DeadlineError]
    assert runs.batches == [[1], [2]]


def test_a_time_that_ran_out_before_the_start_runs_nothing(batcher: Batcher, runs: Runs) -> None:
    ticket = Ticket(1)
    time.sleep(0.01)
    own = work(8, ticket=ticket)
    batcher.execute(own, ignore)
    assert kinds(own) == [DeadlineError]
    assert runs.batches == []


@pytest.mark.parametrize("timeout", [2**31, 2**63 - 1])
def test_a_time_as_good_as_endless_is_one(batcher: Batcher, runs: Runs, timeout: int) -> None:
    runs.close()
    running = Caller(batcher, work(8, ticket=Ticket(timeout)))
    runs.wait_for_a_run()
    waiting = Caller(batcher, work(8, ticket=Ticket(timeout), first=10))
    until(lambda: waiting.own.waiting or not waiting.is_alive())
    runs.open()
    assert right(running.finish())
    assert right(waiting.finish())
    assert waiting.error is None


def test_the_expiry_of_one_does_not_stop_the_others(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    first = Caller(batcher, work(100))
    runs.wait_for_a_run()
    patient = Caller(batcher, work(8, first=10))
    until(lambda: patient.own.waiting)
    hasty = Caller(batcher, work(8, ticket=Ticket(400), first=20))
    until(lambda: hasty.own.waiting)
    runs.holds = lambda names: 10 in names
    assert right(first.finish())
    runs.wait_for_a_run()
    assert runs.batches[-1] == [10, 20]
    done = hasty.finish()  # while the run is still under way
    assert 0.3 < hasty.took < 3
    assert kinds(done) == [DeadlineError]
    assert not runs.stopped.is_set()
    assert patient.is_alive()
    runs.open()
    assert right(patient.finish())
    assert kinds(done) == [DeadlineError]


def test_all_callers_of_a_run_expire_together(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    first = Caller(batcher, work(100))
    runs.wait_for_a_run()
    waiting = [
        Caller(batcher, work(8, ticket=Ticket(timeout), first=timeout)) for timeout in (200, 400)
    ]
    until(lambda: all(each.own.waiting for each in waiting))
    runs.holds = lambda names: names[0] >= 100
    assert right(first.finish())
    for each in waiting:
        assert kinds(each.finish()) == [DeadlineError]
        assert each.took < 3
    assert sorted(runs.batches[-1]) == [200, 400]
    assert runs.stopped.is_set()


def test_a_run_is_stopped_only_when_no_one_waits_for_it() -> None:
    control = RunControl([work(8, ticket=Ticket(50)), work(8, ticket=Ticket(5000))])
    assert control.deadline == control.works[1].ticket.deadline
    stopped: list[bool] = []
    control.stop = lambda: stopped.append(True)
    time.sleep(0.06)
    control.expire()
    assert (stopped, control.stopped) == ([], False)
    control.works[1].ticket.cancelled = True
    control.expire()
    assert (stopped, control.stopped) == ([True], True)
    assert RunControl([work(8, ticket=Ticket(50)), work(8)]).deadline == float("inf")


# Cancelling


def test_queued_work_is_cancelled(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    waiting = Caller(batcher, work(8, 8, first=10))
    until(lambda: waiting.own.waiting)
    waiting.own.ticket.cancel()
    assert kinds(waiting.finish()) == [CancelledError, CancelledError]
    assert running.is_alive()
    runs.open()
    assert right(running.finish())
    assert runs.batches == [[1]]


def test_running_work_is_cancelled(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    running.own.ticket.cancel()
    assert kinds(running.finish()) == [CancelledError]
    assert runs.stopped.is_set()


def test_cancelling_the_leader_leaves_its_followers(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    first = Caller(batcher, work(100))
    runs.wait_for_a_run()
    leader = Caller(batcher, work(8, first=10))
    until(lambda: leader.own.waiting)
    follower = Caller(batcher, work(8, first=20))
    until(lambda: follower.own.waiting)
    leader.own.ticket.cancel()
    assert kinds(leader.finish()) == [CancelledError]
    runs.open()
    assert right(first.finish())
    assert right(follower.finish())


class Raced(Ticket):
    """A ticket that is cancelled just after someone looked at it for the first time."""

    __slots__ = ("looks",)

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def failure(self) -> DeadlineError | CancelledError | None:
        found = super().failure()
        assert found is None or isinstance(found, CancelledError)
        self.looks += 1
        if self.looks == 1:
            self.cancel()
        return found


def test_a_cancellation_just_before_waiting_is_not_lost(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    running = Caller(batcher, work(8))
    runs.wait_for_a_run()
    raced = Caller(batcher, work(8, ticket=Raced(), first=10))
    assert kinds(raced.finish()) == [CancelledError]
    assert running.is_alive()
    runs.open()
    assert right(running.finish())


def test_a_cancellation_just_before_running_is_not_lost(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    raced = Caller(batcher, work(8, ticket=Raced()))
    assert kinds(raced.finish()) == [CancelledError]


def test_keys_cancel_what_carries_them() -> None:
    tickets = Tickets()
    one, two, other = tickets.open(0, 7), tickets.open(0, 7), tickets.open(0, 8)
    assert tickets.cancel(7)
    assert [each.cancelled for each in (one, two, other)] == [True, True, False]
    tickets.close(other)
    assert not tickets.cancel(8)
    assert not other.cancelled
    another, unkeyed = tickets.open(0, 9), tickets.open(0, 0)
    tickets.cancel_all()
    assert another.cancelled
    assert unkeyed.cancelled


# Errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InternalError("ONNX Runtime failed in a run"), InternalError),
        (OutOfMemoryError("the system refused the memory of a run"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
    ],
    ids=["error", "memory", "numpy"],
)
def test_a_window_that_fails_its_run_fails_alone(
    batcher: Batcher, runs: Runs, error: Exception, kind: type[SemanticError]
) -> None:
    runs.close()
    first = Caller(batcher, work(100))
    runs.wait_for_a_run()
    callers = [Caller(batcher, work(8, 8, first=10 * number)) for number in (1, 2, 3)]
    until(lambda: all(each.own.waiting for each in callers))
    runs.error, runs.fails = error, {20, 31}
    runs.open()
    assert right(first.finish())
    one, two, three = (each.finish() for each in callers)
    assert all(each.error is None for each in callers)
    assert right(one)
    assert answers(two) == [None, 42.0]
    assert kinds(two) == [kind, None]
    assert answers(three) == [60.0, None]
    assert kinds(three) == [None, kind]
    assert sorted(map(len, runs.batches)) == [1] * 7 + [6]  # together, then each by itself
    assert sum(len(each.own.runs) for each in callers) == 7
    errors = [*two.errors, *three.errors]
    assert all(each is None or each.__traceback__ is None for each in errors)


def test_a_run_that_fails_is_not_done_again_for_whom_no_one_waits(
    batcher: Batcher, runs: Runs
) -> None:
    runs.close()
    first = Caller(batcher, work(100))
    runs.wait_for_a_run()
    patient = Caller(batcher, work(8, first=10))
    until(lambda: patient.own.waiting)
    hasty = Caller(batcher, work(8, first=20))
    until(lambda: hasty.own.waiting)
    runs.error, runs.fails = InternalError("failed"), {10}
    runs.holds = lambda names: names == [10, 20]
    assert right(first.finish())
    runs.wait_for_a_run()
    hasty.own.ticket.cancel()
    assert kinds(hasty.finish()) == [CancelledError]
    runs.open()
    assert kinds(patient.finish()) == [InternalError]
    assert runs.batches == [[1], [10, 20], [10]]
    assert kinds(hasty.own) == [CancelledError]


def test_runs_one_by_one_can_be_stopped(batcher: Batcher, runs: Runs) -> None:
    runs.error, runs.fails = InternalError("failed"), {2}
    runs.holds = lambda names: names == [3]
    caller = Caller(batcher, work(8, 8, 8))
    until(lambda: [3] in runs.batches)
    caller.own.ticket.cancel()
    assert kinds(caller.finish()) == [None, InternalError, CancelledError]
    assert answers(caller.own) == [2.0, None, None]


def test_a_fault_reaches_its_leader_and_fails_the_followers(batcher: Batcher, runs: Runs) -> None:
    runs.close()
    first = Caller(batcher, work(100))
    runs.wait_for_a_run()
    callers = [Caller(batcher, work(8, first=10 * number)) for number in (1, 2)]
    until(lambda: all(each.own.waiting for each in callers))
    runs.error = ZeroDivisionError("a bug")
    runs.open()
    first.finish()
    assert isinstance(first.error, ZeroDivisionError)
    for each in callers:
        each.finish()
    assert sorted(str(each.error) for each in callers) == ["None", "a bug"]
    for each in callers:
        assert kinds(each.own) == [InternalError]
    runs.error = None
    assert right(Caller(batcher, work(8)).finish())


def test_a_thread_that_cannot_be_started_fails_one_call_only(
    batcher: Batcher, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        own = work(8, ticket=Ticket(10_000))
        batcher.execute(own, ignore)
        assert kinds(own) == [OutOfMemoryError]
        assert "refused the thread" in str(own.errors[0])
        assert "ulimit -u" in str(own.errors[0])
        after = work(8)  # needs no thread
        batcher.execute(after, ignore)
        assert right(after)
    runs.close()
    late = work(8, ticket=Ticket(40))
    assert kinds(Caller(batcher, late).finish()) == [DeadlineError]


# Many at once


@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_many_callers_of_mixed_sizes_all_get_their_own(watchdog: Watchdog, parallel: int) -> None:
    runs = Runs()
    limits = Limits(parallel, 8, 128, 10**6, 10**9)
    batcher = Batcher(runs, limits, watchdog)
    wrong: list[str] = []
    expired: list[int] = []

    def call(number: int) -> None:
        chosen = random.Random(number)
        for turn in range(60):
            lengths = [chosen.randint(1, 40) for _ in range(chosen.choice([1, 1, 1, 2, 7]))]
            ticket = Ticket(chosen.choice([0, 0, 0, 1, 10_000]))
            own = work(*lengths, ticket=ticket, first=number * 10_000 + turn * 100)
            batcher.execute(own, ignore)
            if ticket.timeout_ms == 1 and any(own.errors):
                expired.append(number)
                if set(kinds(own)) - {None, DeadlineError}:
                    wrong.append(f"{kinds(own)}")
            elif not right(own):
                wrong.append(f"{lengths}: {answers(own)} {own.errors}")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert runs.most_at_once <= parallel
    assert len(expired) < 16 * 60 / 2
    assert any(len(batch) > 1 for batch in runs.batches)


# The watchdog


class Watched:
    """Something with a deadline that notes when it was expired."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.expired = threading.Event()
        self.late = 0.0

    def expire(self) -> None:
        self.late = time.monotonic() - self.deadline
        self.expired.set()


def guards() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "semantic-deadlines"]


def test_the_nearest_deadline_is_kept_whatever_the_order(watchdog: Watchdog) -> None:
    assert guards() == []
    far, near, gone = Watched(60), Watched(0.05), Watched(0.05)
    for each in (far, near, gone):
        watchdog.watch(each)
    watchdog.release(gone)
    assert near.expired.wait(SOON)
    assert 0 <= near.late < 1
    time.sleep(0.05)
    assert not far.expired.is_set()
    assert not gone.expired.is_set()
    past = Watched(-1)
    watchdog.watch(past)
    assert past.expired.wait(SOON)
    assert len(guards()) == 1
    watchdog.release(far)
    watchdog.stop()
    assert guards() == []
    again = Watched(0.02)
    watchdog.watch(again)
    assert again.expired.wait(SOON)


def test_stopping_does_not_forget_what_is_watched(watchdog: Watchdog) -> None:
    # A cleanup stops the thread while the next runtime may be at work already.
    watched = Watched(0.1)
    watchdog.watch(watched)
    watchdog.stop()
    assert watched.expired.wait(SOON)
