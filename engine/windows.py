"""Which tokens of a text are scored, and in which windows.

A window is the template's special tokens around a slice of the text (for a pair: of the part
that may be shortened, the other part stands whole in every window). With n content tokens, room
for c of them and an overlap of o, windows start at 0, c − o, 2(c − o), … until the end is covered.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .config import DEFAULT_WINDOW_OVERLAP, LongText, Shorten
from .errors import InternalError, InvalidArgumentError, TooLongError
from .tokenization import Encoded, IntArray, to_byte_offsets

FloatArray = NDArray[np.float32]

_UNBOUNDED = 1 << 62
_ORDINAL = {Shorten.FIRST: "first", Shorten.SECOND: "second"}


class Window(NamedTuple):
    """One input of the model: ``ids`` and ``type_ids`` int64[tokens].

    It covers the content tokens [start, end) of the shortened part, counted from that part's
    first token; token ``start`` stands at ``position`` in the window. ``other_position`` is where
    the other part of a pair begins, −1 for a single text.
    """

    ids: IntArray
    type_ids: IntArray
    start: int
    end: int
    position: int
    other_position: int


class WindowPlan(NamedTuple):
    """The windows of one text in order of their start, and what they cover.

    ``token_count`` counts the whole encoding, special tokens included; ``scored_token_count`` the
    distinct tokens scored and the special tokens once. ``part`` is the shortened part.
    """

    windows: tuple[Window, ...]
    token_count: int
    scored_token_count: int
    part: Shorten

    @property
    def truncated(self) -> bool:
        """Tell whether some tokens are in no window."""
        return self.scored_token_count < self.token_count

    @property
    def content_end(self) -> int:
        """Return the number of content tokens scored; they are [0, content_end) of the part."""
        return self.windows[-1].end

    @property
    def weights(self) -> IntArray:
        """Return int64[windows]: content tokens of each window, at least 1."""
        counts = (max(1, window.end - window.start) for window in self.windows)
        return np.fromiter(counts, np.int64, len(self.windows))


def plan_windows(
    encoded: Encoded,
    max_tokens: int,
    policy: LongText,
    overlap: int = 0,
    part: Shorten = Shorten.FIRST,
    most_tokens: int = _UNBOUNDED,
) -> WindowPlan:
    """Choose the windows of one text or pair under a long-text policy.

    What fits into ``max_tokens`` is one window, the encoding itself, under every policy. ``CUT``
    keeps the head of ``part``; ``WINDOWS`` covers all of it. ``overlap`` is in tokens; 0 stands
    for min(128, max_tokens / 4), or less where a pair leaves little room. ``part`` says which
    part of a pair may be shortened (``AUTO``: the first); a single text ignores it.
    ``most_tokens`` bounds the tokens of all windows together.

    Raise InvalidArgumentError for a text without any token, a ``max_tokens`` that has no room
    beside the special tokens, or an overlap that leaves no step; TooLongError under ``REFUSE``,
    and where the other part of a pair alone leaves no room.
    """
    count = len(encoded.ids)
    if not count:
        raise InvalidArgumentError("the text has no tokens with this tokenizer; leave it out")
    if max_tokens <= encoded.special_count:
        raise InvalidArgumentError(
            f"max_tokens is {max_tokens}, but the tokenizer adds {encoded.special_count} special "
            f"tokens; give {encoded.special_count + 1} or more"
        )
    if encoded.second is None or part is Shorten.AUTO:
        part = Shorten.FIRST
    start, end = encoded.part(part)
    length = end - start
    if count <= max_tokens:
        other = -1
        if encoded.second is not None:
            other = (encoded.first if part is Shorten.SECOND else encoded.second)[0]
        whole = Window(encoded.ids, encoded.type_ids, 0, length, start, other)
        return WindowPlan((whole,), count, count, part)

    room = max_tokens - (count - length)
    if room < 1:
        raise TooLongError(_no_room(encoded, max_tokens, part))
    if policy is LongText.REFUSE:
        raise TooLongError(
            f"the text has {count} tokens, the limit is {max_tokens}; set long_text to CUT or "
            "WINDOWS, or give a shorter text"
        )
    if policy is LongText.CUT:
        return WindowPlan((_slice(encoded, part, 0, room),), count, max_tokens, part)
    if policy is LongText.WINDOWS:
        step = room - _effective_overlap(overlap, max_tokens, room)
        starts = range(0, length - room + step, step)
        if len(starts) * max_tokens > most_tokens:
            raise TooLongError(
                f"the text needs {len(starts)} windows of {max_tokens} tokens, the queue takes "
                f"{most_tokens} tokens; send less, or set long_text to CUT"
            )
        windows = tuple(_slice(encoded, part, at, min(at + room, length)) for at in starts)
        return WindowPlan(windows, count, count, part)
    raise InternalError("long_text AUTO reached the windows; resolve it per task first")


def label_sources(plan: WindowPlan) -> IntArray:
    """Return int64[content tokens scored]: the window that gives each token its label.

    It is the window in which the token is farthest from an edge of the window's content, that is
    where min(token − start, end − 1 − token) is largest; ties go to the earlier window.
    """
    sources = np.zeros(plan.content_end, np.int64)
    if len(plan.windows) == 1:
        return sources
    best = np.full(plan.content_end, -1, np.int64)
    for number, window in enumerate(plan.windows):
        ramp = np.arange(window.end - window.start)
        distance = np.minimum(ramp, ramp[::-1])
        better = distance > best[window.start : window.end]
        sources[window.start : window.end][better] = number
        best[window.start : window.end][better] = distance[better]
    return sources


def join_part(plan: WindowPlan, outputs: Sequence[FloatArray]) -> FloatArray:
    """Gather the rows of the shortened part (or the single text) from its windows.

    ``outputs`` holds for each window float32[window tokens or more, columns]; the result is
    float32[content tokens scored, columns], chosen by ``label_sources``.
    """
    rows = [
        output[window.position : window.position + window.end - window.start]
        for window, output in zip(plan.windows, outputs, strict=True)
    ]
    if len(rows) == 1:
        return rows[0]
    sources = label_sources(plan)
    joined = np.empty((plan.content_end, rows[0].shape[1]), np.float32)
    for number, window in enumerate(plan.windows):
        chosen = sources[window.start : window.end] == number
        joined[window.start : window.end][chosen] = rows[number][chosen]
    return joined


def join_other(
    plan: WindowPlan, outputs: Sequence[FloatArray], tokens: int, quiet_label: int
) -> FloatArray:
    """Choose the rows of the part that stands whole in every window of a pair.

    ``outputs`` holds for each window the probabilities float32[window tokens or more, labels];
    ``tokens`` is the length of that part. Each token takes the window that reports least: the
    one where ``quiet_label`` (``O``) is most probable, ties to the earlier. Return
    float32[tokens, labels].
    """
    rows = [
        output[window.other_position : window.other_position + tokens]
        for window, output in zip(plan.windows, outputs, strict=True)
    ]
    if len(rows) == 1:
        return rows[0]
    chosen = rows[0].copy()
    for row in rows[1:]:
        better = row[:, quiet_label] > chosen[:, quiet_label]
        chosen[better] = row[better]
    return chosen


def window_byte_ranges(plan: WindowPlan, encoded: Encoded, text: str) -> IntArray:
    """Return int64[windows, 2]: the half-open UTF-8 byte range of ``text`` each window covers.

    The first window begins at byte 0 and the last of a text that is scored whole ends with the
    text, so that nothing between windows is missing; every other border is the border of a token.
    Only a plan with several windows, or a cut one, needs an encoding with offsets.
    """
    ranges = np.zeros((len(plan.windows), 2), np.int64)
    if len(plan.windows) > 1 or plan.truncated:
        offsets = encoded.offsets(plan.part)
        ranges[:, 0] = offsets[[window.start for window in plan.windows], 0]
        ranges[:, 1] = offsets[[window.end - 1 for window in plan.windows], 1]
        ranges[0, 0] = 0
    if not plan.truncated:
        ranges[-1, 1] = len(text)
    return to_byte_offsets(text, ranges)


def _slice(encoded: Encoded, part: Shorten, start: int, end: int) -> Window:
    """Rebuild the encoding around the content tokens [start, end) of ``part``."""
    first, last = encoded.part(part)
    kept = slice(first + start, first + end)
    ids = np.concatenate((encoded.ids[:first], encoded.ids[kept], encoded.ids[last:]))
    types = encoded.type_ids
    type_ids = np.concatenate((types[:first], types[kept], types[last:]))
    other = -1
    if part is Shorten.SECOND:
        other = encoded.first[0]
    elif encoded.second is not None:
        other = encoded.second[0] - (last - first) + (end - start)
    return Window(ids, type_ids, start, end, first, other)


def _effective_overlap(overlap: int, max_tokens: int, room: int) -> int:
    """Return the overlap in tokens that leaves a step of at least one."""
    if not overlap:
        return min(DEFAULT_WINDOW_OVERLAP, max_tokens // 4, room - 1)
    if overlap >= room:
        raise InvalidArgumentError(
            f"window_overlap is {overlap}, but a window has room for {room} tokens of the text; "
            f"give less than {room}"
        )
    return overlap


def _no_room(encoded: Encoded, max_tokens: int, part: Shorten) -> str:
    other = Shorten.FIRST if part is Shorten.SECOND else Shorten.SECOND
    start, end = encoded.part(other)
    return (
        f"the {_ORDINAL[other]} part of the pair has {end - start} tokens and leaves no room for "
        f"the {_ORDINAL[part]} within max_tokens {max_tokens}; give a shorter one or let shorten "
        f"name it"
    )
