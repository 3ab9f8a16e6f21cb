"""Verbs that find entities in a text."""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from libsemantic.engine.config import LongText, RunOptions
from libsemantic.engine.config_files import read_label_names
from libsemantic.engine.entities import label_scheme
from libsemantic.engine.results import TokenClassification
from libsemantic.engine.sharing import FileIdentity, file_identity

from .arguments import Name, Pointer, Text
from .context import Context, Verb

_UNKNOWN = "UNKNOWN_PII"


class Found(NamedTuple):
    """Entities by field; ``start`` and ``end`` are half-open bytes of the text."""

    entity_type: Sequence[str]
    start: Sequence[int]
    end: Sequence[int]
    text: Sequence[bytes]
    confidence: Sequence[float]


class Entities(NamedTuple):
    """The entities of one text."""

    entities: Found
    num_entities: int


def find_entities(context: Context, text: Text) -> Entities:
    """Answer with the model in the first slot of the row that holds one."""
    result = _ask(context, text)
    return _entities(context, text, result, result.labels)


def find_entities_with(context: Context, text: Text, labels: Name) -> Entities:
    """Do the same; the second argument names labels, which the model knows by itself."""
    del labels
    return find_entities(context, text)


def find_entities_beside(context: Context, text: Text, labels: Pointer) -> Entities:
    """Do the same; the second argument is not even read: in Rust the function has only one."""
    del labels
    return find_entities(context, text)


def find_entities_named_by(context: Context, text: Text, config_path: Name) -> Entities:
    """Do the same; the names of the types are those in the ``id2label`` of a file.

    Raise NotFoundError or BadArtifactError where the file has none.
    """
    names = _names(file_identity(Path(config_path)))
    result = _ask(context, text)
    return _entities(context, text, result, _renamed(result.model_labels, names))


def _ask(context: Context, text: Text) -> TokenClassification:
    slots = context.slots
    handle = slots.first(context.row.slots)
    options = _options(context.row.threshold, slots.long_text())
    result = slots.registry.classify_tokens(handle, [text], options)
    slots.note_cuts(handle, result)
    return result


@lru_cache(maxsize=16)
def _options(threshold: float, long_text: LongText) -> RunOptions:
    return RunOptions(threshold=threshold, long_text=long_text)


def _entities(
    context: Context, text: bytes, result: TokenClassification, names: Sequence[str]
) -> Entities:
    """Name the entities; where no label is ``O``, those of label 0 are none."""
    kinds, starts, ends, scores = result.label_index, result.start, result.end, result.score
    if "O" not in result.model_labels:  # types are in the order of the labels
        kept = kinds != 0
        kinds, starts, ends, scores = kinds[kept], starts[kept], ends[kept], scores[kept]
    found, most = len(kinds), context.row.most
    if 0 < most < found:
        context.slots.registry.log.warning(
            f"{context.row.function}: {found} entities, of which the caller has room for {most}; "
            "send shorter texts"
        )
        kinds, starts, ends, scores = kinds[:most], starts[:most], ends[:most], scores[:most]
    first, last = starts.tolist(), ends.tolist()
    types = [names[kind] for kind in kinds.tolist()]
    parts = [text[start:end] for start, end in zip(first, last, strict=True)]
    return Entities(Found(types, first, last, parts, scores.tolist()), len(types))


@lru_cache(maxsize=16)
def _names(identity: FileIdentity) -> tuple[tuple[int, str], ...]:
    """Return index and name of each label in a file, which its identity tells from a newer one."""
    return tuple(read_label_names(Path(identity[0])).items())


@lru_cache(maxsize=16)
def _renamed(labels: tuple[str, ...], names: tuple[tuple[int, str], ...]) -> tuple[str, ...]:
    """Return for each entity type of a model the name that a file gives its first label."""
    scheme, given = label_scheme(labels), dict(names)
    types: dict[int, str] = {}
    for index, kind in enumerate(scheme.type_of.tolist()):
        if kind >= 0 and kind not in types:
            types[kind] = re.sub(r"^[BI]-", "", given.get(index, _UNKNOWN))
    return tuple(types[kind] for kind in range(len(scheme.types)))


VERBS: tuple[Verb, ...] = (
    find_entities,
    find_entities_with,
    find_entities_beside,
    find_entities_named_by,
)
