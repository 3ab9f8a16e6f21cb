"""A model's life: loaded, found, replaced, unloaded; and the runtime's own, started and ended."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from libsemantic.engine import registry as module
from libsemantic.engine.config import (
    AdapterMode,
    LoadOptions,
    LogLevel,
    LongText,
    Precision,
    RunOptions,
    RuntimeOptions,
    Task,
)
from libsemantic.engine.errors import (
    AlreadyExistsError,
    BadArtifactError,
    CancelledError,
    ClosedError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    SemanticError,
    TooLongError,
    UnsupportedError,
)
from libsemantic.engine.inputs import Text
from libsemantic.engine.model import Model, load_model
from libsemantic.engine.registry import REGISTRY, Registry
from libsemantic.engine.results import Classification
from libsemantic.engine.session import Session
from libsemantic.engine.stats import State
from tests.conftest import Gate

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
SEQ, TOKEN, RERANKER = (str(GOLDEN / name) for name in ("bert-seq", "bert-token", "bert-reranker"))
MEAN, CLS = str(GOLDEN / "bert-embed-mean"), str(GOLDEN / "bert-embed-cls")
ENDLESS = 2**63 - 1
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]
Use: TypeAlias = Callable[[Registry, int], object]

CALLS: dict[str, Use] = {
    "classify": lambda registry, handle: registry.classify(handle, ["math"]),
    "classify_pairs": lambda registry, handle: registry.classify_pairs(handle, ["a"], ["b"]),
    "classify_tokens": lambda registry, handle: registry.classify_tokens(handle, ["math"]),
    "classify_token_pairs": lambda registry, handle: registry.classify_token_pairs(
        handle, ["a"], ["b"]
    ),
    "embed": lambda registry, handle: registry.embed(handle, ["math"]),
    "count_tokens": lambda registry, handle: registry.count_tokens(handle, ["math"]),
}
USES: dict[str, Use] = {
    **CALLS,
    "info": lambda registry, handle: registry.info(handle),
    "unload": lambda registry, handle: registry.unload(handle, 0),
    "replace": lambda registry, handle: registry.load(SEQ, LoadOptions(replaces=handle)),
}


def logits(registry: Registry, handle: int) -> list[float]:
    found: list[float] = registry.classify(handle, ["math law"]).logits[0].tolist()
    return found


class Background(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._answer: object = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._call()
        except BaseException as error:
            self.error = error.with_traceback(None)  # its frames hold this thread and the model

    def answer(self) -> object:
        self.join(10)
        assert not self.is_alive(), "the call hangs"
        if self.error is not None:
            raise self.error
        return self._answer


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.001)


# Loading


def test_a_model_is_loaded_found_described_and_unloaded(registry: Registry) -> None:
    handle = registry.load(SEQ)
    assert handle > 0
    assert registry.find("bert-seq") == handle
    info = registry.info(handle)
    assert (info.name, info.generation, info.path) == ("bert-seq", 1, SEQ)
    assert (info.family, info.architecture) == ("bert", "BertForSequenceClassification")
    assert (info.source, info.task) == ("safetensors", Task.SEQUENCE_CLASSIFICATION)
    assert (info.max_tokens, info.position_limit, info.max_text_bytes) == (64, 128, 1 << 20)
    assert info.labels[:2] == ("biology", "business")
    assert info.label_count == 7
    assert (info.dimension, info.dimensions.tolist(), info.layers.tolist()) == (0, [], [])
    assert info.mapped_bytes == (GOLDEN / "bert-seq" / "model.safetensors").stat().st_size
    sizes = dict(zip(info.file_names, info.file_sizes.tolist(), strict=True))
    for name, size in sizes.items():
        assert (GOLDEN / "bert-seq" / name).stat().st_size == size
    assert set(sizes) == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    }
    listed = registry.list_models()
    assert (listed.count, listed.model_id.tolist(), listed.name) == (1, [handle], ("bert-seq",))
    assert listed.task.tolist() == [Task.SEQUENCE_CLASSIFICATION]
    assert listed.state.tolist() == [State.READY]
    registry.unload(handle, 0)
    assert registry.list_models().count == 0
    with pytest.raises(NotFoundError, match="no model is named 'bert-seq'"):
        registry.find("bert-seq")


def test_the_name_is_that_of_the_resolved_folder(registry: Registry, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(GOLDEN / "bert-seq")
    assert registry.info(registry.load(f"{link}/")).name == "bert-seq"
    named = registry.load(str(link), LoadOptions(name="näme"))
    assert registry.find("näme") == named
    assert registry.info(named).path == SEQ


@pytest.mark.parametrize("name", ["", "given"])
def test_a_path_that_leads_nowhere_is_told_as_such(
    registry: Registry, tmp_path: Path, name: str
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    options = LoadOptions(name=name)
    for path, error in (
        (str(loop), InvalidArgumentError),
        ("nul\0inside", InvalidArgumentError),
        ("", InvalidArgumentError),
        (str(GOLDEN / "bert-seq" / "config.json"), InvalidArgumentError),
        (str(tmp_path / "missing"), NotFoundError),
        (str(tmp_path), NotFoundError),
        ("x" * 5000, InvalidArgumentError),
    ):
        with pytest.raises(error):
            registry.load(path, options)
    assert registry.list_models().count == 0


def test_a_name_is_used_once(registry: Registry) -> None:
    first = registry.load(SEQ, LoadOptions(name="one"))
    with pytest.raises(AlreadyExistsError, match="'one' is there already"):
        registry.load(TOKEN, LoadOptions(name="one"))
    assert registry.find("one") == first
    assert registry.list_models().count == 1
    registry.unload(first, 0)
    second = registry.load(TOKEN, LoadOptions(name="one"))
    assert registry.find("one") == second != first


def test_handles_are_never_used_again(registry: Registry) -> None:
    handles = []
    for _ in range(3):
        handles.append(registry.load(SEQ))
        registry.unload(handles[-1], 0)
    registry.cleanup(0)
    handles.append(registry.load(SEQ))
    assert len(set(handles)) == 4
    assert handles == sorted(handles)


def test_models_of_all_tasks_live_side_by_side(registry: Registry) -> None:
    handles = [registry.load(path) for path in (SEQ, TOKEN, RERANKER, MEAN, CLS)]
    tasks = registry.list_models().task.tolist()
    assert tasks == [1, 2, 1, 3, 3]
    assert registry.list_models().model_id.tolist() == handles
    before = logits(registry, handles[0])
    registry.unload(handles[1], 0)
    assert logits(registry, handles[0]) == before
    assert registry.embed(handles[3], ["math"]).dimension == 64


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (LoadOptions(base_path="/base"), InvalidArgumentError, "base_path"),
        (LoadOptions(adapter_mode=AdapterMode.MERGED), InvalidArgumentError, "adapter_mode"),
        (LoadOptions(precision=Precision.FP16), UnsupportedError, "FP16"),
        (LoadOptions(precision=Precision.BF16), UnsupportedError, "BF16"),
        (LoadOptions(max_tokens=129), InvalidArgumentError, "129.*128 positions"),
        (LoadOptions(task=Task.EMBEDDING), UnsupportedError, "embedding"),
        (LoadOptions(task=Task.TOKEN_CLASSIFICATION), UnsupportedError, "token_classification"),
        (LoadOptions(device="tpu"), InvalidArgumentError, "unknown device 'tpu'"),
        (LoadOptions(timeout_ms=1), DeadlineError, "timeout_ms 1"),
    ],
)
def test_a_load_that_fails_leaves_nothing(
    registry: Registry, options: LoadOptions, error: type[SemanticError], message: str
) -> None:
    with pytest.raises(error, match=message):
        registry.load(SEQ, options)
    assert registry.list_models().count == 0
    assert registry.stats().model_count == 0
    with pytest.raises(NotFoundError):
        registry.find("bert-seq")
    handle = registry.load(SEQ)  # the name is free
    assert registry.find("bert-seq") == handle
    assert registry.info(handle).generation == 1


def test_a_length_may_be_raised_to_the_positions(registry: Registry) -> None:
    handle = registry.load(SEQ, LoadOptions(max_tokens=128, max_text_bytes=50))
    info = registry.info(handle)
    assert (info.max_tokens, info.max_text_bytes) == (128, 50)
    with pytest.raises(TooLongError, match="51 bytes, max_text_bytes is 50"):
        registry.classify(handle, ["x" * 51])
    assert registry.classify(handle, ["x" * 50]).rows.status == (0,)
    with pytest.raises(TooLongError, match="52 bytes"):
        registry.classify(handle, ["é" * 26])  # bytes, not characters


def test_the_log_tells_of_loads_and_warns(registry: Registry, copy_golden: CopyGolden) -> None:
    odd = copy_golden("bert-seq", {"label_mapping.json": {"label_to_idx": {"x": 0, "y": 1}}})
    for level, expected in (
        (LogLevel.DEFAULT, [LogLevel.WARNING]),
        (LogLevel.INFO, [LogLevel.WARNING, LogLevel.INFO, LogLevel.INFO]),
        (LogLevel.ERROR, []),
    ):
        lines: list[tuple[LogLevel, str]] = []
        registry.log.send_to(lambda *line, into=lines: into.append(line))
        registry.init(RuntimeOptions(log_level=level))
        handle = registry.load(str(odd), LoadOptions(name="odd"))
        registry.classify(handle, ["secret words"])
        registry.unload(handle, 0)
        assert [each for each, _ in lines] == expected
        assert all("odd" in line and "secret" not in line for _, line in lines)
        registry.cleanup(0)
        registry.log.send_to(lambda *_: None)


# Handles


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_handles_that_stand_for_nothing(registry: Registry, use: Use) -> None:
    if use is not USES["replace"]:  # 0 means no replacement
        with pytest.raises(InvalidArgumentError, match="handle is 0"):
            use(registry, 0)
    for never in (1, 99, 2**64 - 1):
        with pytest.raises(NotFoundError, match="never given out"):
            use(registry, never)
    handle = registry.load(SEQ)
    registry.unload(handle, 0)
    for _ in range(2):
        with pytest.raises(ClosedError, match=f"handle {handle} is closed"):
            use(registry, handle)
    again = registry.load(SEQ)
    registry.cleanup(0)
    for gone in (handle, again):
        with pytest.raises(ClosedError):
            use(registry, gone)
    with pytest.raises(NotFoundError):
        use(registry, again + 1)


# The runtime


def test_the_same_options_start_it_again_and_others_do_not(registry: Registry) -> None:
    options = RuntimeOptions(parallel_runs=1, queue_rows=5)
    assert not registry.stats().running
    registry.init(options)
    registry.init(RuntimeOptions(parallel_runs=1, queue_rows=5))
    assert registry.stats().running
    for others in (RuntimeOptions(), RuntimeOptions(parallel_runs=2, queue_rows=5)):
        with pytest.raises(AlreadyExistsError, match="other options; clean up first"):
            registry.init(others)
    registry.cleanup(0)
    assert not registry.stats().running
    registry.init(RuntimeOptions())


def test_a_load_starts_it_with_defaults(registry: Registry) -> None:
    handle = registry.load(SEQ)
    with pytest.raises(AlreadyExistsError):
        registry.init(RuntimeOptions(parallel_runs=1))
    registry.init(RuntimeOptions())
    assert registry.classify(handle, ["math"]).rows.status == (0,)


def test_cleaning_up_empties_it_and_it_starts_again(registry: Registry) -> None:
    registry.cleanup(0)  # not started: nothing to do
    handles = [registry.load(SEQ), registry.load(MEAN)]
    before = logits(registry, handles[0])
    registry.cleanup(0)
    registry.cleanup(0)
    assert registry.list_models().count == 0
    assert not registry.stats().running
    registry.init(RuntimeOptions(intra_op_threads=1))
    handle = registry.load(SEQ)
    assert handle not in handles
    np.testing.assert_allclose(logits(registry, handle), before, rtol=0, atol=1e-6)
    registry.cleanup(0)
    # A load alone starts it too, and with other options than before.
    assert logits(registry, registry.load(SEQ))


def test_cleaning_up_ends_the_thread(registry: Registry) -> None:
    def guards() -> int:
        return sum(thread.name == "semantic-deadlines" for thread in threading.enumerate())

    assert guards() == 0
    handle = registry.load(SEQ)
    registry.classify(handle, ["math"])
    assert guards() == 0
    registry.classify(handle, ["math"], RunOptions(timeout_ms=60_000))
    assert guards() == 1
    registry.cleanup(0)
    assert guards() == 0


def test_the_process_has_one(registry: Registry) -> None:
    assert isinstance(REGISTRY, Registry)
    assert registry is not REGISTRY


# Ending with calls in flight


def test_unloading_waits_for_calls_in_flight(registry: Registry, gate: Gate) -> None:
    handle, other = registry.load(SEQ), registry.load(TOKEN)
    expected = logits(registry, handle)
    gate.close()
    call = Background(lambda: logits(registry, handle))
    gate.wait_for_a_run()
    for _ in range(2):
        with pytest.raises(DeadlineError, match="1 calls to model 'bert-seq' are in flight"):
            registry.unload(handle, 0)
    listed = registry.list_models()
    assert listed.state.tolist() == [State.STOPPING, State.READY]
    for name, use in USES.items():
        if name != "unload":
            with pytest.raises(NotReadyError, match="'bert-seq' is stopping"):
                use(registry, handle)
    with pytest.raises(NotReadyError):
        registry.find("bert-seq")
    with pytest.raises(AlreadyExistsError):
        registry.load(SEQ)  # the name is still taken
    waiting = [Background(lambda: registry.unload(handle, ENDLESS)) for _ in range(2)]
    time.sleep(0.02)
    assert all(each.is_alive() for each in waiting)
    gate.open()
    assert call.answer() == expected
    for each in waiting:
        each.join(10)
    assert [type(each.error) for each in waiting if each.error] == [ClosedError]
    assert registry.list_models().model_id.tolist() == [other]
    assert registry.load(SEQ) > other


def test_unloading_gives_up_after_its_time(registry: Registry, gate: Gate) -> None:
    handle = registry.load(SEQ)
    gate.close()
    call = Background(lambda: logits(registry, handle))
    gate.wait_for_a_run()
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="after 50 ms"):
        registry.unload(handle, 50)
    assert 0.04 < time.monotonic() - started < 2
    gate.open()
    call.answer()
    registry.unload(handle, 10_000)


def test_cleaning_up_waits_for_calls_in_flight(registry: Registry, gate: Gate) -> None:
    handle = registry.load(SEQ)
    expected = logits(registry, handle)
    gate.close()
    call = Background(lambda: logits(registry, handle))
    gate.wait_for_a_run()
    with pytest.raises(DeadlineError, match="1 calls or loads are still under way"):
        registry.cleanup(0)
    for attempt in (
        lambda: registry.classify(handle, ["math"]),
        lambda: registry.load(TOKEN),
        lambda: registry.init(RuntimeOptions()),
        lambda: registry.load(SEQ, LoadOptions(replaces=handle)),
    ):
        with pytest.raises(NotReadyError):
            attempt()
    assert registry.list_models().state.tolist() == [State.STOPPING]
    cleaning = Background(lambda: registry.cleanup(ENDLESS))
    time.sleep(0.02)
    assert cleaning.is_alive()
    gate.open()
    assert call.answer() == expected
    cleaning.answer()
    assert registry.list_models().count == 0
    assert logits(registry, registry.load(SEQ)) == expected


def test_everything_can_be_cancelled_before_cleaning_up(registry: Registry, gate: Gate) -> None:
    handle = registry.load(SEQ, LoadOptions(parallel_runs=1))
    gate.close()
    calls = [Background(lambda: logits(registry, handle)) for _ in range(3)]
    gate.wait_for_a_run()
    until(lambda: registry.stats().in_flight.sum() == 3)
    registry.cancel_everything()
    for call in calls:
        with pytest.raises(CancelledError):
            call.answer()
    registry.cleanup(10_000)


def test_a_model_that_loads_cannot_be_unloaded(registry: Registry, gate: Gate) -> None:
    gate.close()
    load = Background(lambda: registry.load(SEQ))
    gate.wait_for_a_run()
    (handle,) = registry.list_models().model_id.tolist()
    for use in USES.values():
        with pytest.raises(NotReadyError, match="loading"):
            use(registry, handle)
    with pytest.raises(AlreadyExistsError):
        registry.load(SEQ)
    gate.open()
    assert load.answer() == handle
    assert registry.find("bert-seq") == handle


def test_cleaning_up_ends_a_load(registry: Registry, gate: Gate) -> None:
    gate.close()
    load = Background(lambda: registry.load(SEQ))
    gate.wait_for_a_run()
    registry.cleanup(ENDLESS)  # although the gate stays closed
    with pytest.raises(ClosedError, match="cleanup"):
        load.answer()
    assert registry.list_models().count == 0


# Replacing


def test_a_replacement_takes_over_name_and_handle(
    registry: Registry, copy_golden: CopyGolden
) -> None:
    handle = registry.load(SEQ, LoadOptions(name="it"))
    assert registry.classify(handle, ["math"]).generation == 1
    other = copy_golden("bert-seq", {"config.json": {"id2label": names("n"), "label2id": None}})
    for generation in (2, 3):
        options = LoadOptions(replaces=handle, max_tokens=30 + generation)
        assert registry.load(str(other), options) == handle
        info = registry.info(handle)
        assert (info.name, info.generation, info.path) == ("it", generation, str(other))
        assert info.max_tokens == 30 + generation
        result = registry.classify(handle, ["math"])
        assert (result.generation, result.labels[0]) == (generation, "n0")
    assert registry.find("it") == handle
    assert registry.list_models().count == 1
    assert registry.load(SEQ, LoadOptions(replaces=handle, name="it")) == handle


def names(prefix: str) -> dict[str, str]:
    return {str(index): f"{prefix}{index}" for index in range(7)}


@pytest.mark.parametrize(
    ("path", "options", "error", "message"),
    [
        (TOKEN, LoadOptions(), InvalidArgumentError, "does SEQUENCE_CLASSIFICATION, the new one"),
        (SEQ, LoadOptions(name="else"), InvalidArgumentError, "'else' differs from 'bert-seq'"),
        ("/nonexistent", LoadOptions(), NotFoundError, "nonexistent"),
        (SEQ, LoadOptions(max_tokens=1000), InvalidArgumentError, "128 positions"),
        (SEQ, LoadOptions(timeout_ms=1), DeadlineError, "timeout_ms 1"),
    ],
)
def test_a_replacement_that_fails_changes_nothing(
    registry: Registry,
    path: str,
    options: LoadOptions,
    error: type[SemanticError],
    message: str,
) -> None:
    handle = registry.load(SEQ)
    before, info = logits(registry, handle), registry.info(handle)
    failing = LoadOptions(
        replaces=handle,
        name=options.name,
        max_tokens=options.max_tokens,
        timeout_ms=options.timeout_ms,
    )
    for _ in range(2):
        with pytest.raises(error, match=message):
            registry.load(path, failing)
    assert registry.info(handle) is info
    assert logits(registry, handle) == before
    assert registry.list_models().count == 1
    registry.load(SEQ, LoadOptions(replaces=handle))
    assert registry.info(handle).generation == 2
    registry.unload(handle, 0)


def test_calls_in_flight_finish_on_the_model_they_began_with(
    registry: Registry, gate: Gate, copy_golden: CopyGolden
) -> None:
    handle = registry.load(SEQ)
    changes = {"config.json": {"id2label": names("n"), "label2id": None}}
    other = copy_golden("bert-seq", changes)
    gate.close()
    old = Background(lambda: registry.classify(handle, ["math"]))
    gate.wait_for_a_run()
    replacing = Background(lambda: registry.load(str(other), LoadOptions(replaces=handle)))
    gate.wait_for_a_run()  # its self-test
    with pytest.raises(NotReadyError, match="being replaced already"):
        registry.load(SEQ, LoadOptions(replaces=handle))
    gate.open()
    assert replacing.answer() == handle
    answered = old.answer()
    assert isinstance(answered, Classification)
    assert (answered.generation, answered.labels[0]) == (1, "biology")
    assert registry.classify(handle, ["math"]).labels[0] == "n0"


def test_unloading_while_replacing_closes_both(registry: Registry, gate: Gate) -> None:
    handle = registry.load(SEQ)
    gate.close()
    replacing = Background(lambda: registry.load(SEQ, LoadOptions(replaces=handle)))
    gate.wait_for_a_run()
    registry.unload(handle, 0)
    gate.open()
    with pytest.raises(ClosedError, match="unloaded while it was replaced"):
        replacing.answer()
    assert registry.list_models().count == 0
    with pytest.raises(ClosedError):
        registry.info(handle)
    registry.load(SEQ)


# Memory


class Kept:
    """Tells how many models are still in memory."""

    def __init__(self) -> None:
        self._parts: list[weakref.ref[object]] = []

    def note(self, model: Model, session: object) -> None:
        self._parts += [weakref.ref(model.batcher), weakref.ref(session)]

    @property
    def parts(self) -> int:
        return sum(part() is not None for part in self._parts)

    @property
    def seen(self) -> int:
        return len(self._parts)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """Watch batchers and sessions; without the cycle collector, so that cycles show."""
    watching, sessions = Kept(), list[weakref.ref[Session]]()
    create: Callable[..., None] = Session.__init__
    load: Callable[..., Model] = load_model

    def created(session: Session, *arguments: object, **named: object) -> None:
        create(session, *arguments, **named)
        sessions.append(weakref.ref(session))

    def watched(*arguments: object, **named: object) -> Model:
        model = load(*arguments, **named)
        watching.note(model, sessions[-1]())
        return model

    monkeypatch.setattr(Session, "__init__", created)
    monkeypatch.setattr(module, "load_model", watched)
    gc.collect()
    gc.disable()
    yield watching
    gc.enable()


def fails(call: Callable[[], object], *errors: type[SemanticError]) -> None:
    try:
        call()
    except errors:
        return
    raise AssertionError("it did not fail")


def partial_failure(registry: Registry, handle: int) -> None:
    result = registry.classify(handle, ["math", b"\xff", None, "math " * 99], REFUSE)
    assert [bool(status) for status in result.rows.status] == [False, True, True, True]


REFUSE = RunOptions(long_text=LongText.REFUSE)
# What may happen to a model before it is unloaded, and what must not keep it alive.
EVENTS: dict[str, Use] = {
    "an answer": lambda r, h: r.classify(h, ["math", "math " * 99]),
    "some rows failed": partial_failure,
    "a text is no UTF-8": lambda r, h: fails(
        lambda: r.classify(h, [b"\xff"]), InvalidArgumentError
    ),
    "a text is too long": lambda r, h: fails(
        lambda: r.classify(h, ["math " * 99], REFUSE), TooLongError
    ),
    "the wrong task": lambda r, h: fails(lambda: r.embed(h, ["math"]), UnsupportedError),
    "a wrong option": lambda r, h: fails(
        lambda: r.classify(h, ["math"], RunOptions(layer=1)), InvalidArgumentError
    ),
    "time ran out": lambda r, h: fails(
        lambda: r.classify(h, ["math " * 50] * 5000, RunOptions(timeout_ms=5)), DeadlineError
    ),
    "a count": lambda r, h: r.count_tokens(h, ["math", b"\xff"]),
    "a failed replacement": lambda r, h: fails(
        lambda: r.load(TOKEN, LoadOptions(replaces=h)), InvalidArgumentError
    ),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_unloading_frees_the_model_at_once(registry: Registry, kept: Kept, event: Use) -> None:
    handle = registry.load(SEQ)
    assert kept.parts == 2
    event(registry, handle)
    registry.unload(handle, 0)
    assert kept.parts == 0


def test_a_result_does_not_keep_its_model(registry: Registry, kept: Kept) -> None:
    handles = [registry.load(path) for path in (SEQ, TOKEN, MEAN)]
    texts: list[Text] = ["math", b"\xff", "law"]
    held = [
        registry.classify(handles[0], texts),
        registry.classify_tokens(handles[1], texts),
        registry.embed(handles[2], texts),
        registry.count_tokens(handles[2], texts),
        registry.info(handles[0]),
    ]
    registry.cleanup(0)
    assert kept.parts == 0
    assert len(held) == 5


def test_a_run_that_fails_or_is_stopped_does_not_keep_its_model(
    registry: Registry, kept: Kept, gate: Gate
) -> None:
    handle = registry.load(SEQ, LoadOptions(parallel_runs=1))
    gate.error = InternalError("injected")
    fails(lambda: registry.classify(handle, ["math"] * 3), InternalError)
    gate.error = None
    gate.close()
    options = RunOptions(timeout_ms=20)
    fails(lambda: registry.classify(handle, ["math"], options), DeadlineError)
    running = Background(lambda: registry.classify(handle, ["math"], RunOptions(cancel_key=1)))
    gate.wait_for_a_run()
    gate.wait_for_a_run()
    fails(lambda: registry.classify(handle, ["math"], options), DeadlineError)  # while queued
    assert registry.cancel(1)
    running.join(10)
    assert isinstance(running.error, CancelledError)
    registry.unload(handle, 10_000)
    assert kept.parts == 0


@pytest.mark.parametrize("path", [SEQ, TOKEN, MEAN])
def test_outputs_that_are_no_numbers_do_not_keep_their_model(
    registry: Registry, kept: Kept, gate: Gate, path: str
) -> None:
    handle = registry.load(path)
    gate.spoils = True
    use = {SEQ: registry.classify, TOKEN: registry.classify_tokens, MEAN: registry.embed}[path]
    fails(lambda: use(handle, ["math", "law"]), BadArtifactError)
    registry.unload(handle, 0)
    assert kept.parts == 0


def test_replacing_frees_the_old_model(registry: Registry, kept: Kept) -> None:
    handle = registry.load(SEQ)
    for loads in (2, 3, 4):
        registry.load(SEQ, LoadOptions(replaces=handle))
        registry.classify(handle, ["math"])
        assert kept.parts == 2
        assert kept.seen == 2 * loads


def test_cleaning_up_frees_all(registry: Registry, kept: Kept) -> None:
    for path in (SEQ, TOKEN, MEAN):
        registry.load(path)
    assert kept.parts == 6
    registry.cleanup(0)
    assert kept.parts == 0


def test_a_failed_load_frees_what_it_had(
    registry: Registry, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[weakref.ref[Session]] = []
    run = Session.run

    def spoiled(session: Session, *_: object) -> object:
        opened.append(weakref.ref(session))
        raise BadArtifactError("injected")

    monkeypatch.setattr(Session, "run", spoiled)
    fails(lambda: registry.load(SEQ), BadArtifactError)
    monkeypatch.setattr(Session, "run", run)
    assert len(opened) == 1
    assert opened[0]() is None
    assert kept.seen == 0
