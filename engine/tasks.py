"""The calls: rows are prepared, scored, and decoded to a result."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from . import results
from .batching import Work
from .config import DEFAULT_RUN_OPTIONS, LongText, Output, RunOptions, Shorten, Task
from .counters import Call, Phase, Recorder
from .decoding import (
    decode_classification,
    decode_counts,
    decode_embedding,
    decode_token_classification,
)
from .errors import InvalidArgumentError, NotFoundError, UnsupportedError
from .inputs import Policy, Prepared, Row, Text, prepare
from .model import Model
from .results import Float32
from .ticket import Ticket
from .windows import Window

# Which calls an option belongs to; elsewhere it would be silently ignored, so it is refused.
_CALLS_OF_OPTION: Mapping[str, frozenset[Call]] = {
    "shorten": frozenset({Call.CLASSIFY_PAIRS, Call.CLASSIFY_TOKEN_PAIRS}),
    "dimension": frozenset({Call.EMBED}),
    "layer": frozenset({Call.EMBED}),
    "normalize": frozenset({Call.EMBED}),
    "prompt_name": frozenset({Call.EMBED, Call.COUNT_TOKENS}),
    "output": frozenset({Call.CLASSIFY_TOKENS, Call.CLASSIFY_TOKEN_PAIRS}),
    "threshold": frozenset(
        {
            Call.CLASSIFY,
            Call.CLASSIFY_PAIRS,
            Call.CLASSIFY_TOKENS,
            Call.CLASSIFY_TOKEN_PAIRS,
        }
    ),
}

_TASK_OF_CALL = {
    Call.CLASSIFY: Task.SEQUENCE_CLASSIFICATION,
    Call.CLASSIFY_PAIRS: Task.SEQUENCE_CLASSIFICATION,
    Call.CLASSIFY_TOKENS: Task.TOKEN_CLASSIFICATION,
    Call.CLASSIFY_TOKEN_PAIRS: Task.TOKEN_CLASSIFICATION,
    Call.EMBED: Task.EMBEDDING,
}
_CALL_OF_TASK = {
    Task.SEQUENCE_CLASSIFICATION: Call.CLASSIFY,
    Task.TOKEN_CLASSIFICATION: Call.CLASSIFY_TOKENS,
    Task.EMBEDDING: Call.EMBED,
}
_PAIR_CALLS = frozenset({Call.CLASSIFY_PAIRS, Call.CLASSIFY_TOKEN_PAIRS})


class Request(NamedTuple):
    """One call: rows of texts (and of second texts for pairs), and all that goes with them."""

    call: Call
    texts: Sequence[Text]
    others: Sequence[Text] | None
    options: RunOptions
    ticket: Ticket
    record: Recorder


def check(model: Model, call: Call, options: RunOptions) -> None:
    """Raise unless the model answers this call with these options."""
    task = _TASK_OF_CALL.get(call, model.spec.task)
    if task is not model.spec.task:
        raise UnsupportedError(
            f"model {model.info.name!r} does {model.spec.task.name}, {call.name} needs "
            f"{task.name}; use a model of that task"
        )
    if options is DEFAULT_RUN_OPTIONS:
        return
    for name, calls in _CALLS_OF_OPTION.items():
        if call not in calls and getattr(options, name) != getattr(DEFAULT_RUN_OPTIONS, name):
            raise InvalidArgumentError(f"option {name} has no meaning for {call.name}; leave it 0")
    if options.dimension and options.dimension not in model.info.dimensions:
        allowed = ", ".join(map(str, model.info.dimensions.tolist()))
        raise InvalidArgumentError(
            f"dimension is {options.dimension}, model {model.info.name!r} allows {allowed}"
        )
    if options.max_tokens > model.max_tokens:
        raise InvalidArgumentError(
            f"max_tokens is {options.max_tokens}, model {model.info.name!r} scores at most "
            f"{model.max_tokens}; give that or less, or load it with more"
        )
    if options.threshold and options.output is Output.TOKENS:
        raise InvalidArgumentError(
            "threshold drops entities and has no meaning for output TOKENS; leave it 0"
        )
    last = model.spec.config.get("num_hidden_layers")
    if options.layer and options.layer != last and options.layer not in model.info.layers:
        allowed = ", ".join(map(str, model.info.layers.tolist()))
        raise InvalidArgumentError(
            f"layer is {options.layer}, model {model.info.name!r} allows {allowed}"
            if allowed
            else f"layer is {options.layer}, model {model.info.name!r} answers only from its last "
            "layer; use 0"
        )


def answer(model: Model, request: Request) -> results.Result:
    """Answer a call that ``check`` has passed.

    Raise what fails the whole call, such as a full queue.
    """
    policy = policy_of(model, request.call, request.options)
    rows = prepare(model, request.texts, request.others, policy, request.ticket)
    request.record.ended(Phase.TOKENIZE)
    if request.call is Call.COUNT_TOKENS:
        return decode_counts(model, rows)
    layer = layer_of(model, request.options)
    outputs = score(model, rows, layer, request.ticket, (request.record,))
    return decode(model, request, rows, outputs)


def call_of(model: Model) -> Call:
    """Return the call that does the model's task with single texts."""
    return _CALL_OF_TASK[model.spec.task]


def policy_of(model: Model, call: Call, options: RunOptions) -> Policy:
    """Return how the rows of a call are encoded and cut; raise NotFoundError for a prompt."""
    part = options.shorten
    if part is Shorten.AUTO:
        one_label = call is Call.CLASSIFY_PAIRS and len(model.info.labels) == 1
        part = Shorten.SECOND if one_label else Shorten.FIRST
    return Policy(
        long_text=_long_text(model, call, options),
        overlap=options.window_overlap,
        part=part,
        needs_offsets=call is Call.COUNT_TOKENS or model.spec.task is Task.TOKEN_CLASSIFICATION,
        max_tokens=options.max_tokens or model.max_tokens,
        prompt=_prompt(model, options),
    )


def layer_of(model: Model, options: RunOptions) -> int:
    """Return after how many layers the runs of a call end, 0 for all."""
    return options.layer if options.layer in model.spec.layers else 0


def _long_text(model: Model, call: Call, options: RunOptions) -> LongText:
    if options.long_text is not LongText.AUTO:
        return options.long_text
    whole = call in _PAIR_CALLS or model.spec.task is Task.TOKEN_CLASSIFICATION
    return LongText.WINDOWS if whole else LongText.CUT


def _prompt(model: Model, options: RunOptions) -> str:
    prompts = model.spec.prompts
    name = options.prompt_name
    if name is None:
        name = model.spec.default_prompt_name or ""
    if not name:
        return ""
    if name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise NotFoundError(f"model {model.info.name!r} has no prompt {name!r}; it has {known}")
    return prompts[name]


def score(
    model: Model, rows: list[Row], layer: int, ticket: Ticket, records: Sequence[Recorder]
) -> list[Sequence[Float32]]:
    """Score all windows; a row whose window failed is replaced by its error in ``rows``.

    ``records`` are those of all calls that wait for it; the first one's call leads the runs.
    """
    windows: list[Window] = []
    for row in rows:
        if isinstance(row, Prepared):
            windows += row.plan.windows
    outputs: list[Sequence[Float32]] = [()] * len(rows)
    if not windows:
        return outputs
    work = Work(windows, ticket, layer)

    def admitted() -> None:
        for record in records:
            record.admitted()

    try:
        model.batcher.execute(work, admitted)
    finally:
        records[0].runs = work.runs
        if work.started:
            for record in records:
                record.ended(Phase.QUEUE, work.started)
                record.ended(Phase.RUN)
    position = 0
    for index, row in enumerate(rows):
        if not isinstance(row, Prepared):
            continue
        span = slice(position, position + len(row.plan.windows))
        position = span.stop
        if any(work.errors[span]):
            failed = next(error for error in work.errors[span] if error is not None)
            # Rows may share an error; each gets its own, with its own index.
            rows[index] = failed.detached()
        else:
            outputs[index] = [output for output in work.outputs[span] if output is not None]
    return outputs


def decode(
    model: Model, request: Request, rows: list[Row], outputs: Sequence[Sequence[Float32]]
) -> results.Result:
    """Turn the outputs of ``score`` into the result of a call that scores."""
    return _DECODERS[request.call](model, request.options, rows, outputs)


_Decoder = Callable[[Model, RunOptions, list[Row], Sequence[Sequence[Float32]]], results.Result]
_DECODERS: Mapping[Call, _Decoder] = {
    Call.CLASSIFY: decode_classification,
    Call.CLASSIFY_PAIRS: decode_classification,
    Call.CLASSIFY_TOKENS: decode_token_classification,
    Call.CLASSIFY_TOKEN_PAIRS: decode_token_classification,
    Call.EMBED: decode_embedding,
}
