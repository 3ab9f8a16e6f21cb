"""Texts around and beyond the length limit, against windows scored one by one in plain loops.

The reference here encodes with the tokenizers package, runs the graph window by window in a
session of its own, and joins the outputs by the written rules; of the engine it uses only the
graph, which the goldens check.
"""

import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnxruntime
import pytest
import tokenizers
from numpy.typing import NDArray

from libsemantic.engine.config import LoadOptions, LongText, Output, RunOptions, Shorten, Task
from libsemantic.engine.errors import InvalidArgumentError, TooLongError
from libsemantic.engine.graphs import build_graph
from libsemantic.engine.registry import Registry
from libsemantic.engine.weights import read_weights

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
TASKS = {
    "bert-seq": Task.SEQUENCE_CLASSIFICATION,
    "bert-reranker": Task.SEQUENCE_CLASSIFICATION,
    "bert-token": Task.TOKEN_CLASSIFICATION,
    "bert-embed-mean": Task.EMBEDDING,
    "bert-embed-cls": Task.EMBEDDING,
}
LIMIT = 16
ROOM = LIMIT - 2  # beside [CLS] and [SEP]
STEP = ROOM - LIMIT // 4
# Content tokens: below, at and above the limit; ends of the second and third window; many.
LENGTHS = (1, ROOM - 1, ROOM, ROOM + 1, ROOM + STEP, ROOM + STEP + 1, ROOM + 2 * STEP, 97)
TOLERANCE = 1e-5
WORDS = ["math", "code", "law", "数", "学", "café", "😀", "Zürich", "the", "router", "机", "def"]

Array: TypeAlias = NDArray[np.float64]
Span: TypeAlias = tuple[int, int]
CopyGolden: TypeAlias = Callable[[str, Mapping[str, object]], Path]


class Plain:
    """One golden model, scored window by window."""

    def __init__(self, name: str) -> None:
        folder = GOLDEN / name
        self.config = json.loads((folder / "config.json").read_text())
        table = self.config.get("id2label", {})
        self.labels = [table[str(index)] for index in range(len(table))]
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.cls = self.tokenizer.token_to_id("[CLS]")
        self.sep = self.tokenizer.token_to_id("[SEP]")
        graph = build_graph(self.config, TASKS[name], read_weights(folder), fused=False)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(graph.weights_folder)
        )
        self.session = onnxruntime.InferenceSession(
            graph.model, options, providers=["CPUExecutionProvider"]
        )

    def tokens(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of the text alone, and their ranges in characters."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def score(self, *parts: list[int], types: bool = False) -> Array:
        """Return the output for one text or pair."""
        ids, type_ids = [self.cls], [0]
        for number, part in enumerate(parts):
            ids += [*part, self.sep]
            type_ids += [number if types else 0] * (len(part) + 1)
        feeds = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "token_type_ids": np.array([type_ids]),
        }
        (output,) = self.session.run(None, feeds)
        result: Array = output[0].astype(np.float64)
        return result

    def text(self, count: int, seed: int = 0) -> str:
        """Make a text of exactly so many tokens."""
        chosen = random.Random(seed * 1000 + count)
        text, left = "", count
        while left:
            word = chosen.choice(WORDS)
            space = " " if word.isascii() else ""
            longer = text + space + word
            tokens = len(self.tokens(longer)[0])
            if tokens <= count:
                text, left = longer, count - tokens
        return text


@cache
def plain(name: str) -> Plain:
    return Plain(name)


def windows(count: int, room: int, overlap: int) -> list[Span]:
    """Return the windows as the rule says: at 0, room − overlap, … until the end is covered."""
    spans, start = [], 0
    while True:
        spans.append((start, min(start + room, count)))
        if start + room >= count:
            return spans
        start += room - overlap


def default_overlap(room: int, limit: int = LIMIT) -> int:
    return min(128, limit // 4, room - 1)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(logits: Array) -> Array:
    shares: Array = 1 / (1 + np.exp(-logits))
    return shares


def near(actual: NDArray[np.float32], expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def byte_span(text: str, span: Span) -> Span:
    return len(text[: span[0]].encode()), len(text[: span[1]].encode())


def load(registry: Registry, name: str, limit: int = LIMIT) -> int:
    return registry.load(str(GOLDEN / name), LoadOptions(max_tokens=limit))


WINDOWS = RunOptions(long_text=LongText.WINDOWS)
CUT = RunOptions(long_text=LongText.CUT)
REFUSE = RunOptions(long_text=LongText.REFUSE)


# Classification


@pytest.mark.parametrize("overlap", [0, 1, ROOM - 1])
def test_classification_joins_its_windows(registry: Registry, overlap: int) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    options = RunOptions(long_text=LongText.WINDOWS, window_overlap=overlap)
    most = 0
    for count in LENGTHS:
        text = model.text(count)
        ids, _ = model.tokens(text)
        assert len(ids) == count
        spans = windows(count, ROOM, overlap or default_overlap(ROOM))
        weights = [end - start for start, end in spans]
        logits = np.stack([model.score(ids[start:end]) for start, end in spans])
        shares = softmax(logits)
        mean = np.average(shares, axis=0, weights=weights)

        result = registry.classify(handle, [text], options)
        assert result.rows.window_count == (len(spans),)
        assert result.rows.token_count == result.rows.scored_token_count == (count + 2,)
        assert result.rows.truncated == (0,)
        near(result.probabilities[0], mean)
        near(result.logits[0], np.average(logits, axis=0, weights=weights))
        near(result.class_max[0], shares.max(axis=0))
        assert result.class_window[0].tolist() == shares.argmax(axis=0).tolist()
        assert result.label_index[0] == mean.argmax()
        assert result.score[0] == result.probabilities[0].max()
        most = max(most, len(set(result.class_window[0].tolist())))
    assert most > 2  # labels had their highest window in different places


def test_weights_are_the_content_tokens(registry: Registry) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    text = model.text(ROOM + 1, seed=3)
    ids, _ = model.tokens(text)
    first, second = softmax(model.score(ids[:ROOM])), softmax(model.score(ids[STEP:]))
    equal = (first + second) / 2
    weighted = (first * ROOM + second * (ROOM + 1 - STEP)) / (2 * ROOM + 1 - STEP)
    result = registry.classify(handle, [text], WINDOWS)
    near(result.probabilities[0], weighted)
    assert np.abs(equal - weighted).max() > 100 * TOLERANCE


def test_windows_of_all_rows_come_back_to_their_rows(registry: Registry) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    texts = [model.text(count, seed=5) for count in (40, 3, ROOM, 0, 97, ROOM + 1)]
    singles = [registry.classify(handle, [text], WINDOWS) for text in texts]
    batch = registry.classify(handle, texts, WINDOWS)
    for row, single in enumerate(singles):
        near(batch.probabilities[row], single.probabilities[0].astype(np.float64))
        near(batch.class_max[row], single.class_max[0].astype(np.float64))
        np.testing.assert_array_equal(batch.class_window[row], single.class_window[0])
    assert batch.rows.window_count == tuple(each.rows.window_count[0] for each in singles)
    assert batch.rows.window_count == (4, 1, 1, 1, 10, 2)


@pytest.mark.parametrize("count", LENGTHS)
def test_cut_scores_the_head(registry: Registry, count: int) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    text = model.text(count)
    ids, _ = model.tokens(text)
    for options in (CUT, RunOptions()):  # what classification does by default
        result = registry.classify(handle, [text], options)
        near(result.logits[0], model.score(ids[:ROOM]))
        assert result.rows.token_count == (count + 2,)
        assert result.rows.scored_token_count == (min(count + 2, LIMIT),)
        assert result.rows.truncated == (int(count > ROOM),)
        assert result.rows.window_count == (1,)


def test_refuse_answers_what_fits_and_no_more(registry: Registry) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    fits, over = model.text(ROOM), model.text(ROOM + 1)
    assert registry.classify(handle, [fits], REFUSE).rows.truncated == (0,)
    with pytest.raises(TooLongError, match=rf"{LIMIT + 1} tokens, the limit is {LIMIT}") as caught:
        registry.classify(handle, [over], REFUSE)
    assert caught.value.input_index == 0
    mixed = registry.classify(handle, [fits, over, fits], REFUSE)
    assert mixed.rows.status == (0, TooLongError.status, 0)
    assert mixed.rows.window_count == (1, 0, 1)
    near(mixed.logits[2], mixed.logits[0].astype(np.float64))


def test_an_overlap_that_leaves_no_step_fails_only_long_rows(registry: Registry) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    options = RunOptions(long_text=LongText.WINDOWS, window_overlap=ROOM)
    result = registry.classify(handle, [model.text(ROOM), model.text(ROOM + 1)], options)
    assert result.rows.status == (0, InvalidArgumentError.status)
    assert f"give less than {ROOM}" in result.rows.message[1]


# Tokens


def labelled(model: Plain, ids: list[int], overlap: int = 0) -> Array:
    """Return each token's probabilities from the window where it is farthest from an edge."""
    joined, depth = [np.empty(0)] * len(ids), [-1] * len(ids)
    for start, end in windows(len(ids), ROOM, overlap or default_overlap(ROOM)):
        shares = softmax(model.score(ids[start:end]))[1:-1]
        for token in range(start, end):
            distance = min(token - start, end - 1 - token)
            if distance > depth[token]:
                joined[token], depth[token] = shares[token - start], distance
    return np.stack(joined)


def merged(
    labels: list[str], spans: list[Span], shares: Array
) -> list[tuple[str, int, int, float]]:
    """Merge labelled tokens to entities, one token after the other."""
    found: list[tuple[str, int, int, list[float]]] = []
    before, reach = "O", 0
    for (start, end), row in zip(spans, shares, strict=True):
        label = labels[int(row.argmax())]
        kind = label.removeprefix("B-").removeprefix("I-")
        if kind != "O":
            share = sum(p for p, each in zip(row, labels, strict=True) if each[2:] == kind)
            if kind == before and (label.startswith("I-") or start == reach):
                found[-1] = (kind, found[-1][1], end, [*found[-1][3], share])
            else:
                found.append((kind, start, end, [share]))
        before, reach = kind, end
    return [(kind, start, end, float(np.mean(all_))) for kind, start, end, all_ in found]


@pytest.mark.parametrize("overlap", [0, 1, ROOM - 1])
def test_tokens_are_labelled_where_they_have_most_context(registry: Registry, overlap: int) -> None:
    model, handle = plain("bert-token"), load(registry, "bert-token")
    tokens = RunOptions(long_text=LongText.WINDOWS, window_overlap=overlap, output=Output.TOKENS)
    for count in LENGTHS:
        text = model.text(count)
        ids, spans = model.tokens(text)
        shares = labelled(model, ids, overlap)
        result = registry.classify_tokens(handle, [text], tokens)
        assert result.probabilities is not None
        near(result.probabilities, shares)
        assert result.label_index.tolist() == shares.argmax(axis=1).tolist()
        ranges = list(zip(result.start.tolist(), result.end.tolist(), strict=True))
        assert ranges == [byte_span(text, span) for span in spans]
        assert result.rows.scored_token_count == result.rows.token_count == (count + 2,)


def test_entities_are_whole_across_borders(registry: Registry) -> None:
    model, handle = plain("bert-token"), load(registry, "bert-token")
    across = multibyte = 0
    for count in LENGTHS:
        for seed in range(4):
            text = model.text(count, seed)
            ids, spans = model.tokens(text)
            expected = merged(model.labels, spans, labelled(model, ids))
            result = registry.classify_tokens(handle, [text])  # windows by default
            found = [
                (result.labels[label], (start, end))
                for label, start, end in zip(
                    result.label_index.tolist(),
                    result.start.tolist(),
                    result.end.tolist(),
                    strict=True,
                )
            ]
            assert found == [
                (kind, byte_span(text, (start, end))) for kind, start, end, _ in expected
            ]
            near(result.score, np.array([score for *_, score in expected]))
            for border, _ in windows(count, ROOM, default_overlap(ROOM))[1:]:
                multibyte += not text[slice(*spans[border])].isascii()
                character = spans[border][0]
                across += any(start < character < end for _, start, end, _ in expected)
    # Borders fell on characters of several bytes, and inside entities.
    assert multibyte > 10
    assert across > 10


def test_cut_and_refuse_label_the_head_or_nothing(registry: Registry) -> None:
    model, handle = plain("bert-token"), load(registry, "bert-token")
    text = model.text(40)
    ids, spans = model.tokens(text)
    options = RunOptions(long_text=LongText.CUT, output=Output.TOKENS)
    cut = registry.classify_tokens(handle, [text], options)
    assert cut.probabilities is not None
    near(cut.probabilities, softmax(model.score(ids[:ROOM]))[1:-1])
    assert (cut.rows.token_count, cut.rows.scored_token_count) == ((42,), (LIMIT,))
    assert cut.end[-1] == byte_span(text, spans[ROOM - 1])[1]
    entities = registry.classify_tokens(handle, [text], CUT)
    expected = merged(model.labels, spans[:ROOM], softmax(model.score(ids[:ROOM]))[1:-1])
    assert entities.item_count == len(expected)
    with pytest.raises(TooLongError):
        registry.classify_tokens(handle, [text], REFUSE)


# Pairs


PAIR_ROOM = LIMIT - 3


@pytest.mark.parametrize("types", [False, True], ids=["types 0", "types 0 and 1"])
@pytest.mark.parametrize("shorten", [Shorten.AUTO, Shorten.FIRST, Shorten.SECOND])
def test_pairs_shorten_one_part(
    registry: Registry, copy_golden: CopyGolden, shorten: Shorten, types: bool
) -> None:
    model = plain("bert-seq")
    # A tokenizer of this class feeds its model token types.
    changes = {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}} if types else {}
    handle = registry.load(str(copy_golden("bert-seq", changes)), LoadOptions(max_tokens=LIMIT))
    options = RunOptions(shorten=shorten)
    for other_count in (1, 5, PAIR_ROOM - 1):
        room = PAIR_ROOM - other_count
        other = model.text(other_count, seed=9)
        other_ids, _ = model.tokens(other)
        for count in (max(1, room - 1), room, room + 1, room + 7, 40):
            text = model.text(count, seed=count)
            ids, _ = model.tokens(text)
            spans = windows(count, room, default_overlap(room))

            def score(part: list[int], whole: list[int] = other_ids) -> Array:
                parts = (whole, part) if shorten is Shorten.SECOND else (part, whole)
                return model.score(*parts, types=types)

            second = shorten is Shorten.SECOND
            pair = ([other], [text]) if second else ([text], [other])
            result = registry.classify_pairs(handle, *pair, options)  # windows by default
            logits = np.stack([score(ids[start:end]) for start, end in spans])
            weights = [max(1, end - start) for start, end in spans]
            near(result.logits[0], np.average(logits, axis=0, weights=weights))
            near(result.probabilities[0], np.average(softmax(logits), axis=0, weights=weights))
            near(result.class_max[0], softmax(logits).max(axis=0))
            assert result.rows.window_count == (len(spans),)
            assert result.rows.token_count == (count + other_count + 3,)
            cut = registry.classify_pairs(
                handle, *pair, RunOptions(shorten=shorten, long_text=LongText.CUT)
            )
            near(cut.logits[0], score(ids[:room]))
            assert cut.rows.scored_token_count == (min(count, room) + other_count + 3,)
            assert cut.rows.truncated == (int(count > room),)


def test_one_label_shortens_the_second_part_unless_told(registry: Registry) -> None:
    model, handle = plain("bert-reranker"), load(registry, "bert-reranker")
    query, document = model.text(4, seed=1), model.text(30, seed=2)
    q, d = model.tokens(query)[0], model.tokens(document)[0]
    room = PAIR_ROOM - 4
    spans = windows(30, room, default_overlap(room))
    logits = np.stack([model.score(q, d[start:end]) for start, end in spans])
    weights = [end - start for start, end in spans]
    result = registry.classify_pairs(handle, [query], [document])
    near(result.probabilities[0], np.average(sigmoid(logits), axis=0, weights=weights))
    assert result.score[0] == result.probabilities[0, 0]
    assert result.class_window[0, 0] == logits.argmax()
    with pytest.raises(TooLongError, match="second part of the pair has 30 tokens") as caught:
        registry.classify_pairs(handle, [query], [document], RunOptions(shorten=Shorten.FIRST))
    assert caught.value.input_index == 0


@pytest.mark.parametrize("long_text", [LongText.CUT, LongText.WINDOWS, LongText.REFUSE])
def test_the_other_part_must_leave_room(registry: Registry, long_text: LongText) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    short, long = model.text(2), model.text(PAIR_ROOM, seed=4)
    for shorten, pair, ordinal in (
        (Shorten.FIRST, ([short], [long]), "second"),
        (Shorten.SECOND, ([long], [short]), "first"),
    ):
        options = RunOptions(shorten=shorten, long_text=long_text)
        with pytest.raises(TooLongError, match=f"{ordinal} part of the pair has {PAIR_ROOM}"):
            registry.classify_pairs(handle, *pair, options)
    mixed = registry.classify_pairs(
        handle, [short, short], [long, short], RunOptions(long_text=long_text)
    )
    assert mixed.rows.status == (TooLongError.status, 0)


def test_refused_pairs_fail_alone(registry: Registry) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    fits, over = model.text(PAIR_ROOM - 3), model.text(PAIR_ROOM - 2)
    other = model.text(3)
    result = registry.classify_pairs(handle, [over, fits], [other, other], REFUSE)
    assert result.rows.status == (TooLongError.status, 0)
    assert result.rows.token_count == (0, LIMIT)


# Pairs of which the second text is labelled


@pytest.mark.parametrize("count", [PAIR_ROOM - 6, PAIR_ROOM - 5, PAIR_ROOM - 4, 20, 60])
def test_an_answer_takes_the_context_that_clears_it_most(registry: Registry, count: int) -> None:
    model, handle = plain("bert-token"), load(registry, "bert-token")
    context, answer = model.text(count, seed=11), model.text(5, seed=12)
    c, (a, spans) = model.tokens(context)[0], model.tokens(answer)
    room = PAIR_ROOM - 5
    chosen = np.zeros((5, len(model.labels)))
    for start, end in windows(count, room, default_overlap(room)):
        shares = softmax(model.score(c[start:end], a))[-6:-1]
        for token in range(5):
            if shares[token, 0] > chosen[token, 0]:  # O
                chosen[token] = shares[token]
    tokens = RunOptions(output=Output.TOKENS)
    result = registry.classify_token_pairs(handle, [context], [answer], tokens)
    assert result.probabilities is not None
    near(result.probabilities, chosen)
    ranges = list(zip(result.start.tolist(), result.end.tolist(), strict=True))
    assert ranges == [byte_span(answer, span) for span in spans]
    assert result.rows.token_count == result.rows.scored_token_count == (count + 8,)

    entities = registry.classify_token_pairs(handle, [context], [answer])
    expected = merged(model.labels, spans, chosen)
    assert [entities.labels[label] for label in entities.label_index] == [e[0] for e in expected]
    assert entities.end.tolist() == [byte_span(answer, (s, e))[1] for _, s, e, _ in expected]


@pytest.mark.parametrize("count", [4, PAIR_ROOM - 3, PAIR_ROOM - 2, 50])
def test_a_long_answer_may_be_the_part_in_windows(registry: Registry, count: int) -> None:
    model, handle = plain("bert-token"), load(registry, "bert-token")
    context, answer = model.text(3, seed=21), model.text(count, seed=22)
    c, (a, spans) = model.tokens(context)[0], model.tokens(answer)
    room = PAIR_ROOM - 3
    joined, depth = np.zeros((count, len(model.labels))), [-1] * count
    for start, end in windows(count, room, default_overlap(room)):
        shares = softmax(model.score(c, a[start:end]))[5:-1]
        assert len(shares) == end - start
        for token in range(start, end):
            distance = min(token - start, end - 1 - token)
            if distance > depth[token]:
                joined[token], depth[token] = shares[token - start], distance
    options = RunOptions(output=Output.TOKENS, shorten=Shorten.SECOND)
    result = registry.classify_token_pairs(handle, [context], [answer], options)
    assert result.probabilities is not None
    near(result.probabilities, joined)
    cut = registry.classify_token_pairs(
        handle,
        [context],
        [answer],
        RunOptions(output=Output.TOKENS, shorten=Shorten.SECOND, long_text=LongText.CUT),
    )
    assert cut.item_count == min(count, room)
    assert cut.end[-1] == byte_span(answer, spans[min(count, room) - 1])[1]
    with pytest.raises(TooLongError, match="first part of the pair"):
        registry.classify_token_pairs(handle, [model.text(PAIR_ROOM)], [answer], options)


# Embeddings


@pytest.mark.parametrize("name", ["bert-embed-mean", "bert-embed-cls"])
def test_an_embedding_averages_its_windows_before_it_is_normalised(
    registry: Registry, name: str
) -> None:
    model, handle = plain(name), load(registry, name)

    def vector(ids: list[int]) -> Array:
        states = model.score(ids)
        pooled: Array = states[0] if name == "bert-embed-cls" else states.mean(axis=0)
        return pooled

    for count in LENGTHS:
        text = model.text(count)
        ids, _ = model.tokens(text)
        spans = windows(count, ROOM, default_overlap(ROOM))
        weights = [end - start for start, end in spans]
        vectors = [vector(ids[start:end]) for start, end in spans]
        mean = np.average(vectors, axis=0, weights=weights)
        result = registry.embed(handle, [text], WINDOWS)
        near(result.values[0], mean / np.linalg.norm(mean))
        assert result.rows.window_count == (len(spans),)
        head = vector(ids[:ROOM])
        cut = registry.embed(handle, [text])  # by default
        near(cut.values[0], head / np.linalg.norm(head))
        assert cut.rows.truncated == (int(count > ROOM),)
    with pytest.raises(TooLongError):
        registry.embed(handle, [model.text(ROOM + 1)], REFUSE)


# Counting


@pytest.mark.parametrize("name", ["bert-seq", "bert-token", "bert-embed-mean"])
@pytest.mark.parametrize("overlap", [0, 1, ROOM - 1])
def test_counted_windows_tile_the_text(registry: Registry, name: str, overlap: int) -> None:
    model, handle = plain(name), load(registry, name)
    texts = [f" {model.text(count, seed=7)} \n" for count in LENGTHS]
    options = RunOptions(long_text=LongText.WINDOWS, window_overlap=overlap)
    result = registry.count_tokens(handle, texts, options)
    assert result.rows.token_count == tuple(count + 2 for count in LENGTHS)
    assert np.diff(result.row_start).tolist() == list(result.rows.window_count)
    for row, (text, count) in enumerate(zip(texts, LENGTHS, strict=True)):
        _, spans = model.tokens(text)
        cuts = windows(count, ROOM, overlap or default_overlap(ROOM))
        expected = [(spans[start][0], spans[end - 1][1]) for start, end in cuts]
        expected[0] = 0, expected[0][1]
        expected[-1] = expected[-1][0], len(text)
        ours = slice(result.row_start[row], result.row_start[row + 1])
        found = list(
            zip(result.window_start[ours].tolist(), result.window_end[ours].tolist(), strict=True)
        )
        assert found == [byte_span(text, span) for span in expected]
        lengths = [end - start + 2 for start, end in cuts]
        assert result.window_tokens[ours].tolist() == lengths
        # Nothing but blanks is between two windows.
        data = text.encode()
        for (_, end), (start, _) in pairwise(found):
            assert not data[end:start].decode().strip()


@pytest.mark.parametrize(
    ("name", "whole"), [("bert-seq", False), ("bert-token", True), ("bert-embed-mean", False)]
)
def test_counting_does_what_the_model_would_do(registry: Registry, name: str, whole: bool) -> None:
    model, handle = plain(name), load(registry, name)
    text = model.text(40)
    _, spans = model.tokens(text)
    result = registry.count_tokens(handle, [text])
    assert result.rows.token_count == (42,)
    if whole:
        assert result.rows.window_count == (4,)
        assert (result.rows.scored_token_count, result.rows.truncated) == ((42,), (0,))
        assert result.window_end[-1] == len(text.encode())
    else:
        assert result.rows.window_count == (1,)
        assert (result.rows.scored_token_count, result.rows.truncated) == ((LIMIT,), (1,))
        assert result.window_start.tolist() == [0]
        assert result.window_end.tolist() == [byte_span(text, spans[ROOM - 1])[1]]
    with pytest.raises(TooLongError):
        registry.count_tokens(handle, [text], REFUSE)


def test_every_call_uses_the_windows_that_were_counted(registry: Registry) -> None:
    model, handle = plain("bert-seq"), load(registry, "bert-seq")
    # Words of one token each, so that a border never lies within one.
    text = " ".join(random.Random(31).choices(["math", "law", "code", "the", "数", "学"], k=97))
    assert len(model.tokens(text)[0]) == 97
    counted = registry.count_tokens(handle, [text], WINDOWS)
    data = text.encode()
    pieces = [
        data[start:end].decode()
        for start, end in zip(
            counted.window_start.tolist(), counted.window_end.tolist(), strict=True
        )
    ]
    alone = registry.classify(handle, pieces, REFUSE)  # each fits
    whole = registry.classify(handle, [text], WINDOWS)
    near(whole.class_max[0], alone.probabilities.max(axis=0).astype(np.float64))
    assert whole.class_window[0].tolist() == alone.probabilities.argmax(axis=0).tolist()


# ---- a limit for one call

LONG = " ".join(WORDS * 3)


@pytest.mark.parametrize("limit", [LIMIT, LIMIT - 1, 5])
def test_a_call_may_score_fewer_tokens_than_the_model(registry: Registry, limit: int) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"))
    shorter = registry.load(str(GOLDEN / "bert-seq"), LoadOptions(name="short", max_tokens=limit))
    for policy in (LongText.CUT, LongText.WINDOWS):
        options = RunOptions(long_text=policy)
        asked = RunOptions(long_text=policy, max_tokens=limit)
        expected = registry.classify(shorter, [LONG], options)
        found = registry.classify(handle, [LONG], asked)
        assert found.rows == expected.rows
        assert found.rows.token_count[0] > limit
        np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-6)
        counted = registry.count_tokens(handle, [LONG], asked)
        assert max(counted.window_tokens) == limit
        assert [len(ids) for ids in counted.window_ids] == counted.window_tokens.tolist()


def test_a_call_scores_no_more_tokens_than_the_model(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"), LoadOptions(max_tokens=LIMIT))
    assert registry.classify(handle, [LONG], RunOptions(max_tokens=LIMIT)).rows.status == (0,)
    with pytest.raises(InvalidArgumentError, match=f"scores at most {LIMIT}; give that or less"):
        registry.classify(handle, [LONG], RunOptions(max_tokens=LIMIT + 1))


def test_counted_tokens_have_ids_and_names(registry: Registry) -> None:
    handle = registry.load(str(GOLDEN / "bert-seq"))
    (ids,) = registry.count_tokens(handle, ["What is x?"]).window_ids
    names = registry.token_names(handle, ids.tolist())
    assert (names[0], names[-1]) == ("[CLS]", "[SEP]")
    assert "".join(names[1:-1]).replace("##", "").lower() == "whatisx?"
    assert registry.token_names(handle, [10**9]) == ("",)
