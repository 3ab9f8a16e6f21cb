"""Verbs over batches of texts that ask three classifiers: intent, personal data, safety."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from libsemantic.engine.config import Output, RunOptions
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
    wanted = [Wanted(slot, path, None, folder) for slot, path in zip(slots, paths, strict=True)]
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
    as_tokens = RunOptions(output=Output.TOKENS, long_text=slots.long_text())
    intents = registry.classify(handles[0], texts)
    tokens = registry.classify_tokens(handles[1], texts, as_tokens)
    threats = registry.classify(handles[2], texts)
    results: tuple[Result, ...] = (intents, tokens, threats)
    for handle, result in zip(handles, results, strict=True):
        require_all(result)
        slots.note_cuts(handle, result)
    rows = range(len(texts))
    by_kind = (
        [_intent(intents, row) for row in rows],
        [_personal_data(tokens, row) for row in rows],
        [_safety(threats, row) for row in rows],
    )
    confidences = [each.confidence for results in by_kind for each in results]
    return Batch(*by_kind, len(texts), float(np.mean(confidences)))


def _intent(result: Classification, row: int) -> Intent:
    winner = int(result.label_index[row])
    probabilities = result.probabilities[row]
    return Intent(
        result.labels[winner], float(result.score[row]), probabilities, len(probabilities)
    )


def _personal_data(result: TokenClassification, row: int) -> PersonalData:
    """Collect the types of the tokens; the confidence is the mean of their probabilities.

    Without any it is that of all the other tokens, and 0 where there are none.
    """
    items = slice(int(result.row_start[row]), int(result.row_start[row + 1]))
    winners, scores = result.label_index[items], result.score[items]
    quiet = result.labels.index("O") if "O" in result.labels else -1
    typed = winners != quiet
    names = [re.sub(r"^[BI]-", "", result.labels[winner]) for winner in winners[typed].tolist()]
    counted = scores[typed] if names else scores
    confidence = float(counted.mean()) if len(counted) else 0.0
    types = tuple(dict.fromkeys(names))
    return PersonalData(bool(types), types, len(types), confidence)


def _safety(result: Classification, row: int) -> Safety:
    label = result.labels[int(result.label_index[row])]
    harmless = _HARMLESS.search(label.lower()) is not None
    return Safety(not harmless, _NO_THREAT if harmless else label, float(result.score[row]))


VERBS: Mapping[str, Verb] = {
    verb.__name__: verb for verb in (load_lora, load_unified, classify_batch)
}
