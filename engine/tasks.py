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
    rows = _prepare(model, request)
    request.record.ended(Phase.TOKENIZE)
    if request.call is Call.COUNT_TOKENS:
        return decode_counts(model, rows)
    outputs = _score(model, rows, request)
    return _DECODERS[request.call](model, request.options, rows, outputs)


def _prepare(model: Model, request: Request) -> list[Row]:
    call, options = request.call, request.options
    part = options.shorten
    if part is Shorten.AUTO:
        one_label = call is Call.CLASSIFY_PAIRS and len(model.info.labels) == 1
        part = Shorten.SECOND if one_label else Shorten.FIRST
    policy = Policy(
        long_text=_long_text(model, call, options),
        overlap=options.window_overlap,
        part=part,
        needs_offsets=call is Call.COUNT_TOKENS or model.spec.task is Task.TOKEN_CLASSIFICATION,
        max_tokens=options.max_tokens or model.max_tokens,
        prompt=_prompt(model, options),
    )
    return prepare(model, request.texts, request.others, policy, request.ticket)


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


def _score(model: Model, rows: list[Row], request: Request) -> list[Sequence[Float32]]:
    """Score all windows; a row whose window failed is replaced by its error in ``rows``."""
    windows: list[Window] = []
    for row in rows:
        if isinstance(row, Prepared):
            windows += row.plan.windows
    outputs: list[Sequence[Float32]] = [()] * len(rows)
    if not windows:
        return outputs
    layer = request.options.layer
    work = Work(windows, request.ticket, layer if layer in model.spec.layers else 0)
    try:
        model.batcher.execute(work, request.record.admitted)
    finally:
        request.record.runs = work.runs
        if work.started:
            request.record.ended(Phase.QUEUE, work.started)
            request.record.ended(Phase.RUN)
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


_Decoder = Callable[[Model, RunOptions, list[Row], Sequence[Sequence[Float32]]], results.Result]
_DECODERS: Mapping[Call, _Decoder] = {
    Call.CLASSIFY: decode_classification,
    Call.CLASSIFY_PAIRS: decode_classification,
    Call.CLASSIFY_TOKENS: decode_token_classification,
    Call.CLASSIFY_TOKEN_PAIRS: decode_token_classification,
    Call.EMBED: decode_embedding,
}
