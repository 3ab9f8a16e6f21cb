"""What candle's verbs decide by themselves: names, limits, variants, spans, kinds, verdicts."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from cffi import FFI

from libsemantic.engine.config import RunOptions
from libsemantic.engine.errors import (
    BadArtifactError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    SemanticError,
    TooLongError,
)
from libsemantic.engine.registry import Registry
from libsemantic.engine.results import Rows, TokenClassification
from libsemantic.ffi.candle import (
    batches,
    classifying,
    finding,
    grounding,
    loading,
    routing,
    variants,
)
from libsemantic.ffi.candle.answers import Interned
from libsemantic.ffi.candle.arguments import Name, Text, Texts
from libsemantic.ffi.candle.attach import VERBS
from libsemantic.ffi.candle.context import Context
from libsemantic.ffi.candle.hub import local_folder
from libsemantic.ffi.candle.selectors import Selectors
from libsemantic.ffi.candle.slots import Slots
from libsemantic.ffi.candle.table import FREE, PLAIN, ROWS, SLOTS

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
Copy = Callable[[str, Mapping[str, object]], Path]
CONTEXT_OF = {row.function: row for row in ROWS}
TEXT = Text("My email is jane.roe@example.org and I live in Zürich".encode())


@pytest.fixture
def context(registry: Registry) -> Callable[[str], Context]:
    """Give a function that makes the context of a C function."""
    slots, labels, selectors = Slots(registry), Interned(FFI()), Selectors()
    return lambda function: Context(CONTEXT_OF[function], slots, labels, selectors)


def test_every_row_has_a_verb_and_slots_that_are_there() -> None:
    assert len({row.function for row in ROWS}) == len(ROWS) == 138
    assert {row.verb for row in ROWS} - {FREE, PLAIN} <= VERBS.keys()
    used = {slot for row in ROWS for slot in row.slots}
    assert used == SLOTS.keys()
    loaded = {slot for row in ROWS if row.verb.startswith("load") for slot in row.slots}
    assert loaded == SLOTS.keys()


# ---- names of the hub


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a cache with one model, as huggingface_hub lays it out."""
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    repository = tmp_path / "hub" / "models--org--model"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd\n")
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "folder"), [("HF_HUB_CACHE", "hub"), ("HF_HOME", ""), ("HOME", "home")]
)
def test_a_repository_name_is_found_in_the_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch, variable: str, folder: str
) -> None:
    if variable == "HOME":
        (cache / "home" / ".cache" / "huggingface").mkdir(parents=True)
        (cache / "hub").rename(cache / "home" / ".cache" / "huggingface" / "hub")
    monkeypatch.setenv(variable, str(cache / folder))
    assert local_folder("org/model").endswith("/models--org--model/snapshots/0123abcd")
    for other in ("org/other", "model", "Org/model"):
        with pytest.raises(NotFoundError, match="nothing is downloaded"):
            local_folder(other)


def test_paths_stand_for_themselves(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(cache / "hub"))
    for path in ("/nowhere", "./org/model", "../model", "a/b/c", "org/model/", "über/model"):
        assert local_folder(path) == path
    monkeypatch.chdir(cache)
    (cache / "org" / "model").mkdir(parents=True)
    assert local_folder("org/model") == "org/model"
    with pytest.raises(InvalidArgumentError, match="the path is empty"):
        local_folder("")


def test_a_reference_leads_to_no_other_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(cache / "hub"))
    (cache / "hub" / "models--org--model" / "refs" / "main").write_text("../../..")
    with pytest.raises(NotFoundError):
        local_folder("org/model")


# ---- limits


@pytest.mark.parametrize(
    ("variable", "positions", "declared", "limit"),
    [
        ("", 512, 128, 128),
        ("", 512, 512, 512),
        ("", 32768, 32768, 8192),
        ("512", 32768, 32768, 512),
        ("512", 128, 128, 128),
        ("512", 512, 128, 512),
        ("16384", 32768, 8192, 16384),
        ("99999", 32768, 8192, 32768),
    ],
)
def test_the_limit_of_tokens(
    context: Callable[[str], Context],
    copy_golden: Copy,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    positions: int,
    declared: int,
    limit: int,
) -> None:
    monkeypatch.setenv("SEMANTIC_CANDLE_MAX_TOKENS", variable)
    folder = copy_golden(
        "modernbert-seq-cls",
        {
            "config.json": {"max_position_embeddings": positions},
            "tokenizer_config.json": {"model_max_length": declared},
        },
    )
    slots = context("init_modernbert_classifier").slots
    assert loading.load(context("init_modernbert_classifier"), Name(str(folder)), True)
    assert slots.registry.info(slots.first(["modernbert"])).max_tokens == limit


@pytest.mark.parametrize("variable", ["0", "-1", "many", "1e3", "٣", str(2**31), " 512"])
def test_a_limit_that_is_none_fails_the_load(
    context: Callable[[str], Context], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("SEMANTIC_CANDLE_MAX_TOKENS", variable)
    with pytest.raises(InvalidArgumentError, match="SEMANTIC_CANDLE_MAX_TOKENS is"):
        loading.load(
            context("init_modernbert_classifier"), Name(str(GOLDEN / "modernbert-seq-cls")), True
        )


# ---- loading


@pytest.mark.parametrize(
    ("function", "verb", "adapters"),
    [
        ("init_classifier", loading.load_counted, False),
        ("init_candle_bert_classifier", loading.load_counted_or_adapter, True),
    ],
)
def test_the_number_of_classes(
    context: Callable[[str], Context],
    copy_golden: Copy,
    function: str,
    verb: Callable[[Context, Name, int, bool], bool],
    adapters: bool,
) -> None:
    path = Name(str(GOLDEN / "bert-seq"))
    for count in (-1, 0, 1):
        with pytest.raises(InvalidArgumentError, match="give 2 or more"):
            verb(context(function), path, count, True)
    for count in (2, 6, 8):
        with pytest.raises(BadArtifactError, match=f"has 7 labels, {count} were asked for"):
            verb(context(function), path, count, True)
    assert context(function).slots.registry.list_models().count == 0
    merged = Name(str(copy_golden("bert-seq", {"lora_config.json": {"rank": 8}})))
    if adapters:
        assert verb(context(function), merged, 2, True)
    else:
        with pytest.raises(BadArtifactError, match="has 7 labels"):
            verb(context(function), merged, 2, True)
        assert verb(context(function), path, 7, True)


def test_three_classifiers_are_loaded_all_or_none(context: Callable[[str], Context]) -> None:
    def load(*names: str) -> bool:
        first, second, third = (Name(str(GOLDEN / name)) for name in names)
        where = context("init_lora_unified_classifier")
        return batches.load_lora(where, first, second, third, Name("bert"), True)

    registry = context("init_lora_unified_classifier").slots.registry
    with pytest.raises(NotFoundError, match="no-model"):
        load("bert-seq", "bert-token", "no-model")
    assert registry.list_models().count == 0
    assert load("bert-seq", "bert-token", "deberta-v3-seq")
    handles = registry.list_models().model_id.tolist()
    assert load("bert-seq", "bert-token", "deberta-v3-seq")
    assert registry.list_models().model_id.tolist() == handles


@pytest.mark.parametrize(
    ("function", "model", "counted", "labels"),
    [
        ("init_modernbert_classifier", "modernbert-seq-mean", None, 2),
        ("init_nli_model", "modernbert-nli", None, 3),
        ("init_fact_check_classifier", "modernbert-seq-cls", 7, 7),
        ("init_hallucination_model", "modernbert-hallucination", None, 2),
    ],
)
def test_labels_without_names_are_counted(
    context: Callable[[str], Context],
    copy_golden: Copy,
    registry: Registry,
    function: str,
    model: str,
    counted: int | None,
    labels: int,
) -> None:
    changes = {"id2label": None, "label2id": None, "num_labels": counted}
    folder = copy_golden(model, {"config.json": changes})
    assert loading.load(context(function), Name(str(folder)), True)
    (handle,) = registry.list_models().model_id.tolist()
    info = registry.info(handle)
    assert info.labels == tuple(f"LABEL_{index}" for index in range(labels))
    assert f"nothing names the labels; they are LABEL_0 to LABEL_{labels - 1}" in info.warnings


def test_the_caller_counts_labels_without_names(
    context: Callable[[str], Context], copy_golden: Copy
) -> None:
    where = context("init_classifier")
    folder = copy_golden("bert-seq", {"config.json": {"id2label": None, "label2id": None}})
    for count in (2, 6, 8):
        with pytest.raises(BadArtifactError, match=f"the labels are {count}"):
            loading.load_counted(where, Name(str(folder)), count, True)
    assert loading.load_counted(where, Name(str(folder)), 7, True)


def test_entities_have_names(context: Callable[[str], Context], copy_golden: Copy) -> None:
    changes = {"id2label": None, "label2id": None, "num_labels": 7}
    folder = copy_golden("modernbert-token", {"config.json": changes})
    with pytest.raises(BadArtifactError, match="neither id2label nor label2id"):
        loading.load(context("init_mmbert_32k_pii_classifier"), Name(str(folder)), True)
    # Without an O label 0 stands for it.
    plain = {"id2label": {str(index): f"LABEL_{index}" for index in range(7)}, "label2id": None}
    folder = copy_golden("modernbert-token", {"config.json": plain})
    assert loading.load(context("init_mmbert_32k_pii_classifier"), Name(str(folder)), True)
    found = finding.find_entities(context("classify_mmbert_32k_pii_tokens"), TEXT)
    assert "LABEL_0" not in found.entities.entity_type
    assert found.num_entities == len(found.entities.start) > 5


# ---- variants of ModernBERT


STRETCHED = {"rope_scaling_type": "yarn", "model_max_length": 32768}
BIG = {"vocab_size": 256000}


@pytest.mark.parametrize(
    ("config", "training", "expected"),
    [
        ({}, None, "STANDARD"),
        (BIG, None, "STANDARD"),
        (BIG | {"position_embedding_type": "sans_pos"}, None, "MULTILINGUAL"),
        (
            BIG | {"position_embedding_type": "sans_pos", "max_position_embeddings": 16384},
            None,
            "MULTILINGUAL_32K",
        ),
        (
            BIG | {"position_embedding_type": "sans_pos", "global_rope_theta": 160000.0},
            None,
            "MULTILINGUAL_32K",
        ),
        (BIG | {"global_rope_theta": 100000}, STRETCHED, "MULTILINGUAL_32K"),
        (BIG | {"global_rope_theta": 99999}, STRETCHED, "STANDARD"),
        (
            {"position_embedding_type": "sans_pos", "max_position_embeddings": 8192},
            None,
            "STANDARD",
        ),
        (
            {"position_embedding_type": "sans_pos", "max_position_embeddings": 8192},
            STRETCHED,
            "EXTENDED_32K",
        ),
        (
            {"position_embedding_type": "sans_pos", "max_position_embeddings": 8192},
            STRETCHED | {"model_max_length": 32767},
            "STANDARD",
        ),
        (
            {"position_embedding_type": "sans_pos", "max_position_embeddings": 32768},
            None,
            "EXTENDED_32K",
        ),
        ({"max_position_embeddings": 32768}, None, "STANDARD"),
    ],
)
def test_variants_of_modernbert(
    tmp_path: Path,
    context: Callable[[str], Context],
    config: Mapping[str, object],
    training: Mapping[str, object] | None,
    expected: str,
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"vocab_size": 50368} | dict(config)))
    if training is not None:
        (tmp_path / "training_config.json").write_text(json.dumps(training))
    where = context("is_mmbert_model")
    assert variants.is_multilingual(where, Name(str(path))) == expected.startswith("MULTILINGUAL")
    assert variants.is_multilingual_32k(where, Name(str(path))) == (expected == "MULTILINGUAL_32K")


@pytest.mark.parametrize("content", [None, "", "[]", "{", '"x"'])
def test_what_is_no_config_has_no_variant(
    tmp_path: Path, context: Callable[[str], Context], content: str | None
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises((NotFoundError, BadArtifactError)):
        variants.is_multilingual(context("is_mmbert_model"), Name(str(path)))


# ---- entities


def test_types_are_named_by_the_file(tmp_path: Path, context: Callable[[str], Context]) -> None:
    where = context("classify_modernbert_pii_tokens")
    folder = GOLDEN / "modernbert-token"
    loading.load(context("init_modernbert_pii_token_classifier"), Name(str(folder)), True)
    own = finding.find_entities_named_by(where, TEXT, Name(str(folder / "config.json")))
    assert set(own.entities.entity_type) == {"EMAIL", "PERSON", "LOCATION"}
    path = tmp_path / "labels.json"
    # Unsorted, with a gap, and without LOCATION.
    table = {"4": "I-NAME", "1": "B-MAIL", "3": "B-NAME", "10": "other", "x": "y"}
    path.write_text(json.dumps({"id2label": table}))
    named = finding.find_entities_named_by(where, TEXT, Name(str(path)))
    names = {"EMAIL": "MAIL", "PERSON": "NAME", "LOCATION": "UNKNOWN_PII"}
    assert named.entities.entity_type == [names[name] for name in own.entities.entity_type]
    path.write_text(json.dumps({"id2label": {"0": "O", "5": "B-PLACE"}}))  # read anew
    again = finding.find_entities_named_by(where, TEXT, Name(str(path)))
    assert "PLACE" in again.entities.entity_type
    for content in ("{}", '{"id2label": {}}', '{"id2label": []}'):
        path.write_text(content)
        with pytest.raises(BadArtifactError):
            finding.find_entities_named_by(where, TEXT, Name(str(path)))


def test_entities_slice_the_text_by_bytes(context: Callable[[str], Context]) -> None:
    loading.load(
        context("init_mmbert_32k_pii_classifier"), Name(str(GOLDEN / "modernbert-token")), True
    )
    found = finding.find_entities(context("classify_mmbert_32k_pii_tokens"), TEXT)
    entities = found.entities
    assert found.num_entities == len(entities.text) > 10
    for text, start, end in zip(entities.text, entities.start, entities.end, strict=True):
        assert text == TEXT[start:end]
        assert text.decode().strip() == text.decode()


# ---- models that change while they are asked


@pytest.mark.parametrize("error", [ClosedError, NotReadyError])
def test_an_answer_stands_though_its_model_goes(
    context: Callable[[str], Context],
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    error: type[SemanticError],
) -> None:
    """What is asked of the registry after an answer is there cannot take it away."""
    for init, folder in (
        ("init_mmbert_32k_pii_classifier", "modernbert-token"),
        ("init_modernbert_classifier", "modernbert-seq-cls"),
    ):
        loading.load(context(init), Name(str(GOLDEN / folder)), True)
    where, long = context("classify_modernbert_text"), Text(b"math " * 9000)

    def gone(handle: int) -> NoReturn:
        raise error(f"model {handle} is gone")

    monkeypatch.setattr(registry, "info", gone)
    assert finding.find_entities(context("classify_mmbert_32k_pii_tokens"), TEXT).num_entities > 10
    assert classifying.classify(where, long).predicted_class >= 0  # it is cut, which is told


def test_a_place_that_loads_leaves_the_answer_to_the_next(
    context: Callable[[str], Context], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = context("classify_candle_bert_tokens")
    folder = Name(str(GOLDEN / "modernbert-token"))
    loading.load(context("init_modernbert_pii_token_classifier"), folder, True)
    found = finding.find_entities(where, TEXT)
    ready = registry.find

    def find(name: str) -> int:
        if name == "candle/candle-bert-token":
            raise NotReadyError("it is loading")
        return ready(name)

    monkeypatch.setattr(registry, "find", find)
    assert finding.find_entities(where, TEXT) == found
    handle = ready("candle/modernbert-pii-token")
    registry.unload(handle, 1000)
    with pytest.raises(NotReadyError):
        finding.find_entities(where, TEXT)


def test_words_of_enormous_texts_are_not_counted() -> None:
    assert routing.count_words(b"ab " * 300_000) == 300_000
    with pytest.raises(TooLongError, match="at most 1048576"):
        routing.count_words(b"ab " * 400_000)


# ---- hallucinations and inference


def tokens(*items: tuple[int, int, int, float]) -> TokenClassification:
    """Return tokens of one row: label, start, end and score each."""
    labels, starts, ends, scores = (np.array(column) for column in zip(*items, strict=True))
    count = len(items)
    return TokenClassification(
        generation=1,
        rows=Rows((count,), (count,), (0,), (1,), (0,), ("",), (None,)),
        labels=("SUPPORTED", "HALLUCINATED"),
        row_start=np.array([0, count], np.int64),
        row=np.zeros(count, np.int64),
        label_index=labels.astype(np.int32),
        score=scores.astype(np.float32),
        start=starts.astype(np.int64),
        end=ends.astype(np.int64),
        probabilities=np.zeros((count, 2), np.float32),
        model_labels=("SUPPORTED", "HALLUCINATED"),
    )


def spans_of(
    text: str, threshold: float, *items: tuple[int, int, int, float]
) -> list[tuple[str, int, float]]:
    data = text.encode()
    texts, starts, ends, scores, labels = grounding._spans(data, tokens(*items), threshold)
    assert texts == [data[start:end] for start, end in zip(starts, ends, strict=True)]
    assert labels == ["HALLUCINATED"] * len(texts)
    return [
        (part.decode(), start, round(score, 2))
        for part, start, score in zip(texts, starts, scores, strict=True)
    ]


def test_neighbouring_tokens_form_one_span() -> None:
    text = "aé b c"
    items = [(1, 0, 3, 0.9), (1, 3, 5, 0.6), (0, 5, 7, 0.9)]
    assert spans_of(text, 0.5, *items) == [("aé b", 0, 0.9)]
    assert spans_of(text, 0.7, *items) == [("aé", 0, 0.9)]
    assert spans_of(text, 0.95, *items) == []


def test_spans_have_no_blanks_at_their_ends() -> None:
    text = "a  日本 b"
    assert spans_of(text, 0.5, (0, 0, 1, 0.9), (1, 1, 9, 0.8), (1, 9, 10, 0.9)) == [
        ("日本", 3, 0.9)
    ]
    assert spans_of(text, 0.5, (0, 0, 1, 0.9), (1, 1, 3, 0.8), (0, 3, 9, 0.9)) == []


def test_tokens_without_width_neither_break_nor_extend() -> None:
    text = "ab cd"
    items = [(1, 0, 2, 0.8), (0, 2, 2, 0.9), (1, 3, 5, 0.7)]
    assert spans_of(text, 0.5, *items) == [("ab cd", 0, 0.8)]


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        (("entailment", "neutral", "contradiction"), (0, 1, 2)),
        (("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), (2, 1, 0)),
        (("contradictory", "entails"), (2, 0)),
        (("LABEL_0", "LABEL_1", "LABEL_2"), (0, 1, 2)),
        (("yes", "no"), (0, 1)),
        (("a", "b", "c", "d"), (0, 1, 2, -1)),
        (("entailment", "not_entailment"), (0, 1)),
    ],
)
def test_labels_of_inference_are_known_by_name(
    labels: tuple[str, ...], kinds: tuple[int, ...]
) -> None:
    assert grounding._kinds(labels) == kinds


# ---- batches


@pytest.mark.parametrize(
    ("label", "harmless"),
    [
        *(("safe", True), ("SAFE", True), ("benign", True), ("no_threat", True)),
        *(("no threat", True), ("label-safe", True), ("Safe content", True)),
        *(("unsafe", False), ("un-safe", False), ("not_safe", False), ("non-safe", False)),
        *(("INJECTION", False), ("jailbreak", False), ("threat", False), ("LABEL_0", False)),
        *(("safety_violation", False), ("malbenign", False)),
    ],
)
def test_labels_that_say_that_there_is_no_threat(label: str, harmless: bool) -> None:
    assert batches._is_harmless(label) == harmless


def test_a_batch_answers_as_its_texts_alone(context: Callable[[str], Context]) -> None:
    intent, pii, security = (
        Name(str(GOLDEN / name)) for name in ("bert-seq", "bert-token", "electra-seq")
    )
    loader = context("init_lora_unified_classifier")
    batches.load_lora(loader, intent, pii, security, Name(""), True)
    where = context("classify_batch_with_lora")
    texts = Texts([TEXT, b"", b"What is the derivative of x squared?"])
    batch = batches.classify_batch(where, texts)
    assert batch.batch_size == 3
    confidences = []
    for row, text in enumerate(texts):
        alone = batches.classify_batch(where, Texts([text]))
        for kind in ("intent_results", "pii_results", "security_results"):
            one, other = getattr(alone, kind)[0], getattr(batch, kind)[row]
            assert one[:1] == other[:1]
            assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
            confidences.append(other.confidence)
    assert batch.avg_confidence == pytest.approx(sum(confidences) / 9)
    with pytest.raises(InvalidArgumentError, match="1001 texts; send at most 1000"):
        batches.classify_batch(where, Texts([b"a"] * 1001))
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        batches.classify_batch(where, Texts([b"a", b"\xff"]))


# ---- layers


def test_layers_of_mmbert_are_those_that_are_advertised(
    context: Callable[[str], Context], copy_golden: Copy, registry: Registry
) -> None:
    folder = str(GOLDEN / "mmbert-embed-mean")  # of four layers, and lists none
    assert loading.load(context("init_mmbert_embedding_model"), Name(folder), True)
    handle = registry.find("candle/mmbert-embedding")
    assert registry.info(handle).layers.tolist() == [3, 4]
    listed = copy_golden("mmbert-embed-mean", {"config.json": {"matryoshka_layers": [2, 3]}})
    other = registry.load(str(listed))
    for layer in (0, 3, 4):
        ours, theirs = (
            registry.embed(each, [TEXT], RunOptions(layer=layer)).values for each in (handle, other)
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    with pytest.raises(InvalidArgumentError, match=r"layer is 2, .* allows 3, 4"):
        registry.embed(handle, [TEXT], RunOptions(layer=2))
    registry.unload(handle, 0)
    assert loading.load(context("init_mmbert_embedding_model"), Name(str(listed)), True)
    handle = registry.find("candle/mmbert-embedding")
    assert registry.info(handle).layers.tolist() == [2, 3, 4]
