"""Verbs that load embedding models, and answer texts with vectors and their cosines."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from libsemantic.engine.config import Normalize, RunOptions
from libsemantic.engine.errors import InvalidArgumentError, NotFoundError, NotReadyError
from libsemantic.engine.results import Float32

from .arguments import Name, OptionalName, Text, Texts
from .context import Context, Verb
from .routing import (
    Choice,
    EmbeddingModel,
    choose,
    choose_for_batch,
    choose_for_pair,
    count_words,
    named,
)
from .similarity import Match, Vector
from .slots import Wanted, require_all
from .vectors import best, check_dimension, cosines, cut

SLOT_OF: Mapping[EmbeddingModel, str] = {
    EmbeddingModel.QWEN3: "qwen3",
    EmbeddingModel.GEMMA: "gemma",
    EmbeddingModel.MMBERT: "mmbert-embedding",
}
_AUTO = "auto"
_COMPARED = (EmbeddingModel.QWEN3, EmbeddingModel.GEMMA)  # by name
_ALWAYS_LISTED = _COMPARED
_UNLOAD_MS = 60_000

# Callers of these functions bring their own prompts, and compare by the dot product.
_OPTIONS = RunOptions(normalize=Normalize.ON, prompt_name="")


class Cosine(NamedTuple):
    """The cosine of two texts."""

    similarity: float
    model_type: int
    processing_time_ms: float
    error: bool


class Matches(NamedTuple):
    """The best candidates in descending order."""

    matches: Sequence[Match]
    num_matches: int
    model_type: int
    processing_time_ms: float
    error: bool


class ListedModel(NamedTuple):
    """An embedding model; sizes are 0 and the path is empty while it is not loaded."""

    model_name: str
    is_loaded: bool
    max_sequence_length: int
    default_dimension: int
    model_path: str


class ListedModels(NamedTuple):
    """Qwen3 and Gemma, and mmBERT where it is loaded."""

    models: Sequence[ListedModel]
    num_models: int
    error: bool


def load_embeddings(
    context: Context, qwen3_model_path: OptionalName, gemma_model_path: OptionalName, use_cpu: bool
) -> bool:
    """Load the models whose paths are given, all or none."""
    return _load(context, (qwen3_model_path, gemma_model_path), use_cpu)


def load_embeddings_with_mmbert(
    context: Context,
    qwen3_model_path: OptionalName,
    gemma_model_path: OptionalName,
    mmbert_model_path: OptionalName,
    use_cpu: bool,
) -> bool:
    """Load the models whose paths are given, all or none."""
    return _load(context, (qwen3_model_path, gemma_model_path, mmbert_model_path), use_cpu)


def _load(context: Context, paths: Sequence[str], use_cpu: bool) -> bool:
    """Load into the slots of the row, one for each path; an empty path asks for nothing."""
    wanted = [
        Wanted(slot, path) for slot, path in zip(context.row.slots, paths, strict=True) if path
    ]
    if not wanted:
        raise InvalidArgumentError("no path of a model is given; pass one or more")
    context.slots.load_all(wanted, use_cpu)
    return True


def load_batched(
    context: Context, path: Name, max_batch_size: int, max_wait_ms: int, use_cpu: bool
) -> bool:
    """Load the one slot of the row, to run at most ``max_batch_size`` texts at once (0: default).

    What arrives while a run is busy runs together; nothing waits for others, so there is no
    ``max_wait_ms``.
    """
    del max_wait_ms
    if max_batch_size < 0:
        raise InvalidArgumentError(f"max_batch_size is {max_batch_size}; give 0 or more")
    (slot,) = context.row.slots
    context.slots.load_all([Wanted(slot, path, max_batch_rows=max_batch_size)], use_cpu)
    return True


def unload(context: Context) -> None:
    """Unload the one slot of the row; an empty one is fine."""
    (slot,) = context.row.slots
    handle = context.slots.find(slot)
    if handle is not None:
        context.slots.registry.unload(handle, _UNLOAD_MS)


def embed_smart(
    context: Context, text: Text, quality_priority: float, latency_priority: float
) -> Vector:
    """Answer with the model that suits the text's length and the priorities."""
    return embed_routed(context, text, quality_priority, latency_priority, 0)


def embed_routed(
    context: Context, text: Text, quality_priority: float, latency_priority: float, target_dim: int
) -> Vector:
    """Answer with the model that suits the text's length, the priorities and the dimension."""
    words = count_words(text)
    choice = choose(words, quality_priority, latency_priority, target_dim)
    return _embed(context, text, words, choice, target_dim)


def embed_named(context: Context, text: Text, model_type: Name, target_dim: int) -> Vector:
    """Answer with the model of a name."""
    return embed_layered(context, text, model_type, 0, target_dim)


def embed_layered(
    context: Context, text: Text, model_type: Name, target_layer: int, target_dim: int
) -> Vector:
    """Answer with the model of a name, after some layers where that is mmBERT."""
    model = named(model_type)
    layer = target_layer if model is EmbeddingModel.MMBERT else 0
    return _embed(context, text, count_words(text), (model,), target_dim, layer)


def embed_batched(context: Context, text: Text, model_type: Name, target_dim: int) -> Vector:
    """Answer with the model in the one slot of the row, whose name must be given."""
    started = time.perf_counter()
    model = named(model_type, (EmbeddingModel.QWEN3,))
    handle = context.slots.first(context.row.slots)
    values, tokens = _vectors(context, model, handle, [text], target_dim)
    return _vector(values[0], model, tokens[0], started)


def _embed(
    context: Context, text: Text, words: int, choice: Choice, target_dim: int, layer: int = 0
) -> Vector:
    started = time.perf_counter()
    model, handle = _first(context, choice)
    values, _ = _vectors(context, model, handle, [text], target_dim, layer)
    return _vector(values[0], model, words, started)


def _vector(values: Float32, model: EmbeddingModel, length: int, started: float) -> Vector:
    return Vector(
        data=values,
        length=len(values),
        error=False,
        model_type=model,
        sequence_length=length,
        processing_time_ms=_since(started),
    )


def compare_embeddings(
    context: Context, text1: Text, text2: Text, model_type: Name, target_dim: int
) -> Cosine:
    """Compare two texts by one model: qwen3, gemma, or auto."""
    started = time.perf_counter()
    if model_type == _AUTO:
        choice = choose_for_pair((count_words(text1), count_words(text2)))
    else:
        choice = (named(model_type, _COMPARED),)
    model, handle = _first(context, choice)
    values, _ = _vectors(context, model, handle, [text1, text2], target_dim)
    (cosine,) = cosines(values)
    return Cosine(
        similarity=cosine,
        model_type=model,
        processing_time_ms=_since(started),
        error=False,
    )


def rank_embeddings(
    context: Context,
    query: Text,
    candidates: Texts,
    top_k: int,
    model_type: Name,
    target_dim: int,
) -> Matches:
    """Return the ``top_k`` candidates that are nearest to the query; 0 and less: all."""
    started = time.perf_counter()
    texts = [query, *candidates]
    if model_type == _AUTO:
        choice = choose_for_batch([len(text) for text in texts])
    else:
        choice = (named(model_type, _COMPARED),)
    model, handle = _first(context, choice)
    values, _ = _vectors(context, model, handle, texts, target_dim)
    scores = cosines(values)
    matches = [Match(index, scores[index]) for index in best(scores, top_k)]
    return Matches(
        matches=matches,
        num_matches=len(matches),
        model_type=model,
        processing_time_ms=_since(started),
        error=False,
    )


def list_embeddings(context: Context) -> ListedModels:
    """Tell which models are loaded; raise NotFoundError where none is."""
    loaded = {model: handle for model in SLOT_OF if (handle := _ready(context, model)) is not None}
    if not loaded:
        raise _nothing_loaded(SLOT_OF)
    models = [
        _listed(context, model, loaded.get(model))
        for model in SLOT_OF
        if model in loaded or model in _ALWAYS_LISTED
    ]
    return ListedModels(models, len(models), False)


def _listed(context: Context, model: EmbeddingModel, handle: int | None) -> ListedModel:
    if handle is None:
        return ListedModel(model.name.lower(), False, 0, 0, "")
    info = context.slots.registry.info(handle)
    return ListedModel(model.name.lower(), True, info.max_tokens, info.dimension, info.path)


def _first(context: Context, choice: Choice) -> tuple[EmbeddingModel, int]:
    """Return the first of these models that is ready, and its handle."""
    for model in choice:
        handle = _ready(context, model)
        if handle is not None:
            return model, handle
    raise _nothing_loaded(choice)


def _ready(context: Context, model: EmbeddingModel) -> int | None:
    slot = SLOT_OF.get(model)
    try:
        return None if slot is None else context.slots.find(slot)
    except NotReadyError:
        return None


def _nothing_loaded(models: Iterable[EmbeddingModel]) -> NotFoundError:
    names = " or ".join(model.name.lower() for model in models)
    return NotFoundError(f"no embedding model {names} is loaded; call an init function of it first")


def _vectors(
    context: Context,
    model: EmbeddingModel,
    handle: int,
    texts: Sequence[bytes],
    target_dim: int,
    target_layer: int = 0,
) -> tuple[Float32, Sequence[int]]:
    """Return float32[n, dimension] of unit length, and the tokens of each text.

    Any number of dimensions up to the model's own is served, as a prefix that is scaled to unit
    length: callers ask for those of their model's training, which its files often do not list.
    More than that are the whole vector, as in candle-binding, but for mmBERT an error: a caller
    that is routed knows not whose dimensions to ask for. Raise where any text fails.
    """
    registry = context.slots.registry
    if target_dim > 0:  # better known before the run than after it
        width = registry.info(handle).dimension
        if target_dim > width and model is not EmbeddingModel.MMBERT:
            context.slots.tell_once(
                handle, "more than its {0.dimension} dimensions were asked for; all are given"
            )
            target_dim = 0
        check_dimension(target_dim, width)
    options = _OPTIONS
    if target_layer > 0:
        options = replace(_OPTIONS, layer=target_layer)
    result = registry.embed(handle, texts, options)
    require_all(result)
    context.slots.note_cuts(handle, result)
    return cut(result.values, target_dim), result.rows.token_count


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000.0


VERBS: tuple[Verb, ...] = (
    load_embeddings,
    load_embeddings_with_mmbert,
    load_batched,
    unload,
    embed_smart,
    embed_routed,
    embed_named,
    embed_layered,
    embed_batched,
    compare_embeddings,
    rank_embeddings,
    list_embeddings,
)
