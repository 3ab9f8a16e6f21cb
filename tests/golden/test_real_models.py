"""The demo models, really trained, against references and a plain computation of their own."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tokenizers
from numpy.typing import NDArray

from libsemantic.engine.config import LongText, RunOptions
from libsemantic.engine.memory import resident_bytes
from libsemantic.engine.registry import Registry

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "build" / "models"
MINILM_REFERENCE = HERE / "all-MiniLM-L6-v2.expected.json"  # by transformers

Entity = tuple[str, int, int, str]  # label, start and end in bytes, the text between
# What rampart finds; that this is right for its weights is computed anew below.
TEXTS: dict[str, str] = {
    "names and an address among Chinese": (
        "你好，我叫 Maria Lopez，邮箱是 maria.lopez@example.com。"
    ),
    "a card number after accents": "Zoë's café card: 4111 1111 1111 1111",
    "a name at byte 0": "Maria Lopez phoned this morning.",
    "two addresses": "Send the minutes to ana@example.org and copy li@example.net please.",
    "the end of a long text": "lorem " * 600
    + "reach me: ana@example.org, 202-555-0143, SSN 078-05-1120",
    "a whole introduction": "My name is Zoë Müller, e-mail zoe@example.org, I live at 12 Baker "
    "Street, Denver CO 80203.",
}
EXPECTED: dict[str, list[Entity]] = {
    "names and an address among Chinese": [
        ("GIVEN_NAME", 16, 21, "Maria"),
        ("SURNAME", 22, 27, "Lopez"),
        ("EMAIL", 40, 63, "maria.lopez@example.com"),
    ],
    "a card number after accents": [
        ("GIVEN_NAME", 0, 4, "Zoë"),
        ("PHONE", 19, 38, "4111 1111 1111 1111"),
    ],
    "a name at byte 0": [("GIVEN_NAME", 0, 5, "Maria"), ("SURNAME", 6, 11, "Lopez")],
    # The model calls both @ "O", so each address comes in two pieces.
    "two addresses": [
        ("EMAIL", 20, 23, "ana"),
        ("EMAIL", 24, 35, "example.org"),
        ("EMAIL", 45, 47, "li"),
        ("EMAIL", 48, 59, "example.net"),
    ],
    "the end of a long text": [("EMAIL", 3622, 3625, "org")],
    "a whole introduction": [
        ("GIVEN_NAME", 11, 15, "Zoë"),
        ("SURNAME", 16, 23, "Müller"),
        ("EMAIL", 32, 47, "zoe@example.org"),
        ("BUILDING_NUMBER", 59, 61, "12"),
        ("STREET_NAME", 62, 74, "Baker Street"),
        ("CITY", 76, 82, "Denver"),
        ("STATE", 83, 85, "CO"),
        ("ZIP_CODE", 86, 91, "80203"),
    ],
}


@pytest.fixture
def rampart(registry: Registry) -> int:
    return registry.load(str(folder("rampart")))


@pytest.fixture
def minilm(registry: Registry) -> int:
    return registry.load(str(folder("minilm")))


def folder(name: str) -> Path:
    if not (MODELS / name / "config.json").exists():
        pytest.fail(f"{MODELS / name} is missing; run make models")
    return MODELS / name


class Rampart:
    """Windows, labels and merging as plain loops over ONNX Runtime and tokenizers alone."""

    def __init__(self) -> None:
        path = folder("rampart")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            str(path / "onnx" / "model_q4.onnx"), options, providers=["CPUExecutionProvider"]
        )
        table = json.loads((path / "config.json").read_text())["id2label"]
        self.labels = [table[str(index)] for index in range(len(table))]

    def probabilities(self, ids: list[int]) -> NDArray[np.float64]:
        window = np.array([ids], np.int64)
        feeds = {
            "input_ids": window,
            "attention_mask": np.ones_like(window),
            "token_type_ids": np.zeros_like(window),
        }
        (logits,) = self.session.run(["logits"], feeds)
        powers = np.exp(logits[0].astype(np.float64))
        shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return shares

    def windows(self, count: int, room: int, overlap: int) -> Iterator[tuple[int, int]]:
        start = 0
        while True:
            yield start, min(start + room, count)
            if start + room >= count:
                return
            start += room - overlap

    def find(self, text: str) -> tuple[list[Entity], list[float]]:
        encoding = self.tokenizer.encode(text)
        cls, *ids, sep = encoding.ids
        offsets = encoding.offsets[1:-1]
        chosen: list[NDArray[np.float64]] = [np.empty(0)] * len(ids)
        depth = [-1] * len(ids)
        for start, end in self.windows(len(ids), 510, 128):
            scored = self.probabilities([cls, *ids[start:end], sep])[1:-1]
            for token in range(start, end):
                distance = min(token - start, end - 1 - token)
                if distance > depth[token]:
                    depth[token], chosen[token] = distance, scored[token - start]

        entities: list[tuple[str, int, int, list[float]]] = []
        before, reach = "O", 0
        for (start, end), shares in zip(offsets, chosen, strict=True):
            label = self.labels[int(shares.argmax())]
            kind = label.removeprefix("B-").removeprefix("I-")
            if kind != "O":
                own = [self.labels.index(f"{mark}-{kind}") for mark in "BI"]
                share = float(shares[own].sum())
                if kind == before and (label.startswith("I-") or start == reach):
                    name, first, _, all_shares = entities[-1]
                    entities[-1] = name, first, end, [*all_shares, share]
                else:
                    entities.append((kind, start, end, [share]))
            before, reach = kind, end
        found: list[Entity] = []
        for kind, start, end, _ in entities:
            first, last = len(text[:start].encode()), len(text[:end].encode())
            found.append((kind, first, last, text[start:end]))
        return found, [math.fsum(shares) / len(shares) for *_, shares in entities]


@pytest.fixture(scope="module")
def plain() -> Rampart:
    return Rampart()


@pytest.mark.parametrize("name", TEXTS)
def test_rampart_finds_what_it_should(
    registry: Registry, rampart: int, plain: Rampart, name: str
) -> None:
    text = TEXTS[name]
    result = registry.classify_tokens(rampart, [text])
    found = [
        (result.labels[label], start, end, text.encode()[start:end].decode())
        for label, start, end in zip(
            result.label_index.tolist(), result.start.tolist(), result.end.tolist(), strict=True
        )
    ]
    assert found == EXPECTED[name]
    recomputed, scores = plain.find(text)
    assert recomputed == EXPECTED[name]
    np.testing.assert_allclose(result.score, scores, rtol=0, atol=1e-4)


def test_rampart_finds_the_same_in_a_batch(registry: Registry, rampart: int) -> None:
    texts = list(TEXTS.values())
    result = registry.classify_tokens(rampart, texts)
    found: list[list[Entity]] = [[] for _ in texts]
    for row, label, start, end in zip(
        result.row.tolist(),
        result.label_index.tolist(),
        result.start.tolist(),
        result.end.tolist(),
        strict=True,
    ):
        piece = texts[row].encode()[start:end].decode()
        found[row].append((result.labels[label], start, end, piece))
    assert found == [EXPECTED[name] for name in TEXTS]


def test_rampart_scans_a_long_text_whole_and_says_when_it_does_not(
    registry: Registry, rampart: int
) -> None:
    text = TEXTS["the end of a long text"]
    whole = registry.classify_tokens(rampart, [text])
    assert whole.rows.token_count == whole.rows.scored_token_count == (1227,)
    assert (whole.rows.truncated, whole.rows.window_count) == ((0,), (3,))
    cut = registry.classify_tokens(rampart, [text], RunOptions(long_text=LongText.CUT))
    assert cut.item_count == 0
    assert (cut.rows.token_count, cut.rows.scored_token_count) == ((1227,), (512,))
    assert (cut.rows.truncated, cut.rows.window_count) == ((1,), (1,))


def test_rampart_is_described_as_it_is(registry: Registry, rampart: int) -> None:
    info = registry.info(rampart)
    assert (info.source, info.dtype, info.family) == ("onnx", "int4", "bert")
    assert info.provider == "CPUExecutionProvider"
    # tokenizer_config.json says 10^30, which stands for no limit.
    assert (info.max_tokens, info.position_limit) == (512, 512)
    assert "onnx/model_q4.onnx" in info.file_names


def test_minilm_equals_the_reference(registry: Registry, minilm: int) -> None:
    reference = json.loads(MINILM_REFERENCE.read_text())
    cases = reference["cases"]
    info = registry.info(minilm)
    assert info.max_tokens == reference["max_length"] == 256
    assert info.dimension == 384
    result = registry.embed(minilm, [case["text"] for case in cases])
    expected = np.array([case["embedding"] for case in cases])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert result.values.shape == expected.shape
    cosines = (result.values * expected).sum(axis=1)
    assert cosines.min() >= 0.99999
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=1e-4)
    assert result.rows.scored_token_count == tuple(case["n_tokens"] for case in cases)
    # The longest is cut at 256: neither at the file's 128 nor at the 512 positions.
    assert (result.rows.token_count[-1], result.rows.truncated[-1]) == (602, 1)


def test_minilm_is_not_padded_although_its_tokenizer_asks_for_it(
    registry: Registry, minilm: int
) -> None:
    shipped = json.loads((folder("minilm") / "tokenizer.json").read_text())
    assert shipped["padding"]["strategy"] == {"Fixed": 128}
    assert shipped["truncation"]["max_length"] == 128
    counts = registry.count_tokens(minilm, ["A man is eating food."])
    assert counts.rows.token_count == (8,)
    assert counts.window_tokens.tolist() == [8]
    pair = registry.embed(minilm, ["A man is eating food.", "The stock market fell sharply."])
    # Padding in the pooling would draw the two together, to about 0.5.
    assert abs(float(pair.values[0] @ pair.values[1])) < 0.1
    near = registry.embed(minilm, ["A man is eating food.", "A man is eating a meal."])
    assert float(near.values[0] @ near.values[1]) > 0.9


def test_minilm_tells_long_texts_with_a_common_beginning_apart(
    registry: Registry, minilm: int
) -> None:
    prefix = "The committee met again and went through its papers one by one. " * 63
    texts = [prefix + tail for tail in ("Suggest a soup for winter", "Close my bank account")]
    cut = registry.embed(minilm, texts)
    assert cut.rows.truncated == (1, 1)
    assert float(cut.values[0] @ cut.values[1]) > 0.9999
    whole = registry.embed(minilm, texts, RunOptions(long_text=LongText.WINDOWS))
    assert whole.rows.truncated == (0, 0)
    assert float(whole.values[0] @ whole.values[1]) < 0.999


def test_unloading_gives_the_memory_back(registry: Registry) -> None:
    def cycle() -> None:
        handle = registry.load(str(folder("minilm")))
        registry.embed(handle, ["warm"])
        registry.unload(handle, 10_000)

    cycle()
    before = resident_bytes()
    for _ in range(3):
        cycle()
    # One copy of the weights alone is 90 MB.
    assert resident_bytes() - before < 30 << 20
