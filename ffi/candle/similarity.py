"""Verbs of the similarity model: vectors, cosines and tokens of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from libsemantic.engine.config import LongText, Normalize, RunOptions
from libsemantic.engine.results import Embedding, Float32, Int64

from .arguments import OptionalName, Text, Texts
from .context import Context, Verb
from .slots import require_all
from .vectors import best, cosines

_DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_DEFAULT_LENGTH = 512


class Vector(NamedTuple):
    """A unit vector; candle-binding leaves the last three as they are here."""

    data: Float32
    length: int
    error: bool = False
    model_type: int = -1
    sequence_length: int = 0
    processing_time_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Match:
    """One of several candidates."""

    index: int
    similarity: float


class Tokens(NamedTuple):
    """The tokens of a text."""

    token_ids: Int64
    token_count: int
    tokens: Sequence[str]
    error: bool = False


def load_similarity(context: Context, path: OptionalName, use_cpu: bool) -> bool:
    """Load the one slot of the row; without a path, candle-binding's own model."""
    context.slots.load(context.row.slots[0], path or _DEFAULT_MODEL, use_cpu)
    return True


def embed_text(context: Context, text: Text, max_length: int) -> Vector:
    """Return the unit vector of a text."""
    vector = _embed(context, [text], max_length).values[0]
    return Vector(vector, len(vector))


def compare_texts(context: Context, first: Text, second: Text, max_length: int) -> float:
    """Return the cosine of two texts."""
    (cosine,) = cosines(_embed(context, [first, second], max_length).values)
    return cosine


def find_most_similar(context: Context, query: Text, candidates: Texts, max_length: int) -> Match:
    """Return the first of the candidates with the highest cosine."""
    scores = cosines(_embed(context, [query, *candidates], max_length).values)
    (index,) = best(scores, 1)
    return Match(index, scores[index])


def tokenize(context: Context, text: Text, max_length: int) -> Tokens:
    """Return the tokens of a text with the special tokens."""
    slots = context.slots
    handle = slots.first(context.row.slots)
    result = slots.registry.count_tokens(handle, [text], _options(context, handle, max_length))
    ids = result.window_ids[0]
    return Tokens(ids, len(ids), slots.registry.token_names(handle, ids.tolist()))


def _embed(context: Context, texts: Sequence[bytes], max_length: int) -> Embedding:
    slots = context.slots
    handle = slots.first(context.row.slots)
    limit = _limit(context, handle, max_length)
    result = slots.registry.embed(handle, texts, _embedding_options(limit))
    require_all(result)
    slots.note_cuts(handle, result)
    return result


def _options(context: Context, handle: int, max_length: int) -> RunOptions:
    limit = _limit(context, handle, max_length)
    return RunOptions(long_text=LongText.CUT, prompt_name="", max_tokens=limit)


@lru_cache(maxsize=64)
def _embedding_options(limit: int) -> RunOptions:
    return RunOptions(
        long_text=LongText.CUT, prompt_name="", normalize=Normalize.ON, max_tokens=limit
    )


def _limit(context: Context, handle: int, max_length: int) -> int:
    """Return the length that the caller asks for, 0 where the model's own is shorter."""
    asked = max_length if max_length > 0 else _DEFAULT_LENGTH
    return asked if asked < context.slots.registry.info(handle).max_tokens else 0


VERBS: tuple[Verb, ...] = (load_similarity, embed_text, compare_texts, find_most_similar, tokenize)
