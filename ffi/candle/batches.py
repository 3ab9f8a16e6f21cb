"""Verbs over batches of texts that ask three classifiers: intent, personal data, safety."""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from libsemantic.engine.config import LongText, Output, RunOptions
from libsemantic.engine.entities import quiet_label
from libsemantic.engine.errors import InvalidArgumentError, NotFoundError
from libsemantic.engine.results import Classification, Float32, Result, TokenClassification

from .arguments import Name, OptionalNames, Texts
from .context import Context, Verb
from .hub import local_folder
from .slots import Wanted, require_all

# A label that says that there is nothing to fear, as a word of its own: "unsafe" is none, and
# "not safe" neither.
_HARMLESS = re.compile(
    r"(?<![a-z0-9])(?<!not[ _-])(?<!non[ _-])(?<!un[ _-])"
    r"(?:safe|benign|no[ _-]?threat)(?![a-z0-9])"
)
_NO_THREAT = "none"


class Intent(NamedTuple):
    """The intent of one text."""

    category: str
    confidence: float
    probabilities: Float32
    num_probabilities: int


class PersonalData(NamedTuple):
    """The types of personal data in one text, each once, in order of appearance."""

    has_pii: bool
    pii_types: Sequence[str]
    num_pii_types: int
    confidence: float


class Safety(NamedTuple):
    """Whether one text is a threat."""

    is_jailbreak: bool
    threat_type: str
    confidence: float


class Batch(NamedTuple):
    """One of each for each text."""

    intent_results: Sequence[Intent]
    pii_results: Sequence[PersonalData]
    security_results: Sequence[Safety]
    batch_size: int
    avg_confidence: float
    error: bool = False
    error_message: None = None


def load_lora(
    context: Context,
    intent: Name,
    pii: Name,
    security: Name,
    architecture: Name,
    use_cpu: bool,
) -> bool:
    """Load three classifiers, all or none; the folders tell the architecture."""
    del architecture
    paths = (intent, pii, security)
    wanted = [Wanted(slot, path) for slot, path in zip(context.row.slots, paths, strict=True)]
    context.slots.load_all(wanted, use_cpu)
    return True


def load_unified(
    context: Context,
    base: Name,
    intent: Name,
    pii: Name,
    security: Name,
    intent_labels: OptionalNames,
    pii_labels: OptionalNames,
    security_labels: OptionalNames,
    use_cpu: bool,
) -> bool:
    """Load three classifiers, all or none; adapters among them go with ``base``.

    The models know their labels; where the caller's differ, the log says so.
    """
    folder = local_folder(base)
    if not os.path.lexists(folder):
        raise NotFoundError(f"{base!r} is not there; pass the folder of the base")
    slots, paths = context.row.slots, (intent, pii, security)
    wanted = [Wanted(slot, path, base_path=folder) for slot, path in zip(slots, paths, strict=True)]
    context.slots.load_all(wanted, use_cpu)
    for slot, labels in zip(slots, (intent_labels, pii_labels, security_labels), strict=True):
        info = context.slots.registry.info(context.slots.first([slot]))
        if labels and tuple(labels) != info.labels:
            context.slots.registry.log.warning(
                f"{context.row.function}: the labels passed for {info.name} differ from the "
                "model's, which are used"
            )
    return True


def classify_batch(context: Context, texts: Texts) -> Batch:
    """Ask all three classifiers about each text; whatever fails, fails the batch."""
    most = context.row.most
    if most and len(texts) > most:
        raise InvalidArgumentError(f"{len(texts)} texts; send at most {most} in one call")
    slots = context.slots
    registry = slots.registry
    handles = [slots.first([slot]) for slot in context.row.slots]
    intents = registry.classify(handles[0], texts)
    tokens = registry.classify_tokens(handles[1], texts, _as_tokens(slots.long_text()))
    threats = registry.classify(handles[2], texts)
    results: tuple[Result, ...] = (intents, tokens, threats)
    for handle, result in zip(handles, results, strict=True):
        require_all(result)
        slots.note_cuts(handle, result)
    rows = range(len(texts))
    by_kind = (
        [_intent(intents, row) for row in rows],
        _personal_data(tokens),
        [_safety(threats, row) for row in rows],
    )
    total = sum(each.confidence for found in by_kind for each in found)
    return Batch(*by_kind, len(texts), total / (len(by_kind) * len(texts)))


@lru_cache(maxsize=2)
def _as_tokens(long_text: LongText) -> RunOptions:
    return RunOptions(output=Output.TOKENS, long_text=long_text)


def _intent(result: Classification, row: int) -> Intent:
    winner = int(result.label_index[row])
    probabilities = result.probabilities[row]
    return Intent(
        result.labels[winner], float(result.score[row]), probabilities, len(probabilities)
    )


def _personal_data(result: TokenClassification) -> Sequence[PersonalData]:
    """Collect the types of the tokens; the confidence is the mean of their probabilities.

    Without any it is that of all the other tokens, and 0 where there are none.
    """
    types = _types(result.labels)
    winners, scores = result.label_index.tolist(), result.score.tolist()
    found = []
    for start, end in pairwise(result.row_start.tolist()):
        names: dict[str, None] = {}
        typed, others = [], []
        for winner, score in zip(winners[start:end], scores[start:end], strict=True):
            name = types[winner]
            if name is None:
                others.append(score)
            else:
                names[name] = None
                typed.append(score)
        counted = typed or others
        confidence = sum(counted) / len(counted) if counted else 0.0
        found.append(PersonalData(bool(names), tuple(names), len(names), confidence))
    return found


@lru_cache(maxsize=16)
def _types(labels: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the type of each label, None for the quiet one."""
    quiet = quiet_label(labels)
    return tuple(
        None if index == quiet else re.sub(r"^[BI]-", "", label)
        for index, label in enumerate(labels)
    )


def _safety(result: Classification, row: int) -> Safety:
    label = result.labels[int(result.label_index[row])]
    harmless = _is_harmless(label)
    return Safety(not harmless, _NO_THREAT if harmless else label, float(result.score[row]))


@lru_cache(maxsize=64)
def _is_harmless(label: str) -> bool:
    return _HARMLESS.search(label.lower()) is not None


VERBS: tuple[Verb, ...] = (load_lora, load_unified, classify_batch)
