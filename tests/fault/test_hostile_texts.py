"""Texts made to crash, hang or mislead: each is answered, the same each time, and never quoted."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
import pytest

from libsemantic.engine import results
from libsemantic.engine.batching import Batcher, Work
from libsemantic.engine.config import LogLevel, LongText, RunOptions, RuntimeOptions, Shorten
from libsemantic.engine.errors import (
    CancelledError,
    DeadlineError,
    InvalidArgumentError,
    SemanticError,
    Status,
)
from libsemantic.engine.inputs import Text
from libsemantic.engine.registry import Registry

from ..abi.binding import MODELS
from ..conftest import Gate

SECRET = "xyzzyplugh"  # in each text that can hold it; in nothing that is said
Answer = TypeVar("Answer")
MIB = 1 << 20
FILLER = f"{SECRET} math taxi "
TEXTS: dict[str, tuple[Text, Status]] = {
    "nothing": ("", Status.OK),
    "a megabyte": ((FILLER * (MIB // len(FILLER) + 1))[:MIB], Status.OK),
    "a byte more": ((FILLER * (MIB // len(FILLER) + 1))[: MIB + 1], Status.TOO_LONG),
    "bytes beyond the limit": (b"\xff" * (MIB + 1), Status.TOO_LONG),
    "a word of 10,000 letters": (SECRET * 1000, Status.OK),
    "words of 100 letters": ((f"{SECRET:x<99} ") * 200, Status.OK),
    "5,000 faces": (f"{SECRET} " + "😀" * 5000, Status.OK),
    "5,000 faces apart": (f"{SECRET} " + "😀 " * 5000, Status.OK),
    "special tokens": ("[CLS][SEP]", Status.OK),
    "special tokens and a word": (f"[CLS] {SECRET} [SEP][PAD][MASK][UNK]", Status.OK),
    "spaces without width": ("\u200b" * 50, Status.OK),
    "blanks": (" \t\r\n\u00a0\u3000" * 50, Status.OK),
    "a byte order mark": (f"\ufeff{SECRET} math", Status.OK),
    "turned marks": (f"\u202e{SECRET}\u202c\u200f\u2067 math \u2069\u061c", Status.OK),
    "100,000 accents": (f"{SECRET} e" + "\u0301" * 100_000, Status.OK),
    "accents alone": ("\u0301\u0327" * 100, Status.OK),
    "NULs": (f"\0{SECRET}\0\0 math\0", Status.OK),
    "controls": ("".join(map(chr, range(1, 32))) + SECRET, Status.OK),
    "no characters": (f"{SECRET}\ufffe\uffff\U0010ffff\ue000", Status.OK),
    "a lone surrogate": (f"{SECRET}\ud800 math", Status.INVALID_ARGUMENT),
    "surrogates turned round": (f"{SECRET}\udc00\ud800", Status.INVALID_ARGUMENT),
    "broken bytes": (SECRET.encode() + b"\xc3(", Status.INVALID_ARGUMENT),
    "surrogates in bytes": (SECRET.encode() + b"\xed\xa0\x80", Status.INVALID_ARGUMENT),
    "long forms in bytes": (SECRET.encode() + b"\xc0\xaf", Status.INVALID_ARGUMENT),
    "half a face in bytes": (SECRET.encode() + b"\xf0\x9f\x98", Status.INVALID_ARGUMENT),
    "missing": (None, Status.INVALID_ARGUMENT),
    "capitals that grow": ("İ" * 300 + SECRET, Status.OK),
    "ligatures that grow": ("ﷺﬃ" * 300 + SECRET, Status.OK),
    "scripts": (f"机器学习 カタカナ ไทย हिन्दी العربية עברית {SECRET}", Status.OK),
    "a joined family": (f"{SECRET} " + "👨\u200d👩\u200d👧\u200d👦" * 200, Status.OK),
    "a format": ("%s%n{0}{} $(id) \\u0000 " + SECRET, Status.OK),
}


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Return or raise what a call does, or fail if it takes longer."""
    outcomes: list[Answer | BaseException] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcomes, f"it takes more than {seconds} seconds"
    (outcome,) = outcomes
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class Library:
    """One loaded model for each task, and all that was logged."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.lines: list[str] = []
        registry.log.send_to(lambda _, line: self.lines.append(line))
        registry.init(RuntimeOptions(log_level=LogLevel.DEBUG, parallel_runs=1))
        self._handles = {
            name: registry.load(str(MODELS / f"bert-{name}"))
            for name in ("seq", "token", "embed-mean")
        }
        self.calls: dict[str, Callable[[Sequence[Text], RunOptions], results.Result]] = {
            "classify": self._single(registry.classify, "seq"),
            "classify_pairs": self._pairs(registry.classify_pairs, "seq"),
            "classify_tokens": self._single(registry.classify_tokens, "token"),
            "classify_token_pairs": self._pairs(registry.classify_token_pairs, "token"),
            "embed": self._single(registry.embed, "embed-mean"),
            "count_tokens": self._single(registry.count_tokens, "token"),
        }

    def _single(
        self, call: Callable[[int, Sequence[Text], RunOptions], results.Result], name: str
    ) -> Callable[[Sequence[Text], RunOptions], results.Result]:
        return lambda texts, options: call(self._handles[name], texts, options)

    def _pairs(
        self,
        call: Callable[[int, Sequence[Text], Sequence[Text], RunOptions], results.Result],
        name: str,
    ) -> Callable[[Sequence[Text], RunOptions], results.Result]:
        """Return a call with the texts as the part that answers are about."""
        second = call == self.registry.classify_token_pairs

        def paired(texts: Sequence[Text], options: RunOptions) -> results.Result:
            others = [f"a {SECRET} taxi"] * len(texts)
            left, right = (others, texts) if second else (texts, others)
            return call(self._handles[name], left, right, options)

        return paired

    def settled(self) -> None:
        """Require that no call is counted as under way."""
        stats = self.registry.stats()
        assert stats.in_flight.tolist() == [0] * stats.call_count
        assert not any(SECRET in line for line in self.lines)


@pytest.fixture
def library(registry: Registry, capfd: pytest.CaptureFixture[str]) -> Iterator[Library]:
    opened = Library(registry)
    yield opened
    opened.settled()
    assert capfd.readouterr() == ("", "")


CALLS = (
    *("classify", "classify_pairs", "classify_tokens", "classify_token_pairs"),
    *("embed", "count_tokens"),
)


def cutting(name: str, policy: LongText, timeout_ms: int = 0) -> RunOptions:
    """Return options that shorten the hostile text, not the one beside it."""
    part = Shorten.SECOND if name == "classify_token_pairs" else Shorten.AUTO
    return RunOptions(long_text=policy, shorten=part, timeout_ms=timeout_ms)


def columns(answer: results.Result) -> dict[str, np.ndarray]:
    """Return all that an answer holds in numbers, but for its generation."""
    values = {field.name: getattr(answer, field.name) for field in fields(answer)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("text", "status"), TEXTS.values(), ids=TEXTS)
def test_a_hostile_text_is_answered_or_refused_by_name(
    library: Library, name: str, text: Text, status: Status
) -> None:
    call = library.calls[name]
    options = cutting(name, LongText.CUT)
    around: list[Text] = ["math taxi", text, "a derivative"]
    plain = within(20, lambda: call([around[0], around[2]], options))
    first = within(30, lambda: call(around, options))
    rows = first.rows
    if text == "":
        assert rows.status[1] in (Status.OK, Status.INVALID_ARGUMENT)
    else:
        assert rows.status == (Status.OK, status, Status.OK)
    assert bool(rows.message[1]) == (rows.status[1] != Status.OK)
    assert SECRET not in rows.message[1]
    assert rows.message[1].isprintable() or not rows.message[1]
    _check_values(first, around, rows.status[1] == Status.OK)
    # Its neighbours answer as they do without it.
    for column, expected in _by_row(plain).items():
        found = _by_row(first)[column]
        np.testing.assert_allclose(found[[0, 2]], expected, rtol=0, atol=1e-5)
    if isinstance(text, str) and len(text) < MIB // 2:
        second = within(30, lambda: call(around, options))
        assert second.rows.message == rows.message
        for column, values in columns(first).items():
            np.testing.assert_array_equal(values, columns(second)[column])


def _by_row(answer: results.Result) -> dict[str, np.ndarray]:
    names = ("logits", "probabilities", "values")
    found = {name: value for name, value in columns(answer).items() if name in names}
    return {name: value for name, value in found.items() if len(value) == answer.rows.count}


def _check_values(answer: results.Result, texts: Sequence[Text], good: bool) -> None:
    """Require numbers where there is an answer, and ranges that lie between characters."""
    for value in _by_row(answer).values():
        assert np.isfinite(value[[0, 2]]).all()
        assert np.isfinite(value[1]).all() == good
    if isinstance(answer, results.TokenClassification):
        assert np.isfinite(answer.score).all()
        assert good or 1 not in answer.row
        for row, start, end in zip(answer.row, answer.start, answer.end, strict=True):
            text = texts[row]
            assert isinstance(text, str)
            data = text.encode()
            assert 0 <= start < end <= len(data)
            data[start:end].decode()


@pytest.mark.parametrize("name", CALLS)
def test_a_text_beyond_utf8_alone_fails_the_call(library: Library, name: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        within(10, lambda: library.calls[name]([f"{SECRET}\ud800"], RunOptions()))
    assert "lone surrogate at character 10" in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("name", ["classify_tokens", "embed", "count_tokens"])
def test_windows_cover_every_hostile_text(library: Library, name: str) -> None:
    chosen = [text for text, _ in TEXTS.values() if text is not None and len(text) < MIB // 2]
    options = RunOptions(long_text=LongText.WINDOWS)
    answer = within(60, lambda: library.calls[name](chosen, options))
    for row, status in enumerate(answer.rows.status):
        if status == Status.OK:
            assert answer.rows.scored_token_count[row] == answer.rows.token_count[row]
            assert answer.rows.truncated[row] == 0
    assert max(answer.rows.window_count) > 50
    assert SECRET not in "".join(answer.rows.message)


def test_60_000_rows(library: Library) -> None:
    texts = [f"{SECRET} math", "", "a taxi"] * 20_000
    counted = within(60, lambda: library.calls["count_tokens"](texts, RunOptions()))
    assert counted.rows.count == 60_000
    assert counted.rows.token_count == counted.rows.token_count[:3] * 20_000
    vectors = within(60, lambda: library.calls["embed"](texts, RunOptions()))
    assert isinstance(vectors, results.Embedding)
    assert vectors.rows.status == vectors.rows.status[:3] * 20_000
    words = vectors.values.reshape(20_000, 3, -1)[:, [0, 2]]
    assert np.isfinite(words).all()
    np.testing.assert_allclose(words, np.broadcast_to(words[:1], words.shape), rtol=0, atol=1e-5)


# Calls that are given up


LONG = [f"{SECRET} math taxi " * 40] * 20_000


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("texts", [LONG, [TEXTS["a megabyte"][0]]], ids=["rows", "one text"])
def test_a_deadline_of_a_millisecond(library: Library, name: str, texts: Sequence[Text]) -> None:
    """One text is tokenised whole before the deadline is looked at: up to 4.5 s a megabyte."""
    options = cutting(name, LongText.WINDOWS, timeout_ms=1)
    started = time.monotonic()
    with pytest.raises(DeadlineError, match=r"^timeout_ms 1 has passed"):
        within(30, lambda: library.calls[name](texts, options))
    assert time.monotonic() - started < (2 if len(texts) > 1 else 20)


@pytest.mark.parametrize("given_up", ["deadline", "cancelled"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "count_tokens"])
def test_work_is_given_up_in_the_queue_and_in_a_run(
    registry: Registry, gate: Gate, name: str, given_up: str
) -> None:
    """With one run at a time, and that one held: the first call is in it, the second waits."""
    library = Library(registry)
    call = library.calls[name]
    timed = given_up == "deadline"
    admitted = threading.Event()
    ended: dict[int, SemanticError] = {}
    execute = Batcher.execute

    def run(key: int) -> None:
        try:
            call([f"{SECRET} math"], RunOptions(cancel_key=key))
        except SemanticError as error:
            ended[key] = error

    def late(batcher: Batcher, work: Work, on_admitted: Callable[[], None]) -> None:
        """Let the time begin to run when the texts are tokenised; a run needs some to begin."""

        def note() -> None:
            on_admitted()
            admitted.set()

        if timed:
            work.ticket.timeout_ms = 1
            work.ticket.deadline = time.monotonic() + (0.2 if work.ticket.key == 1 else 0.001)
        execute(batcher, work, note)

    def give_up(key: int, arrived: Callable[[], object]) -> None:
        admitted.clear()
        thread = threading.Thread(target=run, args=(key,), daemon=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Batcher, "execute", late)
            thread.start()
            assert admitted.wait(10)
            arrived()
            if not timed:
                assert registry.cancel(key)
            thread.join(10)
        assert not thread.is_alive()

    gate.close()
    give_up(1, gate.wait_for_a_run)
    holder = threading.Thread(target=run, args=(3,), daemon=True)
    holder.start()
    gate.wait_for_a_run()
    give_up(2, lambda: time.sleep(0.02))
    assert holder.is_alive()
    assert not gate.entered.acquire(timeout=0.02), "the second call ran"
    gate.open()
    holder.join(10)
    kind = DeadlineError if timed else CancelledError
    assert {key: type(error) for key, error in ended.items()} == {1: kind, 2: kind}
    assert within(10, lambda: call(["math"], RunOptions())).rows.status == (Status.OK,)
    library.settled()


def test_work_that_is_cancelled_while_it_runs_and_while_it_waits(library: Library) -> None:
    """With one run at a time, the second call waits for the first."""
    registry = library.registry
    ended: dict[int, SemanticError] = {}

    def call(key: int) -> None:
        try:
            library.calls["classify"](LONG, RunOptions(cancel_key=key))
        except SemanticError as error:
            ended[key] = error

    threads = [threading.Thread(target=call, args=(key,), daemon=True) for key in (1, 2)]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    started = time.monotonic()
    for key in (2, 1):
        assert registry.cancel(key)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert time.monotonic() - started < 5
    assert {key: type(error) for key, error in ended.items()} == {
        1: CancelledError,
        2: CancelledError,
    }
    assert not any(SECRET in error.message for error in ended.values())
    after = within(10, lambda: library.calls["classify"](["math"], RunOptions()))
    assert after.rows.status == (Status.OK,)


def test_short_work_goes_on_while_long_work_runs(library: Library) -> None:
    registry = library.registry
    stopped: list[SemanticError] = []

    def flood() -> None:
        try:
            library.calls["classify"](LONG, RunOptions(cancel_key=5))
        except SemanticError as error:
            stopped.append(error)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    time.sleep(0.3)
    for _ in range(10):
        answer = within(5, lambda: library.calls["embed"](["a taxi"], RunOptions()))
        assert answer.rows.status == (Status.OK,)
    assert thread.is_alive()
    assert registry.cancel(5)
    thread.join(10)
    assert [type(error) for error in stopped] == [CancelledError]
