"""From the caller's rows to windows: decoded, measured, encoded, cut. A row fails alone."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from .config import LongText, Shorten
from .errors import (
    InvalidArgumentError,
    OutOfMemoryError,
    SemanticError,
    TooLongError,
    UnsupportedError,
)
from .model import Model
from .ticket import Ticket
from .tokenization import Encoded
from .windows import WindowPlan, plan_windows


class Bytes(Protocol):
    """UTF-8 in memory: ``bytes``, or a view of the caller's own."""

    def __len__(self) -> int:
        """Return the number of bytes."""

    def __getitem__(self, index: slice, /) -> bytes | memoryview:
        """Return some of the bytes."""


# A text; None stands for a missing one (a NULL pointer with a length).
Text: TypeAlias = str | Bytes | None

# Tokenising stops to look at the deadline after this many rows or bytes.
_CHUNK_ROWS = 64
_CHUNK_BYTES = 1 << 18


class Prepared(NamedTuple):
    """One row, ready to be scored.

    The first ``prompt_bytes`` bytes of ``text`` are the prompt; ``other`` is the second text
    of a pair.
    """

    text: str
    other: str
    encoded: Encoded
    plan: WindowPlan
    prompt_bytes: int


Row: TypeAlias = Prepared | SemanticError


# Encodes texts, each by itself; what fails is in its place.
Encode: TypeAlias = Callable[[Sequence[str]], Sequence[Encoded | SemanticError]]


class Policy(NamedTuple):
    """How the rows of one call are encoded and cut."""

    long_text: LongText
    overlap: int
    part: Shorten
    needs_offsets: bool
    max_tokens: int
    prompt: str = ""


def prepare(
    model: Model,
    texts: Sequence[Text],
    others: Sequence[Text] | None,
    policy: Policy,
    ticket: Ticket,
    encode: Encode | None = None,
) -> list[Row]:
    """Encode and cut every row; ``others`` are the second texts of pairs.

    ``encode`` takes the place of the model's own way to encode texts that are no pairs.

    Raise only what concerns the whole call: a deadline or a cancellation.
    """
    rows: list[Row] = []
    for chunk in _chunks(texts, others):
        ticket.check()
        rows += _prepare_chunk(model, texts, others, chunk, policy, encode)
    ticket.check()
    return rows


def _chunks(texts: Sequence[Text], others: Sequence[Text] | None) -> Sequence[range]:
    if len(texts) == 1:
        return (range(1),)
    chunks = []
    start = size = 0
    for index in range(len(texts)):
        size += len(texts[index] or "") + (len(others[index] or "") if others is not None else 0)
        if index + 1 - start >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            chunks.append(range(start, index + 1))
            start, size = index + 1, 0
    if start < len(texts):
        chunks.append(range(start, len(texts)))
    return chunks


def _prepare_chunk(
    model: Model,
    texts: Sequence[Text],
    others: Sequence[Text] | None,
    chunk: range,
    policy: Policy,
    encode: Encode | None,
) -> list[Row]:
    rows: list[Row | None] = [None] * len(chunk)
    limit = model.info.max_text_bytes
    left, right, places = [], [], []
    for place, index in enumerate(chunk):
        try:
            text = _decode(texts[index], limit)
            other = "" if others is None else _decode(others[index], limit)
            if model.spec.lower_case and policy.needs_offsets:
                _check_lower(policy.prompt + text)
                _check_lower(other)
        except SemanticError as error:
            rows[place] = error.detached()
        else:
            left.append(policy.prompt + text)
            right.append(other)
            places.append(place)
    pairs = others is not None
    prompt_bytes = len(policy.prompt.encode()) if policy.prompt else 0
    if encode is None:
        encodings = encode_texts(model, left, right if pairs else None, policy.needs_offsets)
    else:
        encodings = encode(left)
    for place, text, other, encoded in zip(places, left, right, encodings, strict=True):
        if isinstance(encoded, SemanticError):
            rows[place] = encoded
            continue
        try:
            _check_ids(model, encoded)
            plan = plan_windows(
                encoded,
                policy.max_tokens,
                policy.long_text,
                policy.overlap,
                policy.part,
                model.batcher.limits.queue_tokens,
            )
        except SemanticError as error:
            rows[place] = error.detached()
        else:
            rows[place] = Prepared(text, other, encoded, plan, prompt_bytes)
    return [row for row in rows if row is not None]


def _decode(text: Text, limit: int) -> str:
    if text is None:
        raise InvalidArgumentError("a text is NULL but has a length; pass its bytes")
    if isinstance(text, str):
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"a text holds a lone surrogate at character {error.start}; pass Unicode text"
            ) from None
    else:
        size = len(text)
    if size > limit:
        raise TooLongError(
            f"a text has {size} bytes, max_text_bytes is {limit}; send less, or load the model "
            "with a larger max_text_bytes"
        )
    if isinstance(text, str):
        return text
    try:
        return str(text[:], "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"a text is not UTF-8 at byte {error.start}; pass UTF-8"
        ) from None


def _check_ids(model: Model, encoded: Encoded) -> None:
    """Raise if a token has no embedding; ONNX Runtime would fail all texts of its run."""
    rows = model.vocab_size
    if rows and model.tokenizer.vocab_size > rows:
        highest = int(encoded.ids.max(initial=0))
        if highest >= rows:
            raise UnsupportedError(
                f"a text has the token of id {highest}, the model has {rows} embeddings; leave "
                "that token out of the text"
            )


def _check_lower(text: str) -> None:
    """Raise if lower-casing, which the folder asks for, moves characters."""
    if len(text.lower()) != len(text):
        raise UnsupportedError(
            "a text changes its length when lower-cased, as this model asks, so byte ranges "
            "cannot be told; pass it in lower case"
        )


def encode_texts(
    model: Model, left: Sequence[str], right: Sequence[str] | None, offsets: bool
) -> Sequence[Encoded | SemanticError]:
    """Encode the texts of one chunk; where one of them fails, each by itself."""
    if not left:
        return []
    lower = model.spec.lower_case  # as the folder's sentence-transformers file asks
    try:
        first = [text.lower() for text in left] if lower else left
        if right is None:
            return model.tokenizer.encode(first, offsets)
        second = [text.lower() for text in right] if lower else right
        return model.tokenizer.encode_pairs(first, second, offsets)
    except OutOfMemoryError as error:  # one by one they would take as much
        return [error.detached() for _ in left]
    except SemanticError as error:
        if len(left) == 1:
            return [error.detached()]
        return [
            encode_texts(model, [text], None if right is None else [right[index]], offsets)[0]
            for index, text in enumerate(left)
        ]
