"""Choose the embedding model that answers a call which names none.

The rules and their limits are those of candle-binding: comparisons are strict, and texts are
measured in words between white space, so that a text in Chinese may be one word. A choice is the
model that a rule prefers, followed by those that answer where it is not loaded.
"""

from collections.abc import Collection, Sequence
from enum import IntEnum

from libsemantic.engine.config import DEFAULT_MAX_TEXT_BYTES
from libsemantic.engine.errors import InvalidArgumentError, TooLongError

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
Choice = Sequence[EmbeddingModel]
LARGE: Choice = (EmbeddingModel.QWEN3, EmbeddingModel.MMBERT, EmbeddingModel.GEMMA)
SMALL: Choice = (EmbeddingModel.GEMMA, EmbeddingModel.MMBERT, EmbeddingModel.QWEN3)


def named(name: str, allowed: Collection[EmbeddingModel] = tuple(EmbeddingModel)) -> EmbeddingModel:
    """Return the model of a name, which is case-sensitive."""
    model = _BY_NAME.get(name)
    if model is None or model not in allowed:
        known = ", ".join(model.name.lower() for model in allowed)
        raise InvalidArgumentError(f"model_type is none of those of this function: {known}")
    return model


def count_words(text: bytes) -> int:
    """Count the parts of a UTF-8 text between white space.

    Raise TooLongError above the bytes that models take: a list of its words could be enormous.
    """
    if len(text) > DEFAULT_MAX_TEXT_BYTES:
        raise TooLongError(
            f"the text has {len(text)} bytes, at most {DEFAULT_MAX_TEXT_BYTES} are taken; send a "
            "shorter one"
        )
    return len(text.decode("utf-8", "replace").split())


def choose(words: int, quality: float, latency: float, dimension: int) -> Choice:
    """Return the models for one text.

    ``quality`` and ``latency`` are priorities, of any value; ``dimension`` 0 stands for all.
    Raise TooLongError above 32,768 words.
    """
    if words > MAX_WORDS:
        raise TooLongError(
            f"the text has {words} words, at most {MAX_WORDS} are routed; send a shorter one"
        )
    if 0 < dimension < SMALL_DIMENSION and latency > LATENCY_FOR_SMALL:
        return SMALL
    if words <= SHORT_WORDS:
        return SMALL if latency > PRIORITY and not quality > PRIORITY else LARGE
    return SMALL if words <= MEDIUM_WORDS else LARGE


def choose_for_pair(words: Sequence[int]) -> Choice:
    """Return the models for texts that are compared: those for the longest."""
    return choose(max(words), NEUTRAL, NEUTRAL, 0)


def choose_for_batch(sizes: Sequence[int]) -> Choice:
    """Return the models for a query and its candidates, from their sizes in bytes."""
    return LARGE if sum(sizes) > SHORT_BYTES * len(sizes) else SMALL
