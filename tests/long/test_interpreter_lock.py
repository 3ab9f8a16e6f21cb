"""Nothing that many callers do keeps another thread of a Python host waiting for the lock."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from libsemantic.engine.errors import Status
from libsemantic.ffi.codecs import CData

from ..abi.binding import MODELS, Library
from ..ticker import LARGEST_GAP, Ticker

CALLERS = 8
SECONDS = 0.5
# A busy machine stops whoever holds the lock now and then; the library would do it every time.
ATTEMPTS = 6

SHORT = [b"math word " * words for words in (1, 2, 8, 30, 60)]
LONG = [b"the derivative of x squared, " * 3450]  # 100 kB
SCENARIOS = {
    "classify": ("semantic_classify", "bert-seq", SHORT),
    "tokens": ("semantic_classify_tokens", "bert-token", SHORT),
    "embed": ("semantic_embed", "bert-embed-mean", SHORT),
    "count_tokens of 100 kB": ("semantic_count_tokens", "bert-seq", LONG),
}
Work: TypeAlias = Callable[[], None]


@pytest.fixture
def library() -> Iterator[Library]:
    opened = Library()
    yield opened
    assert opened.lib.semantic_cleanup(10_000, opened.ffi.NULL) == Status.OK


def load(library: Library, folder: str, name: str) -> int:
    arguments = library.good_arguments("semantic_load_model", 0, "")
    arguments["path"] = library.text(str(MODELS / folder))
    arguments["options"] = library.options("semantic_load_options", {"name": name})
    status = library.call("semantic_load_model", arguments)
    assert status == Status.OK, library.message(arguments["error"])
    model: int = arguments["model"].id
    return model


def answering(library: Library, function: str, folder: str, texts: list[bytes]) -> Work:
    """Return a call that any number of threads may make."""
    model = load(library, folder, folder)
    rows: CData = library.texts(*texts)

    def call() -> None:
        own = library.good_arguments(function, model, "") | {"texts": rows, "n": len(texts)}
        status = library.call(function, own)
        assert status == Status.OK, library.message(own["error"])
        library.lib.semantic_free(own["result"][0])

    return call


def loading(library: Library) -> Work:
    def load_and_unload() -> None:
        model = load(library, "bert-seq", f"model of thread {threading.get_ident()}")
        arguments = library.good_arguments("semantic_unload_model", model, "")
        assert library.call("semantic_unload_model", arguments) == Status.OK

    return load_and_unload


def largest_gap(work: Work) -> float:
    """Let many callers work at the same time for a while; return the longest wait of a ticker."""
    ends = time.monotonic() + SECONDS
    errors: list[BaseException] = []

    def call() -> None:
        try:
            while time.monotonic() < ends:
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    with Ticker() as ticker:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]
    return ticker.gap


def check(work: Work) -> None:
    work()
    gaps: list[float] = []
    while len(gaps) < ATTEMPTS:
        gaps.append(largest_gap(work))
        if gaps[-1] < LARGEST_GAP:
            return
    pytest.fail(f"another thread waited for the lock {[f'{gap:.3f} s' for gap in gaps]}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_other_threads_run_while_many_call(library: Library, scenario: str) -> None:
    check(answering(library, *SCENARIOS[scenario]))


def test_other_threads_run_while_many_load(library: Library) -> None:
    check(loading(library))


def test_a_held_lock_is_seen() -> None:
    """The ticker is no blind witness: a step of Python that holds the lock shows."""
    numbers = list(range(3_000_000, 0, -1))
    with Ticker() as ticker:
        started = time.perf_counter()
        while time.perf_counter() - started < 2 and ticker.gap < LARGEST_GAP:
            numbers.sort(key=str)
            numbers.reverse()
    assert ticker.gap > LARGEST_GAP
