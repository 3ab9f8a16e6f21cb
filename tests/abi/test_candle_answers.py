"""Good answers of the candle functions equal the references of transformers."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ..golden.make_expected_entities import entities as merge
from .binding import MODELS
from .candle import (
    ALWAYS_FALSE_HERE,
    EMBEDDING_INITS,
    FILLS,
    FUNCTIONS,
    INITS,
    MLP,
    OUT,
    SLOTS,
    UNSUPPORTED,
    Answer,
    Candle,
    Raw,
    Slot,
    check_failed,
    doubles,
    good_arguments,
    line,
)
from .harness import HERE

TOLERANCE = 1e-4
Values = NDArray[np.float64]
Case = Mapping[str, Any]


def cases_of(folder: str) -> list[Case]:
    """Return all reference cases of a model, those that are cut at its positions among them."""
    cases: list[Case] = []
    for name in ("expected.json", "expected_more.json"):
        cases += json.loads((MODELS / folder / name).read_text())["cases"]
    return cases


def labels_of(folder: str) -> list[str]:
    table = json.loads((MODELS / folder / "config.json").read_text())["id2label"]
    return [table[str(index)] for index in range(len(table))]


def softmax(logits: object) -> Values:
    values = np.asarray(logits, np.float64)
    powers = np.exp(values - values.max(-1, keepdims=True))
    shares: Values = powers / powers.sum(-1, keepdims=True)
    return shares


Full = Callable[[str], Path]


def load(candle: Candle, *slots: Slot, full_length: Full | None = None) -> None:
    lines = [slot.init_line(full_length(slot.folder) if full_length else None) for slot in slots]
    assert candle.script(*lines) == [True] * len(slots)


def ask(candle: Candle, name: str, cases: Sequence[Case], *rest: object) -> list[Answer]:
    return candle.script(*(line(name, case["text"], *rest) for case in cases))


def test_a_good_call_of_every_function(candle: Candle) -> None:
    """With every slot filled; what the answers must be, the other tests say."""
    inits = [line(name, *good_arguments(name)) for name in INITS]
    assert candle.script(*inits) == [True] * len(INITS)
    handle = Raw(candle("candle_mlp_from_json", MLP))
    for name in sorted(set(FUNCTIONS) - set(INITS) - UNSUPPORTED - ALWAYS_FALSE_HERE):
        given = tuple(handle if value == Raw("h0") else value for value in good_arguments(name))
        answer = candle(name, *given)
        if name in FILLS:
            assert answer["status"] == 0, (name, answer)
            answer = answer["result"]
        if isinstance(answer, dict):
            assert answer.get("error") in (None, False), (name, answer)
            assert answer.get("predicted_class", 0) >= 0, (name, answer)
            assert answer.get("num_entities", 1) > 0, (name, answer)
            assert answer.get("batch_size", 1) > 0, (name, answer)
            assert answer.get("is_valid", True), (name, answer)
        elif FUNCTIONS[name]["returns"] == "void" or name == "safe_free":
            assert answer in (None, False), (name, answer)  # given NULL
        elif name != "get_lora_memory_usage":
            assert answer not in (None, False, -1), (name, answer)
    candle.script(line("candle_mlp_free", handle), "cleanup_dual_path_memory")


# ---- Classes ---------------------------------------------------------------------------------

SEQUENCES = [
    (slot, reader)
    for slot in SLOTS
    for reader in slot.readers
    if reader.startswith("classify_") and "token" not in reader and reader != "classify_nli"
]


@pytest.mark.parametrize(("slot", "reader"), SEQUENCES, ids=[f"{s.init}-{r}" for s, r in SEQUENCES])
def test_classes_and_probabilities(
    candle: Candle, full_length: Full, slot: Slot, reader: str
) -> None:
    if slot.folder == "modernbert-nli":  # its references are pairs
        pytest.skip("see test_the_modality_of_a_text")
    load(candle, slot, full_length=full_length)
    cases = cases_of(slot.folder)
    assert len(cases) >= 21
    labels = labels_of(slot.folder)
    answers = ask(candle, reader, cases)
    for case, answer in zip(cases, answers, strict=True):
        expected = softmax(case["logits"])
        assert answer["predicted_class"] == expected.argmax()
        assert answer["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)
        if "probabilities" in reader:
            assert answer["num_classes"] == len(labels)
            np.testing.assert_allclose(answer["probabilities"], expected, atol=TOLERANCE)
            assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
        if answer.get("label") is not None:
            assert answer["label"] == labels[answer["predicted_class"]]
    assert len({answer["predicted_class"] for answer in answers}) > 1


def test_the_modality_of_a_text(candle: Candle) -> None:
    """The three classes of the tiny model, whose references are pairs, against the engine's own."""
    slot = next(each for each in SLOTS if each.init == "init_mmbert_32k_modality_classifier")
    load(candle, slot, nli_slot())
    for case in cases_of("modernbert-seq-mean")[:5]:
        (answer,) = candle.script(line("classify_mmbert_32k_modality", case["text"]))
        assert answer["predicted_class"] in (0, 1, 2)
        assert 1 / 3 <= answer["confidence"] <= 1


def nli_slot() -> Slot:
    return next(slot for slot in SLOTS if slot.init == "init_nli_model")


def test_inference_of_pairs(candle: Candle, full_length: Full) -> None:
    load(candle, nli_slot(), full_length=full_length)
    assert candle("is_nli_model_initialized") is True
    fits = [case for case in cases_of("modernbert-nli") if case.get("token_count", 0) <= 512]
    assert len(fits) > 20
    lines = [line("classify_nli", case["text"], case["text_pair"]) for case in fits]
    for case, answer in zip(fits, candle.script(*lines), strict=True):
        expected = softmax(case["logits"])
        assert (answer["error"], answer["error_message"]) == (False, None)
        assert answer["label"] == expected.argmax()
        assert answer["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)
        found = [answer[f"{name}_prob"] for name in ("entailment", "neutral", "contradiction")]
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)


# ---- Entities --------------------------------------------------------------------------------


def expected_entities(folder: str, case: Case, least: float) -> list[tuple[str, int, int, float]]:
    """Merge the reference's tokens by the rule of semantic.h; keep what is above ``least``."""
    text, offsets = case["text"], []
    for start, end in case["offsets_chars"]:
        piece = text[start:end]  # byte-level tokens count a blank in
        start += len(piece) - len(piece.lstrip())
        offsets.append([start, start + len(piece.strip())])
    found = merge(text, offsets, case["logits"], labels_of(folder))
    return [
        (
            str(each["label"]),
            int(str(each["start"])),
            int(str(each["end"])),
            float(str(each["score"])),
        )
        for each in found
        if float(str(each["score"])) > least
    ]


def is_plain(case: Case) -> bool:
    """Tell whether the rule says all of a text.

    Where the model's length cuts, windows answer what no one window of the reference says. Tokens
    of blanks alone, and several of one character, the tests of the engine see to.
    """
    offsets = case["offsets_chars"][1:-1]
    whole = case.get("token_count", 0) == case.get("scored_token_count", 0)
    apart = all(one[1] <= two[0] for one, two in itertools.pairwise(offsets))
    return whole and apart and all(case["text"][start:end].strip() for start, end in offsets)


TOKENS = (
    ("init_bert_token_classifier", "classify_bert_pii_tokens", (None,), 0.5),
    ("init_candle_bert_token_classifier", "classify_candle_bert_tokens", (), 0.5),
    ("init_candle_bert_token_classifier", "classify_candle_bert_tokens_with_labels", ("",), 0.5),
    ("init_bert_token_classifier", "classify_candle_bert_tokens", (), 0.5),
    ("init_bert_token_classifier", "classify_candle_bert_tokens_with_labels", ("",), 0.5),
    ("init_modernbert_pii_token_classifier", "classify_candle_bert_tokens", (), 0.5),
    (
        "init_modernbert_pii_token_classifier",
        "classify_modernbert_pii_tokens",
        (MODELS / "modernbert-token" / "config.json",),
        0.5,
    ),
    ("init_mmbert_32k_pii_classifier", "classify_mmbert_32k_pii_tokens", (), 0.0),
)


@pytest.mark.parametrize(("init", "reader", "rest", "least"), TOKENS)
def test_entities(
    candle: Candle,
    full_length: Full,
    init: str,
    reader: str,
    rest: tuple[object, ...],
    least: float,
) -> None:
    """Types, byte ranges, their text and confidence; no special token, nothing of class 0."""
    slot = next(slot for slot in SLOTS if slot.init == init)
    load(candle, slot, full_length=full_length)
    cases = [case for case in cases_of(slot.folder) if is_plain(case)]
    assert len(cases) >= 8
    count = 0
    for case, answer in zip(cases, ask(candle, reader, cases, *rest), strict=True):
        expected = expected_entities(slot.folder, case, least)
        found = answer["entities"] or []
        assert answer["num_entities"] == len(found)
        near = [each for each in expected if abs(each[3] - least) > TOLERANCE]
        assert [(e["entity_type"], e["start"], e["end"]) for e in found] == [
            each[:3] for each in near
        ], case["text"]
        data = case["text"].encode()
        for each, (_, start, end, score) in zip(found, near, strict=True):
            assert each["text"] == data[start:end].decode()
            assert each["confidence"] == pytest.approx(score, abs=TOLERANCE)
        count += len(found)
    assert count > 50


# ---- Vectors ---------------------------------------------------------------------------------


def similarity_slot() -> Slot:
    return next(slot for slot in SLOTS if slot.init == "init_similarity_model")


def cut(vector: object, dimension: int) -> Values:
    """Return the first numbers, at unit length again."""
    values = np.asarray(vector, np.float64)[:dimension]
    shorter: Values = values / np.linalg.norm(values)
    return shorter


@pytest.mark.parametrize("length", [0, -1, 512, 128])
def test_the_similarity_model_embeds(candle: Candle, full_length: Full, length: int) -> None:
    load(candle, similarity_slot(), full_length=full_length)
    assert candle("is_similarity_model_initialized") is True
    cases = cases_of("bert-embed-mean")
    for case, answer in zip(cases, ask(candle, "get_text_embedding", cases, length), strict=True):
        assert (answer["error"], answer["length"], answer["model_type"]) == (False, 64, -1)
        np.testing.assert_allclose(answer["data"], case["embedding"], atol=TOLERANCE)


def test_similarities(candle: Candle) -> None:
    load(candle, similarity_slot())
    cases = cases_of("bert-embed-mean")[:8]
    vectors = np.array([case["embedding"] for case in cases])
    texts = [case["text"] for case in cases]
    for row, text in enumerate(texts):
        found = candle("calculate_similarity", text, texts[0], 0)
        assert found == pytest.approx(vectors[row] @ vectors[0], abs=TOLERANCE)
    for row, text in enumerate(texts):
        others = [each for each in texts if each != text]
        scores = np.delete(vectors, row, 0) @ vectors[row]
        best = candle("find_most_similar", text, others, len(others), 0)
        assert best["index"] == scores.argmax()
        assert best["similarity"] == pytest.approx(scores.max(), abs=TOLERANCE)
    tied = candle("find_most_similar", texts[0], [texts[1], texts[0], texts[0]], 3, 0)
    assert tied["index"] == 1


def test_tokens(candle: Candle) -> None:
    load(candle, similarity_slot())
    tokenizer = json.loads((MODELS / "bert-embed-mean" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    cases = [case for case in cases_of("bert-embed-mean") if "input_ids" in case]
    for case, answer in zip(cases, ask(candle, "tokenize_text", cases, 0), strict=True):
        assert answer["error"] is False
        assert answer["token_ids"] == case["input_ids"]
        assert answer["token_count"] == len(case["input_ids"])
        known = {**vocabulary, **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
        assert [known[text] for text in answer["tokens"]] == case["input_ids"]


NAMES = {
    "qwen3": ("qwen3-embed-last", 0),
    "gemma": ("gemma3-embed-mean", 1),
    "mmbert": ("mmbert-embed-mean", 2),
}


def load_embeddings(candle: Candle, full_length: Full | None = None) -> None:
    for name in ("init_embedding_models_with_mmbert", "init_embedding_models_batched"):
        given = good_arguments(name)
        if full_length is not None:
            given = tuple(full_length(v.name) if isinstance(v, Path) else v for v in given)
        assert candle(name, *given) is True


@pytest.mark.parametrize("model", NAMES)
def test_embeddings_by_name(candle: Candle, full_length: Full, model: str) -> None:
    load_embeddings(candle, full_length)
    folder, number = NAMES[model]
    cases = cases_of(folder)
    for function, rest in (
        ("get_embedding_with_model_type", (0, OUT)),
        ("get_embedding_2d_matryoshka", (0, 0, OUT)),
        ("get_embedding_2d_matryoshka", (-1, -1, OUT)),
    ):
        lines = [line(function, case["text"], model, *rest) for case in cases]
        for case, answer in zip(cases, candle.script(*lines), strict=True):
            assert answer["status"] == 0
            result = answer["result"]
            assert (result["error"], result["length"], result["model_type"]) == (False, 64, number)
            assert result["sequence_length"] == len(case["text"].split())
            assert result["processing_time_ms"] > 0
            np.testing.assert_allclose(result["data"], case["embedding"], atol=TOLERANCE)


def test_batched_embeddings(candle: Candle, full_length: Full) -> None:
    load_embeddings(candle, full_length)
    cases = cases_of("qwen3-embed-last")
    lines = [line("get_embedding_batched", case["text"], "qwen3", 0, OUT) for case in cases]
    answers = candle.at_once(*lines)
    for case, answer in zip(cases, answers, strict=True):
        result = answer["result"]
        assert (answer["status"], result["error"], result["model_type"]) == (0, False, 0)
        # Those of the whole text, also where fewer were scored.
        assert result["sequence_length"] == (case.get("token_count") or len(case["input_ids"]))
        np.testing.assert_allclose(result["data"], case["embedding"], atol=TOLERANCE)
    assert candle("shutdown_embedding_batched") is None
    for name in ("gemma", "mmbert", "Qwen3", "auto", ""):
        assert candle("get_embedding_batched", "a", name, 0, OUT)["status"] == -1


def test_embeddings_of_fewer_dimensions(candle: Candle) -> None:
    load_embeddings(candle)
    for model, (folder, _) in NAMES.items():
        for case, dimension in itertools.product(cases_of(folder)[:4], (1, 2, 63, 64)):
            answer = candle("get_embedding_with_model_type", case["text"], model, dimension, OUT)
            assert answer["status"] == 0, (model, dimension)
            expected = cut(case["embedding"], dimension)
            np.testing.assert_allclose(answer["result"]["data"], expected, atol=TOLERANCE)
            assert np.linalg.norm(answer["result"]["data"]) == pytest.approx(1, abs=1e-5)


# By transformers: the model with all but its first n layers taken away, for each n; the mean of its
# last hidden state, at unit length.
LAYERS = json.loads((HERE / "candle_layers.json").read_text())


def test_embeddings_after_fewer_layers(candle: Candle) -> None:
    """As of a model of so many layers; the folder itself lists none."""
    load_embeddings(candle)
    assert LAYERS["layers"] == 4
    for case, layer, dimension in itertools.product(LAYERS["cases"], (3, 4), (0, 16)):
        answer = candle(
            "get_embedding_2d_matryoshka", case["text"], "mmbert", layer, dimension, OUT
        )
        expected = cut(case["embeddings"][layer - 1], dimension or 64)
        np.testing.assert_allclose(answer["result"]["data"], expected, atol=TOLERANCE)
    for layer in (1, 2, 5, 6, 22, 2**31 - 1):
        answer = candle("get_embedding_2d_matryoshka", "math", "mmbert", layer, 0, OUT)
        check_failed("get_embedding_2d_matryoshka", answer)
        # The others have none that could be asked for, and answer with all of them.
        for model in ("qwen3", "gemma"):
            answer = candle("get_embedding_2d_matryoshka", "math", model, layer, 0, OUT)
            assert answer["status"] == 0


# ---- Routing: quality, latency, words, dimension, the model that answers ---------------------

ROUTES = (
    (0.9, 0.1, 3, 0, "qwen3"),
    (0.1, 0.9, 3, 0, "gemma"),
    (0.5, 0.5, 3, 0, "qwen3"),
    (0.9, 0.9, 3, 0, "qwen3"),
    (0.7, 0.7, 3, 0, "qwen3"),  # strictly above
    (0.7, 0.71, 3, 0, "gemma"),
    (0.71, 0.71, 512, 0, "qwen3"),
    (0.9, 0.1, 513, 0, "gemma"),
    (0.1, 0.1, 2048, 0, "gemma"),
    (0.1, 0.9, 2049, 0, "qwen3"),
    (0.9, 0.5, 3, 32, "qwen3"),  # strictly above
    (0.9, 0.51, 3, 32, "gemma"),
    (0.1, 0.51, 2049, 32, "gemma"),
    (float("nan"), float("nan"), 3, 0, "qwen3"),
    (-1.0, 2.0, 3, 0, "gemma"),
)


def test_routing(candle: Candle) -> None:
    load_embeddings(candle)
    for route in ROUTES:
        quality, latency, words, dimension, model = route
        text = " ".join(["math"] * words)
        answer = candle("get_embedding_with_dim", text, quality, latency, dimension, OUT)
        assert answer["status"] == 0, route
        assert answer["result"]["model_type"] == NAMES[model][1], route
        assert answer["result"]["sequence_length"] == words
        assert answer["result"]["length"] == (dimension or 64)
        if not dimension:
            smart = candle("get_embedding_smart", text, quality, latency, OUT)["result"]
            for one in (smart, answer["result"]):
                one["processing_time_ms"] = 0
            assert smart == answer["result"]


@pytest.mark.parametrize(
    ("loaded", "wanted", "answers"),
    [
        (("qwen3",), "gemma", "qwen3"),
        (("gemma",), "qwen3", "gemma"),
        (("mmbert",), "qwen3", "mmbert"),
        (("mmbert",), "gemma", "mmbert"),
        (("gemma", "mmbert"), "qwen3", "mmbert"),
        (("qwen3", "mmbert"), "gemma", "mmbert"),
    ],
)
def test_routing_to_what_is_there(
    candle: Candle, loaded: tuple[str, ...], wanted: str, answers: str
) -> None:
    paths = [MODELS / NAMES[name][0] if name in loaded else None for name in NAMES]
    assert candle("init_embedding_models_with_mmbert", *paths, True) is True
    quality = 0.9 if wanted == "qwen3" else 0.1
    answer = candle("get_embedding_smart", "math", quality, 1 - quality, OUT)
    assert answer["result"]["model_type"] == NAMES[answers][1]
    for name in NAMES:
        answer = candle("get_embedding_with_model_type", "math", name, 0, OUT)
        assert answer["status"] == (0 if name in loaded else -1)


def test_too_many_words(candle: Candle) -> None:
    load_embeddings(candle)
    assert candle("get_embedding_smart", "a " * 32769, 0.5, 0.5, OUT)["status"] == -1


# ---- Pairs and batches of vectors ------------------------------------------------------------


@pytest.mark.parametrize("model", ["qwen3", "gemma", "auto"])
def test_similarity_of_a_pair(candle: Candle, model: str) -> None:
    load_embeddings(candle)
    folder, number = NAMES["qwen3" if model == "auto" else model]
    cases = cases_of(folder)[:6]
    for case in cases:
        for dimension in (0, 16, 64):
            answer = candle(
                "calculate_embedding_similarity",
                *(case["text"], cases[0]["text"], model, dimension, OUT),
            )
            left, right = (cut(c["embedding"], dimension or 64) for c in (case, cases[0]))
            result = answer["result"]
            assert (answer["status"], result["error"]) == (0, False)
            assert result["model_type"] == number
            assert result["similarity"] == pytest.approx(left @ right, abs=TOLERANCE)


def test_a_pair_of_lengths_that_are_routed_apart(candle: Candle) -> None:
    """One model answers for both texts."""
    load_embeddings(candle)
    long = " ".join(["math"] * 600)
    for pair in ((long, "math"), ("math", long)):
        answer = candle("calculate_embedding_similarity", *pair, "auto", 0, OUT)
        assert answer["status"] == 0
        name = next(
            n for n, (_, number) in NAMES.items() if number == answer["result"]["model_type"]
        )
        fixed = candle("calculate_embedding_similarity", *pair, name, 0, OUT)
        assert fixed["result"]["similarity"] == pytest.approx(
            answer["result"]["similarity"], abs=1e-5
        )


@pytest.mark.parametrize("model", ["qwen3", "gemma"])
def test_the_most_similar_of_a_batch(candle: Candle, model: str) -> None:
    load_embeddings(candle)
    folder, number = NAMES[model]
    cases = cases_of(folder)[:8]
    query, *others = cases
    scores = np.array([cut(c["embedding"], 64) @ cut(query["embedding"], 64) for c in others])
    order = sorted(range(len(others)), key=lambda index: -scores[index])
    texts = [case["text"] for case in others]
    for top_k in (0, -1, 1, 3, 7, 8, 100, -(2**31), 2**31 - 1):
        count = len(others) if top_k <= 0 else min(top_k, len(others))
        answer = candle(
            "calculate_similarity_batch", query["text"], texts, len(texts), top_k, model, 0, OUT
        )
        result = answer["result"]
        assert (answer["status"], result["error"], result["model_type"]) == (0, False, number)
        assert result["num_matches"] == count, top_k
        assert [match["index"] for match in result["matches"]] == order[:count]
        found = [match["similarity"] for match in result["matches"]]
        np.testing.assert_allclose(found, scores[order[:count]], atol=TOLERANCE)


def test_ties_keep_their_order(candle: Candle) -> None:
    load_embeddings(candle)
    texts = ["law", "math", "law", "math", "law"]
    answer = candle("calculate_similarity_batch", "math", texts, 5, 0, "qwen3", 0, OUT)
    assert [match["index"] for match in answer["result"]["matches"]] == [1, 3, 0, 2, 4]


@pytest.mark.parametrize("loaded", ["qwen3", "gemma"])
def test_a_batch_by_what_is_there(candle: Candle, loaded: str) -> None:
    """Short texts and long ones, with only one of the two models."""
    paths = [MODELS / NAMES[name][0] if name == loaded else None for name in ("qwen3", "gemma")]
    assert candle("init_embedding_models", *paths, True) is True
    for text in ("math", "math " * 200):
        answer = candle("calculate_similarity_batch", text, [text, "law"], 2, 1, "auto", 0, OUT)
        assert answer["status"] == 0
        assert answer["result"]["model_type"] == NAMES[loaded][1]
        assert answer["result"]["matches"][0]["index"] == 0


@pytest.mark.parametrize("init", EMBEDDING_INITS)
def test_what_is_told_of_embedding_models(candle: Candle, init: str) -> None:
    before = candle("get_embedding_models_info", OUT)
    assert before["status"] == -1
    assert candle(init, *good_arguments(init)) is True
    answer = candle("get_embedding_models_info", OUT)
    if init == "init_embedding_models_batched":
        assert answer["status"] == -1
        return
    assert answer["status"] == 0
    models = answer["result"]["models"]
    assert [each["model_name"] for each in models[:2]] == ["qwen3", "gemma"]
    for each in models:
        folder = NAMES[each["model_name"]][0]
        if folder in EMBEDDING_INITS[init]:
            assert each["is_loaded"] is True
            # As the folder declares, not what its kind of model could have.
            assert (each["max_sequence_length"], each["default_dimension"]) == (128, 64)
            assert each["model_path"].endswith(folder)
        else:
            assert each == {
                "model_name": each["model_name"],
                "is_loaded": False,
                "model_path": "",
                "max_sequence_length": 0,
                "default_dimension": 0,
            }


# ---- Hallucinations --------------------------------------------------------------------------


@pytest.fixture
def hallucination(candle: Candle) -> Candle:
    load(candle, next(slot for slot in SLOTS if slot.init == "init_hallucination_model"))
    return candle


ANSWERS = (
    ("the router picks a model", "Who picks?", "the router picks the law"),
    ("the router picks a model", "", "café Zoë 数学 😀 picks the naïve math"),
    ("", "", "math"),
    ("数学 math " * 20, "¿qué?", "Zürich 机器学习模型 the end"),
)


@pytest.mark.parametrize(("context", "question", "answer"), ANSWERS)
def test_spans_are_bytes_of_the_answer(
    hallucination: Candle, context: str, question: str, answer: str
) -> None:
    data = answer.encode()
    found = hallucination("detect_hallucinations", context, question, answer, 0.5)
    assert (found["error"], found["error_message"]) == (False, None)
    assert found["has_hallucination"] is (found["num_spans"] > 0)
    spans = found["spans"] or []
    end = 0
    for span in spans:
        assert end <= span["start"] < span["end"] <= len(data)
        assert span["text"] == data[span["start"] : span["end"]].decode()
        assert span["label"] == "HALLUCINATED"
        assert 0.5 <= span["confidence"] <= 1
        end = span["end"]
    if spans:
        best = max(span["confidence"] for span in spans)
        assert found["confidence"] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("threshold", [0, -1, 1.5, 2, float("nan")])
def test_thresholds_outside_of_their_range_are_the_default(
    hallucination: Candle, threshold: float
) -> None:
    context, question, answer = ANSWERS[1]
    same = hallucination("detect_hallucinations", context, question, answer, 0.5)
    assert same["spans"]
    found = hallucination("detect_hallucinations", context, question, answer, threshold)
    assert found == same


def test_a_higher_threshold_leaves_less(hallucination: Candle) -> None:
    context, question, answer = ANSWERS[3]
    covered = []
    for threshold in (0.01, 0.5, 0.9, 0.999, 1):
        found = hallucination("detect_hallucinations", context, question, answer, threshold)
        spans = found["spans"] or []
        assert all(span["confidence"] >= threshold - 1e-6 for span in spans)
        covered.append(sum(span["end"] - span["start"] for span in spans))
    assert covered == sorted(covered, reverse=True)
    assert covered[0] > covered[-2]


def test_an_empty_answer_has_no_spans(hallucination: Candle) -> None:
    for name in ("detect_hallucinations", "detect_hallucinations_with_nli"):
        found = hallucination(name, "a context", "a question", "", 0.5)
        assert (found["error"], found["has_hallucination"], found["num_spans"]) == (False, False, 0)
        assert found["confidence"] == 1


SEVERITIES = {0: (1, "UNCERTAIN:"), 1: (2, "FABRICATION:"), 2: (4, "CONTRADICTION:")}


def test_spans_explained_by_inference(hallucination: Candle) -> None:
    load(hallucination, nli_slot())
    labels = set()
    for context, question, answer in ANSWERS:
        plain = hallucination("detect_hallucinations", context, question, answer, 0.5)
        found = hallucination("detect_hallucinations_with_nli", context, question, answer, 0.5)
        assert found["num_spans"] == plain["num_spans"]
        for span, before in zip(found["spans"] or [], plain["spans"] or [], strict=True):
            assert [span[key] for key in ("text", "start", "end")] == [
                before[key] for key in ("text", "start", "end")
            ]
            assert span["hallucination_confidence"] == pytest.approx(before["confidence"], abs=1e-5)
            premise = f"{context} {question}" if question else context
            nli = hallucination("classify_nli", premise, span["text"])
            assert span["nli_label"] == nli["label"]
            assert span["nli_confidence"] == pytest.approx(nli["confidence"], abs=TOLERANCE)
            severity, explanation = SEVERITIES[span["nli_label"]]
            assert span["severity"] == severity
            assert span["explanation"].startswith(explanation)
            labels.add(span["nli_label"])
        if found["spans"]:
            best = max(
                max(span["hallucination_confidence"], span["nli_confidence"])
                for span in found["spans"]
            )
            assert found["confidence"] == pytest.approx(best, abs=1e-5)
    assert labels


def test_spans_without_a_model_for_inference(hallucination: Candle) -> None:
    for context, question, answer in ANSWERS:
        found = hallucination("detect_hallucinations_with_nli", context, question, answer, 0.5)
        for span in found["spans"] or []:
            assert (span["nli_label"], span["nli_confidence"]) == (1, 0)
            assert span["severity"] == (3 if span["hallucination_confidence"] > 0.8 else 2)
            assert span["explanation"].startswith("Unsupported claim detected")


# ---- Batches of three answers ----------------------------------------------------------------

BATCHES = {
    "init_lora_unified_classifier": "classify_batch_with_lora",
    "init_unified_classifier_c": "classify_unified_batch",
}


@pytest.mark.parametrize("init", BATCHES)
def test_batches(candle: Candle, init: str) -> None:
    assert candle(init, *good_arguments(init)) is True
    reader = BATCHES[init]
    cases = cases_of("modernbert-seq-cls")[:10]
    texts = [case["text"] for case in cases]
    answer = candle(reader, texts, len(texts))
    assert answer["batch_size"] == len(texts)
    if init == "init_unified_classifier_c":
        assert (answer["error"], answer["error_message"]) == (False, None)
    labels = labels_of("modernbert-seq-cls")
    confidences = []
    for case, found in zip(cases, answer["intent_results"], strict=True):
        expected = softmax(case["logits"])
        assert found["category"] == labels[expected.argmax()]
        assert found["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)
        if found.get("probabilities") is not None:
            np.testing.assert_allclose(found["probabilities"], expected, atol=TOLERANCE)
        confidences.append(found["confidence"])
    tokens = {case["text"]: case for case in cases_of("modernbert-token")}
    for case, found in zip(cases, answer["pii_results"], strict=True):
        reference = expected_entities("modernbert-token", tokens[case["text"]], 0)
        types = list(dict.fromkeys(kind for kind, *_ in reference))
        assert (found["pii_types"] or []) == types
        assert found["has_pii"] is bool(types)
        assert found["num_pii_types"] == len(types)
        assert (found["confidence"] > 0) == (case["text"] != "")
        confidences.append(found["confidence"])
    folder = good_arguments(init)[2 if init == "init_lora_unified_classifier" else 3]
    name = str(folder).rsplit("/", 1)[-1]
    threats = {case["text"]: case for case in cases_of(name)}
    labels = labels_of(name)
    for case, found in zip(cases, answer["security_results"], strict=True):
        expected = softmax(threats[case["text"]]["logits"])
        label = labels[expected.argmax()]
        threat = label not in ("SAFE", "benign")
        assert found["is_jailbreak"] is threat
        assert found["threat_type"] == (label if threat else "none")
        assert found["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)
        confidences.append(found["confidence"])
    if "avg_confidence" in answer:
        assert answer["avg_confidence"] == pytest.approx(np.mean(confidences), abs=1e-5)
    one = candle(reader, texts[3:4], 1)
    assert one["intent_results"][0]["category"] == answer["intent_results"][3]["category"]


ADAPTERS = MODELS / "modernbert-lora-base" / "adapters"
OF_ADAPTERS = (
    ("init_jailbreak_classifier", (2,), "classify_jailbreak_text_with_probabilities"),
    ("init_candle_bert_classifier", (99,), "classify_candle_bert_text"),
    ("init_modernbert_classifier", (), "classify_modernbert_text_with_probabilities"),
    ("init_mmbert_32k_intent_classifier", (), "classify_mmbert_32k_intent"),
    ("init_fact_check_classifier", (), "classify_fact_check_text"),
)


def adapter_cases(adapter: str) -> list[Case]:
    expected = json.loads((MODELS / "modernbert-lora-base" / "expected.json").read_text())
    cases: list[Case] = expected["adapters"][adapter]
    return cases


@pytest.mark.parametrize("adapter", ["domain", "guard"])
@pytest.mark.parametrize(("init", "classes", "reader"), OF_ADAPTERS)
def test_adapters_in_slots(
    candle: Candle, init: str, classes: tuple[int, ...], reader: str, adapter: str
) -> None:
    """Folders of PEFT, whatever number of classes the caller thinks they have."""
    assert candle(init, ADAPTERS / adapter, *classes, True) is True
    cases = adapter_cases(adapter)
    for case, answer in zip(cases, ask(candle, reader, cases), strict=True):
        expected = softmax(case["logits"])
        assert answer["predicted_class"] == expected.argmax()
        assert answer["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)
        if "probabilities" in answer:
            np.testing.assert_allclose(answer["probabilities"], expected, atol=TOLERANCE)


@pytest.mark.parametrize("init", BATCHES)
def test_batches_of_adapters(candle: Candle, init: str) -> None:
    """Both adapters on one base, at the same moment with their own answers."""
    base, tokens = MODELS / "modernbert-lora-base", MODELS / "modernbert-token"
    folders = (ADAPTERS / "domain", tokens, ADAPTERS / "guard")
    if init == "init_lora_unified_classifier":
        given: tuple[object, ...] = (*folders, "bert", True)
    else:
        given = (base, *folders, *(["a"], 1) * 3, True)
    assert candle(init, *given) is True
    texts = [case["text"] for case in adapter_cases("domain")]
    answer = candle(BATCHES[init], texts, len(texts))
    assert answer["batch_size"] == len(texts) > 5
    for adapter, results in (("domain", "intent_results"), ("guard", "security_results")):
        for case, found in zip(adapter_cases(adapter), answer[results], strict=True):
            expected = softmax(case["logits"])
            assert found["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)


# ---- Selector --------------------------------------------------------------------------------

QUERIES = ([1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 1, 1], [0.1, 0.2, -3])


def chosen(query: Sequence[float]) -> str:
    """What the network of the table says, worked out here."""
    layers = json.loads(MLP)["layers"]
    hidden = np.array(layers[0]["weight"]) @ np.array(query) + np.array(layers[0]["bias"])
    out = np.array(layers[3]["weight"]) @ np.maximum(hidden, 0)
    # The last of equal ones wins.
    best = len(out) - 1 - int(out[::-1].argmax())
    return str(json.loads(MLP)["model_names"][best])


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("candle_mlp_from_json", ()),
        *(("candle_mlp_from_json_with_device", (device,)) for device in (0, 1, 2, 9)),
        *(("candle_mlp_from_json_with_device_and_dtype", (0, dtype)) for dtype in (0, 1, 2, 9)),
    ],
)
def test_the_selector(candle: Candle, name: str, rest: tuple[int, ...]) -> None:
    handle = Raw(candle(name, MLP, *rest))
    assert candle("candle_mlp_is_trained", handle) == 1
    found = [candle("candle_mlp_select", handle, doubles(query), 3) for query in QUERIES]
    assert found == [chosen(query) for query in QUERIES]
    assert set(found) == {"small", "large"}
    again = candle("candle_mlp_to_json", handle)
    copy = Raw(candle("candle_mlp_from_json", again))
    assert [candle("candle_mlp_select", copy, doubles(query), 3) for query in QUERIES] == found
    written = json.loads(again)
    assert {
        key: written[key] for key in ("algorithm", "trained", "model_names", "feature_dim")
    } == {
        "algorithm": "mlp",
        "trained": True,
        "model_names": ["small", "large"],
        "feature_dim": 3,
    }
    for each in (handle, copy):
        assert candle("candle_mlp_free", each) is None


def test_selectors_are_independent_and_used_at_once(candle: Candle) -> None:
    swapped = json.dumps(json.loads(MLP) | {"model_names": ["other", "another"]})
    first = Raw(candle("candle_mlp_from_json", MLP))
    second = Raw(candle("candle_mlp_from_json", swapped))
    names = {"small": "other", "large": "another"}
    lines = [
        line("candle_mlp_select", handle, doubles(query), 3)
        for query in QUERIES
        for handle in (first, second)
    ]
    answers = candle.at_once(*lines)
    expected = [name for query in QUERIES for name in (chosen(query), names[chosen(query)])]
    assert answers == expected
    assert candle("candle_mlp_free", first) is None
    assert candle("candle_mlp_select", second, doubles(QUERIES[0]), 3) == names[chosen(QUERIES[0])]
    assert candle("candle_mlp_free", second) is None


# ---- Validation and memory -------------------------------------------------------------------

GOOD, LORA = "a text of some length", 1
VALIDATIONS = (
    ("validate_text_input", (GOOD, 0), 0),
    ("validate_text_input", (GOOD, LORA), 0),
    ("validate_text_input", ("", 0), 4),
    ("validate_text_input", ("x" * 10_000, 0), 0),
    ("validate_text_input", ("x" * 10_001, 0), 3),
    ("validate_text_input", ("é" * 5_000, 0), 0),
    ("validate_text_input", ("é" * 5_001, 0), 3),
    ("validate_text_input", ("line\nline\ttab\r", 0), 0),
    ("validate_text_input", ("bell\x07", 0), 200),
    ("validate_text_input", ("123456789", LORA), 100),
    ("validate_text_input", ("1234567890", LORA), 0),
    ("validate_text_input", (GOOD, 2), 100),
    ("validate_text_input", (GOOD, -1), 100),
    ("validate_batch_input", ([GOOD] * 2, 2, 0), 0),
    ("validate_batch_input", ([GOOD] * 100, 100, 0), 0),
    ("validate_batch_input", ([GOOD] * 101, 101, 0), 200),
    ("validate_batch_input", ([GOOD], 1, LORA), 100),
    ("validate_batch_input", ([GOOD] * 1000, 1000, LORA), 0),
    ("validate_batch_input", ([GOOD] * 1001, 1001, LORA), 5),
    ("validate_batch_input", ([GOOD], 0, 0), 5),
    ("validate_batch_input", ([GOOD], -1, 0), 5),
    ("validate_batch_input", ([GOOD, ""], 2, 0), 4),
    ("validate_batch_input", ([GOOD, None], 2, 0), 1),
    ("validate_model_path", ("models/bert-base", 0), 0),
    ("validate_model_path", ("models/traditional", 0), 0),
    ("validate_model_path", ("models/gpt", 0), 200),
    ("validate_model_path", ("models/lora_x", LORA), 0),
    ("validate_model_path", ("an/adapter", LORA), 0),
    ("validate_model_path", ("models/bert", LORA), 100),
    ("validate_model_path", ("", 0), 7),
    ("validate_model_path", ("bert" + "x" * 997, 0), 7),
    ("validate_confidence_threshold", (0.5, 0), 0),
    ("validate_confidence_threshold", (0.49, 0), 200),
    ("validate_confidence_threshold", (0.8, LORA), 0),
    ("validate_confidence_threshold", (0.79, LORA), 100),
    ("validate_confidence_threshold", (-0.1, 0), 6),
    ("validate_confidence_threshold", (1.1, 0), 6),
    ("validate_confidence_threshold", (float("nan"), 0), 6),
    ("validate_memory_parameters", (1, 1), 0),
    ("validate_memory_parameters", (2**30, 4096), 0),
    ("validate_memory_parameters", (0, 8), 9),
    ("validate_memory_parameters", (2**30 + 1, 8), 9),
    ("validate_memory_parameters", (64, 0), 9),
    ("validate_memory_parameters", (64, 3), 9),
)


@pytest.mark.parametrize(("name", "values", "code"), VALIDATIONS)
def test_validation(candle: Candle, name: str, values: tuple[object, ...], code: int) -> None:
    answer = candle(name, *values)
    assert (answer["is_valid"], answer["error_code"]) == (code == 0, code)
    if code == 0:
        assert (answer["error_message"], answer["suggestions"]) == (None, None)
    else:
        assert answer["error_message"]
        assert GOOD not in answer["error_message"]


def test_an_item_of_a_batch_is_named(candle: Candle) -> None:
    answer = candle("validate_batch_input", [GOOD, GOOD, ""], 3, 0)
    assert answer["error_message"].startswith("Batch item 2: ")


@pytest.mark.parametrize("alloc", ["safe_alloc_traditional", "safe_alloc_lora"])
def test_blocks(candle: Candle, alloc: str) -> None:
    used = candle("get_lora_memory_usage")
    assert used == 0
    handle = Raw(candle(alloc, 1000))
    assert handle != "null"
    assert candle("get_memory_safety_status") is True
    assert candle("safe_free", handle) is True
    assert candle("safe_free", handle) is False
    assert candle("safe_free", None) is False
    assert candle("get_lora_memory_usage") == 0


def test_blocks_that_are_not_freed(candle: Candle) -> None:
    (status,) = candle.script("get_memory_safety_status")
    assert status is True
    answers = candle.script(*[line("safe_alloc_lora", 8)] * 30)
    assert None not in answers
    assert candle("cleanup_dual_path_memory") is None
    assert candle("safe_free", Raw(answers[0])) is False
    assert candle("safe_alloc_lora", 2**62) is None
