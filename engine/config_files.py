"""What a config.json says, asked by its path alone: variants of ModernBERT, names of labels."""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from .descriptions import Description, read_description
from .errors import BadArtifactError, NotFoundError

_MULTILINGUAL_VOCABULARY = 200_000
_LONG = 32_768
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Variant(Enum):
    """What a folder of ModernBERT is, as candle-binding tells its variants apart."""

    STANDARD = "standard"
    EXTENDED_32K = "extended 32K"
    MULTILINGUAL = "multilingual"
    MULTILINGUAL_32K = "multilingual 32K"


def read_variant(path: Path) -> Variant:
    """Read a config.json, and the training_config.json beside it where there is one.

    Raise NotFoundError or BadArtifactError where they cannot be read.
    """
    config = _read(path).values
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


def read_label_names(path: Path) -> Mapping[int, str]:
    """Return ``id2label`` of a JSON file; what is no index or no text is left out.

    Raise NotFoundError where the file, BadArtifactError where the table is missing.
    """
    table = _read(path).get("id2label", dict)
    if not table:
        raise BadArtifactError(f"{path} has no id2label; pass the config.json of the model")
    return {
        int(index): name
        for index, name in table.items()
        if _INDEX.fullmatch(index) and isinstance(name, str)
    }


def _read(path: Path) -> Description:
    description = read_description(path)
    if description is None:
        raise NotFoundError(f"{path} is not there; pass the config.json of a model")
    return description


def _is_stretched(training: Mapping[str, object]) -> bool:
    scaling = training.get("rope_scaling_type")
    return scaling in ("yarn", "YaRN") and _number(training, "model_max_length", 0) >= _LONG


def _number(values: Mapping[str, object], key: str, default: float) -> float:
    value = values.get(key)
    return value if isinstance(value, int | float) else default
