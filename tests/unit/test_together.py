"""One call, several models: what they share is done once, and each request fails alone."""

import gc
import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from libsemantic.engine import tasks
from libsemantic.engine.batching import Batcher, RunControl, Window
from libsemantic.engine.config import (
    MAX_REQUESTS,
    LoadOptions,
    LongText,
    Normalize,
    Output,
    RunOptions,
)
from libsemantic.engine.counters import Call, Phase
from libsemantic.engine.crew import Crew
from libsemantic.engine.errors import (
    BadArtifactError,
    ClosedError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    SemanticError,
    Status,
    TooLongError,
)
from libsemantic.engine.inputs import Text
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Answers, Float32, Result
from libsemantic.engine.session import Session
from libsemantic.engine.ticket import Ticket
from libsemantic.engine.together import ModelRequest
from libsemantic.engine.tokenization import Encoded, Tokenizer, identity_of
from tests.conftest import Gate

from .test_registry import MEAN, SEQ, TOKEN, Background, until

TEXTS: Sequence[Text] = [
    "math law",
    "",
    b"Ask J\xc3\xbcrgen, \xf0\x9f\x98\x80!",
    "the router " * 90,
]
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]


def alone(registry: Registry, request: ModelRequest, texts: Sequence[Text]) -> Result:
    """What the request's model says when it is asked by itself."""
    calls: Mapping[str, Callable[[int, Sequence[Text], RunOptions], Result]] = {
        "bert-seq": registry.classify,
        "bert-token": registry.classify_tokens,
        "bert-embed-mean": registry.embed,
    }
    name = registry.info(request.model).name
    return calls[name](request.model, texts, request.options)


def result_of(answers: Answers, index: int) -> Result:
    """The one result of a request."""
    columns = (answers.classification, answers.token_classification, answers.embedding)
    (found,) = [each for column in columns if (each := column[index]) is not None]
    return found


def batcher_of(registry: Registry, handle: int) -> Batcher:
    model = registry._entries[handle].model
    assert model is not None
    return model.batcher


def require_same(found: object, expected: object) -> None:
    """Compare two results field by field; errors by what they say."""
    assert type(found) is type(expected)
    if isinstance(found, np.ndarray) and isinstance(expected, np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
    elif is_dataclass(expected):
        for field in fields(expected):
            require_same(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple) and expected and isinstance(found, tuple):
        assert [str(each) for each in found] == [str(each) for each in expected]
    else:
        assert found == expected


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note all texts that tokenizers encode from here on."""
    texts: list[str] = []
    encode = Tokenizer.encode

    def noting(tokenizer: Tokenizer, given: Sequence[str], offsets: bool) -> list[Encoded]:
        texts.extend(given)
        return encode(tokenizer, given, offsets)

    monkeypatch.setattr(Tokenizer, "encode", noting)
    return texts


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> list[RunControl]:
    """Note all runs that begin from here on."""
    begun: list[RunControl] = []
    run = Session.run

    def noting(session: Session, windows: Sequence[Window], control: RunControl) -> list[Float32]:
        begun.append(control)
        return run(session, windows, control)

    monkeypatch.setattr(Session, "run", noting)
    return begun


OPTIONS: Mapping[str, Sequence[RunOptions]] = {
    SEQ: (
        RunOptions(),
        RunOptions(long_text=LongText.WINDOWS, threshold=0.2),
        RunOptions(long_text=LongText.WINDOWS, window_overlap=3, max_tokens=16),
    ),
    TOKEN: (RunOptions(), RunOptions(output=Output.TOKENS), RunOptions(threshold=0.9)),
    MEAN: (RunOptions(), RunOptions(normalize=Normalize.OFF), RunOptions(max_tokens=8)),
}


def test_each_model_answers_as_it_does_alone(registry: Registry) -> None:
    requests = [
        ModelRequest(handle, options)
        for path, several in OPTIONS.items()
        for handle in [registry.load(path)]
        for options in several
    ]
    expected = [alone(registry, request, TEXTS) for request in requests]
    for count in (0, 1, 2, len(requests)):
        answers = registry.run_models(requests[:count], TEXTS)
        assert answers.count == count
        assert answers.status == (Status.OK,) * count
        assert answers.message == ("",) * count
        assert answers.input_index == (-1,) * count
        assert answers.first_error() is None
        for index in range(count):
            require_same(result_of(answers, index), expected[index])
    nothing = registry.run_models(requests, [])
    for index in range(len(requests)):
        assert result_of(nothing, index).rows.count == 0


def test_a_text_is_tokenised_once_per_tokenizer(
    registry: Registry, copy_golden: CopyGolden, encoded: list[str]
) -> None:
    # The files of these differ in nothing but truncation and padding; that of TOKEN does.
    padding = json.loads((Path(MEAN) / "tokenizer.json").read_text())["truncation"]
    assert padding is not None
    same = [registry.load(path) for path in (SEQ, MEAN, str(copy_golden("bert-seq", {})))]
    other = registry.load(TOKEN)
    texts = ["math law", "the router", "math law"]
    encoded.clear()
    registry.run_models([ModelRequest(handle) for handle in same], texts)
    assert sorted(encoded) == ["math law", "the router"]
    encoded.clear()
    registry.run_models([ModelRequest(handle) for handle in (*same, other)], texts)
    assert sorted(encoded) == ["math law", "math law", "the router", "the router"]
    encoded.clear()
    for handle in same[:2]:
        registry.count_tokens(handle, ["math"])
    assert encoded == ["math", "math"]


def written(**changes: object) -> bytes:
    """A tokenizer.json as the library writes it, with some values changed."""
    content = json.loads((Path(SEQ) / "tokenizer.json").read_text())
    return json.dumps(content | changes, indent=2).encode()


PADDING = {
    "strategy": {"Fixed": 128},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}
TRUNCATION = {"direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0}


def test_files_that_make_the_same_tokenizer_are_told_from_others() -> None:
    plain = identity_of(written())
    assert identity_of(written(truncation=TRUNCATION)) == plain
    padded = identity_of(written(padding=PADDING))
    longest = PADDING | {"strategy": "BatchLongest", "pad_token": "<pad>"}
    assert identity_of(written(truncation=TRUNCATION, padding=longest)) == padded
    others = [
        plain,
        padded,  # its padding names the id that fills
        identity_of(written(padding=PADDING | {"pad_id": 1})),
        identity_of(written(normalizer=None)),
        identity_of(written(post_processor=None)),
        identity_of(written(version="1.1")),
        identity_of(written(padding=PADDING | {"pad_token": "}"})),
        identity_of(written(padding=PADDING | {"pad_id": [0]})),
        identity_of(written(padding=PADDING | {"pad_id": 0.0})),
        identity_of(written(padding={})),
        identity_of(written(truncation=TRUNCATION).replace(b'"stride"', b"stride")),
        identity_of(b"{}"),
        identity_of(b""),
    ]
    assert len(set(others)) == len(others)


def test_a_damaged_tokenizer_is_not_taken_for_a_sound_one(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    sound = written(truncation=TRUNCATION, padding=PADDING)
    registry.load(str(copy_golden("bert-seq", {"tokenizer.json": sound.decode()})))
    for damaged in (
        written(truncation=TRUNCATION, padding=PADDING | {"pad_id": [0]}),
        written(truncation=TRUNCATION, padding=PADDING | {"pad_id": 0.0}),
        sound.replace(b'"stride"', b"stride"),
    ):
        folder = copy_golden("bert-seq", {"tokenizer.json": damaged.decode()})
        with pytest.raises(BadArtifactError):
            registry.load(str(folder))


def test_equal_tokenizers_are_held_once(registry: Registry, copy_golden: CopyGolden) -> None:
    def held() -> int:
        stats = registry.stats()
        return int(stats.memory_bytes[stats.memory_owner.index("tokenizers")])

    registry.load(SEQ)
    before = held()
    for name in ("second", "third"):
        registry.load(str(copy_golden("bert-seq", {})), LoadOptions(name=name))
    assert held() == before


def test_a_prompt_makes_another_text(
    registry: Registry, copy_golden: CopyGolden, encoded: list[str]
) -> None:
    prompts = {"prompts": {"query": "query: ", "same": "query: "}, "default_prompt_name": None}
    folder = copy_golden("bert-embed-mean", {"config_sentence_transformers.json": prompts})
    handle = registry.load(str(folder))
    options = [RunOptions(prompt_name=name) for name in ("query", "same", "", None)]
    encoded.clear()
    answers = registry.run_models([ModelRequest(handle, each) for each in options], ["math"])
    assert sorted(encoded) == ["math", "query: math"]
    vectors = [each.values for each in answers.embedding if each is not None]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    np.testing.assert_array_equal(vectors[2], vectors[3])
    assert not np.allclose(vectors[0], vectors[2])


def test_requests_that_are_scored_alike_share_their_runs(
    registry: Registry, controls: list[RunControl]
) -> None:
    seq, token = registry.load(SEQ), registry.load(TOKEN)
    controls.clear()
    alike = [RunOptions(), RunOptions(threshold=0.9), RunOptions(long_text=LongText.CUT)]
    registry.run_models([ModelRequest(seq, each) for each in alike], ["math"])
    assert len(controls) == 1
    registry.run_models([ModelRequest(token), ModelRequest(seq), ModelRequest(token)], ["math"])
    assert len(controls) == 3
    stats = registry.stats()
    for model, rows, batches in ((seq, 4, 2), (token, 2, 1)):
        (at,) = np.flatnonzero(stats.call_model_id == model)
        assert (stats.completed[at], stats.accepted[at], stats.batches[at]) == (rows, rows, batches)
        assert (stats.in_flight[at], stats.latency[at].sum()) == (0, rows)
        phases = stats.phase_latency[at].sum(axis=1)
        assert phases.tolist() == [rows] * len(Phase)
    controls.clear()
    apart = [
        *(RunOptions(), RunOptions(timeout_ms=50_000), RunOptions(cancel_key=1)),
        *(RunOptions(long_text=LongText.WINDOWS), RunOptions(max_tokens=8)),
    ]
    registry.run_models([ModelRequest(seq, each) for each in apart], ["math"])
    assert len(controls) <= len(apart)  # a run may take along what waits
    assert sum(len(each.works) for each in controls) == len(apart)


def test_models_run_side_by_side_on_one_thread_each(
    registry: Registry, gate: Gate, controls: list[RunControl]
) -> None:
    handles = [registry.load(path) for path in (SEQ, TOKEN, MEAN)]
    controls.clear()
    gate.close()
    call = Background(lambda: registry.run_models([ModelRequest(h) for h in handles], ["math"]))
    for _ in handles:  # all are inside at once, though no run has ended
        gate.wait_for_a_run()
    stats = registry.stats()
    assert sorted(stats.in_flight.tolist()) == [1, 1, 1]
    helpers = [each for each in threading.enumerate() if each.name == "semantic-helper"]
    assert len(helpers) == 2
    gate.open()
    call.answer()
    assert [control.alone for control in controls] == [False] * 3
    controls.clear()
    registry.run_models([ModelRequest(handles[0])], ["math"])
    assert [control.alone for control in controls] == [True]
    registry.cleanup(10_000)
    assert not any(each.is_alive() for each in helpers)


def test_one_request_needs_no_helper(registry: Registry) -> None:
    handle = registry.load(SEQ)
    registry.run_models([ModelRequest(handle), ModelRequest(handle, RunOptions(threshold=0.9))], [])
    registry.run_models([ModelRequest(handle)], ["math"])
    assert "semantic-helper" not in {each.name for each in threading.enumerate()}


def test_a_thread_that_is_refused_is_done_without(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [registry.load(path) for path in (SEQ, TOKEN, MEAN)]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    answers = registry.run_models([ModelRequest(handle) for handle in handles], ["math"])
    assert answers.status == (Status.OK,) * 3


def test_requests_fail_alone(registry: Registry, copy_golden: CopyGolden) -> None:
    seq, mean = registry.load(SEQ), registry.load(MEAN)
    small = registry.load(
        str(copy_golden("bert-seq", {})), LoadOptions(name="small", max_text_bytes=6)
    )
    gone = registry.load(TOKEN)
    registry.unload(gone, 0)
    requests: Mapping[Status, ModelRequest] = {
        Status.OK: ModelRequest(seq),
        Status.INVALID_ARGUMENT: ModelRequest(0),
        Status.NOT_FOUND: ModelRequest(mean, RunOptions(prompt_name="nobody's")),
        Status.CLOSED: ModelRequest(gone),
        Status.PARTIAL: ModelRequest(small),
        Status.TOO_LONG: ModelRequest(seq, refused=TooLongError("said before")),
    }
    answers = registry.run_models([*requests.values(), ModelRequest(mean)], ["math", "mathematics"])
    assert answers.status == (*requests, Status.OK)
    assert answers.input_index == (-1, -1, -1, -1, 1, -1, -1)
    assert "max_text_bytes is 6" in answers.message[4]
    assert answers.message[5] == "said before"
    first = answers.first_error()
    assert first is not None
    assert (first[0], first[1].status) == (1, Status.INVALID_ARGUMENT)
    for index in (0, 4, 6):
        assert result_of(answers, index).rows.status[0] == Status.OK
    for column in (answers.classification, answers.token_classification, answers.embedding):
        assert [column[index] for index in (1, 2, 3, 5)] == [None] * 4
    # A wrong option refuses its rows, as alone; a handle that is wrong has no counters.
    stats = registry.stats()
    assert dict(zip(stats.call_model_id.tolist(), stats.refused.tolist(), strict=True)) == {
        seq: 0,
        mean: 2,
        small: 0,
    }


def test_if_every_request_fails_the_first_error_is_raised(registry: Registry) -> None:
    seq = registry.load(SEQ)
    for requests, texts, error in (
        ([ModelRequest(seq), ModelRequest(seq)], [b"\xff", None], InvalidArgumentError),
        ([ModelRequest(99), ModelRequest(0)], ["math"], NotFoundError),
        ([ModelRequest(seq)] * (MAX_REQUESTS + 1), ["math"], InvalidArgumentError),
        ([ModelRequest(seq)], ["math"] * 65_537, InvalidArgumentError),
    ):
        with pytest.raises(error) as raised:
            registry.run_models(requests, texts)
        assert raised.value.input_index == (0 if len(requests) <= 2 and len(texts) < 9 else -1)
    with pytest.raises(InvalidArgumentError, match="one text came in place"):
        registry.run_models([ModelRequest(seq)], "math")
    assert registry.run_models([ModelRequest(seq)] * MAX_REQUESTS, ["math"]).count == MAX_REQUESTS
    assert registry.stats().in_flight.sum() == 0


def test_faults_of_one_model_are_no_matter_of_the_others(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [registry.load(path) for path in (SEQ, TOKEN, MEAN)]
    token = batcher_of(registry, handles[1])
    for error, status in (
        (RuntimeError("the user's text"), Status.INTERNAL),
        (MemoryError(), Status.OUT_OF_MEMORY),
        (InternalError("injected"), Status.INTERNAL),
    ):
        with monkeypatch.context() as patch:

            def fail(
                windows: Sequence[Window], control: RunControl, error: Exception = error
            ) -> Sequence[Float32]:
                del windows, control
                raise error

            patch.setattr(token, "_run", fail)
            answers = registry.run_models([ModelRequest(h) for h in handles], ["math"])
        assert answers.status == (Status.OK, status, Status.OK)
        assert "the user's text" not in answers.message[1]
    again = registry.run_models([ModelRequest(h) for h in handles], ["math"])
    assert again.status == (Status.OK,) * 3
    assert registry.stats().in_flight.sum() == 0


def test_an_interrupted_call_keeps_no_lease(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seq = registry.load(SEQ)
    alike = [ModelRequest(seq), ModelRequest(seq, RunOptions(threshold=0.9))]

    def interrupted(*_: object) -> Result:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            registry.run_models(alike, ["math"])
    assert registry.stats().in_flight.sum() == 0
    registry.unload(seq, 0)


def test_deadlines_and_keys_end_their_request_only(registry: Registry, gate: Gate) -> None:
    seq, mean = registry.load(SEQ), registry.load(MEAN)
    gate.close()
    requests = [
        ModelRequest(seq, RunOptions(timeout_ms=300)),
        ModelRequest(mean, RunOptions(cancel_key=7)),
        ModelRequest(seq),
    ]
    answered: list[Answers] = []
    call = Background(lambda: answered.append(registry.run_models(requests, ["math"])))
    gate.wait_for_a_run()
    until(lambda: registry.stats().in_flight.sum() >= 2)
    assert registry.cancel(7)
    until(lambda: registry.stats().expired.sum() == 1)
    gate.open()
    call.answer()
    assert answered[0].status == (Status.DEADLINE, Status.CANCELLED, Status.OK)
    stats = registry.stats()
    assert (stats.completed.sum(), stats.expired.sum(), stats.cancelled.sum()) == (1, 1, 1)
    assert stats.in_flight.sum() == 0
    assert not registry.cancel(7)


def test_a_key_ends_all_requests_that_carry_it_or_is_not_found(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However early it is cancelled: here after each request's model has been leased."""
    handles = [registry.load(path) for path in (SEQ, TOKEN, MEAN)]
    requests = [ModelRequest(handle, RunOptions(cancel_key=7)) for handle in handles]
    lease, leased, found = registry._lease, [], []

    for moment in range(len(handles)):

        def and_cancel(entry: Any, ticket: Ticket, moment: int = moment) -> object:
            held = lease(entry, ticket)
            leased.append(entry)
            if len(leased) == moment + 1:
                found.append(registry.cancel(7))
            return held

        leased.clear()
        monkeypatch.setattr(registry, "_lease", and_cancel)
        try:
            ended = set(registry.run_models(requests, ["math"]).status)
        except SemanticError as error:
            ended = {error.status}
        assert ended == {Status.CANCELLED if found[-1] else Status.OK}


def test_unloading_and_cleaning_up_wait_for_the_requests_of_their_model(
    registry: Registry, gate: Gate
) -> None:
    seq, mean = registry.load(SEQ), registry.load(MEAN)
    gate.close()
    call = Background(
        lambda: registry.run_models([ModelRequest(seq), ModelRequest(mean)], ["math"])
    )
    for _ in range(2):
        gate.wait_for_a_run()
    unloading = Background(lambda: registry.unload(seq, 10_000))
    until(lambda: bool((registry.list_models().state == 3).any()))
    with pytest.raises(SemanticError):
        registry.run_models([ModelRequest(seq)], ["math"])
    later = registry.run_models([ModelRequest(99)] * 0, ["math"])
    assert later.count == 0
    cleaning = Background(lambda: registry.cleanup(10_000))
    gate.open()
    for each in (call, cleaning):
        each.answer()
    unloading.join(10)
    assert unloading.error is None or isinstance(unloading.error, ClosedError)
    assert registry.list_models().count == 0
    assert "semantic-helper" not in {each.name for each in threading.enumerate()}
    handle = registry.load(SEQ)  # a new runtime has helpers again
    other = registry.load(MEAN)
    assert registry.run_models([ModelRequest(handle), ModelRequest(other)], ["math"]).count == 2


def test_a_model_that_has_answered_is_freed_while_others_run(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    seq, mean = registry.load(SEQ), registry.load(MEAN)
    held = threading.Event()
    slow = batcher_of(registry, mean)

    def wait(windows: Sequence[Window], control: RunControl) -> Sequence[Float32]:
        assert held.wait(10)
        return original(windows, control)

    original = slow._run
    monkeypatch.setattr(slow, "_run", wait)
    gc.collect()
    gc.disable()  # so that a cycle would show
    try:
        quick = weakref.ref(batcher_of(registry, seq))
        call = Background(
            lambda: registry.run_models([ModelRequest(mean), ModelRequest(seq)], ["math"])
        )
        until(lambda: registry.stats().completed.sum() == 1)
        registry.unload(seq, 10_000)
        until(lambda: quick() is None)  # the helper leaves its last frame
        with pytest.raises(DeadlineError):
            registry.unload(mean, 0)
    finally:
        held.set()
        gc.enable()
    call.answer()
    registry.unload(mean, 10_000)


def test_what_a_call_asks_in_turn_is_counted_by_its_task(registry: Registry) -> None:
    handles = {registry.load(SEQ): Call.CLASSIFY, registry.load(TOKEN): Call.CLASSIFY_TOKENS}
    handles[registry.load(MEAN)] = Call.EMBED
    registry.run_models([ModelRequest(handle) for handle in handles], ["math", "law"])
    stats = registry.stats()
    assert dict(zip(stats.call_model_id.tolist(), stats.call.tolist(), strict=True)) == handles
    assert stats.completed.tolist() == [2, 2, 2]


# Helpers


def test_a_crew_does_all_parts_whoever_is_free() -> None:
    crew = Crew(2)
    done: list[str] = []
    held, release = threading.Semaphore(0), threading.Event()

    def part() -> None:
        done.append(threading.current_thread().name)
        held.release()
        assert release.wait(10)

    first = Background(lambda: crew.do([part] * 4, release.set))
    for _ in range(3):
        assert held.acquire(timeout=10)
    assert not held.acquire(timeout=0.05)  # the caller and two helpers, no more
    second = Background(lambda: crew.do([lambda: done.append("second")] * 3, release.set))
    second.answer()  # with no helper free it does its parts itself
    release.set()
    first.answer()
    assert done.count("second") == 3
    assert done.count("semantic-helper") in (2, 3)
    crew.stop()
    assert "semantic-helper" not in {each.name for each in threading.enumerate()}
    crew.do([lambda: done.append("again")] * 2, release.set)
    assert done.count("again") == 2
    crew.stop()


def test_an_interrupted_caller_ends_its_parts_first() -> None:
    crew = Crew(1)
    given_up, ended = threading.Event(), threading.Semaphore(0)

    def helped() -> None:
        assert given_up.wait(10)
        ended.release()

    def interrupted() -> None:
        raise KeyboardInterrupt

    def either() -> None:
        if threading.current_thread().name == "semantic-helper":
            helped()
        else:
            interrupted()

    def call() -> None:
        crew.do([either, either, partial(ended.release, 1)], given_up.set)

    caller = Background(call)
    caller.join(10)
    assert isinstance(caller.error, KeyboardInterrupt)
    assert given_up.is_set()
    crew.stop()
