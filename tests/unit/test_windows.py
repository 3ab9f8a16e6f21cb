"""Windows of texts and pairs against references written as plain loops."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libsemantic.engine.config import LongText, Shorten
from libsemantic.engine.errors import InternalError, InvalidArgumentError, TooLongError
from libsemantic.engine.tokenization import Encoded, load_tokenizer
from libsemantic.engine.windows import (
    WindowPlan,
    join_other,
    join_part,
    label_sources,
    plan_windows,
    window_byte_ranges,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
ENCODER_NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/expected_more.json"))
CLS, SEP = 1, 2


def single(length: int, before: int = 1, after: int = 1) -> Encoded:
    """Encode a text whose token k has the id 100 + k."""
    ids = [CLS] * before + [100 + k for k in range(length)] + [SEP] * after
    return Encoded(np.array(ids), np.zeros(len(ids), np.int64), (before, before + length))


def pair(left: int, right: int) -> Encoded:
    """Encode a pair: left tokens 100 + k with type 0, right tokens 10000 + k with type 1."""
    ids = [CLS] + [100 + k for k in range(left)] + [SEP]
    ids += [10000 + k for k in range(right)] + [SEP]
    types = [0] * (left + 2) + [1] * (right + 1)
    spans = (1, 1 + left), (2 + left, 2 + left + right)
    return Encoded(np.array(ids), np.array(types), *spans)


def reference_ranges(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    ranges = []
    start = 0
    while True:
        end = min(start + room, length)
        ranges.append((start, end))
        if end == length:
            return ranges
        start += room - overlap


def reference_source(token: int, ranges: list[tuple[int, int]]) -> int:
    best, chosen = -1, -1
    for number, (start, end) in enumerate(ranges):
        if start <= token < end:
            distance = min(token - start, end - 1 - token)
            if distance > best:
                best, chosen = distance, number
    return chosen


def ranges_of(plan: WindowPlan) -> list[tuple[int, int]]:
    return [(window.start, window.end) for window in plan.windows]


@pytest.mark.parametrize("policy", [LongText.REFUSE, LongText.CUT, LongText.WINDOWS])
@pytest.mark.parametrize("length", [0, 1, 7, 8])
def test_text_that_fits_is_one_window(policy: LongText, length: int) -> None:
    encoded = single(length)
    plan = plan_windows(encoded, 10, policy, overlap=5)
    (window,) = plan.windows
    assert window.ids is encoded.ids
    assert window.type_ids is encoded.type_ids
    assert (window.start, window.end, window.position, window.other_position) == (0, length, 1, -1)
    assert plan.token_count == plan.scored_token_count == length + 2
    assert not plan.truncated
    assert plan.weights.tolist() == [max(1, length)]
    assert label_sources(plan).tolist() == [0] * length


def test_cut_keeps_the_head() -> None:
    plan = plan_windows(single(9), 10, LongText.CUT)
    (window,) = plan.windows
    assert window.ids.tolist() == [CLS, 100, 101, 102, 103, 104, 105, 106, 107, SEP]
    assert (plan.token_count, plan.scored_token_count, plan.truncated) == (11, 10, True)
    assert plan.content_end == 8


@pytest.mark.parametrize(
    ("part", "ids", "types", "place"),
    [
        (
            Shorten.FIRST,
            [CLS, 100, 101, SEP, 10000, 10001, 10002, SEP],
            [0, 0, 0, 0, 1, 1, 1, 1],
            (2, 1, 4),
        ),
        (
            Shorten.SECOND,
            [CLS, 100, 101, 102, 103, SEP, 10000, SEP],
            [0, 0, 0, 0, 0, 0, 1, 1],
            (1, 6, 1),
        ),
    ],
)
def test_cut_of_a_pair(
    part: Shorten, ids: list[int], types: list[int], place: tuple[int, int, int]
) -> None:
    plan = plan_windows(pair(4, 3), 8, LongText.CUT, part=part)
    (window,) = plan.windows
    assert window.ids.tolist() == ids
    assert window.type_ids.tolist() == types
    assert (window.end, window.position, window.other_position) == place
    assert (plan.token_count, plan.scored_token_count) == (10, 8)


def test_auto_part_is_the_first() -> None:
    plan = plan_windows(pair(4, 3), 8, LongText.CUT, part=Shorten.AUTO)
    assert plan.part is Shorten.FIRST
    assert plan.content_end == 2


def test_pair_that_fits_knows_both_places() -> None:
    encoded = pair(4, 3)
    first = plan_windows(encoded, 10, LongText.REFUSE, part=Shorten.FIRST).windows[0]
    second = plan_windows(encoded, 10, LongText.REFUSE, part=Shorten.SECOND).windows[0]
    assert (first.end, first.position, first.other_position) == (4, 1, 6)
    assert (second.end, second.position, second.other_position) == (3, 6, 1)


def test_windows_of_a_pair_rebuild_the_template() -> None:
    plan = plan_windows(pair(7, 2), 8, LongText.WINDOWS, overlap=1)
    assert [window.ids.tolist() for window in plan.windows] == [
        [CLS, 100, 101, 102, SEP, 10000, 10001, SEP],
        [CLS, 102, 103, 104, SEP, 10000, 10001, SEP],
        [CLS, 104, 105, 106, SEP, 10000, 10001, SEP],
    ]
    assert [window.type_ids.tolist() for window in plan.windows] == [[0] * 5 + [1] * 3] * 3
    assert [window.other_position for window in plan.windows] == [5, 5, 5]
    short = plan_windows(pair(8, 2), 8, LongText.WINDOWS, overlap=1).windows[-1]
    assert short.ids.tolist() == [CLS, 106, 107, SEP, 10000, 10001, SEP]
    assert short.type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert (short.position, short.other_position) == (1, 4)


@given(
    length=st.integers(0, 400),
    max_tokens=st.integers(4, 60),
    overlap=st.integers(0, 60),
    other=st.one_of(st.none(), st.integers(0, 20)),
    part=st.sampled_from([Shorten.FIRST, Shorten.SECOND]),
)
@example(length=16, max_tokens=10, overlap=0, other=None, part=Shorten.FIRST)
@example(length=14, max_tokens=10, overlap=2, other=None, part=Shorten.FIRST)
@example(length=15, max_tokens=10, overlap=7, other=None, part=Shorten.FIRST)
@example(length=9, max_tokens=10, overlap=0, other=6, part=Shorten.SECOND)
def test_windows_cover_the_text(
    length: int, max_tokens: int, overlap: int, other: int | None, part: Shorten
) -> None:
    if other is None:
        encoded, part, fixed = single(length), Shorten.FIRST, 2
    else:
        encoded = pair(length, other) if part is Shorten.FIRST else pair(other, length)
        fixed = 3 + other
    room = max_tokens - fixed
    if length + fixed > max_tokens and room < 1:
        with pytest.raises(TooLongError, match="part of the pair has"):
            plan_windows(encoded, max_tokens, LongText.WINDOWS, overlap, part)
        return
    if length + fixed > max_tokens and overlap >= room:
        with pytest.raises(InvalidArgumentError, match=rf"overlap is {overlap}.* {room} tokens"):
            plan_windows(encoded, max_tokens, LongText.WINDOWS, overlap, part)
        return
    plan = plan_windows(encoded, max_tokens, LongText.WINDOWS, overlap, part)
    if length + fixed <= max_tokens:
        wanted = [(0, length)]
    else:
        wanted = reference_ranges(length, room, overlap or min(max_tokens // 4, room - 1))
    assert ranges_of(plan) == wanted
    assert plan.token_count == plan.scored_token_count == length + fixed
    assert plan.content_end == length
    assert plan.weights.tolist() == [max(1, end - start) for start, end in wanted]
    start, end = encoded.part(part)
    whole = encoded.ids.tolist()
    for window in plan.windows:
        content = whole[start + window.start : start + window.end]
        assert window.ids.tolist() == whole[:start] + content + whole[end:]
        assert len(window.ids) <= max_tokens
        assert window.ids.dtype == window.type_ids.dtype == np.int64
        at = window.position
        assert window.ids[at : at + window.end - window.start].tolist() == content
        # Each id tells its type: only the right part and what follows it have type 1.
        if other is not None:
            border = window.ids.tolist().index(SEP) + 1
            types = [0] * border + [1] * (len(window.ids) - border)
            assert window.type_ids.tolist() == types
            rest = window.ids[window.other_position : window.other_position + other]
            base = 10000 if part is Shorten.FIRST else 100
            assert rest.tolist() == [base + k for k in range(other)]
    assert label_sources(plan).tolist() == [reference_source(k, wanted) for k in range(length)]


def test_default_overlap() -> None:
    wide = plan_windows(single(3000), 1026, LongText.WINDOWS)
    assert ranges_of(wide) == reference_ranges(3000, 1024, 128)
    narrow = plan_windows(single(300), 102, LongText.WINDOWS)
    assert ranges_of(narrow) == reference_ranges(300, 100, 25)
    # The other part leaves room for two tokens: the default gives way to a step of one.
    tight = plan_windows(pair(4, 95), 100, LongText.WINDOWS)
    assert ranges_of(tight) == [(0, 2), (1, 3), (2, 4)]


def test_ties_go_to_the_earlier_window() -> None:
    plan = plan_windows(single(6), 6, LongText.WINDOWS, overlap=2)
    assert ranges_of(plan) == [(0, 4), (2, 6)]
    # Token 2 is one from the end of the first and at the edge of the second, token 3 the reverse.
    assert label_sources(plan).tolist() == [0, 0, 0, 1, 1, 1]
    plan = plan_windows(single(7), 7, LongText.WINDOWS, overlap=3)
    assert ranges_of(plan) == [(0, 5), (2, 7)]
    assert label_sources(plan).tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_join_part_takes_each_row_from_its_window() -> None:
    plan = plan_windows(single(23), 10, LongText.WINDOWS, overlap=3)
    outputs = []
    for number, window in enumerate(plan.windows):
        rows = np.full((12, 2), -1, np.float32)  # two rows of padding
        rows[: len(window.ids), 0] = window.ids
        rows[: len(window.ids), 1] = number
        outputs.append(rows)
    joined = join_part(plan, outputs)
    assert joined[:, 0].tolist() == [100 + k for k in range(23)]
    assert joined[:, 1].tolist() == label_sources(plan).tolist()
    whole = plan_windows(single(3), 10, LongText.WINDOWS)
    assert join_part(whole, [np.arange(14, dtype=np.float32).reshape(7, 2)]).tolist() == [
        [2, 3],
        [4, 5],
        [6, 7],
    ]


@given(st.integers(1, 4), st.integers(0, 6), st.data())
def test_join_other_takes_the_window_that_reports_least(
    quiet: int, tokens: int, data: st.DataObject
) -> None:
    plan = plan_windows(pair(11, tokens), 3 + tokens + 5, LongText.WINDOWS, overlap=2)
    # Few distinct values, so that ties are frequent.
    outputs = [
        np.array(
            data.draw(
                st.lists(
                    st.lists(st.sampled_from([0.0, 0.25, 0.5]), min_size=5, max_size=5),
                    min_size=len(window.ids),
                    max_size=len(window.ids),
                )
            ),
            np.float32,
        )
        for window in plan.windows
    ]
    assert len(outputs) == 3
    joined = join_other(plan, outputs, tokens, quiet)
    for token in range(tokens):
        rows = [
            output[window.other_position + token].tolist()
            for window, output in zip(plan.windows, outputs, strict=True)
        ]
        best = rows[0]
        for row in rows[1:]:
            if row[quiet] > best[quiet]:
                best = row
        assert joined[token].tolist() == best
    assert joined.shape == (tokens, 5)


def test_refusals() -> None:
    with pytest.raises(TooLongError, match="has 11 tokens, the limit is 10; set long_text"):
        plan_windows(single(9), 10, LongText.REFUSE)
    with pytest.raises(InvalidArgumentError, match=r"no tokens with this tokenizer"):
        plan_windows(single(0, 0, 0), 10, LongText.CUT)
    with pytest.raises(InvalidArgumentError, match=r"max_tokens is 2, but .* 2 special .* 3 or"):
        plan_windows(single(0), 2, LongText.CUT)
    assert plan_windows(single(5), 3, LongText.CUT).scored_token_count == 3
    with pytest.raises(TooLongError, match=r"second part of the pair has 7 tokens .* the first"):
        plan_windows(pair(1, 7), 10, LongText.REFUSE)
    with pytest.raises(TooLongError, match=r"first part of the pair has 7 tokens .* the second"):
        plan_windows(pair(7, 1), 10, LongText.WINDOWS, part=Shorten.SECOND)
    with pytest.raises(InternalError, match="AUTO"):
        plan_windows(single(9), 10, LongText.AUTO)


@pytest.mark.parametrize("specials", [(0, 0), (0, 1), (1, 0)])
def test_templates_with_fewer_special_tokens(specials: tuple[int, int]) -> None:
    before, after = specials
    plan = plan_windows(single(10, before, after), 4, LongText.WINDOWS, overlap=1)
    room = 4 - before - after
    assert ranges_of(plan) == reference_ranges(10, room, 1)
    first = plan.windows[0].ids.tolist()
    assert first == [CLS] * before + [100 + k for k in range(room)] + [SEP] * after


def test_long_text_is_sliced_quickly() -> None:
    plan = plan_windows(single(400_000), 512, LongText.WINDOWS, overlap=128)
    assert len(plan.windows) == 1 + -(-(400_000 - 510) // (510 - 128))
    sources = label_sources(plan)
    assert sources[[0, 399_999]].tolist() == [0, len(plan.windows) - 1]
    assert (np.diff(sources) >= 0).all()


def test_byte_ranges_of_windows() -> None:
    tokenizer = load_tokenizer(GOLDEN / "bert-seq" / "tokenizer.json")
    text = "  " + "café 数学 law 😀 " * 20
    (encoded,) = tokenizer.encode([text], offsets=True)
    data = text.encode()
    offsets = encoded.offsets()
    plan = plan_windows(encoded, 20, LongText.WINDOWS, overlap=4)
    ranges = window_byte_ranges(plan, encoded, text)
    assert ranges.shape == (len(plan.windows), 2)
    assert (ranges[0, 0], ranges[-1, 1]) == (0, len(data))
    for window, (start, end) in list(zip(plan.windows, ranges.tolist(), strict=True))[1:-1]:
        first, last = offsets[window.start, 0], offsets[window.end - 1, 1]
        assert data[start:end].decode() == text[first:last]
    assert (ranges[1:, 0] <= ranges[:-1, 1]).all()

    cut = plan_windows(encoded, 20, LongText.CUT)
    (kept,) = window_byte_ranges(cut, encoded, text).tolist()
    assert kept == [0, len(text[: offsets[17, 1]].encode())]

    (fast,) = tokenizer.encode([text], offsets=False)
    whole = plan_windows(fast, 1000, LongText.WINDOWS)
    assert window_byte_ranges(whole, fast, text).tolist() == [[0, len(data)]]


def test_goldens_are_there() -> None:
    assert {"bert-seq", "bert-token", "bert-reranker"} <= set(ENCODER_NAMES)


@pytest.mark.parametrize("name", ENCODER_NAMES)
def test_counts_of_the_reference(name: str) -> None:
    tokenizer = load_tokenizer(GOLDEN / name / "tokenizer.json")
    expected = json.loads((GOLDEN / name / "expected_more.json").read_text())
    cut = 0
    for case in expected["cases"]:
        if "text_pair" in case:
            (encoded,) = tokenizer.encode_pairs([case["text"]], [case["text_pair"]], offsets=True)
        else:
            (encoded,) = tokenizer.encode([case["text"]], offsets=True)
        plan = plan_windows(encoded, expected["max_tokens"], LongText.CUT)
        assert plan.token_count == case["token_count"]
        assert plan.scored_token_count == case["scored_token_count"] == len(plan.windows[0].ids)
        cut += plan.truncated
        if "offsets_chars" in case:
            window = plan.windows[0]
            kept = case["offsets_chars"][window.position : window.position + plan.content_end]
            assert encoded.offsets()[: plan.content_end].tolist() == kept
    assert cut >= 2


@pytest.mark.parametrize("name", ENCODER_NAMES)
def test_cut_ids_of_the_reference(name: str) -> None:
    tokenizer = load_tokenizer(GOLDEN / name / "tokenizer.json")
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    for case in expected["cases"]:
        if "text_pair" in case:
            (encoded,) = tokenizer.encode_pairs([case["text"]], [case["text_pair"]], offsets=False)
        else:
            (encoded,) = tokenizer.encode([case["text"]], offsets=False)
        if encoded.token_count:
            plan = plan_windows(encoded, expected["max_length"], LongText.CUT)
            assert plan.windows[0].ids.tolist() == case["input_ids"]
