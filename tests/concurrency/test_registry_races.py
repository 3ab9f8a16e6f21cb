"""Many threads on one registry: loading, replacing, unloading and cleaning up under traffic."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from libsemantic.engine.config import LoadOptions, LongText, RunOptions, RuntimeOptions
from libsemantic.engine.errors import (
    AlreadyExistsError,
    CancelledError,
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    NotReadyError,
    OverloadedError,
    SemanticError,
    Status,
)
from libsemantic.engine.inputs import Text
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Result, Stats
from libsemantic.engine.together import ModelRequest

from .crowd import Crowd

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
SEQ, TOKEN, MEAN = (str(GOLDEN / name) for name in ("bert-seq", "bert-token", "bert-embed-mean"))
RERANKER = str(GOLDEN / "bert-reranker")
WORDS = ["math", "law", "code", "数", "学", "café", "😀", "router", "the"]
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]
Array: TypeAlias = NDArray[np.float32]


def text_of(chosen: random.Random) -> str:
    return " ".join(chosen.choices(WORDS, k=chosen.choice([1, 2, 3, 5, 20, 60, 150])))


def answers_of(registry: Registry, handle: int, texts: Sequence[Text]) -> Array:
    """Call the function for the model's task; return what its rows say, side by side."""
    name = registry.info(handle).name
    if name == "bert-seq":
        return registry.classify(handle, texts).logits
    if name == "bert-reranker":
        return registry.classify_pairs(handle, ["the router"] * len(texts), texts).logits
    if name == "bert-embed-mean":
        return registry.embed(handle, texts).values
    found = registry.classify_tokens(handle, texts)
    table = np.zeros((len(texts), 3), np.float32)
    np.add.at(table, (found.row, found.label_index), found.score)
    return table


def books(stats: Stats) -> Counter[str]:
    """Return the sums of all counters, checked to balance."""
    total: Counter[str] = Counter()
    fields = ("completed", "failed", "expired", "cancelled", "in_flight")
    for field in (*fields, "accepted", "refused"):
        total[field] = int(getattr(stats, field).sum())
    assert total["accepted"] == sum(total[field] for field in fields)
    return total


def test_threads_with_mixed_sizes_all_get_their_own_answers(registry: Registry) -> None:
    options = LoadOptions(parallel_runs=2)
    handles = [registry.load(path, options) for path in (SEQ, TOKEN, MEAN, RERANKER)]
    chosen = random.Random(1)
    texts = [text_of(chosen) for _ in range(40)]
    alone = [
        np.concatenate([answers_of(registry, handle, [text]) for text in texts])
        for handle in handles
    ]
    before = books(registry.stats())

    def call(number: int) -> None:
        own = random.Random(number)
        for _ in range(25):
            which = own.randrange(4)
            rows = own.sample(range(40), own.choice([1, 1, 1, 2, 9]))
            found = answers_of(registry, handles[which], [texts[row] for row in rows])
            np.testing.assert_allclose(found, alone[which][rows], rtol=0, atol=1e-4)

    Crowd(16, call).finish()
    after = books(registry.stats())
    assert after["failed"] == after["in_flight"] == 0
    assert after["completed"] > before["completed"] + 16 * 25


def test_models_are_loaded_side_by_side(registry: Registry) -> None:
    handles: dict[int, int] = {}

    def load(number: int) -> None:
        path = (SEQ, TOKEN, MEAN, RERANKER)[number % 4]
        handles[number] = registry.load(path, LoadOptions(name=f"model {number}"))

    Crowd(12, load).finish()
    assert len(set(handles.values())) == 12
    assert registry.stats().models_ready == 12
    for number, handle in handles.items():
        assert registry.find(f"model {number}") == handle
    logits = [registry.classify(handles[n], ["math"]).logits.tolist() for n in (0, 4, 8)]
    assert logits[0] == logits[1] == logits[2]


def test_one_of_many_gets_the_name(registry: Registry) -> None:
    outcomes: list[str] = []

    def load(_: int) -> None:
        try:
            registry.load(SEQ, LoadOptions(name="one"))
        except AlreadyExistsError:
            outcomes.append("taken")
        else:
            outcomes.append("loaded")

    Crowd(16, load).finish()
    assert Counter(outcomes) == {"loaded": 1, "taken": 15}
    assert registry.list_models().count == 1


def test_replacing_under_traffic_loses_nothing(registry: Registry, copy_golden: CopyGolden) -> None:
    # Two models that answer differently: odd generations are the one, even ones the other.
    table = {str(index): f"other {index}" for index in range(7)}
    other = copy_golden("bert-seq", {"config.json": {"id2label": table, "label2id": None}})
    handle = registry.load(SEQ)
    labels = {1: registry.info(handle).labels, 0: tuple(table.values())}
    expected = registry.classify(handle, ["math law"]).logits
    ended = threading.Event()
    seen: Counter[int] = Counter()

    def call(number: int) -> None:
        generation = 0
        while not ended.is_set():
            options = RunOptions(timeout_ms=20_000 if number % 2 else 0)
            result = registry.classify(handle, ["math law"], options)
            assert result.generation >= generation
            generation = result.generation
            assert result.labels == labels[generation % 2]
            np.testing.assert_allclose(result.logits, expected, rtol=0, atol=1e-4)
            seen[generation] += 1
            assert registry.info(handle).generation >= generation
            assert registry.find("bert-seq") == handle

    crowd = Crowd(8, call)
    try:
        for turn in range(2, 12):
            path = SEQ if turn % 2 else str(other)
            assert registry.load(path, LoadOptions(replaces=handle)) == handle
            assert registry.info(handle).generation == turn
            with pytest.raises(SemanticError):  # in between one that fails
                registry.load("/nonexistent", LoadOptions(replaces=handle))
    finally:
        ended.set()
    crowd.finish()
    assert len(seen) > 5
    total = books(registry.stats())
    assert total["completed"] == sum(seen.values()) + 1
    assert (total["failed"], total["refused"], total["in_flight"]) == (0, 0, 0)


def test_unloading_under_traffic_ends_it_cleanly(registry: Registry) -> None:
    for _ in range(5):
        handle = registry.load(SEQ)
        answered: Counter[str] = Counter()

        def call(_: int, handle: int = handle, answered: Counter[str] = answered) -> None:
            while True:
                try:
                    result = registry.classify(handle, ["math law"])
                except (NotReadyError, ClosedError) as error:
                    answered[type(error).__name__] += 1
                    if isinstance(error, ClosedError):
                        return
                    time.sleep(0.001)  # callers that do not rest pass the lock among themselves
                else:
                    assert result.rows.status == (0,)
                    answered["ok"] += 1

        crowd = Crowd(8, call)
        while answered["ok"] < 20:
            time.sleep(0.001)
        unloaders: Counter[str] = Counter()

        def unload(_: int, handle: int = handle, outcomes: Counter[str] = unloaders) -> None:
            try:
                registry.unload(handle, 20_000)
                outcomes["unloaded"] += 1
            except ClosedError:
                outcomes["closed"] += 1

        Crowd(3, unload).finish()
        crowd.finish()
        assert unloaders == {"unloaded": 1, "closed": 2}
        assert answered["ClosedError"] == 8
        assert registry.list_models().count == 0
    assert books(registry.stats())["in_flight"] == 0


def test_cleaning_up_under_traffic_and_loads(registry: Registry) -> None:
    ended = threading.Event()
    counts: Counter[str] = Counter()

    def live(number: int) -> None:
        """Load a model, use it, and start again when it is taken away."""
        while not ended.is_set():
            try:
                handle = registry.load(SEQ, LoadOptions(name=f"model {number}"))
                while not ended.is_set():
                    assert registry.classify(handle, ["math"]).rows.status == (0,)
                    counts["answers"] += 1
            except (NotReadyError, ClosedError, AlreadyExistsError) as error:
                counts[type(error).__name__] += 1

    crowd = Crowd(6, live)
    try:
        cleanups = 0
        while cleanups < 6 or (counts["answers"] <= 20 and cleanups < 200):
            time.sleep(0.1)  # a load takes as long where the machine is busy
            registry.cleanup(20_000)
            cleanups += 1
    finally:
        ended.set()
    crowd.finish()
    assert counts["answers"] > 20
    assert counts["ClosedError"] + counts["NotReadyError"] > 0
    registry.cleanup(20_000)
    stats = registry.stats()
    assert (stats.running, stats.model_count) == (False, 0)
    assert books(stats)["in_flight"] == 0
    assert books(stats)["completed"] == counts["answers"]
    registry.init(RuntimeOptions(parallel_runs=1))
    assert registry.classify(registry.load(SEQ), ["math"]).rows.status == (0,)


def test_the_books_balance_under_all_kinds_of_traffic(registry: Registry) -> None:
    options = LoadOptions(parallel_runs=1, queue_rows=6, max_tokens=16)
    handle = registry.load(SEQ, options)
    tally: Counter[str] = Counter()
    refusals: set[type[SemanticError]] = set()
    lock = threading.Lock()
    outcomes = {
        Status.OK: "completed",
        Status.DEADLINE: "expired",
        Status.CANCELLED: "cancelled",
    }

    def count(result: Result) -> None:
        for status in result.rows.status:
            tally[outcomes.get(Status(status), "failed")] += 1

    def call(number: int) -> None:
        own = random.Random(number)
        for turn in range(60):
            kind = own.choice(["plain", "plain", "hasty", "keyed", "broken", "long", "wrong"])
            texts: list[Text] = [text_of(own) for _ in range(own.choice([1, 2, 5]))]
            run = RunOptions(long_text=LongText.WINDOWS)
            if kind == "hasty":
                run = RunOptions(timeout_ms=1, long_text=LongText.WINDOWS)
            elif kind == "keyed":
                run = RunOptions(cancel_key=1 + turn % 3, long_text=LongText.WINDOWS)
            elif kind == "broken":
                texts[0] = b"\xff"
            elif kind == "long":
                run = RunOptions(long_text=LongText.REFUSE)
            elif kind == "wrong":
                run = RunOptions(layer=3)
            try:
                result = registry.classify(handle, texts, run)
            except SemanticError as error:
                taken = error.input_index >= 0 or isinstance(error, DeadlineError | CancelledError)
                field = outcomes.get(error.status, "failed") if taken else "refused"
                if not taken:
                    refusals.add(type(error))
                with lock:
                    tally[field] += len(texts)
            else:
                with lock:
                    count(result)

    crowd = Crowd(12, call)
    moments = 0
    while crowd.alive:
        now = books(registry.stats())
        assert now["in_flight"] >= 0
        registry.cancel(1 + moments % 3)
        moments += 1
        time.sleep(0.002)
    crowd.finish()
    total = books(registry.stats())
    assert total["in_flight"] == 0
    assert moments > 5
    assert refusals == {OverloadedError, InvalidArgumentError}
    for field in ("completed", "failed", "expired", "cancelled", "refused"):
        assert total[field] == tally[field], field
        assert total[field] > 0, field
    assert registry.classify(handle, ["math"]).rows.status == (0,)


def test_cancelling_races_with_ending(registry: Registry) -> None:
    handle = registry.load(SEQ, LoadOptions(parallel_runs=1))
    ended: Counter[str] = Counter()
    lock = threading.Lock()
    text = "math " * 60

    def call(number: int) -> None:
        for turn in range(40):
            try:
                registry.classify(handle, [text], RunOptions(cancel_key=number * 100 + turn + 1))
                outcome = "answered"
            except CancelledError:
                outcome = "cancelled"
            with lock:
                ended[outcome] += 1

    crowd = Crowd(6, call)
    own = random.Random(5)
    while crowd.alive:
        registry.cancel(own.randrange(6) * 100 + own.randrange(40) + 1)
        if own.random() < 0.02:
            registry.cancel_everything()
    crowd.finish()
    assert sum(ended.values()) == 240
    assert ended["answered"] > 0
    assert ended["cancelled"] > 0
    assert not registry.cancel(1)
    assert registry.classify(handle, [text]).rows.status == (0,)


def test_deadlines_hold_while_many_wait(registry: Registry) -> None:
    handle = registry.load(SEQ, LoadOptions(parallel_runs=1, max_tokens=128))
    texts = ["math " * 120] * 200
    took: list[float] = []

    def call(_: int) -> None:
        started = time.monotonic()
        options = RunOptions(timeout_ms=60)
        try:
            result = registry.classify(handle, texts, options)
            assert set(result.rows.status) <= {Status.OK, Status.DEADLINE}
        except DeadlineError:
            pass
        took.append(time.monotonic() - started)

    Crowd(8, call).finish()
    assert len(took) == 8
    assert max(took) < 2
    total = books(registry.stats())
    assert total["accepted"] == 1600
    assert total["expired"] > 0
    assert total["expired"] + total["completed"] == 1600


def test_traffic_leaves_no_threads_behind(registry: Registry) -> None:
    handle = registry.load(SEQ)
    before = threading.active_count()

    def call(number: int) -> None:
        for _ in range(20):
            registry.classify(handle, ["math"] * (1 + number % 3), RunOptions(timeout_ms=10_000))

    for _ in range(2):
        Crowd(16, call).finish()
        assert threading.active_count() <= before + 1  # the one for deadlines
    registry.cleanup(10_000)
    assert threading.active_count() <= before


def test_asking_several_models_while_they_come_and_go(registry: Registry) -> None:
    """Each answer is right or says why it is not there; the books balance, no thread is left."""
    paths = {"seq": SEQ, "token": TOKEN, "mean": MEAN}
    handles = {name: registry.load(path, LoadOptions(name=name)) for name, path in paths.items()}
    alone = registry.classify(handles["seq"], ["math law"]).logits
    ended = threading.Event()
    seen: Counter[Status] = Counter()

    def ask(number: int) -> None:
        own = random.Random(number)
        while not ended.is_set():
            options = RunOptions(timeout_ms=own.choice([0, 0, 1, 20_000]))
            requests = [ModelRequest(handle, options) for handle in handles.values()]
            own.shuffle(requests)
            try:
                answers = registry.run_models(requests, ["math law"])
            except SemanticError as error:
                seen[error.status] += 1
                continue
            seen.update(map(Status, answers.status))
            for found in answers.classification:
                if found is not None:
                    np.testing.assert_allclose(found.logits, alone, rtol=0, atol=1e-4)

    def change(_: int) -> None:
        for turn in range(12):
            name = ("token", "mean")[turn % 2]
            registry.unload(handles[name], 20_000)
            handles[name] = registry.load(paths[name], LoadOptions(name=name))
            books(registry.stats())
        ended.set()

    Crowd(5, lambda number: change(number) if number == 0 else ask(number)).finish()
    assert set(seen) <= {Status.OK, Status.CLOSED, Status.NOT_READY, Status.DEADLINE}
    assert seen[Status.OK] > 20
    total = books(registry.stats())
    assert (total["in_flight"], total["failed"]) == (0, 0)
    registry.cleanup(20_000)
    assert "semantic-helper" not in {thread.name for thread in threading.enumerate()}
