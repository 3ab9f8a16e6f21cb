"""Cancellation, deadlines and a slow log callback, from threads of this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from libsemantic.engine.config import LogLevel
from libsemantic.engine.errors import Status
from libsemantic.engine.registry import REGISTRY
from libsemantic.ffi.codecs import CData

from .binding import ROW_BY_ROW, Library
from .harness import Models

KEY = 2**64 - 3
ROWS = 4000  # 62 tokens each: some seconds of work
QUICKLY = 2.0
SCORING = [name for name in ROW_BY_ROW if name != "semantic_count_tokens"]


def long_call(library: Library, models: Models, name: str, **values: object) -> dict[str, CData]:
    arguments = models.arguments(name) | {"n": ROWS}
    texts = library.texts(*[b"math " * 60] * ROWS)
    arguments |= dict.fromkeys(("texts", "left", "context", "right", "answer"), texts)
    arguments["options"] = library.options("semantic_run_options", values)
    return arguments


class Running:
    """A call on a thread of its own."""

    def __init__(self, library: Library, name: str, arguments: dict[str, CData]) -> None:
        self.status = -1
        self.ended_at = 0.0
        self._call = (library, name, arguments)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        library, name, arguments = self._call
        self.status = library.call(name, arguments)
        self.ended_at = time.monotonic()

    def join(self) -> int:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.status


def wait_until_in_flight(library: Library, rows: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        stats = library.result_of(
            "semantic_get_stats", library.good_arguments("semantic_get_stats", 0, "")
        )
        if stats["in_flight"].sum() == rows:
            return
        time.sleep(0.005)
    pytest.fail("the call was not seen in flight")


def check_stopped(
    library: Library, name: str, arguments: dict[str, CData], status: int, reason: Status
) -> None:
    """Rows that finished are OK, the others carry the reason; the model is usable."""
    assert status in (reason, Status.PARTIAL)
    if status == Status.PARTIAL:
        rows = library.take(library.out(name, arguments))["rows"]
        assert set(rows["status"].tolist()) == {Status.OK, reason}
        assert arguments["error"].input_index == int(np.argmax(rows["status"] != 0))
        assert all(
            bool(message) == bool(row)
            for message, row in zip(rows["message"], rows["status"], strict=True)
        )
    else:
        assert library.out(name, arguments) == library.ffi.NULL
        assert arguments["error"].status == reason


@pytest.mark.parametrize("name", SCORING)
def test_cancelled_by_its_key_from_another_thread(
    library: Library, models: Models, name: str
) -> None:
    arguments = long_call(library, models, name, cancel_key=KEY)
    running = Running(library, name, arguments)
    wait_until_in_flight(library, ROWS)
    time.sleep(0.05)
    assert library.lib.semantic_cancel(KEY - 1) == Status.NOT_FOUND
    asked = time.monotonic()
    assert library.lib.semantic_cancel(KEY) == Status.OK
    check_stopped(library, name, arguments, running.join(), Status.CANCELLED)
    assert running.ended_at - asked < QUICKLY
    assert library.lib.semantic_cancel(KEY) == Status.NOT_FOUND
    library.result_of(name, models.arguments(name))


def test_cancelling_one_key_leaves_the_others_alone(library: Library, models: Models) -> None:
    name = "semantic_classify"
    both = [long_call(library, models, name, cancel_key=key) for key in (1, 2)]
    calls = [Running(library, name, arguments) for arguments in both]
    wait_until_in_flight(library, 2 * ROWS)
    assert library.lib.semantic_cancel(1) == Status.OK
    check_stopped(library, name, both[0], calls[0].join(), Status.CANCELLED)
    assert calls[1].status == -1
    assert library.lib.semantic_cancel(2) == Status.OK
    check_stopped(library, name, both[1], calls[1].join(), Status.CANCELLED)


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_a_deadline_ends_long_work(library: Library, models: Models, name: str) -> None:
    arguments = long_call(library, models, name, timeout_ms=40)
    started = time.monotonic()
    status = library.call(name, arguments)
    assert time.monotonic() - started < 0.04 + QUICKLY
    check_stopped(library, name, arguments, status, Status.DEADLINE)
    assert "timeout_ms 40 has passed" in library.message(arguments["error"])
    library.result_of(name, models.arguments(name))


def test_a_deadline_in_the_middle_keeps_the_rows_that_finished(
    library: Library, models: Models
) -> None:
    name = "semantic_classify"
    arguments = long_call(library, models, name, cancel_key=KEY)
    running = Running(library, name, arguments)
    wait_until_in_flight(library, ROWS)  # from here on rows finish
    time.sleep(0.2)
    assert library.lib.semantic_cancel(KEY) == Status.OK
    assert running.join() == Status.PARTIAL
    result = library.take(library.out(name, arguments))
    finished = result["rows"]["status"] == Status.OK
    assert 0 < finished.sum() < ROWS
    expected = library.result_of(name, models.arguments(name) | {"texts": arguments["texts"]})
    np.testing.assert_allclose(
        result["probabilities"][finished],
        np.repeat(expected["probabilities"], finished.sum(), axis=0),
        atol=1e-5,
    )
    assert np.isnan(result["probabilities"][~finished]).all()


@pytest.mark.parametrize("name", ["semantic_unload_model", "semantic_cleanup"])
def test_stopping_waits_for_calls_in_flight(library: Library, models: Models, name: str) -> None:
    arguments = long_call(library, models, "semantic_classify", cancel_key=KEY)
    running = Running(library, "semantic_classify", arguments)
    wait_until_in_flight(library, ROWS)
    closing = models.arguments(name) | {"timeout_ms": 0}
    for timeout in (0, 30):
        closing["timeout_ms"] = timeout
        assert library.call(name, closing) == Status.DEADLINE
        assert "in flight" in library.message(closing["error"]) or "under way" in library.message(
            closing["error"]
        )
    late = library.good_arguments("semantic_classify", arguments["model"].id, "")
    assert library.call("semantic_classify", late) == Status.NOT_READY
    closing["timeout_ms"] = 2**63 - 1  # waits for as long as it takes
    waiting = Running(library, name, closing)
    time.sleep(0.05)
    assert waiting.status == -1
    assert library.lib.semantic_cancel(KEY) == Status.OK
    check_stopped(library, "semantic_classify", arguments, running.join(), Status.CANCELLED)
    assert waiting.join() == Status.OK
    assert library.call("semantic_classify", late) == Status.CLOSED


def test_the_longest_deadline_with_callers_that_wait(library: Library, models: Models) -> None:
    name = "semantic_classify"
    calls = [long_call(library, models, name, timeout_ms=2**63 - 1) | {"n": 300} for _ in range(6)]
    for running, arguments in zip(
        [Running(library, name, arguments) for arguments in calls], calls, strict=True
    ):
        assert running.join() == Status.OK, library.message(arguments["error"])
        library.take(library.out(name, arguments))


@contextmanager
def log_callback(library: Library, callback: CData) -> Iterator[None]:
    assert library.lib.semantic_set_log_callback(callback, library.ffi.NULL) == Status.OK
    try:
        yield
    finally:
        assert library.lib.semantic_set_log_callback(library.ffi.NULL, library.ffi.NULL) == 0


def dropped(library: Library) -> int:
    stats = library.result_of(
        "semantic_get_stats", library.good_arguments("semantic_get_stats", 0, "")
    )
    return int(stats["log_dropped"])


@pytest.mark.usefixtures("models")
def test_lines_that_a_slow_callback_has_no_time_for_are_dropped_and_counted(
    library: Library,
) -> None:
    arguments = library.good_arguments("semantic_init", 0, "")
    arguments["options"] = library.options(
        "semantic_init_options", {"log_level": int(LogLevel.INFO)}
    )
    assert library.call("semantic_init", arguments) == Status.OK
    entered, go_on, received = threading.Event(), threading.Event(), []

    def be_slow(_user: CData, level: int, message: CData, length: int) -> None:
        received.append((level, library.ffi.string(message).decode(), length))
        entered.set()
        assert go_on.wait(20)

    callback = library.ffi.callback("semantic_log_callback", be_slow)
    before = dropped(library)
    with log_callback(library, callback):
        REGISTRY.log.info("first é")
        assert entered.wait(20)
        for line in range(1024):  # as many as the queue takes
            REGISTRY.log.info(f"line {line}")
        assert dropped(library) == before
        for line in range(7):
            REGISTRY.log.warning(f"too many {line}")
        assert dropped(library) == before + 7
        go_on.set()
        deadline = time.monotonic() + 20
        while len(received) < 1025 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert received[0] == (LogLevel.INFO, "first é", len("first é".encode()))
    assert [message for _, message, _ in received[1:]] == [f"line {n}" for n in range(1024)]
