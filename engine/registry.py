"""The registry: the one store of models, and the only mutable state of the engine.

A model is loading, then ready, then stopping, then gone. Calls hold a lease on the model
they use; unloading waits for the leases, and new calls see that the model is closed.
"""

import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from . import results, tasks
from .config import (
    DEFAULT_RUN_OPTIONS,
    MAX_REQUESTS,
    MAX_ROWS,
    NO_DEMANDS,
    Demands,
    LoadOptions,
    RunOptions,
    RuntimeOptions,
    Task,
    available_cpus,
)
from .counters import Call, Counters, Recorder
from .crew import Crew
from .devices import find_devices, require_one_runtime, require_working
from .errors import (
    AlreadyExistsError,
    CancelledError,
    ClosedError,
    DeadlineError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    SemanticError,
)
from .inputs import Text
from .log import Log
from .model import Model, Shelves, load_model, parallel_runs
from .stats import State, column, tabulate
from .ticket import Ticket, Tickets
from .together import Ask, ModelRequest, answer_together, collect
from .watchdog import Watchdog

Kind = TypeVar("Kind", bound=results.Result)

_READY = State.READY  # looking it up needs memory in Python 3.11
_CLOSED_NAME = "(closed)"
_NOT_ASKED = InternalError("a request was not looked at; please report this")
# With as many threads as CPUs and one or two more, three models on two CPUs end together; without,
# the third would begin when the first two have ended, and leave a CPU idle.
_MORE_THREADS = 2


class _Entry:
    """A handle and what it stands for; ``model`` is None while it loads.

    ``leases`` has the ticket of each call that holds the model.
    """

    __slots__ = ("counters", "handle", "leases", "model", "name", "replacing", "state")

    def __init__(self, handle: int, name: str) -> None:
        self.handle = handle
        self.name = name
        self.state = State.LOADING
        self.model: Model | None = None
        self.leases: set[Ticket] = set()
        self.replacing = False
        self.counters = Counters()


class Registry:
    """Loads, finds, calls and unloads models; safe from any thread."""

    def __init__(self) -> None:
        self.log = Log()
        self._lock = threading.Lock()  # "with" a condition, an interrupted caller would keep it
        self._changed = threading.Condition(self._lock)
        self._entries: dict[int, _Entry] = {}
        self._last_handle = 0
        self._options: RuntimeOptions | None = None
        self._stopping = False
        self._cleanups = 0
        self._loads = 0
        self._closed = Counters()
        self._tickets = Tickets()
        self._load_tickets = Tickets()
        self._watchdog = Watchdog()
        self._crew = Crew(available_cpus() + _MORE_THREADS - 1)  # beside the caller
        self._shelves = Shelves()
        self._interpreter_bytes = 0

    # ---- runtime

    def init(self, options: RuntimeOptions) -> None:
        """Start the runtime; the same options again are fine.

        Raise AlreadyExistsError if it runs with others, DeviceUnavailableError for a device
        that is not there, NotReadyError while a cleanup is under way.
        """
        devices = find_devices(options.device)
        if len(devices) == 1:  # named: "auto" is decided with each model
            require_working(devices[0])
        with self._lock:
            self._start(options)

    def _start(self, options: RuntimeOptions) -> RuntimeOptions:
        if self._stopping:
            raise NotReadyError("a cleanup is under way; wait for it and start again")
        if self._options is None:
            require_one_runtime()
            self._options = options
            self._shelves.scheduler.limit = parallel_runs(options)
            self.log.set_level(options.log_level)
        elif options != self._options:
            raise AlreadyExistsError(
                "the runtime runs with other options; clean up first, then init again"
            )
        return self._options

    def set_interpreter_bytes(self, size: int) -> None:
        """Note the resident memory that starting the interpreter took."""
        self._interpreter_bytes = size

    def cleanup(self, timeout_ms: int) -> None:
        """Refuse new calls, wait for those in flight, unload every model, stop the threads.

        Loads under way are stopped: nobody could use what they load.

        Raise DeadlineError if calls or loads are still under way after ``timeout_ms`` (0 does
        not wait); the models stay stopping, and calling again goes on waiting.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._lock:
            if self._options is None:
                return
            cleanups = self._cleanups
            self._stopping = True
            self._load_tickets.cancel_all()
            for entry in self._entries.values():
                if entry.state is State.READY:
                    entry.state = State.STOPPING
            while busy := self._loads + sum(len(entry.leases) for entry in self._entries.values()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineError(
                        f"{busy} calls or loads are still under way after {timeout_ms} ms; call "
                        "cleanup again to go on waiting"
                    )
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
                if self._cleanups != cleanups:
                    return  # another caller has finished this cleanup; what runs now is new
            gone = [self._remove(entry) for entry in list(self._entries.values())]
            self._options = None
            self._stopping = False
            self._cleanups += 1
            self._changed.notify_all()
        del gone
        self._crew.stop()
        self._watchdog.stop()
        self.log.info("cleaned up")

    # ---- models

    def load(
        self, path: str, options: LoadOptions | None = None, demands: Demands = NO_DEMANDS
    ) -> int:
        """Load the model in a folder and return its handle; whole or not at all.

        Raise ClosedError if a cleanup begins meanwhile.
        """
        options = options or LoadOptions()
        ticket = self._load_tickets.open(options.timeout_ms, 0)
        try:
            if options.replaces:
                return self._replace(path, options, demands, ticket)
            return self._add(path, options, demands, ticket)
        except CancelledError:
            raise ClosedError(f"a cleanup began while {path!r} was loading") from None
        finally:
            self._load_tickets.close(ticket)

    def _add(self, path: str, options: LoadOptions, demands: Demands, ticket: Ticket) -> int:
        name = options.name or _folder_name(path)
        with self._lock:
            runtime = self._start(self._options or RuntimeOptions())
            taken = next((e for e in self._entries.values() if e.name == name), None)
            if taken is not None:
                raise AlreadyExistsError(
                    f"a model named {name!r} is there already; unload it, replace it, or give "
                    "another name"
                )
            self._last_handle += 1
            entry = _Entry(self._last_handle, name)
            self._entries[entry.handle] = entry
            self._loads += 1
        try:
            model = self._load(path, options, demands, runtime, name, 1, ticket)
        except BaseException:
            with self._lock:
                self._remove(entry)
                self._loaded()
            raise
        with self._lock:
            self._loaded()
            if self._stopping:
                self._remove(entry)
                raise ClosedError(f"a cleanup began while model {name!r} was loading")
            entry.model = model
            entry.state = State.READY
        return entry.handle

    def _replace(self, path: str, options: LoadOptions, demands: Demands, ticket: Ticket) -> int:
        with self._lock:
            runtime = self._start(self._options or RuntimeOptions())
            entry = self._ready(options.replaces)
            if options.name and options.name != entry.name:
                raise InvalidArgumentError(
                    f"name {options.name!r} differs from {entry.name!r}, which is replaced; leave "
                    "name empty"
                )
            if entry.replacing:
                raise NotReadyError(f"model {entry.name!r} is being replaced already; wait")
            entry.replacing = True
            self._loads += 1
            old = entry.model
        assert old is not None
        try:
            generation = old.generation + 1
            model = self._load(path, options, demands, runtime, entry.name, generation, ticket)
            if model.spec.task is not old.spec.task:
                raise InvalidArgumentError(
                    f"model {entry.name!r} does {old.spec.task.name}, the new one "
                    f"{model.spec.task.name}; load it under another name"
                )
        except BaseException:
            with self._lock:
                entry.replacing = False
                self._loaded()
            raise
        with self._lock:
            entry.replacing = False
            self._loaded()
            if entry.state is not State.READY:
                raise ClosedError(f"model {entry.name!r} was unloaded while it was replaced")
            entry.model = model
        return entry.handle

    def _load(
        self,
        path: str,
        options: LoadOptions,
        demands: Demands,
        runtime: RuntimeOptions,
        name: str,
        generation: int,
        ticket: Ticket,
    ) -> Model:
        started = time.monotonic()
        model = load_model(
            path,
            options,
            runtime,
            demands=demands,
            name=name,
            generation=generation,
            shelves=self._shelves,
            watchdog=self._watchdog,
            ticket=ticket,
        )
        ticket.check()
        for warning in model.info.warnings:
            self.log.warning(f"model {name}: {warning}")
        self.log.info(
            f"model {name} loaded from {model.info.path} in {time.monotonic() - started:.2f} s: "
            f"{model.spec.task.name}, {model.info.family}, {model.info.dtype}, on "
            f"{model.info.device} ({model.info.provider}) in {model.info.precision}"
        )
        return model

    def _loaded(self) -> None:
        self._loads -= 1
        self._changed.notify_all()

    def find(self, name: str) -> int:
        """Return the handle of a ready model."""
        with self._lock:
            for entry in self._entries.values():
                if entry.name == name:
                    return self._ready(entry.handle).handle
        raise NotFoundError(f"no model is named {name!r}; load it first")

    def list_models(self) -> results.ModelList:
        """Return all models that are not gone."""
        with self._lock:
            entries = list(self._entries.values())
            return results.ModelList(
                model_id=column(entry.handle for entry in entries),
                name=tuple(entry.name for entry in entries),
                task=np.array([_task(entry) for entry in entries], np.int32),
                state=np.array([entry.state for entry in entries], np.int32),
            )

    def info(self, handle: int) -> results.ModelInfo:
        """Describe a ready model."""
        with self._lock:
            model = self._ready(handle).model
        assert model is not None
        return model.info

    def token_names(self, handle: int, ids: Iterable[int]) -> tuple[str, ...]:
        """Return the names that a ready model's tokenizer gives to tokens."""
        with self._lock:
            model = self._ready(handle).model
        assert model is not None
        return model.tokenizer.tokens(ids)

    def unload(self, handle: int, timeout_ms: int) -> None:
        """Take no new calls, wait for those in flight, free the model.

        Raise DeadlineError if calls are in flight after ``timeout_ms`` (0 does not wait): the
        model stays stopping, and calling again goes on waiting.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._lock:
            entry = self._entry(handle)
            if entry.state is State.LOADING:
                raise NotReadyError(f"model {entry.name!r} is loading; wait for it")
            entry.state = State.STOPPING
            while entry.leases:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineError(
                        f"{len(entry.leases)} calls to model {entry.name!r} are in flight after "
                        f"{timeout_ms} ms; call unload again to go on waiting"
                    )
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            self._entry(handle)  # closed if another caller was first
            gone = self._remove(entry)
            self._changed.notify_all()
        del gone
        self.log.info(f"model {entry.name} unloaded")

    def _entry(self, handle: int) -> _Entry:
        entry = self._entries.get(handle)
        if entry is not None:
            return entry
        if handle == 0:
            raise InvalidArgumentError("the model handle is 0; load or find a model first")
        if handle > self._last_handle:
            raise NotFoundError(f"model handle {handle} was never given out; load a model first")
        raise ClosedError(f"model handle {handle} is closed; load the model again")

    def _ready(self, handle: int) -> _Entry:
        entry = self._entry(handle)
        if entry.state is not State.READY:
            raise NotReadyError(f"model {entry.name!r} is {entry.state.name.lower()}")
        return entry

    def _remove(self, entry: _Entry) -> Model | None:
        """Take a model off; return it, so that it is freed once the lock is: that takes long."""
        model = entry.model
        if self._entries.pop(entry.handle, None) is not None:
            self._closed.absorb(entry.counters.snapshot())
            entry.model = None
        return model

    # ---- calls

    def classify(
        self, handle: int, texts: Sequence[Text], options: RunOptions | None = None
    ) -> results.Classification:
        """Answer each text with the labels of a sequence classifier."""
        return _as(results.Classification, self._call(Call.CLASSIFY, handle, texts, None, options))

    def classify_pairs(
        self,
        handle: int,
        left: Sequence[Text],
        right: Sequence[Text],
        options: RunOptions | None = None,
    ) -> results.Classification:
        """Answer each pair with the labels of a sequence classifier."""
        answer = self._call(Call.CLASSIFY_PAIRS, handle, left, right, options)
        return _as(results.Classification, answer)

    def classify_tokens(
        self, handle: int, texts: Sequence[Text], options: RunOptions | None = None
    ) -> results.TokenClassification:
        """Find the entities, or label the tokens, of each text."""
        answer = self._call(Call.CLASSIFY_TOKENS, handle, texts, None, options)
        return _as(results.TokenClassification, answer)

    def classify_token_pairs(
        self,
        handle: int,
        context: Sequence[Text],
        answer: Sequence[Text],
        options: RunOptions | None = None,
    ) -> results.TokenClassification:
        """Label the parts of each answer, given its context."""
        found = self._call(Call.CLASSIFY_TOKEN_PAIRS, handle, context, answer, options)
        return _as(results.TokenClassification, found)

    def embed(
        self, handle: int, texts: Sequence[Text], options: RunOptions | None = None
    ) -> results.Embedding:
        """Turn each text into a vector."""
        return _as(results.Embedding, self._call(Call.EMBED, handle, texts, None, options))

    def count_tokens(
        self, handle: int, texts: Sequence[Text], options: RunOptions | None = None
    ) -> results.TokenCounts:
        """Count tokens and cut windows as a call with these options would."""
        answer = self._call(Call.COUNT_TOKENS, handle, texts, None, options)
        return _as(results.TokenCounts, answer)

    def run_models(
        self, requests: Sequence[ModelRequest], texts: Sequence[Text]
    ) -> results.Answers:
        """Ask several models about the same texts, each for its own task, side by side.

        A request fails alone. Raise the first one's error if all fail; else only for what concerns
        the whole call: too many texts or requests.
        """
        _check_texts(texts)
        if len(requests) > MAX_REQUESTS:
            raise InvalidArgumentError(
                f"{len(requests)} requests in one call; pass at most {MAX_REQUESTS}"
            )
        if len(texts) > MAX_ROWS:
            raise InvalidArgumentError(f"{len(texts)} rows in one call; pass at most {MAX_ROWS}")
        outcomes: list[Ask | SemanticError] = [_NOT_ASKED] * len(requests)
        try:
            for index, request in enumerate(requests):
                try:
                    outcomes[index] = self._ask(request, texts)
                except SemanticError as error:
                    outcomes[index] = error.detached()
            asks = [each for each in outcomes if isinstance(each, Ask)]
            # Not one by one: a cancellation in between would end some, and the call would go on.
            self._tickets.add(*[ask.request.ticket for ask in asks])
            answer_together(asks, self._crew, self._shelves.scheduler)
        except BaseException as error:
            for each in outcomes:
                if isinstance(each, Ask):
                    each.fail(error)
            raise
        return collect([each.ended if isinstance(each, Ask) else each for each in outcomes])

    def _ask(self, request: ModelRequest, texts: Sequence[Text]) -> Ask:
        if request.refused is not None:
            raise request.refused
        options = request.options
        ticket = Ticket(options.timeout_ms, options.cancel_key)
        entry = self._entry(request.model)
        try:
            model = self._lease(entry, ticket)
            call = tasks.call_of(model)
            record = Recorder(entry.counters, call, len(texts))
            asked = tasks.Request(call, texts, None, options, ticket, record)
            return Ask(model, asked, partial(self._end_lease, entry, ticket))
        except BaseException:
            model = None
            self._end_lease(entry, ticket)
            raise

    def cancel(self, key: int) -> bool:
        """Stop queued and running work that carries the key; tell whether there was any."""
        return self._tickets.cancel(key)

    def cancel_everything(self) -> None:
        """Stop all queued and running work, and all loads."""
        self._tickets.cancel_all()
        self._load_tickets.cancel_all()

    def _call(
        self,
        call: Call,
        handle: int,
        texts: Sequence[Text],
        others: Sequence[Text] | None,
        options: RunOptions | None,
    ) -> results.Result:
        options = options or DEFAULT_RUN_OPTIONS
        _check_texts(texts)
        if others is not None:
            _check_texts(others)
        n = len(texts)
        ticket = Ticket(options.timeout_ms, options.cancel_key)
        entry = self._entry(handle)
        model, record = None, None
        try:
            model = self._lease(entry, ticket)
            record = Recorder(entry.counters, call, n)
            self._tickets.add(ticket)
            if others is not None and len(others) != n:
                raise InvalidArgumentError(f"{n} left texts came with {len(others)} right texts")
            if n > MAX_ROWS:
                raise InvalidArgumentError(f"{n} rows in one call; pass at most {MAX_ROWS}")
            tasks.check(model, call, options)
            request = tasks.Request(call, texts, others, options, ticket, record)
            result = tasks.answer(model, request)
            record.answered(result.rows)
        except BaseException as error:
            if record is not None:
                record.failed(error)
            raise
        finally:
            model = None
            entry.leases.discard(ticket)  # here, where no interruption comes before it
            self._end_lease(entry, ticket)
        errors = result.rows.errors
        if errors and errors[0] is not None and all(errors):
            raise errors[0].detached(input_index=0)
        return result

    def _lease(self, entry: _Entry, ticket: Ticket) -> Model:
        """Keep a ready model from being unloaded until ``_end_lease``, which must be called.

        Without the lock, for which hundreds of callers would stand in line: each step here is a
        single one of the interpreter. A call notes its lease before it looks at the state, and
        whatever stops a model changes the state before it looks at the leases.
        """
        entry.leases.add(ticket)
        model = self._ready(entry.handle).model
        assert model is not None
        return model

    def _end_lease(self, entry: _Entry, ticket: Ticket) -> None:
        """End a call, which must hold the model no more; again, it does nothing."""
        entry.leases.discard(ticket)
        self._tickets.close(ticket)
        if entry.state is not _READY:
            with self._lock:
                self._changed.notify_all()

    # ---- statistics

    def stats(self) -> results.Stats:
        """Return the counters, models and memory as they are now."""
        with self._lock:
            entries = list(self._entries.values())
            loaded = [(e.name, e.model) for e in entries if e.model is not None]
            models = [(e.handle, e.name, _task(e), e.state, _device(e)) for e in entries]
            calls = [(e.handle, e.name, e.counters.snapshot()) for e in entries]
            calls.append((0, _CLOSED_NAME, self._closed.snapshot()))
            running = self._options is not None
        memory = [(f"model {name}", model.own_bytes) for name, model in loaded]
        bases = {id(model.base): model.base for _, model in loaded if model.base is not None}
        memory += [(f"base {base.folder}", base.grown_bytes) for base in bases.values()]
        tokenizers = {id(model.held): model.held.grown_bytes for _, model in loaded}
        memory.append(("tokenizers", sum(tokenizers.values())))
        memory.append(("interpreter", self._interpreter_bytes))
        return tabulate(running, models, calls, memory)


def _check_texts(texts: Sequence[Text]) -> None:
    if isinstance(texts, str):
        raise InvalidArgumentError("one text came in place of a list of texts; pass [text]")


def _folder_name(path: str) -> str:
    try:
        name = os.path.basename(os.path.realpath(path))  # noqa: PTH119 (resolve fails on loops)
        name.encode()
    except ValueError as error:
        raise InvalidArgumentError(
            f"the path is no UTF-8 path: {error.args[-1]}; rename it"
        ) from None
    return name


def _task(entry: _Entry) -> Task:
    return entry.model.spec.task if entry.model is not None else Task.AUTO


def _device(entry: _Entry) -> str:
    return entry.model.info.device if entry.model is not None else ""


def _as(kind: type[Kind], result: results.Result) -> Kind:
    assert isinstance(result, kind)
    return result


REGISTRY = Registry()
