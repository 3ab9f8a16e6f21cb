"""Labels of tokens to entities of the text.

Rule: ``B-`` and ``I-`` are stripped to the type, ``O`` is no type, a label without prefix is a
type of itself that continues like ``I-``. A token with a type continues the entity of the token
before it if the type is equal and, for ``B-``, no character lies between the two; else it opens
an entity. Blanks between count as characters, also those a tokenizer counts into the token (byte
level, Metaspace): tokens are compared without the blanks at their ends.

Tokens of zero width (a blank that the tokenizer trimmed away) neither break nor extend an entity
and count in no score; a token of blanks alone is a token like any other.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import BadArtifactError
from .tokenization import IntArray, to_byte_offsets

FloatArray = NDArray[np.float32]
_BoolArray = NDArray[np.bool_]
_Characters = NDArray[np.uint8] | NDArray[np.uint32]

# Unicode White_Space (PropList.txt); Python's str.isspace adds U+001C to U+001F.
_BLANKS = np.zeros(0x3002, np.bool_)
_BLANKS[[*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]] = True
_BLANKS[[0x2028, 0x2029, 0x202F, 0x205F, 0x3000]] = True


@dataclass(frozen=True, slots=True, eq=False)
class LabelScheme:
    """What the labels of a token classifier mean, indexed by label.

    ``types`` holds the entity types in order of their first label; ``type_of`` int32[labels] the
    type of each label, −1 for ``O``; ``begins`` bool[labels] marks ``B-``; ``members``
    float64[labels, types] is 1 where the label belongs to the type. ``quiet_label`` is ``O``, or
    label 0 where there is no ``O``.
    """

    types: tuple[str, ...]
    type_of: NDArray[np.int32]
    begins: _BoolArray
    members: NDArray[np.float64]
    quiet_label: int


@dataclass(frozen=True, slots=True, eq=False)
class Entities:
    """Entities of one text, ordered by start, then end.

    ``type_index`` int32, ``score`` float32, ``start`` and ``end`` int64: half-open UTF-8 byte
    offsets.
    """

    type_index: NDArray[np.int32]
    score: FloatArray
    start: IntArray
    end: IntArray


def quiet_label(labels: Sequence[str]) -> int:
    """Return the label of tokens that are part of nothing: ``O``, or label 0 without an ``O``."""
    return labels.index("O") if "O" in labels else 0


def label_scheme(labels: Sequence[str]) -> LabelScheme:
    """Read the types out of a model's labels, in the order of its outputs.

    Raise BadArtifactError if there are none, or for ``B-`` or ``I-`` without a type.
    """
    if not labels:
        raise BadArtifactError("the model has no labels; add id2label to config.json")
    types: dict[str, int] = {}
    type_of = np.full(len(labels), -1, np.int32)
    for index, label in enumerate(labels):
        name = label[2:] if label.startswith(("B-", "I-")) else label
        if not name:
            raise BadArtifactError(
                f"label {index} is {label!r}, which names no type; correct id2label in config.json"
            )
        if label != "O":
            type_of[index] = types.setdefault(name, len(types))
    members = (type_of[:, None] == np.arange(len(types))).astype(np.float64)
    begins = np.array([label.startswith("B-") for label in labels], np.bool_)
    return LabelScheme(tuple(types), type_of, begins, members, quiet_label(labels))


def merge_entities(
    text: str,
    offsets: IntArray,
    winners: IntArray,
    probabilities: FloatArray,
    scheme: LabelScheme,
    threshold: float = 0.0,
) -> Entities:
    """Merge the labels of a text's tokens to entities.

    ``offsets`` int64[tokens, 2] are code-point ranges in ``text``, ``winners`` int[tokens] the
    label chosen for each token, ``probabilities`` float32[tokens, labels]. The score is the mean,
    over the entity's tokens, of the probability of all labels of its type; entities below
    ``threshold`` are dropped. Blanks are trimmed from both ends and the end is moved over
    combining marks that follow; what has no width then is dropped.
    """
    kinds = scheme.type_of[winners]
    used = (kinds >= 0) & (offsets[:, 0] < offsets[:, 1])
    if not used.any():
        return _NONE
    visible = np.flatnonzero(offsets[:, 0] < offsets[:, 1])
    kinds, begins = kinds[visible], scheme.begins[winners[visible]]
    characters = _characters(text)
    starts, ends = _trim(offsets[visible, 0], offsets[visible, 1], characters)

    continues = np.zeros(len(visible), np.bool_)
    touches = starts[1:] <= ends[:-1]
    continues[1:] = (kinds[1:] == kinds[:-1]) & (touches | ~begins[1:])
    inside = kinds >= 0
    # Among the tokens with a type alone, each that does not continue opens an entity.
    heads = np.flatnonzero(~continues[inside])
    kinds, tokens = kinds[inside], visible[inside]

    shares = probabilities[tokens].astype(np.float64) * scheme.members[:, kinds].T
    counts = np.diff(heads, append=len(tokens))
    means = np.add.reduceat(shares.sum(axis=1), heads) / counts
    score = np.minimum(means, 1.0).astype(np.float32)
    start, end = _trim(
        np.minimum.reduceat(offsets[tokens, 0], heads),
        np.maximum.reduceat(offsets[tokens, 1], heads),
        characters,
    )
    kept = _has_ink(start, characters) & (score >= np.float32(threshold))
    kind, score, start, end = kinds[heads][kept], score[kept], start[kept], end[kept]
    end = _over_marks(end, characters)
    order = np.lexsort((end, start))
    return Entities(
        kind[order],
        score[order],
        to_byte_offsets(text, start[order]),
        to_byte_offsets(text, end[order]),
    )


_NONE = Entities(
    np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
)


def _characters(text: str) -> _Characters:
    """Return the code points of ``text``."""
    if text.isascii():
        return np.frombuffer(text.encode(), np.uint8)
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _is_blank(characters: _Characters) -> _BoolArray:
    return _BLANKS.take(characters, mode="clip")  # the table ends with a False


def _has_ink(starts: IntArray, characters: _Characters) -> _BoolArray:
    """Tell which trimmed ranges are more than blanks: those that do not start with one."""
    return ~_is_blank(characters[starts])


def _trim(starts: IntArray, ends: IntArray, characters: _Characters) -> tuple[IntArray, IntArray]:
    """Take the blanks off both ends of each range; a range of blanks alone stays as it is."""
    if not (_is_blank(characters[starts]) | _is_blank(characters[ends - 1])).any():
        return starts, ends
    ink = np.flatnonzero(~_is_blank(characters))
    first, last = np.searchsorted(ink, starts), np.searchsorted(ink, ends) - 1
    full = first <= last
    starts, ends = starts.copy(), ends.copy()
    starts[full], ends[full] = ink[first[full]], ink[last[full]] + 1
    return starts, ends


def _over_marks(ends: IntArray, characters: _Characters) -> IntArray:
    """Move each end over the combining marks (categories Mn, Mc, Me) that follow it."""
    if characters.dtype == np.uint8:
        return ends
    follow = ends[ends < len(characters)]
    if not _is_mark(characters[follow]).any():
        return ends
    bases = np.append(np.flatnonzero(~_is_mark(characters)), len(characters))
    return bases[np.searchsorted(bases, ends)]


def _is_mark(characters: _Characters) -> _BoolArray:
    distinct, where = np.unique(characters, return_inverse=True)
    marks = [unicodedata.category(chr(code))[0] == "M" for code in distinct.tolist()]
    return np.array(marks, np.bool_)[where]
