"""Choose the embedding model that answers a call which names none.

The rules and their limits are upstream's (comparisons are strict, texts are measured in words
between white space, so that a text in Chinese may be one word). A rule names the model it
prefers; where that one is not loaded, the next of its row in ``_INSTEAD`` answers.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

from libsemantic.engine.errors import InvalidArgumentError, NotFoundError, TooLongError

SHORT_WORDS = 512
MEDIUM_WORDS = 2048
MAX_WORDS = 32_768
PRIORITY = 0.7  # a priority above it decides
LATENCY_FOR_SMALL = 0.5
SMALL_DIMENSION = 768
SHORT_BYTES = 512
NEUTRAL = 0.5


class EmbeddingModel(IntEnum):
    """The models by name; values of ``model_type``."""

    QWEN3 = 0
    GEMMA = 1
    MMBERT = 2
    MULTIMODAL = 3


_BY_NAME = {model.name.lower(): model for model in EmbeddingModel}
_INSTEAD: Mapping[EmbeddingModel, Sequence[EmbeddingModel]] = {
    EmbeddingModel.QWEN3: (EmbeddingModel.MMBERT, EmbeddingModel.GEMMA),
    EmbeddingModel.GEMMA: (EmbeddingModel.MMBERT, EmbeddingModel.QWEN3),
}


def named(name: str, allowed: Collection[EmbeddingModel] = tuple(EmbeddingModel)) -> EmbeddingModel:
    """Return the model of a name, which is case-sensitive."""
    model = _BY_NAME.get(name)
    if model is None or model not in allowed:
        known = ", ".join(model.name.lower() for model in allowed)
        raise InvalidArgumentError(f"model_type is none of those of this function: {known}")
    return model


def count_words(text: bytes) -> int:
    """Count the parts of a UTF-8 text between white space."""
    return len(text.decode("utf-8", "replace").split())


def choose(
    words: int,
    quality: float,
    latency: float,
    dimension: int,
    loaded: Collection[EmbeddingModel],
) -> EmbeddingModel:
    """Return the model for one text.

    ``quality`` and ``latency`` are priorities, of any value; ``dimension`` 0 stands for all.
    Raise TooLongError above 32,768 words, NotFoundError where no model is loaded.
    """
    if words > MAX_WORDS:
        raise TooLongError(f"the text has {words} words, at most {MAX_WORDS} are routed")
    if 0 < dimension < SMALL_DIMENSION and latency > LATENCY_FOR_SMALL:
        preferred = EmbeddingModel.GEMMA
    elif words <= SHORT_WORDS:
        small = latency > PRIORITY and not quality > PRIORITY
        preferred = EmbeddingModel.GEMMA if small else EmbeddingModel.QWEN3
    else:
        preferred = EmbeddingModel.GEMMA if words <= MEDIUM_WORDS else EmbeddingModel.QWEN3
    return _available(preferred, loaded)


def choose_for_pair(words: Sequence[int], loaded: Collection[EmbeddingModel]) -> EmbeddingModel:
    """Return the one model for texts that are compared: that of the longest."""
    return choose(max(words), NEUTRAL, NEUTRAL, 0, loaded)


def choose_for_batch(sizes: Sequence[int], loaded: Collection[EmbeddingModel]) -> EmbeddingModel:
    """Return the model for a query and its candidates, from their sizes in bytes."""
    long = sum(sizes) > SHORT_BYTES * len(sizes)
    return _available(EmbeddingModel.QWEN3 if long else EmbeddingModel.GEMMA, loaded)


def _available(preferred: EmbeddingModel, loaded: Collection[EmbeddingModel]) -> EmbeddingModel:
    for model in (preferred, *_INSTEAD[preferred]):
        if model in loaded:
            return model
    raise NotFoundError("no embedding model is loaded; call an init function of them first")
