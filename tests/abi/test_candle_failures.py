"""What fails answers its documented value: never class 0, never an abort, never the user's text."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .binding import MODELS, ROOT
from .candle import (
    ALWAYS_FALSE_HERE,
    EMBEDDING_INITS,
    FILLS,
    FUNCTIONS,
    IGNORED,
    INITS,
    INVALID,
    MLP_FROM_JSON,
    NO_PYTHON,
    OUT,
    SLOTS,
    TEXT,
    UNSUPPORTED,
    Answer,
    Candle,
    Raw,
    check_failed,
    good_arguments,
    in_a_process,
    line,
    token,
)
from .harness import run

SECRET = "Zanzibar7 is the user's text"
STATE = frozenset(name for name in FUNCTIONS if name.startswith("is_"))
# Without a model they answer what they always answer.
NEED_NO_MODEL = NO_PYTHON | {name for name in FUNCTIONS if name.startswith("candle_mlp")}
NEED_A_MODEL = tuple(sorted(set(FUNCTIONS) - NEED_NO_MODEL - set(INITS) - STATE))

# NULL says that the model is not wanted.
MAY_BE_NULL = ("init_embedding_models", "init_embedding_models_with_mmbert")
WITH_POINTERS = [
    (name, place)
    for name in sorted(FUNCTIONS)
    for place, kind in enumerate(FUNCTIONS[name]["parameters"])
    if kind.endswith("*")
    and (name, place) not in IGNORED
    and not name.startswith(("free_", "candle_mlp_free", "safe_free"))
]


def secret_arguments(name: str) -> tuple[object, ...]:
    """Good arguments whose texts are the secret."""
    return tuple(
        SECRET
        if value == TEXT
        else [SECRET if each == TEXT else each for each in value]
        if isinstance(value, list)
        else value
        for value in good_arguments(name)
    )


def check_still_failed(name: str, answer: Answer) -> None:
    if name in STATE:
        assert answer in (False, 0), (name, answer)
    else:
        check_failed(name, answer)


def test_before_any_init(driver: Path) -> None:
    """Each function of a model, asked first of all: no slot is filled, and the log says which."""
    names = [*NEED_A_MODEL, *sorted(STATE - ALWAYS_FALSE_HERE)]
    said = in_a_process(driver, *(line(name, *secret_arguments(name)) for name in names), "stats")
    *answers, stats = said.answers
    for name, answer in zip(names, answers, strict=True):
        check_still_failed(name, answer)
    assert (stats["models"], stats["unfreed"]) == ([], 0)
    assert "Zanzibar7" not in said.errors
    for name in NEED_A_MODEL:
        assert re.search(rf"\b{name}\b", said.errors), f"the log does not tell of {name}"


def test_frees_before_any_init_start_nothing(driver: Path) -> None:
    names = sorted(name for name in FUNCTIONS if name.startswith("free_"))
    assert len(names) == 22
    lines = [line(name, *good_arguments(name)) for name in names]
    said = in_a_process(driver, *lines, *lines, LIBSEMANTIC_PYTHON="/nowhere")
    assert said.answers == [None] * 2 * len(names)
    assert said.errors == ""


@pytest.fixture(scope="module")
def broken(driver: Path) -> tuple[dict[str, Answer], str]:
    """What every function answers where Python cannot start."""
    names = sorted(FUNCTIONS)
    lines = [line(name, *secret_arguments(name)) for name in names]
    said = in_a_process(driver, *lines, LIBSEMANTIC_PYTHON="/nowhere")
    return dict(zip(names, said.answers, strict=True)), said.errors


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - NO_PYTHON))
def test_python_cannot_start(broken: tuple[dict[str, Answer], str], name: str) -> None:
    answers, errors = broken
    if name in STATE:
        assert answers[name] in (False, 0)
    elif name.startswith("candle_mlp_is"):
        assert answers[name] == 0
    else:
        check_failed(name, answers[name])
    assert "/nowhere" in errors
    assert "Zanzibar7" not in errors


@pytest.mark.parametrize(
    ("name", "place"), [pair for pair in WITH_POINTERS if pair[0] not in MAY_BE_NULL]
)
def test_null_in_every_position(candle: Candle, name: str, place: int) -> None:
    values = list(good_arguments(name))
    values[place] = None
    answer = candle(name, *values)
    if name.startswith("validate_"):
        assert (answer["is_valid"], answer["error_code"]) == (False, 1)
    elif name in STATE:
        assert answer is False
    else:
        check_failed(name, answer)
        if name in FILLS:  # an int function that meets NULL writes nothing
            assert answer["status"] == -1


@pytest.mark.parametrize("nothing", [None, ""])
@pytest.mark.parametrize("name", ["init_embedding_models", "init_embedding_models_with_mmbert"])
def test_embedding_inits_without_any_path(candle: Candle, name: str, nothing: str | None) -> None:
    paths = len(EMBEDDING_INITS[name])
    assert candle(name, *[nothing] * paths, True) is False


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (name, place)
        for name, place in WITH_POINTERS
        if FUNCTIONS[name]["parameters"][place] in ("const char*", "const char**")
        and name not in ("multimodal_encode_image_from_bytes",)
    ],
)
def test_invalid_utf8_in_every_text(candle: Candle, name: str, place: int) -> None:
    values = list(good_arguments(name))
    listed = isinstance(values[place], list)
    values[place] = [INVALID, TEXT] if listed else INVALID
    if listed:
        values[place + 1] = 2
    answer = candle(name, *values)
    if name.startswith("validate_"):
        assert (answer["is_valid"], answer["error_code"]) == (False, 2)
    elif name in STATE:
        assert answer is False
    else:
        check_failed(name, answer)


@pytest.mark.parametrize("name", INITS)
@pytest.mark.parametrize("path", ["/nowhere/at/all", "", "org/a-model-that-is-nowhere"])
def test_a_model_that_is_not_there(candle: Candle, name: str, path: str) -> None:
    """Also what looks like the name of a model on a hub: nothing is ever fetched."""
    values = [path if isinstance(value, Path) else value for value in good_arguments(name)]
    assert candle(name, *values) is False
    assert candle.stats()["models"] == []
    # What failed can be tried again.
    assert candle(name, *good_arguments(name)) is True


# Their names speak of no family.
ANY_FAMILY = ("init_hallucination_model", "init_nli_model")

# A model of another task, or of another family than the function's name says.
WRONG_TASK = {
    **{slot.init: "bert-embed-cls" for slot in SLOTS},
    "init_similarity_model": "bert-seq",
    "init_bert_token_classifier": "bert-seq",
    "init_candle_bert_token_classifier": "bert-seq",
    "init_modernbert_pii_token_classifier": "modernbert-seq-cls",
    "init_mmbert_token_classifier": "modernbert-seq-cls",
    "init_mmbert_32k_pii_classifier": "modernbert-seq-cls",
    "init_hallucination_model": "modernbert-seq-mean",
    "init_nli_model": "modernbert-hallucination",
    "init_modernbert_classifier": "modernbert-token",
}
WRONG_FAMILY = {
    **{
        slot.init: "deberta-v3-token" if "token" in slot.folder else "deberta-v3-seq"
        for slot in SLOTS
        if "modernbert" in slot.folder and slot.init not in ANY_FAMILY
    },
    "init_deberta_jailbreak_classifier": "bert-seq",
}


@pytest.mark.parametrize(
    ("name", "folder"),
    [*WRONG_TASK.items(), *WRONG_FAMILY.items()],
)
def test_a_model_of_another_kind(candle: Candle, name: str, folder: str) -> None:
    values = [
        MODELS / folder if isinstance(value, Path) else value for value in good_arguments(name)
    ]
    if name in ("init_classifier", "init_generic_classifier", "init_pii_classifier"):
        values[1] = 7
    assert candle(name, *values) is False
    assert candle.stats()["models"] == []
    for slot in SLOTS:
        if slot.init == name:
            for reader in slot.readers:
                check_failed(reader, candle(reader, *good_arguments(reader)))


@pytest.mark.parametrize("wrong", ["mmbert-embed-mean", "bert-seq"])
def test_an_embedding_model_of_another_kind(candle: Candle, wrong: str) -> None:
    assert candle("init_embedding_models", MODELS / wrong, None, True) is False
    assert candle.stats()["models"] == []
    assert candle("init_embedding_models", MODELS / "qwen3-embed-last", None, True) is True


@pytest.mark.parametrize("classes", [-1, 0, 1, 6, 8, 2**31 - 1])
@pytest.mark.parametrize(
    "name",
    ["init_classifier", "init_generic_classifier", "init_pii_classifier"],
)
def test_a_count_of_classes_that_the_head_does_not_have(
    candle: Candle, name: str, classes: int
) -> None:
    assert candle(name, MODELS / "bert-seq", classes, True) is False
    assert candle.stats()["models"] == []
    assert candle(name, MODELS / "bert-seq", 7, True) is True


def test_what_is_not_built_says_so(driver: Path) -> None:
    names = sorted(UNSUPPORTED)
    assert len(names) == 14
    said = in_a_process(driver, *(line(name, *secret_arguments(name)) for name in names), "stats")
    *answers, stats = said.answers
    log = said.errors.splitlines()
    for name, answer in zip(names, answers, strict=True):
        told = [each for each in log if re.search(rf"\b{name}\b", each)]
        if name in STATE:
            assert (answer, told) == (0, [])
        else:
            check_failed(name, answer)
            assert len(told) == 1, name
            assert "unsupported" in told[0]
    assert (stats["models"], stats["unfreed"]) == ([], 0)
    assert "Zanzibar7" not in said.errors


LEAST, MOST = -(2**31), 2**31 - 1
BAD_COUNTS = (
    *(("find_most_similar", (TEXT, [TEXT], count, 0)) for count in (0, -1, LEAST)),
    *(("classify_batch_with_lora", ([TEXT], count)) for count in (0, -1, LEAST)),
    *(("classify_unified_batch", ([TEXT], count)) for count in (0, -1, LEAST)),
    *(
        ("calculate_similarity_batch", (TEXT, [TEXT], count, 1, "qwen3", 0, OUT))
        for count in (0, -1, LEAST)
    ),
    ("classify_batch_with_lora", ([TEXT] * 1001, 1001)),
    ("calculate_similarity_batch", (TEXT, [TEXT, None], 2, 1, "qwen3", 0, OUT)),
    ("find_most_similar", (TEXT, [TEXT, None], 2, 0)),
    ("classify_batch_with_lora", ([TEXT, None], 2)),
    ("classify_unified_batch", ([None, TEXT], 2)),
)


def test_counts_and_elements(candle: Candle) -> None:
    """With everything loaded, so that it is the count or the element that fails."""
    for init in (
        *("init_similarity_model", "init_lora_unified_classifier", "init_unified_classifier_c"),
        "init_embedding_models",
    ):
        assert candle(init, *good_arguments(init)) is True
    for name, values in BAD_COUNTS:
        check_failed(name, candle(name, *values))


@pytest.mark.parametrize("length", [0, 2, 4, 2**31, 2**62])
def test_lengths_of_queries_are_believed_only_where_they_fit(candle: Candle, length: int) -> None:
    """A length that the selector does not have is refused before the query is read."""
    handle = Raw(candle("candle_mlp_from_json", *good_arguments("candle_mlp_from_json")))
    assert candle("candle_mlp_select", handle, Raw("d1.0,2.0,3.0"), length) is None
    assert candle("candle_mlp_free", handle) is None


def test_handles_that_are_no_more(candle: Candle) -> None:
    handle = Raw(candle("candle_mlp_from_json", *good_arguments("candle_mlp_from_json")))
    assert candle.script(line("candle_mlp_free", handle), line("candle_mlp_free", handle)) == [
        None,
        None,
    ]
    assert candle("candle_mlp_is_trained", handle) == 0
    assert candle("candle_mlp_select", handle, Raw("d1.0,2.0,3.0"), 3) is None
    assert candle("candle_mlp_to_json", handle) is None


@pytest.mark.parametrize("name", ["classify_text", "classify_text_with_probabilities"])
def test_a_text_beyond_a_mebibyte(candle: Candle, name: str) -> None:
    assert candle("init_classifier", *good_arguments("init_classifier")) is True
    check_failed(name, candle(name, "math " * 220_000))
    assert candle(name, "math " * 200_000)["predicted_class"] >= 0


# ---- A raising engine ------------------------------------------------------------------------


def raising(tmp_path: Path, driver_object: Path) -> dict[str, dict[str, Answer]]:
    report = tmp_path / "report.json"
    answer = run(
        sys.executable, "-m", "tests.abi.candle_fault_host", driver_object, report, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == ""
    assert "Zanzibar7" not in answer.stderr
    assert "Traceback" not in answer.stderr
    said: dict[str, dict[str, Answer]] = json.loads(report.read_text())
    return said


def test_a_raising_engine(tmp_path: Path, driver_object: Path) -> None:
    """Whatever the registry raises, each call answers its failure value, and the next is right."""
    said = raising(tmp_path, driver_object)
    assert set(said) >= {"RuntimeError", "KeyError", "MemoryError", "SystemExit", "RecursionError"}
    for fault, answers in said.items():
        assert answers.pop("unfreed") == 0, fault
        assert answers.pop("then") == {"predicted_class": 0, "confidence": 0.5143}, fault
        for name, answer in answers.items():
            check_failed(name, answer)
        assert len(answers) > 60, fault


# ---- MLP -------------------------------------------------------------------------------------

BAD_JSON: Mapping[str, object] = {
    "no JSON": "{",
    "a list": [],
    "another algorithm": {"algorithm": "knn"},
    "no layers": {"layers": None},
    "ragged weights": {
        "layers": [
            {
                "type": "linear",
                "in_features": 3,
                "out_features": 2,
                "weight": [[1.0, 2.0, 3.0], [1.0]],
                "bias": None,
            }
        ]
    },
    "a layer that is not known": {"layers": [{"type": "conv"}]},
    "a number that is a text": {"feature_dim": "three"},
}


@pytest.mark.parametrize("name", MLP_FROM_JSON)
@pytest.mark.parametrize("bad", BAD_JSON)
def test_bad_selectors(candle: Candle, name: str, bad: str) -> None:
    text, *rest = good_arguments(name)
    change = BAD_JSON[bad]
    if isinstance(change, dict):
        changed = json.loads(str(text)) | change
        wrong = json.dumps({key: value for key, value in changed.items() if value is not None})
    else:
        wrong = change if isinstance(change, str) else json.dumps(change)
    assert candle(name, wrong, *rest) is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("candle_mlp_new", ()),
        ("candle_mlp_new_with_device", (0,)),
        ("candle_mlp_new_with_device_and_dtype", (0, 0)),
    ],
)
def test_an_untrained_selector(candle: Candle, name: str, values: tuple[object, ...]) -> None:
    handle = Raw(candle(name, *values))
    assert candle("candle_mlp_is_trained", handle) == 0
    assert candle("candle_mlp_select", handle, Raw("d1.0,2.0,3.0"), 3) is None
    assert candle("candle_mlp_free", handle) is None


@pytest.mark.parametrize("query", ["d1.0,2.0", "d1.0,2.0,3.0,4.0", "dnan,nan,nan", "dinf,inf,inf"])
def test_queries_that_a_selector_cannot_take(candle: Candle, query: str) -> None:
    handle = Raw(candle("candle_mlp_from_json", *good_arguments("candle_mlp_from_json")))
    assert candle("candle_mlp_select", handle, Raw(query), query.count(",") + 1) is None
    assert candle("candle_mlp_free", handle) is None


def test_the_driver_knows_every_function(candle: Candle) -> None:
    """The last line of a table that everything here goes through."""
    lines = [line(name, *map(token_less, good_arguments(name))) for name in FUNCTIONS]
    assert "no such function" not in candle.script(*lines, "cleanup_dual_path_memory")
    assert token(OUT) == OUT


def token_less(value: object) -> object:
    """Replace paths by one that is not there, so that nothing is loaded."""
    return "/nowhere" if isinstance(value, Path) else value
