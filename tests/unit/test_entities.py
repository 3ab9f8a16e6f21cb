"""The merge rule for entities against a reference written as one plain loop."""

import time
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from libsemantic.engine.entities import Entities, label_scheme, merge_entities
from libsemantic.engine.errors import BadArtifactError

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "NOTE"]
# Unicode White_Space, PropList.txt.
BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
BLANKS += "\u200a\u2028\u2029\u202f\u205f\u3000"
# Letters, blanks, combining marks (Mn, Mc, Me), a joiner, an emoji, a separator that is no blank.
ALPHABET = "ab .é数😀 \t\u00a0\u3000\u0301\u0308\u0903\u20dd\u200d\x1c"

Found = tuple[str, float, int, int]


def kind_of(label: str) -> str | None:
    if label == "O":
        return None
    return label[2:] if label[:2] in ("B-", "I-") else label


def reference(
    text: str,
    offsets: list[tuple[int, int]],
    winners: list[int],
    probabilities: list[list[float]],
    labels: list[str],
    threshold: float,
) -> list[Found]:
    runs: list[tuple[str, list[int]]] = []
    before: str | None = None
    reach = 0
    for token, (start, end) in enumerate(offsets):
        if start == end:
            continue
        label = labels[winners[token]]
        kind = kind_of(label)
        if text[start:end].strip(BLANKS):
            while text[start] in BLANKS:
                start += 1
            while text[end - 1] in BLANKS:
                end -= 1
        if kind is not None:
            touches = start <= reach
            if kind == before and (touches or not label.startswith("B-")):
                runs[-1][1].append(token)
            else:
                runs.append((kind, [token]))
        before, reach = kind, end

    found = []
    for kind, tokens in runs:
        start = min(offsets[token][0] for token in tokens)
        end = max(offsets[token][1] for token in tokens)
        while start < end and text[start] in BLANKS:
            start += 1
        while start < end and text[end - 1] in BLANKS:
            end -= 1
        if start == end:
            continue
        while end < len(text) and unicodedata.category(text[end]) in ("Mn", "Mc", "Me"):
            end += 1
        total = 0.0
        for token in tokens:
            for index, label in enumerate(labels):
                if kind_of(label) == kind:
                    total += probabilities[token][index]
        score = total / len(tokens)
        if score >= threshold:
            found.append((kind, score, len(text[:start].encode()), len(text[:end].encode())))
    return sorted(found, key=lambda entity: entity[2:])


def merged(
    text: str,
    offsets: list[tuple[int, int]],
    winners: list[int],
    probabilities: list[list[float]] | None = None,
    labels: list[str] = LABELS,
    threshold: float = 0.0,
) -> list[Found]:
    if probabilities is None:
        probabilities = np.eye(len(labels))[winners].tolist() if winners else []
    scheme = label_scheme(labels)
    entities = merge_entities(
        text,
        np.array(offsets, np.int64).reshape(-1, 2),
        np.array(winners, np.int64),
        np.array(probabilities, np.float32).reshape(len(offsets), len(labels)),
        scheme,
        threshold,
    )
    check_types(entities)
    return [
        (scheme.types[kind], score, start, end)
        for kind, score, start, end in zip(
            entities.type_index.tolist(),
            entities.score.tolist(),
            entities.start.tolist(),
            entities.end.tolist(),
            strict=True,
        )
    ]


def check_types(entities: Entities) -> None:
    assert entities.type_index.dtype == np.int32
    assert entities.score.dtype == np.float32
    assert entities.start.dtype == entities.end.dtype == np.int64


def words(text: str, labels: str) -> list[str]:
    """Tag each blank-separated word of ``text``; ``|`` glues sub-words. Return TYPE:span."""
    offsets: list[tuple[int, int]] = []
    plain = ""
    for piece in text.split(" "):
        for part in piece.split("|"):
            offsets.append((len(plain), len(plain) + len(part)))
            plain += part
        plain += " "
    plain = plain[:-1]
    winners = [LABELS.index(label) for label in labels.split()]
    data = plain.encode()
    found = merged(plain, offsets, winners)
    return [f"{kind}:{data[start:end].decode()}" for kind, _, start, end in found]


@pytest.mark.parametrize(
    ("text", "labels", "wanted"),
    [
        ("Ann Lee met Bo", "B-PER I-PER O B-PER", ["PER:Ann Lee", "PER:Bo"]),
        ("Ann Bo", "B-PER B-PER", ["PER:Ann", "PER:Bo"]),
        ("An|n Bo", "B-PER B-PER I-PER", ["PER:Ann Bo"]),
        ("met Lee", "O I-PER", ["PER:Lee"]),
        ("Ann Rome", "B-PER I-LOC", ["PER:Ann", "LOC:Rome"]),
        ("Ann|Rome", "B-PER B-LOC", ["PER:Ann", "LOC:Rome"]),
        ("Ann and Lee", "B-PER O I-PER", ["PER:Ann", "PER:Lee"]),
        ("Ann|-|Lee", "B-PER O B-PER", ["PER:Ann", "PER:Lee"]),
        ("so it is", "NOTE NOTE O", ["NOTE:so it"]),
        ("so it is", "NOTE B-PER NOTE", ["NOTE:so", "PER:it", "NOTE:is"]),
        ("a b", "O O", []),
    ],
)
def test_rule(text: str, labels: str, wanted: list[str]) -> None:
    assert words(text, labels) == wanted


def test_blanks_inside_a_token_separate_too() -> None:
    # Byte-level and Metaspace tokens hold the blank before the word.
    text, offsets = "Ann Bo", [(0, 3), (3, 6)]
    assert merged(text, offsets, [1, 1]) == [("PER", 1.0, 0, 3), ("PER", 1.0, 4, 6)]
    assert merged(text, offsets, [1, 2]) == [("PER", 1.0, 0, 6)]
    assert merged(" \tAnn\u3000 Bo", [(0, 6), (6, 9)], [1, 0]) == [("PER", 1.0, 2, 5)]


def test_tokens_of_one_character_and_of_none() -> None:
    # Four byte tokens of one emoji: the first two are O, so the entity holds the character.
    text = "a😀b"
    offsets = [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3)]
    assert merged(text, offsets, [0, 0, 0, 1, 2, 0]) == [("PER", 1.0, 1, 5)]
    # A token of zero width labelled O does not part what stands around it.
    assert merged("Ann Lee", [(0, 3), (4, 4), (4, 7)], [1, 0, 2]) == [("PER", 1.0, 0, 7)]
    assert merged("Ann", [(0, 0), (0, 3)], [1, 0]) == []
    # A blank that is a token of its own does part them.
    assert [e[2:] for e in merged("Ann\nLee", [(0, 3), (3, 4), (4, 7)], [1, 0, 2])] == [
        (0, 3),
        (4, 7),
    ]
    assert merged("a \t", [(0, 1), (1, 3)], [0, 1]) == []


def test_combining_marks_follow() -> None:
    text = "Zoe\u0308\u0301 x\u0903"
    assert merged(text, [(0, 3), (6, 7)], [1, 3]) == [("PER", 1.0, 0, 7), ("LOC", 1.0, 8, 12)]
    # A zero-width joiner is no combining mark, nor is a mark that follows a blank moved over.
    assert merged("e\u200d", [(0, 1)], [1]) == [("PER", 1.0, 0, 1)]
    assert merged("e \u0301", [(0, 2)], [1]) == [("PER", 1.0, 0, 1)]


def test_score_and_threshold() -> None:
    rows = [[0.1, 0.5, 0.25, 0.0, 0.15, 0.0], [0.5, 0.0, 0.25, 0.25, 0.0, 0.0]]
    ((kind, score, start, end),) = merged("Ann Lee", [(0, 3), (4, 7)], [1, 2], rows)
    assert (kind, start, end) == ("PER", 0, 7)
    assert score == (0.75 + 0.25) / 2
    assert len(merged("Ann Lee", [(0, 3), (4, 7)], [1, 2], rows, threshold=0.5)) == 1
    assert merged("Ann Lee", [(0, 3), (4, 7)], [1, 2], rows, threshold=0.51) == []


def test_label_scheme() -> None:
    scheme = label_scheme(["B-PER", "O", "I-LOC", "PER", "I-PER", "SUPPORTED"])
    assert scheme.types == ("PER", "LOC", "SUPPORTED")
    assert scheme.type_of.tolist() == [0, -1, 1, 0, 0, 2]
    assert scheme.begins.tolist() == [True, False, False, False, False, False]
    assert scheme.members.T.tolist() == [
        [1, 0, 0, 1, 1, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    assert scheme.quiet_label == 1
    assert label_scheme(["SUPPORTED", "HALLUCINATED"]).quiet_label == 0
    assert label_scheme(["O"]).types == ()
    for labels in ([], ["O", "B-"], ["I-"], [""]):
        with pytest.raises(BadArtifactError, match=r"config\.json"):
            label_scheme(labels)


def test_prefixed_and_plain_labels_of_one_type() -> None:
    labels = ["PER", "B-PER", "O"]
    assert merged("Ann Lee", [(0, 3), (4, 7)], [1, 0], labels=labels) == [("PER", 1.0, 0, 7)]
    assert len(merged("Ann Lee", [(0, 3), (4, 7)], [0, 1], labels=labels)) == 2


def test_model_without_o_reports_every_token() -> None:
    labels = ["SUPPORTED", "HALLUCINATED"]
    found = merged("it is so", [(0, 2), (3, 5), (6, 8)], [0, 1, 1], labels=labels)
    assert found == [("SUPPORTED", 1.0, 0, 2), ("HALLUCINATED", 1.0, 3, 8)]


def test_no_tokens() -> None:
    assert merged("", [], []) == []
    assert merged("   ", [], []) == []


@st.composite
def tagged_texts(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]], list[int]]:
    """Draw a text and tokens in order: gaps, zero widths, and several tokens of one character."""
    text = draw(st.text(st.sampled_from(ALPHABET), max_size=14))
    offsets: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        start = min(len(text), at + draw(st.sampled_from([0, 0, 0, 1, 2])))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 1, 2, 3])))
        copies = draw(st.sampled_from([1, 1, 1, 3])) if end - start == 1 else 1
        offsets += [(start, end)] * copies
        at = max(end, at + (start == end))
    winners = [draw(st.integers(0, len(LABELS) - 1)) for _ in offsets]
    return text, offsets, winners


@settings(max_examples=600)
@given(tagged_texts(), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 0.6]))
@example(("a\u0301\u0301b", [(0, 1), (1, 2), (2, 3), (3, 4)], [1, 3, 1, 5]), 1, 0.0)
@example(("\u0301", [(0, 1)], [1]), 1, 0.0)
def test_same_as_the_reference(
    tagged: tuple[str, list[tuple[int, int]], list[int]], seed: int, threshold: float
) -> None:
    text, offsets, winners = tagged
    rows = np.random.default_rng(seed).dirichlet(np.ones(len(LABELS)), len(offsets))
    probabilities = rows.astype(np.float32).tolist()
    found = merged(text, offsets, winners, probabilities, threshold=threshold)
    wanted = reference(text, offsets, winners, probabilities, LABELS, threshold)
    assert [entity[0] for entity in found] == [entity[0] for entity in wanted]
    assert [entity[2:] for entity in found] == [entity[2:] for entity in wanted]
    assert [entity[1] for entity in found] == pytest.approx([entity[1] for entity in wanted])


@settings(max_examples=300)
@given(st.text(min_size=1, max_size=30), st.data())
def test_ranges_lie_on_character_borders(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), min_size=2)))
    offsets = list(pairwise(cuts))
    winners = [data.draw(st.integers(0, len(LABELS) - 1)) for _ in offsets]
    raw = text.encode()
    previous = (0, 0)
    for _, _, start, end in merged(text, offsets, winners):
        assert start < end
        assert previous <= (start, end)
        previous = (start, end)
        piece = raw[start:end].decode()  # strict: fails inside a character
        assert piece in text
        assert len(raw[:start].decode().encode()) == start
        assert piece == piece.strip(BLANKS)
        following = raw[end:].decode()[:1]
        assert not following or not unicodedata.category(following).startswith("M")


def test_every_blank_of_unicode_is_trimmed() -> None:
    for code in range(0x110000):
        character = chr(code)
        if (character in BLANKS) != character.isspace():
            assert character in "\x1c\x1d\x1e\x1f"  # str.isspace alone counts these
    for blank in BLANKS:
        assert merged(f"{blank}a{blank}", [(0, 3)], [1]) == [
            ("PER", 1.0, len(blank.encode()), len(blank.encode()) + 1)
        ]


@pytest.mark.parametrize("character", ["a", "数", "\u0301", " "])
def test_hundred_thousand_tokens(character: str) -> None:
    count = 100_000
    text = "x" + character * count
    places = np.arange(1, count + 1)
    offsets = np.stack([places, places + 1], axis=1)
    winners = np.tile([1, 3], count // 2)
    probabilities = np.full((count, len(LABELS)), 1 / len(LABELS), np.float32)
    begun = time.monotonic()
    entities = merge_entities(text, offsets, winners, probabilities, label_scheme(LABELS))
    assert time.monotonic() - begun < 5  # a loop over marks or blanks per entity takes minutes
    assert len(entities.start) == (0 if character == " " else count)
