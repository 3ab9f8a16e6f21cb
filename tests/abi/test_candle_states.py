"""Slots over time: second and concurrent inits, their order, unloading, limits, odd folders."""

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from libsemantic.engine.config import LoadOptions, Output, RunOptions
from libsemantic.engine.registry import REGISTRY

from .binding import BUILD, MODELS
from .candle import (
    EMBEDDING_INITS,
    OUT,
    SLOT_OF_INIT,
    SLOTS,
    TEXT,
    Answer,
    Candle,
    Slot,
    check_failed,
    good_arguments,
    in_a_process,
    line,
)
from .harness import HERE, compile_program, run
from .test_candle_answers import cases_of, load, load_embeddings, softmax

TOLERANCE = 1e-4
Copy = Callable[[str, Mapping[str, object]], Path]
# init_generic_classifier and init_mmbert_classifier_auto fill slots that have another init.
SHARED = ("init_generic_classifier", "init_mmbert_classifier_auto")
ALL_INITS = (
    *(slot.init for slot in SLOTS),
    *EMBEDDING_INITS,
    "init_lora_unified_classifier",
    "init_unified_classifier_c",
)


def other_folder(slot: Slot, tmp_path: Path) -> Path:
    """The same model at another place, so that only its path tells it apart."""
    target = tmp_path / "elsewhere"
    if not target.exists():
        target.symlink_to(MODELS / slot.folder)
    copy = tmp_path / "copy"
    if not copy.exists():
        copy.mkdir()
        for file in (MODELS / slot.folder).iterdir():
            (copy / file.name).symlink_to(file)
    return copy


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.init)
def test_a_second_init(candle: Candle, slot: Slot, tmp_path: Path) -> None:
    load(candle, slot)
    models = candle.stats()["models"]
    assert len(models) == 1
    before = {name: candle(name, *good_arguments(name)) for name in slot.readers}
    assert candle.script(*[slot.init_line()] * 3) == [True] * 3
    assert candle.script(slot.init_line(other_folder(slot, tmp_path))) == [False]
    assert candle.script(slot.init_line(Path("/nowhere"))) == [False]
    assert candle.stats()["models"] == models
    for name in slot.readers:
        after = candle(name, *good_arguments(name))
        assert without_times(after) == without_times(before[name])


def test_a_second_init_by_another_way_to_the_folder(candle: Candle, tmp_path: Path) -> None:
    """With a slash, by dots, or by a link: it is the same folder."""
    slot = SLOT_OF_INIT["init_nli_model"]
    load(candle, slot)
    folder, link = MODELS / slot.folder, tmp_path / "link"
    link.symlink_to(folder)
    for path in (f"{folder}/", f"{folder}/../{slot.folder}", str(link)):
        assert candle(slot.init, path, True) is True
    assert len(candle.stats()["models"]) == 1


def without_times(answer: Answer) -> Answer:
    if isinstance(answer, dict):
        return {k: without_times(v) for k, v in answer.items() if k != "processing_time_ms"}
    return answer


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("init_classifier", "init_generic_classifier"),
        ("init_mmbert_classifier", "init_mmbert_classifier_auto"),
    ],
)
def test_inits_that_share_a_slot(candle: Candle, first: str, second: str, tmp_path: Path) -> None:
    for one, two in ((first, second), (second, first)):
        load(candle, SLOT_OF_INIT[one], SLOT_OF_INIT[two])
        assert len(candle.stats()["models"]) == 1
        folder = other_folder(SLOT_OF_INIT[two], tmp_path)
        assert candle.script(SLOT_OF_INIT[two].init_line(folder)) == [False]
        assert candle.script("cleanup 1000") == ["OK"]


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.init)
def test_the_slots_are_models_of_the_one_registry(candle: Candle, slot: Slot) -> None:
    """Unloaded or cleaned up there, a slot is empty, and may be filled with another model."""
    for empty in ("unload", "cleanup"):
        load(candle, slot)
        (name,) = candle.stats()["models"]
        assert name.startswith("candle/")
        assert candle.script(line("unload", name) if empty == "unload" else "cleanup 1000") == [
            "OK"
        ]
        assert candle.stats()["models"] == []
        for reader in slot.readers:
            check_failed(reader, candle(reader, *good_arguments(reader)))
        assert candle("is_similarity_model_initialized") is False
        assert candle("is_nli_model_initialized") is False
    load(candle, slot)


def test_states_agree_with_the_registry(candle: Candle) -> None:
    """After no, one and three inits, and after a cleanup."""

    def told() -> tuple[bool, bool, list[str]]:
        info = candle("get_embedding_models_info", OUT)
        there = [] if info["status"] else info["result"]["models"]
        return (
            candle("is_similarity_model_initialized"),
            candle("is_nli_model_initialized"),
            [each["model_name"] for each in there if each["is_loaded"]],
        )

    assert told() == (False, False, [])
    load(candle, SLOT_OF_INIT["init_nli_model"])
    assert (told(), len(candle.stats()["models"])) == ((False, True, []), 1)
    load(candle, SLOT_OF_INIT["init_similarity_model"])
    name = "init_embedding_models"
    assert candle(name, *good_arguments(name)) is True
    assert (told(), len(candle.stats()["models"])) == ((True, True, ["qwen3", "gemma"]), 4)
    assert candle.stats()["ready"] == 4
    assert candle.script("cleanup 5000") == ["OK"]
    assert (told(), candle.stats()["models"]) == ((False, False, []), [])


# ---- Any order, all at once ------------------------------------------------------------------


def vectors(candle: Candle) -> list[Answer]:
    """What the embedding functions answer, without their times."""
    answers = [
        candle("get_embedding_with_model_type", "math", name, 0, OUT)
        for name in ("qwen3", "gemma", "mmbert")
    ]
    answers.append(candle("get_embedding_batched", "math", "qwen3", 0, OUT))
    answers.append(candle("get_embedding_models_info", OUT))
    return [
        without_times(answer.get("result", answer)) | {"status": answer["status"]}
        for answer in answers
    ]


def state(candle: Candle) -> tuple[list[str], list[Answer], Answer]:
    classified = candle("classify_text", "math")
    return sorted(candle.stats()["models"]), vectors(candle), classified


def near(left: object, right: object) -> None:
    if isinstance(left, float) and isinstance(right, float):
        assert left == pytest.approx(right, abs=1e-5)
    elif isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in left:
            near(left[key], right[key])
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        assert len(left) == len(right)
        for one, two in zip(left, right, strict=True):
            near(one, two)
    else:
        assert left == right


def test_any_order_of_inits(candle: Candle) -> None:
    """Every other order of the embedding inits, with a classifier at each place in turn."""
    expected = None
    orders = list(itertools.permutations(EMBEDDING_INITS))
    for number, order in enumerate(orders[::2]):
        names = list(order)
        names.insert(number % 5, "init_classifier")
        assert candle.script(*(line(name, *good_arguments(name)) for name in names)) == [True] * 5
        if expected is None:
            expected = state(candle)
            assert len(expected[0]) == 5
        near(state(candle), expected)
        assert candle.script("cleanup 5000") == ["OK"]


def test_all_inits_at_once(candle: Candle) -> None:
    """Each init twice, every call on a thread of its own."""
    lines = [line(name, *good_arguments(name)) for name in ALL_INITS]
    assert candle.at_once(*lines, *lines) == [True] * 2 * len(lines)
    at_once = state(candle)
    assert candle.stats()["ready"] == len(at_once[0])
    assert candle.script("cleanup 10000") == ["OK"]
    assert candle.script(*lines) == [True] * len(lines)
    near(state(candle), at_once)


def test_inits_of_two_paths_at_once(candle: Candle, tmp_path: Path) -> None:
    """One of the paths wins, for all its callers."""
    slot = SLOT_OF_INIT["init_modernbert_classifier"]
    own, other = slot.init_line(), slot.init_line(other_folder(slot, tmp_path))
    for _ in range(5):
        answers = candle.at_once(*[own, other] * 8)
        won, lost = set(answers[::2]), set(answers[1::2])
        assert (won, lost) in (({True}, {False}), ({False}, {True}))
        assert len(candle.stats()["models"]) == 1
        assert candle.script(own if won == {True} else other) == [True]
        assert candle.script("cleanup 5000") == ["OK"]


def test_failing_inits_at_once(candle: Candle) -> None:
    slot = SLOT_OF_INIT["init_nli_model"]
    wrong = slot.init_line(MODELS / "bert-embed-cls")
    assert candle.at_once(*[wrong] * 8) == [False] * 8
    assert candle.at_once(*[slot.init_line()] * 8) == [True] * 8


def test_calls_while_all_is_cleaned_up(candle: Candle) -> None:
    """A call is right or has failed; nothing else, and no crash."""
    slot = SLOT_OF_INIT["init_classifier"]
    right = (0, pytest.approx(0.514327, abs=TOLERANCE))
    ask = line("classify_text", "What is the derivative of x squared?")
    for _ in range(10):
        load(candle, slot)
        answers = candle.at_once(*[ask] * 6, "cleanup 5000", *[ask] * 6)
        assert answers.pop(6) == "OK"
        for answer in answers:
            if answer["predicted_class"] != -1:
                assert (answer["predicted_class"], answer["confidence"]) == right
            else:
                check_failed("classify_text", answer)


def test_an_init_while_all_is_cleaned_up(candle: Candle) -> None:
    slot = SLOT_OF_INIT["init_classifier"]
    for _ in range(10):
        *answers, cleaned = candle.at_once(*[slot.init_line()] * 4, "cleanup 5000")
        assert set(answers) <= {True, False}
        assert cleaned == "OK"
        ready = candle.stats()["models"]
        answer = candle("classify_text", "What is the derivative of x squared?")
        assert answer["predicted_class"] == (0 if ready else -1)
        assert candle.script("cleanup 5000") == ["OK"]


# ---- Memory ----------------------------------------------------------------------------------


def test_what_is_not_freed_is_counted(candle: Candle) -> None:
    load(candle, SLOT_OF_INIT["init_modernbert_classifier"])
    load_embeddings(candle)
    name = "classify_modernbert_text_with_probabilities"
    candle.script("hold", line(name, "math"), line("get_embedding_smart", "math", 0.5, 0.5, OUT))
    assert candle.stats()["unfreed"] >= 2
    assert candle.script("release") == [2]
    assert candle.stats()["unfreed"] == 0


def test_labels_are_nobodys(candle: Candle) -> None:
    """Go frees no label: a thousand calls must leave nothing behind."""
    load(candle, SLOT_OF_INIT["init_jailbreak_classifier"])
    script = "repeat 1000 " + line("classify_jailbreak_text", "math")
    (answer,) = candle.script(script)
    assert answer["predicted_class"] >= 0
    assert candle.stats()["unfreed"] == 0


def test_forks_while_memory_is_taken(tmp_path: Path) -> None:
    program, library = tmp_path / "candle_forked", BUILD / "lib"
    compile_program(
        HERE / "candle_forked.c",
        program,
        *("-I", str(BUILD / "include"), f"-L{library}", f"-Wl,-rpath,{library}"),
        *("-lcandle_semantic_router", "-lsemantic"),
    )
    answer = run(program)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


# ---- Limits ----------------------------------------------------------------------------------

LONG = " ".join(["math law code the router picks café 数学"] * 200)


def engine_answer(folder: str | Path, text: str, max_tokens: int) -> np.ndarray[Any, Any]:
    handle = REGISTRY.load(str(folder), LoadOptions(name="reference", max_tokens=max_tokens))
    probabilities: np.ndarray[Any, Any] = REGISTRY.classify(handle, [text]).probabilities[0]
    REGISTRY.unload(handle, 5000)
    return probabilities


@pytest.mark.parametrize("given", ["16", "512", "100000"])
def test_the_limit_that_the_environment_sets(driver: Path, given: str) -> None:
    slot = SLOT_OF_INIT["init_modernbert_classifier"]
    expected = engine_answer(MODELS / slot.folder, LONG, min(int(given), 512))
    ask = line("classify_modernbert_text_with_probabilities", LONG)
    said = in_a_process(
        driver, slot.init_line(), ask, ask, "stats", SEMANTIC_CANDLE_MAX_TOKENS=given
    )
    assert said.answers[0] is True
    np.testing.assert_allclose(said.answers[1]["probabilities"], expected, atol=TOLERANCE)
    assert said.answers[3]["truncated"] == 2
    # Told once for each model, not for each text.
    told = [each for each in said.errors.splitlines() if "cut" in each or "truncated" in each]
    assert len(told) == 1, said.errors
    assert "math law" not in said.errors


@pytest.mark.parametrize("given", ["0", "-3", "many", "1.5", "9" * 30, "9" * 5000, " 512", "512 "])
def test_a_limit_that_makes_no_sense(driver: Path, given: str) -> None:
    """Nothing is guessed: the init fails and says why."""
    slot = SLOT_OF_INIT["init_modernbert_classifier"]
    said = in_a_process(driver, slot.init_line(), SEMANTIC_CANDLE_MAX_TOKENS=given)
    assert said.answers == [False]
    assert "SEMANTIC_CANDLE_MAX_TOKENS" in said.errors


def test_texts_beyond_8192_tokens_are_cut_there(candle: Candle, copy_golden: Copy) -> None:
    folder = copy_golden(
        "modernbert-seq-cls",
        {
            "config.json": {"max_position_embeddings": 20_000},
            "tokenizer_config.json": {"model_max_length": 20_000},
        },
    )
    slot = SLOT_OF_INIT["init_modernbert_classifier"]
    assert candle.script(slot.init_line(folder)) == [True]
    name = "classify_modernbert_text_with_probabilities"
    text = "math law " * 4500
    before = candle.stats()["truncated"]
    answer = candle(name, text)
    assert candle.stats()["truncated"] == before + 1
    expected = engine_answer(folder, text, 8192)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=TOLERANCE)
    assert np.abs(expected - engine_answer(folder, text, 512)).max() > 10 * TOLERANCE


LONG_EMBEDDERS = {
    "config.json": {"max_position_embeddings": 20_000},
    "tokenizer_config.json": {"model_max_length": 20_000},
    "sentence_bert_config.json": {"max_seq_length": 20_000},
}


@pytest.mark.parametrize("given", ["", "512"])
def test_what_is_embedded_is_not_cut_there(
    driver: Path, candle: Candle, copy_golden: Copy, given: str
) -> None:
    """candle-binding cuts what it classifies alone: neither 8,192 tokens nor the variable count."""
    assert candle.stats()["models"] == []
    folder = copy_golden("mmbert-embed-mean", LONG_EMBEDDERS)
    text = "math law " * 4500
    handle = REGISTRY.load(str(folder), LoadOptions(name="reference"))
    expected = REGISTRY.embed(handle, [text]).values[0]
    short = REGISTRY.embed(handle, ["math law " * 200]).values[0]
    said = in_a_process(
        driver,
        line("init_mmbert_embedding_model", folder, True),
        line("get_embedding_with_model_type", text, "mmbert", 0, OUT),
        "stats",
        SEMANTIC_CANDLE_MAX_TOKENS=given,
    )
    np.testing.assert_allclose(said.answers[1]["result"]["data"], expected, atol=TOLERANCE)
    assert np.abs(expected - short).max() > 10 * TOLERANCE
    assert said.answers[2]["truncated"] == 0


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize(
    ("init", "reader", "rest"),
    [
        ("init_candle_bert_token_classifier", "classify_candle_bert_tokens", ()),
        ("init_mmbert_32k_pii_classifier", "classify_mmbert_32k_pii_tokens", ()),
        (
            "init_modernbert_pii_token_classifier",
            "classify_modernbert_pii_tokens",
            (MODELS / "modernbert-token" / "config.json",),
        ),
    ],
)
def test_entities_anywhere_in_a_long_text(
    candle: Candle, init: str, reader: str, rest: tuple[object, ...], place: str
) -> None:
    """Beyond the model's length too, and at their true bytes."""
    slot = SLOT_OF_INIT[init]
    load(candle, slot)
    limit = 128 if slot.folder == "bert-token" else 512
    filler = "数 " * limit
    text = {
        "start": f"jane@example.org Zürich {filler}{filler}",
        "middle": f"{filler}jane@example.org Zürich {filler}",
        "end": f"{filler}{filler}jane@example.org Zürich",
    }[place]
    data = text.encode()
    where = data.index(b"jane")
    found = candle(reader, text, *rest)["entities"]
    for each in found:
        assert data[each["start"] : each["end"]].decode() == each["text"]
    touched = [e for e in found if e["end"] > where and e["start"] < where + 24]
    assert touched, found[-3:]


def test_no_more_than_1000_entities_where_go_stops(candle: Candle) -> None:
    load(candle, SLOT_OF_INIT["init_candle_bert_token_classifier"])
    text = f"{TEXT} " * 400
    assert candle("classify_candle_bert_tokens", text)["num_entities"] == 1000
    found = candle("classify_candle_bert_tokens_with_labels", text, "{}")
    assert found["num_entities"] == 1000
    load(candle, SLOT_OF_INIT["init_bert_token_classifier"])
    assert candle("classify_bert_pii_tokens", text, None)["num_entities"] > 1000


# ---- Hallucinations in long texts ------------------------------------------------------------


SHORT = "the router picks Zürich 数学"


def test_the_answer_is_never_cut(candle: Candle) -> None:
    """Bytes that the engine finds unsupported, token by token, are those of the spans."""
    load(candle, SLOT_OF_INIT["init_hallucination_model"])
    handle = REGISTRY.load(str(MODELS / "modernbert-hallucination"), LoadOptions(name="reference"))
    marked = 0
    for context in (SHORT, LONG, "math " * 5000, ""):
        for answer in (SHORT, " ".join([SHORT] * 4), "El murciélago hindú"):
            found = candle("detect_hallucinations", context, "", answer, 0.5)
            assert found["error"] is False
            tokens = REGISTRY.classify_token_pairs(
                handle, [context], [answer], RunOptions(output=Output.TOKENS)
            )
            data = answer.encode()
            expected, got = np.zeros(len(data), bool), np.zeros(len(data), bool)
            for start, end, label in zip(tokens.start, tokens.end, tokens.label_index, strict=True):
                if label == 1:
                    expected[start:end] = True
            for span in found["spans"] or []:
                got[span["start"] : span["end"]] = True
            blank = np.frombuffer(data, np.uint8) == ord(" ")
            np.testing.assert_array_equal(got[~blank], expected[~blank])
            marked += int(got.sum())
    assert marked > 50


def test_an_answer_that_does_not_fit_is_an_error(candle: Candle) -> None:
    """Never "no hallucination" for what no model has seen."""
    load(candle, SLOT_OF_INIT["init_hallucination_model"])
    for name in ("detect_hallucinations", "detect_hallucinations_with_nli"):
        found = candle(name, SHORT, "", LONG, 0.5)
        check_failed(name, found)
        assert "tokens" in found["error_message"]
        assert "math law" not in found["error_message"]


# ---- Odd folders -----------------------------------------------------------------------------

PADDING = {
    "strategy": {"Fixed": 96},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "[PAD]",
}


def test_a_tokenizer_that_pads(candle: Candle, copy_golden: Copy) -> None:
    """Vectors and entities are those of the text alone."""
    padded = {"tokenizer.json": {"padding": PADDING}}
    embedder, tagger = copy_golden("bert-embed-mean", padded), copy_golden("bert-token", padded)
    similarity = SLOT_OF_INIT["init_similarity_model"]
    assert candle.script(similarity.init_line(embedder)) == [True]
    for case in cases_of("bert-embed-mean")[:10]:
        answer = candle("get_text_embedding", case["text"], 0)
        np.testing.assert_allclose(answer["data"], case["embedding"], atol=TOLERANCE)
        tokens = candle("tokenize_text", case["text"], 0)
        assert tokens["token_ids"] == case["input_ids"]
    slot = SLOT_OF_INIT["init_candle_bert_token_classifier"]
    ask = [line(slot.readers[0], case["text"]) for case in cases_of(slot.folder)[:10]]
    load(candle, slot)
    plain = candle.script(*ask)
    assert candle.script("cleanup 5000") == ["OK"]
    assert candle.script(slot.init_line(tagger)) == [True]
    near(candle.script(*ask), plain)


NAMES = ("biology", "business", "chemistry", "computer science", "economics", "math", "other")
SORTED = {str(index): name for index, name in enumerate(NAMES)}


def of_eleven_classes(folder: Path) -> list[int]:
    """Give the head four more rows, copies of the first; return which row each class is."""
    weights = load_file(folder / "model.safetensors")
    rows = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][rows]
    weights["classifier.bias"][7:] -= 20  # never the winner
    weights["classifier.bias"] = weights["classifier.bias"].astype(np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return rows


def test_label_ids_in_any_order(candle: Candle, copy_golden: Copy) -> None:
    """ "10" before "2", and the table not sorted at all."""
    ids = ["10", "1", "9", "2", "0", "3", "8", "4", "7", "5", "6"]
    table = {key: SORTED.get(key, f"extra {key}") for key in ids}
    folder = copy_golden("bert-seq", {"config.json": {"id2label": table, "label2id": None}})
    of_eleven_classes(folder)
    security, tokens = MODELS / "deberta-v3-seq", MODELS / "modernbert-token"
    assert candle("init_lora_unified_classifier", folder, tokens, security, "bert", True) is True
    slot = SLOT_OF_INIT["init_classifier"]
    assert candle.script(slot.init_line(folder, 11)) == [True]
    for case in cases_of("bert-seq"):
        if case.get("token_count", 0) > 64:  # the folder declares no more
            continue
        winner = int(softmax(case["logits"]).argmax())
        assert candle("classify_text", case["text"])["predicted_class"] == winner
        found = candle("classify_batch_with_lora", [case["text"]], 1)
        assert found["intent_results"][0]["category"] == NAMES[winner]


@pytest.mark.parametrize("missing", ["0", "3"])
def test_label_ids_with_a_gap(candle: Candle, copy_golden: Copy, missing: str) -> None:
    """Names never move to another class: what has none is named by its index."""
    table = {key: name for key, name in SORTED.items() if key != missing}
    folder = copy_golden("bert-seq", {"config.json": {"id2label": table, "label2id": None}})
    security, tokens = MODELS / "deberta-v3-seq", MODELS / "modernbert-token"
    assert candle("init_lora_unified_classifier", folder, tokens, security, "bert", True) is True
    assert candle.script(SLOT_OF_INIT["init_classifier"].init_line(folder)) == [True]
    expected = dict(enumerate(NAMES)) | {int(missing): f"LABEL_{missing}"}
    winners = set()
    for case in cases_of("bert-seq"):
        if case.get("token_count", 0) > 64:  # the folder declares no more
            continue
        winner = int(softmax(case["logits"]).argmax())
        winners.add(winner)
        assert candle("classify_text", case["text"])["predicted_class"] == winner
        found = candle("classify_batch_with_lora", [case["text"]], 1)
        assert found["intent_results"][0]["category"] == expected[winner]
    assert len(winners) > 1


@pytest.mark.parametrize(
    ("init", "folder", "missing"),
    [
        ("init_classifier", "bert-seq", "6"),  # six names, seven outputs
        ("init_candle_bert_token_classifier", "bert-token", "3"),  # entities need their types
        ("init_mmbert_32k_pii_classifier", "modernbert-token", "0"),
    ],
)
def test_label_ids_that_cannot_be_completed(
    candle: Candle, copy_golden: Copy, init: str, folder: str, missing: str
) -> None:
    config = json.loads((MODELS / folder / "config.json").read_text())
    table = {key: name for key, name in config["id2label"].items() if key != missing}
    copy = copy_golden(folder, {"config.json": {"id2label": table, "label2id": None}})
    assert candle.script(SLOT_OF_INIT[init].init_line(copy)) == [False]
    assert candle.stats()["models"] == []


NAMELESS: Mapping[str, object] = {"config.json": {"id2label": None, "label2id": None}}


@pytest.mark.parametrize(
    ("init", "classes", "folder", "loads"),
    [
        ("init_classifier", (7,), "bert-seq", True),
        ("init_classifier", (6,), "bert-seq", False),
        ("init_candle_bert_classifier", (7,), "bert-seq", True),
        ("init_modernbert_jailbreak_classifier", (), "modernbert-seq-mean", True),
        ("init_modernbert_classifier", (), "modernbert-seq-cls", False),  # 7 rows, not 2
        ("init_deberta_jailbreak_classifier", (), "deberta-v3-seq", True),
    ],
)
def test_folders_that_name_no_labels(
    candle: Candle,
    copy_golden: Copy,
    init: str,
    classes: tuple[int, ...],
    folder: str,
    loads: bool,
) -> None:
    """As many as the caller says, else two; what the head does not have fails."""
    assert candle(init, copy_golden(folder, NAMELESS), *classes, True) is loads
    if loads:
        reader = SLOT_OF_INIT[init].readers[0]
        case = cases_of(folder)[0]
        expected = softmax(case["logits"])
        answer = candle(reader, case["text"])
        assert answer["predicted_class"] == expected.argmax()
        assert answer["confidence"] == pytest.approx(expected.max(), abs=TOLERANCE)
        assert answer.get("label") in (None, f"LABEL_{expected.argmax()}")


SAFE_OR_NOT = {
    "safe": False,
    "SAFE": False,
    "benign": False,
    "no_threat": False,
    "unsafe": True,
    "UNSAFE": True,
    "jailbreak": True,
    "not safe": True,
    "not_safe": True,
    "INJECTION": True,
    "malignant": True,
}


@pytest.mark.parametrize("label", SAFE_OR_NOT)
def test_labels_that_mean_a_threat(candle: Candle, copy_golden: Copy, label: str) -> None:
    """A label that only holds the word "safe" is no safe one."""
    case = cases_of("deberta-v3-seq")[0]
    winner = int(softmax(case["logits"]).argmax())
    table = {str(winner): label, str(1 - winner): "something else"}
    folder = copy_golden("deberta-v3-seq", {"config.json": {"id2label": table, "label2id": None}})
    intent, tokens = MODELS / "modernbert-seq-cls", MODELS / "modernbert-token"
    assert candle("init_lora_unified_classifier", intent, tokens, folder, "bert", True) is True
    (found,) = candle("classify_batch_with_lora", [case["text"]], 1)["security_results"]
    assert found["is_jailbreak"] is SAFE_OR_NOT[label]
    assert found["threat_type"] == (label if SAFE_OR_NOT[label] else "none")


def test_inference_labels_in_another_order(candle: Candle, copy_golden: Copy) -> None:
    """The names say which class is which; without known names the order does."""
    names = ["contradiction", "entailment", "neutral"]
    table = {str(index): name for index, name in enumerate(names)}
    folder = copy_golden("modernbert-nli", {"config.json": {"id2label": table, "label2id": None}})
    slot = SLOT_OF_INIT["init_nli_model"]
    assert candle.script(slot.init_line(folder)) == [True]
    for case in cases_of("modernbert-nli")[:6]:
        expected = softmax(case["logits"])
        found = candle("classify_nli", case["text"], case["text_pair"])
        assert found["label"] == (2, 0, 1)[int(expected.argmax())]
        shares = [found[f"{name}_prob"] for name in names]
        np.testing.assert_allclose(shares, expected, atol=TOLERANCE)


# ---- Dimensions beyond the vector ------------------------------------------------------------


def test_more_dimensions_than_there_are(candle: Candle) -> None:
    """The whole vector, as in candle-binding; but for mmBERT an error, there as here."""
    load_embeddings(candle)
    name = "get_embedding_with_model_type"
    for model, dimension in itertools.product(("qwen3", "gemma", "mmbert"), (65, 1000, 2**31 - 1)):
        answer = candle(name, "math", model, dimension, OUT)
        if model == "mmbert":
            check_failed(name, answer)
            continue
        whole = candle(name, "math", model, 0, OUT)
        assert answer["status"] == 0
        assert answer["result"]["length"] == 64
        assert answer["result"]["data"] == whole["result"]["data"]


def test_more_dimensions_in_comparisons(candle: Candle) -> None:
    load_embeddings(candle)
    for model in ("qwen3", "gemma"):
        pair = [
            candle("calculate_embedding_similarity", "math", "law", model, dimension, OUT)
            for dimension in (0, 64, 65)
        ]
        assert {each["status"] for each in pair} == {0}
        assert len({each["result"]["similarity"] for each in pair}) == 1
        ranked = [
            candle("calculate_similarity_batch", "math", ["law", "x"], 2, 0, model, dimension, OUT)
            for dimension in (0, 65)
        ]
        assert ranked[0]["result"]["matches"] == ranked[1]["result"]["matches"] != []


def test_more_dimensions_are_told_once(driver: Path) -> None:
    ask = line("get_embedding_with_model_type", "math", "qwen3", 65, OUT)
    said = in_a_process(
        driver, line("init_embedding_models", MODELS / "qwen3-embed-last", None, True), ask, ask
    )
    assert said.errors.count("64 dimensions were asked for") == 1
    assert "candle/qwen3" in said.errors


# ---- What configurations say -----------------------------------------------------------------

CONFIGS: tuple[tuple[Mapping[str, object], bool, bool], ...] = (
    ({}, False, False),
    ({"vocab_size": 256_000}, False, False),
    ({"vocab_size": 256_000, "position_embedding_type": "sans_pos"}, True, False),
    (
        {
            "vocab_size": 256_000,
            "position_embedding_type": "sans_pos",
            "max_position_embeddings": 16_384,
        },
        True,
        True,
    ),
    (
        {
            "vocab_size": 256_000,
            "position_embedding_type": "sans_pos",
            "max_position_embeddings": 8_192,
            "global_rope_theta": 160_000.0,
        },
        True,
        True,
    ),
    ({"max_position_embeddings": 32_768, "position_embedding_type": "sans_pos"}, False, False),
)


@pytest.mark.parametrize(("changes", "multilingual", "long"), CONFIGS)
def test_configurations(
    candle: Candle, tmp_path: Path, changes: Mapping[str, object], multilingual: bool, long: bool
) -> None:
    config = {"vocab_size": 50_368, "max_position_embeddings": 8_192, "model_type": "modernbert"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | dict(changes)))
    assert candle("is_mmbert_model", path) is multilingual
    assert candle("is_mmbert_32k_model", path) is long
    path.write_text("{")
    assert candle("is_mmbert_model", path) is False
    assert candle("is_mmbert_32k_model", path) is False
    assert candle("is_mmbert_model", tmp_path) is False
