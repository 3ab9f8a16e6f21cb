"""One call, several models: the same texts asked of each, side by side.

What the models have in common is done once. A text is tokenised once per tokenizer, which models
share whose files make the same (``tokenization.identity_of``). Requests of one model that are
scored alike (the same cut of the texts, the same layer, one deadline and one cancel key) share
their runs and are decoded each by its own options.

Nothing else can be shared: every model has an encoder of its own, and of adapters on one base each
changes layers of the base, so that the states differ from the first of them on.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from . import tasks
from .config import DEFAULT_RUN_OPTIONS, RunOptions
from .counters import Phase
from .crew import Crew
from .errors import SemanticError, Status, as_semantic_error
from .inputs import Encode, Policy, Row, encode_texts, prepare
from .model import Model
from .results import Answers, Classification, Embedding, Float32, Result, TokenClassification
from .scheduler import Scheduler
from .tokenization import Encoded


class ModelRequest(NamedTuple):
    """What a call asks of one model.

    ``refused`` is why its options could not be read; then it fails with that.
    """

    model: int
    options: RunOptions = DEFAULT_RUN_OPTIONS
    refused: SemanticError | None = None


class Ask:
    """One request under way: the model that is leased for it, and in the end its outcome."""

    __slots__ = ("_model", "_outcome", "_release", "request")

    def __init__(self, model: Model, request: tasks.Request, release: Callable[[], None]) -> None:
        self._model: Model | None = model
        self._release = release
        self.request = request
        self._outcome: Result | SemanticError | None = None

    @property
    def model(self) -> Model:
        """The model, until the request has ended."""
        assert self._model is not None
        return self._model

    @property
    def ended(self) -> Result | SemanticError:
        """What became of it, once it has ended."""
        assert self._outcome is not None
        return self._outcome

    def answer(self, rows: list[Row], outputs: Sequence[Sequence[Float32]]) -> None:
        """Decode the outputs, and end."""
        result = tasks.decode(self.model, self.request, rows, outputs)
        self.request.record.answered(result.rows)
        errors = result.rows.errors
        if errors and errors[0] is not None and all(errors):
            self._end(errors[0].detached(input_index=0))
        else:
            self._end(result)

    def fail(self, error: BaseException) -> None:
        """End with an error, unless it has ended; in any case hold the model no more."""
        if self._outcome is None:
            self.request.record.failed(error)
            failure = as_semantic_error(error)
            self._outcome = failure.detached(failure.input_index)
        self._end(self._outcome)

    def _end(self, outcome: Result | SemanticError) -> None:
        self._outcome = outcome
        self._model = None  # before the lease ends: who unloads it gets its memory
        self._release()


class _Group(NamedTuple):
    """Requests that share their runs."""

    rows: list[Row]
    asks: list[Ask]


def answer_together(asks: Sequence[Ask], crew: Crew, scheduler: Scheduler) -> None:
    """End every request with a result or an error.

    Raise only what interrupts the calling thread, or memory that it is refused: then nobody works
    at them any more, and the caller is to end those that have not ended.
    """

    def give_up() -> None:
        for ask in asks:
            ask.request.ticket.cancel()

    groups = _prepare(asks)
    expected = [object() for _ in groups]
    parts = [partial(_answer, *each, scheduler) for each in zip(groups, expected, strict=True)]
    try:
        scheduler.expected.update(expected)
        crew.do(parts, give_up)
    finally:
        scheduler.expected.difference_update(expected)


def _prepare(asks: Sequence[Ask]) -> list[_Group]:
    """Make tokens of the texts and put together what is scored alike; what fails ends."""
    policies: list[tuple[Ask, Policy]] = []
    offsets: set[tuple[int, bool]] = set()
    for ask in asks:
        try:
            policy = _check(ask)
        except Exception as error:
            ask.fail(error)
            continue
        policies.append((ask, policy))
        if policy.needs_offsets:
            offsets.add(_tokens_of(ask.model))
    encoders: dict[tuple[int, bool], Encode] = {}
    groups: dict[object, _Group] = {}
    for ask, policy in policies:
        try:
            model, request = ask.model, ask.request
            options = request.options
            key = (
                *(id(model), policy, tasks.layer_of(model, options)),
                *(options.timeout_ms, options.cancel_key),
            )
            group = groups.get(key)
            if group is None:
                tokens = _tokens_of(model)
                if tokens not in encoders:
                    encoders[tokens] = _encode_once(model, tokens in offsets)
                encode = encoders[tokens]
                rows = prepare(model, request.texts, None, policy, request.ticket, encode)
                group = groups[key] = _Group(rows, [])
            request.record.ended(Phase.TOKENIZE)
            group.asks.append(ask)  # last: what fails before it takes no part in the runs
        except Exception as error:
            ask.fail(error)
    return list(groups.values())


def _check(ask: Ask) -> Policy:
    request = ask.request
    tasks.check(ask.model, request.call, request.options)
    return tasks.policy_of(ask.model, request.call, request.options)


def _tokens_of(model: Model) -> tuple[int, bool]:
    """Return what determines the tokens of a text, beside its prompt: models may share it."""
    return id(model.held), model.spec.lower_case


def _encode_once(model: Model, offsets: bool) -> Encode:
    """Return a function that encodes each text once, however often it is asked for it."""
    known: dict[str, Encoded | SemanticError] = {}

    def encode(texts: Sequence[str]) -> list[Encoded | SemanticError]:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, encode_texts(model, new, None, offsets), strict=True))
        found = [known[text] for text in texts]
        # Each row gets an error of its own, which bears its index.
        return [each.detached() if isinstance(each, SemanticError) else each for each in found]

    return encode


def _answer(group: _Group, expected: object, scheduler: Scheduler) -> None:
    """Score what the requests of a group share, and end each of them."""
    try:
        rows, asks = group
        first = asks[0]
        records = [ask.request.record for ask in asks]
        layer = tasks.layer_of(first.model, first.request.options)
        outputs = tasks.score(first.model, rows, layer, first.request.ticket, records)
    except BaseException as error:
        for ask in group.asks:
            ask.fail(error)
        if not isinstance(error, Exception):
            raise
    else:
        for ask in asks:
            _decode(ask, list(rows), outputs)
    finally:
        scheduler.expected.discard(expected)


def _decode(ask: Ask, rows: list[Row], outputs: Sequence[Sequence[Float32]]) -> None:
    try:
        ask.answer(rows, outputs)
    except BaseException as error:
        ask.fail(error)
        if not isinstance(error, Exception):
            raise


def collect(outcomes: Sequence[Result | SemanticError]) -> Answers:
    """Put the outcomes into columns.

    Raise the first error if there are only errors, with the number of its request.
    """
    failures = [each if isinstance(each, SemanticError) else None for each in outcomes]
    if failures and failures[0] is not None and all(failures):
        raise failures[0].detached(input_index=0)
    errors: list[SemanticError | None] = []
    status: list[int] = []
    for outcome in outcomes:
        if isinstance(outcome, SemanticError):
            errors.append(outcome)
            status.append(outcome.status)
            continue
        failed = outcome.rows.first_error()
        errors.append(None if failed is None else failed[1].detached(input_index=failed[0]))
        status.append(Status.OK if failed is None else Status.PARTIAL)
    return Answers(
        status=tuple(status),
        input_index=tuple(-1 if error is None else error.input_index for error in errors),
        message=tuple("" if error is None else error.message for error in errors),
        classification=tuple(o if isinstance(o, Classification) else None for o in outcomes),
        token_classification=tuple(
            o if isinstance(o, TokenClassification) else None for o in outcomes
        ),
        embedding=tuple(o if isinstance(o, Embedding) else None for o in outcomes),
        errors=tuple(errors),
    )
