"""Counters that balance, and statistics that tell the truth at every stage of a model's life."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from libsemantic.engine.config import LoadOptions, LongText, RunOptions, Task
from libsemantic.engine.counters import (
    BATCH_BOUNDS,
    BUCKET_BOUNDS,
    Call,
    CallCounters,
    Counters,
    Phase,
    Ran,
    Recorder,
)
from libsemantic.engine.errors import (
    CancelledError,
    ClosedError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
    SemanticError,
    Status,
    TooLongError,
    UnsupportedError,
)
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Rows, Stats
from libsemantic.engine.stats import State, tabulate
from tests.conftest import Gate

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
COUNTED = ("accepted", "completed", "failed", "expired", "cancelled", "in_flight", "refused")
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]


def rows(*statuses: Status, tokens: int = 5, truncated: int = 0) -> Rows:
    """Make the rows of a result, of ``tokens`` scored tokens each."""
    n = len(statuses)
    return Rows(
        token_count=(tokens + truncated,) * n,
        scored_token_count=(tokens,) * n,
        truncated=(truncated,) * n,
        window_count=(1,) * n,
        status=tuple(map(int, statuses)),
        message=("",) * n,
        errors=(None,) * n,
    )


def values(counters: CallCounters) -> dict[str, int]:
    """Return the counters that are not zero."""
    found = {name: getattr(counters, name) for name in COUNTED}
    found |= {name: getattr(counters, name) for name in ("tokens", "truncated", "batches")}
    found["calls"] = sum(counters.latency.counts)
    return {name: value for name, value in found.items() if value}


def only(counters: Counters) -> dict[str, int]:
    (found,) = counters.snapshot().values()
    return values(found)


def table(stats: Stats) -> dict[tuple[str, Call], dict[str, int]]:
    """Return the counters that are not zero by model and call, checked to balance."""
    found = {}
    for index, (name, call) in enumerate(zip(stats.call_model_name, stats.call, strict=True)):
        row = {field: int(getattr(stats, field)[index]) for field in COUNTED}
        assert row["accepted"] == sum(row[field] for field in COUNTED[1:-1])
        row |= {f: int(getattr(stats, f)[index]) for f in ("tokens", "truncated", "batches")}
        row["calls"] = int(stats.latency[index].sum())
        found[name, Call(call)] = {field: value for field, value in row.items() if value}
    return found


# Counters


def test_rows_are_counted_by_what_became_of_them() -> None:
    counters = Counters()
    record = Recorder(counters, Call.EMBED, 6)
    record.admitted()
    assert only(counters) == {"accepted": 6, "in_flight": 6}
    record.runs = [Ran(4, 7), Ran(2, 0)]
    kinds = [Status.OK, Status.OK, Status.DEADLINE, Status.CANCELLED, Status.INTERNAL]
    record.answered(rows(*kinds, Status.TOO_LONG, truncated=1))
    assert only(counters) == {
        "accepted": 6,
        "completed": 2,
        "expired": 1,
        "cancelled": 1,
        "failed": 2,
        "tokens": 30,
        "truncated": 6,
        "batches": 2,
        "calls": 1,
    }


def test_a_result_without_failures_is_complete() -> None:
    counters = Counters()
    Recorder(counters, Call.CLASSIFY, 3).answered(rows(*[Status.OK] * 3))  # nothing to score
    assert only(counters) == {"accepted": 3, "completed": 3, "tokens": 15, "calls": 1}


def test_the_rows_of_a_large_call_are_let_go_when_it_ends() -> None:
    counters = Counters()
    result = rows(*[Status.OK] * 1000)
    before = sys.getrefcount(result)
    Recorder(counters, Call.CLASSIFY, 1000).answered(result)
    assert sys.getrefcount(result) == before
    assert only(counters) == {"accepted": 1000, "completed": 1000, "tokens": 5000, "calls": 1}


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgumentError("x"),
        NotFoundError("x"),
        UnsupportedError("x"),
        OverloadedError("x"),
        TooLongError("x"),
    ],
)
def test_what_was_not_taken_on_is_refused(error: SemanticError) -> None:
    counters = Counters()
    Recorder(counters, Call.CLASSIFY, 4).failed(error)
    assert only(counters) == {"refused": 4}


@pytest.mark.parametrize(
    ("error", "admitted", "field"),
    [
        (InternalError("x"), True, "failed"),
        (OverloadedError("x"), True, "failed"),
        (InternalError("x"), False, "failed"),
        (ZeroDivisionError(), False, "failed"),
        (KeyboardInterrupt(), True, "failed"),
        (DeadlineError("x"), True, "expired"),
        (DeadlineError("x"), False, "expired"),
        (CancelledError("x"), True, "cancelled"),
        (CancelledError("x"), False, "cancelled"),
    ],
)
def test_a_call_that_fails_is_counted_once(
    error: BaseException, admitted: bool, field: str
) -> None:
    counters = Counters()
    record = Recorder(counters, Call.CLASSIFY, 4)
    if admitted:
        record.admitted()
    record.runs = [Ran(4, 0)] * 3
    record.failed(error)
    assert only(counters) == {"accepted": 4, field: 4, "batches": 3, "calls": 1}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        *((0.0, 0), (0.0005, 0), (0.000501, 1), (0.001, 1), (0.03, 6)),
        *((59.9, 15), (60.0, 15), (60.1, 16), (1e9, 16)),
    ],
)
def test_a_call_falls_into_the_bucket_of_its_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, bucket: int
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for failed in (False, True):
        counters = Counters()
        now[0] = 0.0
        record = Recorder(counters, Call.EMBED, 1)
        now[0] = seconds
        if failed:
            record.failed(InternalError("x"))
        else:
            record.answered(rows(Status.OK))
        latency = counters.snapshot()[Call.EMBED].latency
        assert latency.counts == [int(index == bucket) for index in range(17)]
        assert latency.total == seconds


def test_the_phases_of_a_call_are_timed_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    counters = Counters()
    record = Recorder(counters, Call.EMBED, 1)
    now[0] = 10.002
    record.ended(Phase.TOKENIZE)
    now[0] = 11.0  # noted late: the run began before
    record.ended(Phase.QUEUE, 10.5)
    record.ended(Phase.RUN)
    now[0] = 11.25
    record.answered(rows(Status.OK))
    failed = Recorder(counters, Call.EMBED, 1)
    now[0] = 11.75
    failed.ended(Phase.TOKENIZE)
    failed.failed(CancelledError("x"))
    found = counters.snapshot()[Call.EMBED]
    assert {phase: sum(each.counts) for phase, each in found.phases.items()} == {
        Phase.TOKENIZE: 2,
        Phase.QUEUE: 1,
        Phase.RUN: 1,
        Phase.DECODE: 1,
    }
    totals = [found.phases[phase].total for phase in Phase]
    assert totals == pytest.approx([0.502, 0.498, 0.5, 0.25])
    assert found.latency.total == pytest.approx(1.75)
    assert found.phases[Phase.TOKENIZE].counts[2] == 1  # 2 ms: above 1, below 2.5


def test_runs_are_counted_by_size() -> None:
    counters = Counters()
    record = Recorder(counters, Call.EMBED, 4)
    record.runs = [Ran(1, 0), Ran(2, 3), Ran(2, 1), Ran(129, 10)]
    record.answered(rows(*[Status.OK] * 4))
    counters.absorb(counters.snapshot())
    found = counters.snapshot()[Call.EMBED]
    assert found.batch_rows.counts == [2, 4, 0, 0, 0, 0, 0, 0, 2]
    assert found.batch_rows.total == 2 * 134
    assert (found.batches, found.padding_tokens) == (8, 28)


def test_the_bounds_are_fixed() -> None:
    assert len(BUCKET_BOUNDS) == 16
    assert list(BUCKET_BOUNDS) == sorted(set(BUCKET_BOUNDS))
    assert (BUCKET_BOUNDS[0], BUCKET_BOUNDS[-1]) == (0.0005, 60.0)
    assert [call.value for call in Call] == [1, 2, 3, 4, 5, 6]
    assert [state.value for state in State] == [1, 2, 3]
    assert [phase.name for phase in Phase] == ["TOKENIZE", "QUEUE", "RUN", "DECODE"]
    assert [phase.value for phase in Phase] == [1, 2, 3, 4]
    assert BATCH_BOUNDS == (1, 2, 4, 8, 16, 32, 64, 128)


def test_a_snapshot_is_a_copy_and_sums_up() -> None:
    first, second = Counters(), Counters()
    for counters, n in ((first, 2), (second, 3)):
        Recorder(counters, Call.EMBED, n).answered(rows(*[Status.OK] * n))
    Recorder(second, Call.CLASSIFY, 1).failed(InvalidArgumentError("x"))
    before = first.snapshot()
    first.absorb(second.snapshot())
    assert values(before[Call.EMBED])["completed"] == 2
    after = first.snapshot()
    assert values(after[Call.EMBED]) == {
        "accepted": 5,
        "completed": 5,
        "tokens": 25,
        "calls": 2,
    }
    assert values(after[Call.CLASSIFY]) == {"refused": 1}
    assert set(second.snapshot()) == {Call.EMBED, Call.CLASSIFY}


def test_the_books_balance_at_any_moment() -> None:
    counters = Counters()
    turns, threads_count = 300, 8

    def work(number: int) -> None:
        for turn in range(turns):
            record = Recorder(counters, Call.EMBED, 2)
            record.admitted()
            if (turn + number) % 3:
                record.answered(rows(Status.OK, Status.DEADLINE))
            else:
                record.failed(CancelledError("x"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(threads_count)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        now = counters.snapshot().get(Call.EMBED, CallCounters())
        ended = now.completed + now.failed + now.expired + now.cancelled
        assert now.accepted == ended + now.in_flight
        assert 0 <= now.in_flight <= 2 * threads_count
        assert ended == 2 * sum(now.latency.counts)
        assert now.accepted >= seen
        seen = now.accepted
    found = only(counters)
    assert found["accepted"] == 2 * turns * threads_count
    assert found["calls"] == turns * threads_count
    assert found["completed"] == found["expired"]
    assert found["cancelled"] == 2 * threads_count * turns // 3
    assert "in_flight" not in found


def test_statistics_are_laid_out_in_columns() -> None:
    counters = {
        Call.EMBED: CallCounters(completed=2, refused=1),
        Call.CLASSIFY: CallCounters(failed=3),
    }
    stats = tabulate(
        True,
        [(7, "a", Task.EMBEDDING, State.READY, "cpu"), (9, "b", Task.AUTO, State.LOADING, "")],
        [(7, "a", counters), (0, "(closed)", {Call.EMBED: CallCounters(cancelled=4)})],
        [("model a", 100)],
    )
    assert (stats.models_loading, stats.models_ready, stats.models_stopping) == (1, 1, 0)
    assert stats.model_id.tolist() == [7, 9]
    assert stats.model_name == ("a", "b")
    assert stats.model_device == ("cpu", "")
    assert stats.model_task.tolist() == [3, 0]
    assert stats.model_state.tolist() == [2, 1]
    assert stats.call_model_id.tolist() == [7, 7, 0]
    assert stats.call_model_name == ("a", "a", "(closed)")
    assert stats.call.tolist() == [1, 5, 5]
    assert stats.failed.tolist() == [3, 0, 0]
    assert stats.completed.tolist() == [0, 2, 0]
    assert stats.cancelled.tolist() == [0, 0, 4]
    assert stats.refused.tolist() == [0, 1, 0]
    assert stats.accepted.tolist() == [3, 2, 4]
    assert (stats.memory_owner, stats.memory_bytes.tolist()) == (("model a",), [100])
    assert stats.latency.shape == (3, stats.bucket_count) == (3, 17)
    assert stats.phase_latency.shape == (3, stats.phase_count, 17)
    assert stats.phase_seconds.shape == (3, stats.phase_count) == (3, 4)
    assert stats.batch_rows.shape == (3, stats.batch_bucket_count) == (3, 9)


# Through the registry


def test_before_anything_all_is_zero(registry: Registry) -> None:
    stats = registry.stats()
    assert not stats.running
    assert (stats.models_loading, stats.models_ready, stats.models_stopping) == (0, 0, 0)
    assert (stats.model_count, stats.call_count) == (0, 0)
    assert stats.bucket_count == 17
    assert stats.latency.size == stats.phase_latency.size == stats.batch_rows.size == 0
    assert dict(zip(stats.memory_owner, stats.memory_bytes.tolist(), strict=True)) == {
        "tokenizers": 0,
        "interpreter": 0,
    }


def test_one_model_counts_what_it_did(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"), LoadOptions(max_tokens=16))
    assert table(registry.stats()) == {}
    long = "math " * 40
    registry.classify(handle, ["math", "law", long])
    counts = registry.count_tokens(handle, ["math"])
    registry.classify_pairs(handle, ["math"], ["law"])
    registry.classify(handle, ["math", b"\xff"])
    stats = registry.stats()
    assert counts.rows.scored_token_count == (3,)
    assert table(stats) == {
        ("bert-seq", Call.CLASSIFY): {
            "accepted": 5,
            "completed": 4,
            "failed": 1,
            "tokens": 3 + 3 + 16 + 3,
            "truncated": 1,
            "batches": 3,  # the short ones together, the long one, the last
            "calls": 2,
        },
        ("bert-seq", Call.CLASSIFY_PAIRS): {
            "accepted": 1,
            "completed": 1,
            "tokens": 5,
            "batches": 1,
            "calls": 1,
        },
        ("bert-seq", Call.COUNT_TOKENS): {
            "accepted": 1,
            "completed": 1,
            "calls": 1,
        },
    }
    assert stats.call.tolist() == [Call.CLASSIFY, Call.CLASSIFY_PAIRS, Call.COUNT_TOKENS]
    assert stats.phase_latency.sum(2).tolist() == [[2, 2, 2, 2], [1, 1, 1, 1], [1, 0, 0, 1]]
    assert stats.phase_seconds.sum(1) == pytest.approx(stats.latency_seconds)
    assert stats.batch_rows[:, :2].tolist() == [[2, 1], [1, 0], [0, 0]]
    assert stats.batch_rows_sum.tolist() == [4, 1, 0]
    assert stats.padding_tokens.tolist() == [0, 0, 0]  # the short ones are of one length
    assert stats.running
    assert (stats.models_ready, stats.model_count) == (1, 1)
    assert stats.model_task.tolist() == [Task.SEQUENCE_CLASSIFICATION]
    memory = dict(zip(stats.memory_owner, stats.memory_bytes.tolist(), strict=True))
    # The tokenizer is a part of what the load took; it stands apart here.
    grown = registry.info(handle).grown_bytes
    assert memory["tokenizers"] >= 0
    assert memory["model bert-seq"] == max(0, grown - memory["tokenizers"])
    assert set(memory) == {"model bert-seq", "tokenizers", "interpreter"}


def test_refused_rows_stand_apart(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"))
    refusals: list[tuple[Callable[[], object], type[SemanticError]]] = [
        (lambda: registry.embed(handle, ["a"] * 5), UnsupportedError),
        (lambda: registry.classify_pairs(handle, ["a"] * 3, ["a"]), InvalidArgumentError),
        (lambda: registry.classify(handle, ["a"], RunOptions(layer=1)), InvalidArgumentError),
    ]
    for call, error in refusals:
        with pytest.raises(error):
            call()
    assert table(registry.stats()) == {
        ("bert-seq", Call.EMBED): {"refused": 5},
        ("bert-seq", Call.CLASSIFY_PAIRS): {"refused": 3},
        ("bert-seq", Call.CLASSIFY): {"refused": 1},
    }


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        (LoadOptions(), {8: 1}),  # of 5 rows
        (LoadOptions(max_batch_rows=2), {1: 1, 2: 2}),
        (LoadOptions(max_batch_tokens=9), {4: 1, 2: 1}),  # each row has 3 tokens
        (LoadOptions(max_batch_rows=1), {1: 5}),
    ],
)
def test_a_load_bounds_the_rows_of_a_run(
    registry: Registry, options: LoadOptions, runs: Mapping[int, int]
) -> None:
    """By the bound of the bucket that a run falls into."""
    handle = registry.load(str(GOLDEN / "bert-seq"), options)
    registry.classify(handle, ["math"] * 5)
    counts = registry.stats().batch_rows.reshape(-1)[:-1].tolist()
    found = {bound: n for bound, n in zip(BATCH_BOUNDS, counts, strict=True) if n}
    assert found == runs


def test_rows_that_all_failed_were_taken_on(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"), LoadOptions(max_tokens=8))
    with pytest.raises(InvalidArgumentError):
        registry.classify(handle, [b"\xff", None])
    with pytest.raises(TooLongError):
        registry.classify(handle, ["math " * 9], RunOptions(long_text=LongText.REFUSE))
    assert table(registry.stats()) == {
        ("bert-seq", Call.CLASSIFY): {"accepted": 3, "failed": 3, "calls": 2}
    }


def test_rows_under_way_are_in_flight(registry: Registry, gate: Gate) -> None:
    options = LoadOptions(parallel_runs=1, queue_rows=2)
    handle = registry.load(str(GOLDEN / "bert-seq"), options)
    gate.close()
    threads = []
    for n in (2, 1):  # the first runs, the second waits
        texts = ["math"] * n
        threads.append(threading.Thread(target=registry.classify, args=(handle, texts)))
        threads[-1].start()
        if n == 2:
            gate.wait_for_a_run()
    name = "bert-seq", Call.CLASSIFY
    deadline = time.monotonic() + 10
    while table(registry.stats())[name]["in_flight"] < 3:
        assert time.monotonic() < deadline
    assert table(registry.stats())[name] == {"accepted": 3, "in_flight": 3}
    with pytest.raises(OverloadedError):
        registry.classify(handle, ["law"] * 2)
    assert table(registry.stats())[name] == {"accepted": 3, "in_flight": 3, "refused": 2}
    gate.open()
    for thread in threads:
        thread.join(10)
    found = table(registry.stats())[name]
    assert found == {
        "accepted": 3,
        "completed": 3,
        "refused": 2,
        "tokens": 9,
        "batches": 2,
        "calls": 2,
    }


def test_deadlines_and_cancellations_are_told_apart(registry: Registry, gate: Gate) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"))
    gate.close()
    with pytest.raises(DeadlineError):
        registry.classify(handle, ["math"] * 2, RunOptions(timeout_ms=30))
    errors: list[BaseException] = []

    def call() -> None:
        try:
            registry.classify(handle, ["math"] * 3, RunOptions(cancel_key=5))
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    gate.wait_for_a_run()
    gate.wait_for_a_run()
    assert registry.cancel(5)
    thread.join(10)
    assert len(errors) == 1
    assert table(registry.stats())["bert-seq", Call.CLASSIFY] == {
        "accepted": 5,
        "expired": 2,
        "cancelled": 3,
        "batches": 2,
        "calls": 2,
    }


def test_counters_of_models_that_are_gone_are_summed(registry: Registry) -> None:
    path = str(GOLDEN / "bert-seq")
    handles = [registry.load(path, LoadOptions(name=name)) for name in ("a", "b", "c")]
    for handle in handles:
        registry.classify(handle, ["math", "law"])
    assert set(table(registry.stats())) == {(name, Call.CLASSIFY) for name in "abc"}
    registry.unload(handles[0], 1000)
    one = {"accepted": 2, "completed": 2, "tokens": 6, "batches": 1, "calls": 1}
    stats = registry.stats()
    assert table(stats)["(closed)", Call.CLASSIFY] == one
    assert set(table(stats)) == {(name, Call.CLASSIFY) for name in ("b", "c", "(closed)")}
    assert stats.call_model_id.tolist() == [handles[1], handles[2], 0]
    assert stats.model_name == ("b", "c")
    assert "model a" not in stats.memory_owner
    registry.unload(handles[1], 1000)
    registry.cleanup(1000)
    three = {field: 3 * value for field, value in one.items()}
    gone = registry.stats()
    assert table(gone) == {("(closed)", Call.CLASSIFY): three}
    assert (gone.running, gone.model_count) == (False, 0)
    assert gone.memory_owner == ("tokenizers", "interpreter")
    # The next runtime goes on counting.
    registry.embed(registry.load(str(GOLDEN / "bert-embed-cls")), ["math"])
    registry.cleanup(1000)
    assert table(registry.stats()) == {
        ("(closed)", Call.CLASSIFY): three,
        ("(closed)", Call.EMBED): {
            "accepted": 1,
            "completed": 1,
            "tokens": 3,
            "batches": 1,
            "calls": 1,
        },
    }


def test_a_replacement_goes_on_counting(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"))
    registry.classify(handle, ["math"])
    registry.load(str(GOLDEN / "bert-seq"), LoadOptions(replaces=handle))
    registry.classify(handle, ["math"])
    assert table(registry.stats())["bert-seq", Call.CLASSIFY]["completed"] == 2


def test_a_failed_load_leaves_no_trace(registry: Registry, copy_golden: CopyGolden) -> None:
    broken = copy_golden("bert-seq", {"config.json": "{"})
    with pytest.raises(SemanticError):
        registry.load(str(broken))
    stats = registry.stats()
    assert (stats.models_loading, stats.model_count, stats.call_count) == (0, 0, 0)
    assert stats.memory_owner == ("tokenizers", "interpreter")


def test_a_model_is_counted_while_it_loads_and_while_it_stops(
    registry: Registry, gate: Gate
) -> None:
    gate.close()  # the self-test waits
    loader = threading.Thread(target=registry.load, args=(str(GOLDEN / "bert-seq"),))
    loader.start()
    gate.wait_for_a_run()
    stats = registry.stats()
    assert (stats.models_loading, stats.models_ready, stats.models_stopping) == (1, 0, 0)
    assert stats.model_task.tolist() == [Task.AUTO]
    assert stats.memory_owner == ("tokenizers", "interpreter")
    (handle,) = stats.model_id.tolist()
    with pytest.raises(NotReadyError, match="loading"):
        registry.classify(handle, ["math"])
    assert table(registry.stats()) == {}
    gate.open()
    loader.join(10)
    assert registry.stats().models_ready == 1
    gate.close()
    caller = threading.Thread(target=registry.classify, args=(handle, ["math"]))
    caller.start()
    gate.wait_for_a_run()
    with pytest.raises(DeadlineError):
        registry.unload(handle, 0)
    stats = registry.stats()
    assert (stats.models_loading, stats.models_ready, stats.models_stopping) == (0, 0, 1)
    assert stats.model_state.tolist() == [State.STOPPING]
    gate.open()
    caller.join(10)
    registry.unload(handle, 10_000)
    assert registry.stats().model_count == 0
    with pytest.raises(ClosedError):
        registry.classify(handle, ["math"])


def test_the_interpreter_has_its_share_of_the_memory(registry: Registry) -> None:
    registry.set_interpreter_bytes(12_345)
    stats = registry.stats()
    assert stats.memory_bytes[stats.memory_owner.index("interpreter")] == 12_345
    assert stats.memory_bytes.dtype == np.int64
