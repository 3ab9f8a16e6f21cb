"""Faults in a run that several callers share: each gets its own status, and the next call is right.

One run at a time for all models: while it is held others queue, and the next run takes them along.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest

from libsemantic.engine.batching import RunControl, Window
from libsemantic.engine.config import RunOptions, RuntimeOptions
from libsemantic.engine.errors import (
    BadArtifactError,
    CancelledError,
    DeadlineError,
    InternalError,
    NotReadyError,
    OutOfMemoryError,
    SemanticError,
    Status,
)
from libsemantic.engine.inputs import Text
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Classification, Float32, Stats
from libsemantic.engine.session import Session
from libsemantic.engine.tokenization import Encoded, Tokenizer

from ..conftest import Gate
from .test_bad_artifacts import GOLDEN, token_of

GOOD, BAD = "law code", "math code"
ENDS = ("completed", "failed", "expired", "cancelled", "in_flight")


class Caller(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Classification]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.answer: Classification | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:
            self.error = error

    def finish(self) -> tuple[Status, ...] | type[BaseException]:
        """Return the statuses of the rows, or the class of the error of the whole call."""
        self.join(20)
        assert not self.is_alive(), "the caller hangs"
        if self.answer is not None:
            return tuple(map(Status, self.answer.rows.status))
        assert self.error is not None
        return type(self.error)


class Scene:
    """Two models, a run that is held, and callers that wait behind it."""

    def __init__(self, registry: Registry, gate: Gate) -> None:
        registry.init(RuntimeOptions(parallel_runs=1))
        self.registry = registry
        self.gate = gate
        self.model = registry.load(str(GOLDEN / "bert-seq"))
        self.other = registry.load(str(GOLDEN / "bert-reranker"))
        self.expected = registry.classify(self.model, [GOOD]).logits[0]
        gate.close()
        self.first = Caller(lambda: registry.classify(self.model, ["law"]))
        gate.wait_for_a_run()
        self.callers: list[Caller] = []
        self.books()

    def classify(self, texts: Sequence[Text], options: RunOptions | None = None) -> Classification:
        return self.registry.classify(self.model, texts, options)

    def call(self, texts: Sequence[Text], options: RunOptions | None = None) -> Caller:
        """Start a call and wait until it queues, or has failed."""
        before = self.books()["in_flight"]
        caller = Caller(lambda: self.classify(texts, options))
        self.callers.append(caller)
        while caller.is_alive() and self.books()["in_flight"] == before:
            threading.Event().wait(0.001)
        return caller

    def call_pair(self) -> Caller:
        """Start a call to the other model."""
        caller = Caller(lambda: self.registry.classify_pairs(self.other, ["law"], ["code"]))
        self.callers.append(caller)
        return caller

    def books(self) -> Mapping[str, int]:
        """Return the sums of all counters, checked to balance."""
        stats: Stats = self.registry.stats()
        total = {name: int(getattr(stats, name).sum()) for name in (*ENDS, "accepted")}
        assert total["accepted"] == sum(total[name] for name in ENDS)
        return total

    def end(self) -> None:
        """Let everything end; the next calls are right and the books say that nothing is left."""
        self.gate.open()
        assert self.first.finish() == (Status.OK,)
        for caller in self.callers:
            caller.finish()
        assert self.books()["in_flight"] == 0
        np.testing.assert_allclose(
            self.registry.classify(self.model, [GOOD]).logits[0], self.expected, rtol=0, atol=1e-5
        )
        pair = self.registry.classify_pairs(self.other, ["law"], ["code"])
        assert pair.rows.status == (Status.OK,)

    def right(self, caller: Caller, row: int = 0) -> bool:
        assert caller.answer is not None
        return bool(np.allclose(caller.answer.logits[row], self.expected, rtol=0, atol=1e-5))


class Faults:
    """What goes wrong from now on with texts that have the word "math"."""

    def __init__(self) -> None:
        self.in_run: BaseException | None = None
        self.in_tokenizer: BaseException | None = None


@pytest.fixture
def faults(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Inject faults into runs, behind the gate, and into tokenizers."""
    del gate  # it must be there before
    arranged = Faults()
    run, encode = Session.run, Tokenizer.encode
    token = token_of("bert-seq", "math")

    def run_or_fail(
        session: Session, windows: Sequence[Window], control: RunControl
    ) -> list[Float32]:
        outputs = run(session, windows, control)
        if arranged.in_run is not None and any(token in window.ids for window in windows):
            raise arranged.in_run
        return outputs

    def encode_or_fail(tokenizer: Tokenizer, texts: Sequence[str], offsets: bool) -> list[Encoded]:
        if arranged.in_tokenizer is not None and any("math" in text for text in texts):
            raise arranged.in_tokenizer
        return encode(tokenizer, texts, offsets)

    monkeypatch.setattr(Session, "run", run_or_fail)
    monkeypatch.setattr(Tokenizer, "encode", encode_or_fail)
    return arranged


@pytest.fixture
def scene(registry: Registry, gate: Gate, faults: Faults) -> Iterator[Scene]:
    del faults  # they must be there before models are loaded
    made = Scene(registry, gate)
    yield made
    gate.open()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InternalError("ONNX Runtime failed in a run"), InternalError),
        (OutOfMemoryError("the system refused the memory of a run"), OutOfMemoryError),
        (MemoryError(), OutOfMemoryError),
    ],
    ids=["raises", "memory", "memory of numpy"],
)
def test_a_text_that_breaks_a_shared_run_fails_alone(
    scene: Scene, faults: Faults, error: BaseException, kind: type[SemanticError]
) -> None:
    faults.in_run = error
    one, two, three = scene.call([GOOD]), scene.call([GOOD, BAD]), scene.call([BAD])
    pair = scene.call_pair()
    scene.gate.open()
    assert one.finish() == (Status.OK,)
    assert two.finish() == (Status.OK, kind.status)
    assert three.finish() is kind
    assert pair.finish() == (Status.OK,)
    assert scene.right(one)
    assert scene.right(two)
    scene.end()
    assert scene.books()["failed"] == 2


def test_a_bug_in_a_shared_run_reaches_its_leader_and_frees_the_cpus(
    scene: Scene, faults: Faults
) -> None:
    faults.in_run = ZeroDivisionError("a bug")
    callers = [scene.call([BAD]) for _ in range(3)]
    pair = scene.call_pair()
    scene.gate.open()
    ends = [caller.finish() for caller in callers]
    assert sorted(end.__name__ for end in ends if isinstance(end, type)) == [
        *("InternalError", "InternalError", "ZeroDivisionError")
    ]
    assert pair.finish() == (Status.OK,)
    scene.end()
    assert scene.books()["failed"] == 3


@pytest.mark.parametrize(
    ("error", "many"),
    [
        (BadArtifactError("the tokenizer failed on a text"), (Status.OK, Status.BAD_ARTIFACT)),
        (OutOfMemoryError("no memory to tokenise"), OutOfMemoryError),
        (ZeroDivisionError("a bug"), ZeroDivisionError),
    ],
    ids=["raises", "memory", "bug"],
)
def test_a_tokenizer_that_raises_fails_its_own_call(
    scene: Scene,
    faults: Faults,
    error: BaseException,
    many: tuple[Status, ...] | type[BaseException],
) -> None:
    """Where memory is refused the texts of a call are not tried one by one."""
    faults.in_tokenizer = error
    good = scene.call([GOOD])
    both, bad = scene.call([GOOD, BAD]), Caller(lambda: scene.classify([BAD]))
    assert bad.finish() is type(error)
    scene.gate.open()
    assert both.finish() == many
    assert good.finish() == (Status.OK,)
    assert scene.right(good)
    scene.end()


def test_an_invalid_text_fails_its_row_and_no_other_caller(scene: Scene) -> None:
    mixed, good = scene.call([GOOD, b"\xff", GOOD]), scene.call([GOOD])
    scene.gate.open()
    assert mixed.finish() == (Status.OK, Status.INVALID_ARGUMENT, Status.OK)
    assert good.finish() == (Status.OK,)
    assert all(scene.right(mixed, row) for row in (0, 2))
    scene.end()


@pytest.mark.parametrize("way", ["cancelled", "expired"])
def test_a_caller_that_gives_up_takes_nothing_from_those_it_queued_with(
    scene: Scene, way: str
) -> None:
    options = RunOptions(cancel_key=7) if way == "cancelled" else RunOptions(timeout_ms=300)
    before, hasty, after = scene.call([GOOD]), scene.call([GOOD] * 2, options), scene.call([GOOD])
    pair = scene.call_pair()
    if way == "cancelled":
        assert scene.registry.cancel(7)
    assert hasty.finish() is (CancelledError if way == "cancelled" else DeadlineError)
    assert scene.books()[way] == 2
    scene.gate.open()
    assert [each.finish() for each in (before, after, pair)] == [(Status.OK,)] * 3
    assert scene.right(before)
    assert scene.right(after)
    scene.end()


@pytest.mark.parametrize("way", ["unload", "cleanup"])
def test_closing_in_the_middle_of_a_run_lets_all_that_queue_end(scene: Scene, way: str) -> None:
    registry = scene.registry
    callers = [scene.call([GOOD, BAD]) for _ in range(3)]

    def close(timeout_ms: int) -> None:
        if way == "unload":
            registry.unload(scene.model, timeout_ms)
        else:
            registry.cleanup(timeout_ms)

    with pytest.raises(DeadlineError):
        close(0)
    with pytest.raises(NotReadyError):
        scene.classify([GOOD])
    scene.books()
    scene.gate.open()
    for caller in callers:
        assert caller.finish() == (Status.OK, Status.OK)
        assert scene.right(caller)
    close(20_000)
    books = scene.books()
    assert (books["in_flight"], books["completed"]) == (0, 2 + 6)  # two calls came before
    again = registry.load(str(GOLDEN / "bert-seq"))
    np.testing.assert_allclose(
        registry.classify(again, [GOOD]).logits[0], scene.expected, rtol=0, atol=1e-5
    )
