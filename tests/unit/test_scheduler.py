"""Runs of several models share the CPUs: how many at a time, whose turn it is, who may leave."""

import random
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from libsemantic.engine.batching import Batcher, RunControl, Work
from libsemantic.engine.batching import Window as AnyWindow
from libsemantic.engine.errors import CancelledError, DeadlineError
from libsemantic.engine.grouping import Limits
from libsemantic.engine.results import Float32
from libsemantic.engine.scheduler import Scheduler
from libsemantic.engine.ticket import Ticket
from libsemantic.engine.watchdog import Watchdog

from .test_batching import SOON, Caller, Runs, ignore, kinds, names, right, until, work

LIMITS = Limits(8, 32, 256, 1000, 100_000)  # each model by itself may run eight


@pytest.fixture
def runs() -> Runs:
    """What all models run."""
    return Runs()


Models = Callable[..., list[Batcher]]


@pytest.fixture
def models(runs: Runs, watchdog: Watchdog) -> Models:
    """Return so many models that share as many runs at a time."""

    def make(count: int, limit: int, limits: Limits = LIMITS) -> list[Batcher]:
        scheduler = Scheduler(limit)
        return [Batcher(runs, limits, watchdog, scheduler) for _ in range(count)]

    return make


def held(batcher: Batcher, runs: Runs, first: int = 1) -> Caller:
    """Return a caller whose run is under way and stays so until the runs are opened."""
    runs.close()
    caller = Caller(batcher, work(8, first=first))
    runs.wait_for_a_run()
    return caller


def waiting(batcher: Batcher, own: Work) -> Caller:
    caller = Caller(batcher, own)
    until(lambda: own.waiting)
    return caller


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_all_models_together_run_no_more_than_the_limit(
    models: Models, runs: Runs, limit: int
) -> None:
    four = models(4, limit)
    runs.close()
    callers = [Caller(four[number % 4], work(100, first=number + 1)) for number in range(32)]
    until(lambda: sum(caller.own.waiting for caller in callers) == 32 - limit)
    assert runs.at_once == limit
    runs.open()
    assert all(right(caller.finish()) for caller in callers)
    assert runs.most_at_once == limit


def test_the_oldest_work_runs_first_whatever_its_model(models: Models, runs: Runs) -> None:
    four = models(4, 1)
    first = held(four[0], runs)
    chosen = [3, 1, 1, 2, 0, 3, 2, 1, 0, 0]
    # Of lengths that share no run.
    callers = [
        waiting(four[model], work(20 * (number + 1), first=10 * (number + 1)))
        for number, model in enumerate(chosen)
    ]
    runs.open()
    assert right(first.finish())
    assert all(right(caller.finish()) for caller in callers)
    assert runs.batches == [[1], *([10 * (number + 1)] for number in range(len(chosen)))]


def test_a_crowd_at_one_model_does_not_starve_another(models: Models, runs: Runs) -> None:
    crowded, other = models(2, 1)
    first = held(crowded, runs)
    before = [waiting(crowded, work(200, first=10 + number)) for number in range(3)]
    late = waiting(other, work(200, first=99))
    after = [waiting(crowded, work(200, first=20 + number)) for number in range(3)]
    runs.open()
    for caller in (first, *before, late, *after):
        assert right(caller.finish())
    assert runs.batches.index([99]) == 4  # after the four that were there before


def test_a_model_at_its_own_limit_keeps_no_other_from_running(
    runs: Runs, watchdog: Watchdog
) -> None:
    scheduler = Scheduler(2)
    one, other = (
        Batcher(runs, Limits(limit, 32, 256, 1000, 100_000), watchdog, scheduler)
        for limit in (1, 8)
    )
    first = held(one, runs)
    queued = waiting(one, work(100, first=10))
    runs.holds = lambda batch: batch == [1]
    passing = work(100, first=20)
    other.execute(passing, ignore)
    assert right(passing)
    assert queued.own.waiting
    runs.open()
    assert right(first.finish())
    assert right(queued.finish())


@pytest.mark.parametrize("given_up", ["deadline", "cancelled"])
def test_work_that_waits_for_another_model_can_be_given_up(
    models: Models, runs: Runs, given_up: str
) -> None:
    one, other = models(2, 1)
    first = held(one, runs)
    ticket = Ticket(60 if given_up == "deadline" else 0)
    hasty = Caller(other, work(8, 200, ticket=ticket, first=10))
    until(lambda: hasty.own.waiting or not hasty.is_alive())
    patient = waiting(other, work(100, first=20))
    if given_up == "cancelled":
        ticket.cancel()
    kind = DeadlineError if given_up == "deadline" else CancelledError
    assert kinds(hasty.finish()) == [kind, kind]
    assert first.is_alive()
    runs.open()
    assert right(first.finish())
    assert right(patient.finish())
    assert runs.batches == [[1], [20]]


def test_a_caller_that_leaves_by_an_exception_gives_its_turn_back(
    runs: Runs, watchdog: Watchdog
) -> None:
    scheduler = Scheduler(1)
    batcher = Batcher(runs, LIMITS, watchdog, scheduler)
    first = held(batcher, runs)

    def interrupted() -> None:
        """Leave while others wait, with a turn that came in the meantime."""
        waits = [waiting(batcher, work(8, first=number)) for number in (20, 30)]
        followers.extend(waits)
        raise KeyboardInterrupt

    followers: list[Caller] = []
    with pytest.raises(KeyboardInterrupt):
        batcher.execute(work(100, first=10), interrupted)
    runs.open()
    assert right(first.finish())
    assert all(right(caller.finish()) for caller in followers)
    assert (scheduler.runs, dict(scheduler.queues)) == (set(), {})
    assert runs.batches == [[1], [20, 30]]


def test_a_turn_that_its_leader_does_not_take_goes_to_the_others(
    runs: Runs, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(1)
    batcher = Batcher(runs, LIMITS, watchdog, scheduler)
    first = held(batcher, runs)
    leaves = threading.Event()
    wait = Batcher._wait

    def interrupt(self: Batcher, own: Work) -> None:
        wait(self, own)
        if own.windows and names(own.windows)[0] == 10 and own.turn is not None:
            leaves.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(Batcher, "_wait", interrupt)
    leader = waiting(batcher, work(8, first=10))
    follower = waiting(batcher, work(8, first=20))
    runs.open()
    assert right(first.finish())
    leader.finish()
    assert isinstance(leader.error, KeyboardInterrupt)
    assert leaves.is_set()
    assert right(follower.finish())
    assert runs.batches == [[1], [20]]
    assert (scheduler.runs, dict(scheduler.queues)) == (set(), {})


def test_one_caller_with_many_runs_has_all_cpus_until_another_comes(
    models: Models, runs: Runs
) -> None:
    one, other = models(2, 2)
    own = work(200, 150, 100)
    one.execute(own, ignore)
    assert right(own)
    assert runs.alone == [True, True, True]
    runs.alone.clear()
    first = held(other, runs, first=50)
    runs.holds = lambda batch: batch == [50]
    own = work(200, 150)
    one.execute(own, ignore)
    assert runs.alone == [True, False, False]
    runs.open()
    assert right(first.finish())


def test_others_lead_what_a_busy_caller_has_queued(models: Models, runs: Runs) -> None:
    (one,) = models(1, 2)
    runs.close()
    busy = Caller(one, work(200, 150, 100))  # leads the first of its three runs
    runs.wait_for_a_run()
    helper = Caller(one, work(50, first=10))
    runs.wait_for_a_run()
    assert runs.batches == [[1], [2]]
    runs.open()
    assert right(busy.finish())
    assert right(helper.finish())


def test_many_callers_of_many_models_all_get_their_own(models: Models, runs: Runs) -> None:
    four = models(4, 2, Limits(2, 8, 128, 10**6, 10**9))
    wrong: list[str] = []

    def call(number: int) -> None:
        chosen = random.Random(number)
        for turn in range(50):
            lengths = [chosen.randint(1, 40) for _ in range(chosen.choice([1, 1, 1, 2, 7]))]
            ticket = Ticket(chosen.choice([0, 0, 0, 1, 10_000]))
            own = work(*lengths, ticket=ticket, first=number * 10_000 + turn * 100)
            chosen.choice(four).execute(own, ignore)
            late = ticket.timeout_ms == 1 and {*kinds(own)} <= {None, DeadlineError}
            if not late and not right(own):
                wrong.append(f"{lengths}: {own.errors}")

    threads = [threading.Thread(target=call, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6 * SOON)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert runs.most_at_once <= 2
    scheduler = four[0]._scheduler
    assert (scheduler.runs, dict(scheduler.queues)) == (set(), {})
    after = work(8)
    four[0].execute(after, ignore)
    assert right(after)
    assert runs.alone[-1]


def test_a_run_that_raises_makes_room_for_other_models(runs: Runs, watchdog: Watchdog) -> None:
    scheduler = Scheduler(1)

    def breaks(windows: Sequence[AnyWindow], control: RunControl) -> Sequence[Float32]:
        Runs.__call__(runs, windows, control)
        raise ZeroDivisionError("a bug")

    broken = Batcher(breaks, LIMITS, watchdog, scheduler)
    sound = Batcher(runs, LIMITS, watchdog, scheduler)
    first = held(broken, runs)
    second = waiting(sound, work(8, first=10))
    runs.open()
    first.finish()
    assert isinstance(first.error, ZeroDivisionError)
    assert right(second.finish())


@pytest.mark.parametrize(("expected", "alone"), [(0, True), (1, True), (2, False)])
def test_a_run_has_all_cpus_unless_others_are_expected_beside_it(
    watchdog: Watchdog, expected: int, alone: bool
) -> None:
    seen: list[bool] = []

    def run(windows: Sequence[AnyWindow], control: RunControl) -> list[Float32]:
        seen.append(control.alone)
        return [np.zeros(1, np.float32) for _ in windows]

    scheduler = Scheduler(2)
    batcher = Batcher(run, LIMITS, watchdog, scheduler)
    scheduler.expected.update(range(expected))
    batcher.execute(work(8), ignore)
    scheduler.expected.clear()
    batcher.execute(work(8), ignore)
    assert seen == [alone, True]
