"""Encoding of texts and pairs, what a tokenizer.json may hold, and offsets in bytes."""

import ctypes
import gc
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from libsemantic.engine.config import Shorten
from libsemantic.engine.errors import (
    BadArtifactError,
    InternalError,
    NotFoundError,
    UnsupportedError,
)
from libsemantic.engine.tokenization import Layout, Tokenizer, load_tokenizer, to_byte_offsets

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
BERT = GOLDEN / "bert-seq" / "tokenizer.json"
GOLDEN_NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/tokenizer.json"))
ENCODER_NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/expected_more.json"))
WORDS = {"[PAD]": 0, "[C]": 1, "[S]": 2, "[U]": 3, "one": 4, "two": 5, "three": 6}


def word_tokenizer(folder: Path, processor: processors.PostProcessor | None) -> Path:
    """Save a tokenizer of whole words with the given template."""
    backend = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[U]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if processor is not None:
        backend.post_processor = processor
    path = folder / "tokenizer.json"
    backend.save(str(path))
    return path


def template(single: str, pair: str | None = None) -> processors.PostProcessor:
    specials = [("[C]", 1), ("[S]", 2)]
    if pair is None:
        return processors.TemplateProcessing(single=single, special_tokens=specials)
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)


@pytest.fixture(scope="module")
def bert() -> Tokenizer:
    return load_tokenizer(BERT)


def test_truncation_and_padding_of_the_file_are_dropped(tmp_path: Path, bert: Tokenizer) -> None:
    content = json.loads(BERT.read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 128,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 128},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 7,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    built_in = tokenizers.Tokenizer.from_file(str(path))
    assert len(built_in.encode_batch(["math"])[0]) == 128  # the file does ask for it

    reset = load_tokenizer(path)
    texts = ["math", "the router picks a model " * 40]
    for offsets in (False, True):
        short, long = reset.encode(texts, offsets)
        wanted_short, wanted_long = bert.encode(texts, offsets)
        assert short.token_count < 10
        assert long.token_count > 200
        assert short.ids.tolist() == wanted_short.ids.tolist()
        assert long.ids.tolist() == wanted_long.ids.tolist()
    (pair,) = reset.encode_pairs([texts[1]], [texts[1]], offsets=False)
    assert pair.token_count == 2 * long.token_count - 1
    assert reset.pad_id == 7


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"tokenizer\.json is not there; save the tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"{}", b"\xff\x00", b"[]", BERT.read_bytes()[:5000], b'{"model": {"type": "BPE"}}'],
)
def test_damaged_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(BadArtifactError, match=r"tokenizer\.json is damaged \(") as caught:
        load_tokenizer(path)
    assert "\n" not in caught.value.message


def test_folder_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadArtifactError, match="cannot be read"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("field", ["special_tokens", "single"])
def test_template_that_lacks_its_parts(tmp_path: Path, field: str) -> None:
    content = json.loads(BERT.read_text())
    content["post_processor"][field] = {} if field == "special_tokens" else []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadArtifactError, match=r"damaged|does not hold the text exactly once"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("processor", "single", "pair"),
    [
        (None, Layout(0, 0, 0), Layout(0, 0, 0)),
        (template("$A [S]", "$A $B [S]"), Layout(0, 0, 1), Layout(0, 0, 1)),
        (template("[C] $A", "[C] $A [S] $B:1"), Layout(1, 0, 0), Layout(1, 1, 0)),
        (
            template("[C] $A [S]", "[C] $A [S] [S] $B [S] [S]"),
            Layout(1, 0, 1),
            Layout(1, 2, 2),
        ),
        (
            processors.RobertaProcessing(("[S]", 2), ("[C]", 1)),
            Layout(1, 0, 1),
            Layout(1, 2, 1),
        ),
        (processors.BertProcessing(("[S]", 2), ("[C]", 1)), Layout(1, 0, 1), Layout(1, 1, 1)),
        (template("[C] $A", "$B [S] $A"), Layout(1, 0, 0), None),
        (
            processors.Sequence([template("[C] $A", "[C] $A $B"), processors.ByteLevel()]),
            Layout(1, 0, 0),
            None,
        ),
    ],
)
def test_layouts(
    tmp_path: Path, processor: processors.PostProcessor | None, single: Layout, pair: Layout | None
) -> None:
    tokenizer = load_tokenizer(word_tokenizer(tmp_path, processor))
    assert (tokenizer.single, tokenizer.pair) == (single, pair)
    (encoded,) = tokenizer.encode(["two three two"], offsets=True)
    start, end = encoded.first
    assert encoded.ids[start:end].tolist() == [5, 6, 5]
    assert encoded.special_count == single.special_count
    assert encoded.offsets().tolist() == [[0, 3], [4, 9], [10, 13]]
    if pair is None:
        with pytest.raises(UnsupportedError, match="no template"):
            tokenizer.encode_pairs(["one"], ["two"], offsets=False)
        return
    # A blank right text has no tokens with this tokenizer.
    cases = [("one two", "three"), ("", "three one"), ("two", " "), ("", " ")]
    lefts, rights = [left for left, _ in cases], [right for _, right in cases]
    for offsets in (False, True):
        found = tokenizer.encode_pairs(lefts, rights, offsets)
        for encoded, left, right in zip(found, lefts, rights, strict=True):
            assert encoded.second is not None
            parts = [encoded.ids[slice(*part)].tolist() for part in (encoded.first, encoded.second)]
            assert parts == [[WORDS[word] for word in text.split()] for text in (left, right)]
            assert encoded.special_count == pair.special_count
            assert encoded.first[0] == pair.before
            assert encoded.second[0] - encoded.first[1] == pair.between
            assert encoded.token_count - encoded.second[1] == pair.after


def test_empty_right_text_is_encoded_like_the_left_alone(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path, template("[C] $A [S]", "[C] $A [S] [S] $B:1 [S]:1"))
    tokenizer = load_tokenizer(path)
    empty, other = tokenizer.encode_pairs(["one two", "one two"], ["", "three"], offsets=True)
    assert empty.ids.tolist() == [1, 4, 5, 2]
    assert (empty.first, empty.second, empty.special_count) == ((1, 3), (4, 4), 2)
    assert empty.offsets(Shorten.SECOND).shape == (0, 2)
    assert other.ids.tolist() == [1, 4, 5, 2, 2, 6, 2]


def test_template_that_repeats_the_text(tmp_path: Path) -> None:
    with pytest.raises(BadArtifactError, match="does not hold the text exactly once"):
        load_tokenizer(word_tokenizer(tmp_path, template("$A $A")))


def test_text_without_tokens(tmp_path: Path) -> None:
    bare = load_tokenizer(word_tokenizer(tmp_path, None))
    (encoded,) = bare.encode([""], offsets=True)
    assert (encoded.token_count, encoded.first, encoded.offsets().shape) == (0, (0, 0), (0, 2))
    assert encoded.ids.dtype == encoded.type_ids.dtype == np.int64


def test_special_token_in_the_text_is_content(bert: Tokenizer) -> None:
    (encoded,) = bert.encode(["math [SEP] law"], offsets=True)
    separator = bert.token_id("[SEP]")
    assert encoded.ids.tolist().count(separator) == 2
    start, end = encoded.first
    assert (start, encoded.token_count - end) == (1, 1)
    assert encoded.special_count == 2
    inside = encoded.ids[start:end].tolist().index(separator)
    assert encoded.offsets()[inside].tolist() == [5, 10]

    (pair,) = bert.encode_pairs(["math [SEP] law"], ["[SEP]"], offsets=True)
    assert pair.first == (start, end)
    assert pair.second == (end + 1, end + 2)
    assert pair.type_ids.tolist() == [0] * (end + 1) + [1, 1]
    assert pair.offsets(Shorten.SECOND).tolist() == [[0, 5]]


def test_offsets_are_those_of_the_part(bert: Tokenizer) -> None:
    left, right = "naïve café", "数学 law 😀"
    (pair,) = bert.encode_pairs([left], [right], offsets=True)
    (alone_left,), (alone_right,) = bert.encode([left], True), bert.encode([right], True)
    assert pair.offsets(Shorten.FIRST).tolist() == alone_left.offsets().tolist()
    assert pair.offsets(Shorten.SECOND).tolist() == alone_right.offsets().tolist()
    assert alone_right.offsets().max() == len(right)
    with pytest.raises(InternalError, match="single text"):
        alone_left.offsets(Shorten.SECOND)
    (fast,) = bert.encode([left], offsets=False)
    with pytest.raises(InternalError, match="without them"):
        fast.offsets()


def test_sides_of_unequal_number(bert: Tokenizer) -> None:
    with pytest.raises(InternalError, match="1 left texts came with 2"):
        bert.encode_pairs(["a"], ["b", "c"], offsets=False)


def test_text_the_tokenizer_cannot_encode(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"one": 0}, unk_token="[U]"))
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    tokenizer = load_tokenizer(path)
    for offsets in (False, True):
        with pytest.raises(BadArtifactError, match="failed on a text") as caught:
            tokenizer.encode(["secret"], offsets)
        assert "secret" not in caught.value.message


def test_vocabulary_size_and_ids(tmp_path: Path, bert: Tokenizer) -> None:
    content = json.loads(BERT.read_text())
    largest = max(*content["model"]["vocab"].values(), *(t["id"] for t in content["added_tokens"]))
    assert bert.vocab_size == largest + 1
    assert bert.pad_id == bert.token_id("[PAD]") == 0
    assert bert.token_id("no such token") is None

    gap = tokenizers.Tokenizer(models.WordLevel({"one": 0, "two": 41}, unk_token="one"))
    gap.add_tokens(["added"])
    path = tmp_path / "tokenizer.json"
    gap.save(str(path))
    loaded = load_tokenizer(path)
    assert loaded.vocab_size == max(gap.get_vocab(True).values()) + 1 >= 42
    assert loaded.pad_id is None


def test_goldens_are_there() -> None:
    assert {"bert-seq", "bert-token", "bert-reranker"} <= set(ENCODER_NAMES)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_fast_and_full_encoding_agree(name: str) -> None:
    tokenizer = load_tokenizer(GOLDEN / name / "tokenizer.json")
    texts = ["Zoë and cafe\u0301 [SEP]", " \n\t two  blanks ", "👩‍💻 数学", "x" * 300]
    fast = tokenizer.encode(texts, offsets=False)
    full = tokenizer.encode(texts, offsets=True)
    for one, two in zip(fast, full, strict=True):
        assert one.ids.tolist() == two.ids.tolist()
        assert one.type_ids.tolist() == two.type_ids.tolist()
        assert one.first == two.first


class HeapInfo(ctypes.Structure):
    """struct mallinfo2 of glibc (malloc/malloc.h)."""

    _fields_ = [(name, ctypes.c_size_t) for name in (*("_" * 7), "uordblks", *("_" * 2))]


def allocated_bytes() -> int:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = HeapInfo
    return int(mallinfo2().uordblks)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_threads_keep_no_memory_of_what_they_encoded(name: str) -> None:
    """A word kept by each of 24 threads, as libraries' caches do, makes 1.5 MB here."""
    tokenizer = load_tokenizer(GOLDEN / name / "tokenizer.json")
    words = [f"w{number:x}" for number in range(500)]

    def encode(_: int) -> int:
        barrier.wait()  # so that each thread has its turn
        for word in words:
            tokenizer.encode([word], offsets=False)
        return threading.get_ident()

    tokenizer.encode(words, offsets=False)
    barrier = threading.Barrier(24)
    with ThreadPoolExecutor(24) as threads:
        gc.collect()
        before = allocated_bytes()
        assert len(set(threads.map(encode, range(24)))) == 24
        gc.collect()
        kept = allocated_bytes() - before
    assert kept < 1 << 19


@pytest.mark.parametrize("name", ENCODER_NAMES)
def test_ids_and_offsets_of_the_reference(name: str) -> None:
    tokenizer = load_tokenizer(GOLDEN / name / "tokenizer.json")
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    for case in expected["cases"]:
        if "text_pair" in case:
            (encoded,) = tokenizer.encode_pairs([case["text"]], [case["text_pair"]], offsets=True)
        else:
            (encoded,) = tokenizer.encode([case["text"]], offsets=True)
        if encoded.token_count > expected["max_length"]:
            continue  # cutting is tested with the windows
        assert encoded.ids.tolist() == case["input_ids"]
        if "offsets_chars" in case:
            assert encoded.offsets().tolist() == case["offsets_chars"][slice(*encoded.first)]


@given(st.text(max_size=40), st.data())
def test_byte_offsets(text: str, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    found = to_byte_offsets(text, np.array(positions, np.int64))
    assert found.tolist() == [len(text[:position].encode()) for position in positions]


def test_byte_offsets_keep_the_shape() -> None:
    ranges = np.array([[0, 1], [1, 3]], np.int64)
    assert to_byte_offsets("é😀x", ranges).tolist() == [[0, 2], [2, 7]]
    assert to_byte_offsets("abc", ranges).tolist() == [[0, 1], [1, 3]]
    assert to_byte_offsets("", np.zeros((0, 2), np.int64)).shape == (0, 2)


def test_what_a_signal_handler_raises_is_not_the_tokenizers_fault() -> None:
    """Whatever its type: the host wants its own exception, not a damaged tokenizer."""

    def handle(*_: object) -> None:
        raise kind("the time is up")

    tokenizer = load_tokenizer(BERT)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        for kind in (Exception, ValueError, TimeoutError):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(kind, match="the time is up") as caught:
                tokenizer.encode(["math law " * 100_000], False)
            assert type(caught.value) is kind
    finally:
        signal.signal(signal.SIGALRM, before)
