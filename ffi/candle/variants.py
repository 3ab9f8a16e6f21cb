"""Verbs that tell the variant of ModernBERT from a config.json."""

from pathlib import Path

from libsemantic.engine.config_files import Variant, read_variant

from .arguments import Name
from .context import Context, Verb


def is_multilingual(context: Context, config_path: Name) -> bool:
    """Tell whether a config.json is that of a multilingual ModernBERT, of any length."""
    del context
    variant = read_variant(Path(config_path))
    return variant in (Variant.MULTILINGUAL, Variant.MULTILINGUAL_32K)


def is_multilingual_32k(context: Context, config_path: Name) -> bool:
    """Tell whether a config.json is that of a multilingual ModernBERT for 32,768 tokens."""
    del context
    return read_variant(Path(config_path)) is Variant.MULTILINGUAL_32K


VERBS: tuple[Verb, ...] = (is_multilingual, is_multilingual_32k)
