"""Verbs that tell the variant of ModernBERT from a config.json."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from libsemantic.engine.descriptions import read_description
from libsemantic.engine.errors import NotFoundError

from .arguments import Name
from .context import Context, Verb

_MULTILINGUAL_VOCABULARY = 200_000
_LONG = 32_768


class Variant(Enum):
    """What a folder of ModernBERT is, as candle-binding tells its variants apart."""

    STANDARD = "standard"
    EXTENDED_32K = "extended 32K"
    MULTILINGUAL = "multilingual"
    MULTILINGUAL_32K = "multilingual 32K"


def is_multilingual(context: Context, config_path: Name) -> bool:
    """Tell whether a config.json is that of a multilingual ModernBERT, of any length."""
    del context
    return _variant(Path(config_path)) in (Variant.MULTILINGUAL, Variant.MULTILINGUAL_32K)


def is_multilingual_32k(context: Context, config_path: Name) -> bool:
    """Tell whether a config.json is that of a multilingual ModernBERT for 32,768 tokens."""
    del context
    return _variant(Path(config_path)) is Variant.MULTILINGUAL_32K


def _variant(path: Path) -> Variant:
    """Read a config.json, and the training_config.json beside it where there is one."""
    description = read_description(path)
    if description is None:
        raise NotFoundError(f"{path} is not there; pass the config.json of a model")
    config = description.values
    training = read_description(path.parent / "training_config.json")
    multilingual = _number(config, "vocab_size", 0) >= _MULTILINGUAL_VOCABULARY
    long = (
        _number(config, "max_position_embeddings", 512) >= 16_384
        or _number(config, "global_rope_theta", 10_000) >= 100_000
    )
    without_positions = config.get("position_embedding_type") == "sans_pos"
    if training is not None and _is_stretched(training.values):
        if multilingual and long:
            return Variant.MULTILINGUAL_32K
        native = (
            training.values.get("rope_original_max_position_embeddings"),
            config.get("max_position_embeddings"),
        )
        if not multilingual and without_positions and 8192 in native:
            return Variant.EXTENDED_32K
    if multilingual and without_positions:
        return Variant.MULTILINGUAL_32K if long else Variant.MULTILINGUAL
    if without_positions and _number(config, "max_position_embeddings", 512) >= _LONG:
        return Variant.EXTENDED_32K
    return Variant.STANDARD


def _is_stretched(training: Mapping[str, object]) -> bool:
    scaling = training.get("rope_scaling_type")
    return scaling in ("yarn", "YaRN") and _number(training, "model_max_length", 0) >= _LONG


def _number(values: Mapping[str, object], key: str, default: float) -> float:
    value = values.get(key)
    return value if isinstance(value, int | float) else default


VERBS: Mapping[str, Verb] = {verb.__name__: verb for verb in (is_multilingual, is_multilingual_32k)}
