"""``semantic_run_models``: one block for all answers, a status for each request."""

import threading
import time

import numpy as np

from libsemantic.engine.errors import Status
from libsemantic.ffi.codecs import MAX_STRUCT_SIZE, CData

from .binding import Library
from .harness import Models, refused

NAME = "semantic_run_models"
KEY = 7_531
COLUMNS = {
    "bert-seq": ("semantic_classify", "classification"),
    "bert-token": ("semantic_classify_tokens", "token_classification"),
    "bert-embed-mean": ("semantic_embed", "embedding"),
}
TEXTS = (b"a derivative of x", b"", "Ask Jürgen 😀".encode())


def arguments(
    library: Library, models: Models, *given: tuple[int, CData | None]
) -> dict[str, CData]:
    return models.arguments(NAME) | {
        "requests": library.requests(*given),
        "request_count": len(given),
        "texts": library.texts(*TEXTS),
        "n": len(TEXTS),
    }


def require_same(found: CData, expected: CData) -> None:
    """Compare what was read of two results."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            require_same(found[name], expected[name])
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
    else:
        assert found == expected


def test_each_answer_is_that_of_a_call_to_the_model_alone(library: Library, models: Models) -> None:
    options = library.options("semantic_run_options", {"output": 1})
    given = [(models[folder], None) for folder in COLUMNS] + [(models["bert-token"], options)]
    calls = [*COLUMNS.values(), COLUMNS["bert-token"]]
    found = library.result_of(NAME, arguments(library, models, *given))
    assert found["count"] == 4
    assert found["status"].tolist() == [Status.OK] * 4
    assert found["input_index"].tolist() == [-1] * 4
    assert found["message"] == ("",) * 4
    for index, ((model, chosen), (call, column)) in enumerate(zip(given, calls, strict=True)):
        alone = models.arguments(call) | {
            "model": library.handle(model),
            "options": chosen or library.ffi.NULL,
            "texts": library.texts(*TEXTS),
            "n": len(TEXTS),
        }
        require_same(found[column][index], library.result_of(call, alone))
        for _, other in COLUMNS.values():
            assert (found[other][index] is None) == (other != column)


def test_a_request_fails_alone(library: Library, models: Models) -> None:
    seq = models["bert-seq"]
    wrong = library.options("semantic_run_options", {"long_text": 9})
    small = library.options("semantic_run_options")
    small.struct_size = 3
    asked = arguments(
        library, models, (seq, wrong), (seq, small), (0, None), (seq, None), (1 << 40, None)
    )
    asked["texts"] = library.texts(b"math", b"\xff")
    asked["n"] = 2
    assert library.call(NAME, asked) == Status.PARTIAL
    error = asked["error"]
    assert (error.status, error.input_index) == (Status.PARTIAL, 0)
    assert "long_text is 9" in library.message(error)
    found = library.take(library.out(NAME, asked))
    assert found["status"].tolist() == [
        *(Status.INVALID_ARGUMENT, Status.INVALID_ARGUMENT, Status.INVALID_ARGUMENT),
        *(Status.PARTIAL, Status.NOT_FOUND),
    ]
    assert found["input_index"].tolist() == [-1, -1, -1, 1, -1]
    for message, part in zip(
        found["message"],
        ("may be", "struct_size is 3", "handle is 0", "UTF-8", "never"),
        strict=True,
    ):
        assert part in message
    answered = found["classification"]
    assert [index for index in range(5) if answered[index]] == [3]
    assert answered[3]["rows"]["status"].tolist() == [Status.OK, Status.INVALID_ARGUMENT]


def test_where_all_fail_there_is_the_first_status_and_no_result(
    library: Library, models: Models
) -> None:
    asked = arguments(library, models, (1 << 40, None), (0, None))
    refused(library, NAME, asked, Status.NOT_FOUND)
    assert asked["error"].input_index == 0


def test_counts_and_sizes_of_requests(library: Library, models: Models) -> None:
    ffi, seq = library.ffi, models["bert-seq"]
    empty = arguments(library, models) | {"requests": ffi.NULL}
    assert library.result_of(NAME, empty)["count"] == 0
    no_texts = arguments(library, models, (seq, None)) | {"texts": ffi.NULL, "n": 0}
    assert library.result_of(NAME, no_texts)["classification"][0]["rows"]["count"] == 0
    most = arguments(library, models, *[(seq, None)] * 64)
    assert library.result_of(NAME, most)["count"] == 64
    many = arguments(library, models, *[(seq, None)] * 65)
    assert "65 of semantic_request in one call" in refused(library, NAME, many)
    many["request_count"] = 2**63
    assert "pass at most 64" in refused(library, NAME, many)
    for wrong in (0, 8, 23, 25, MAX_STRUCT_SIZE + 8, 2**64 - 1):
        asked = arguments(library, models, (seq, None), (seq, None))
        asked["requests"][0].struct_size = wrong
        assert f"semantic_request.struct_size is {wrong}" in refused(library, NAME, asked)
    asked = arguments(library, models, (seq, None), (seq, None))
    asked["requests"][1].struct_size = 32
    assert "24 in the first and 32 in number 1" in refused(library, NAME, asked)


def test_a_key_and_a_deadline_end_their_request(library: Library, models: Models) -> None:
    def asked(**values: int) -> tuple[int, CData]:
        return models["bert-seq"], library.options("semantic_run_options", values)

    long = arguments(library, models, asked(cancel_key=KEY), asked(timeout_ms=1))
    long |= {"texts": library.texts(*[b"math " * 60] * 2000), "n": 2000}
    ended: list[int] = []
    running = threading.Thread(target=lambda: ended.append(library.call(NAME, long)))
    running.start()
    while library.lib.semantic_cancel(KEY) != Status.OK:
        time.sleep(0.001)
    running.join(30)
    assert ended in ([Status.CANCELLED], [Status.PARTIAL])  # some rows may have been answered
    if ended == [Status.PARTIAL]:
        found = library.take(library.out(NAME, long))
        assert set(found["status"].tolist()) <= {
            *(Status.CANCELLED, Status.PARTIAL, Status.DEADLINE),
        }
    library.result_of(NAME, arguments(library, models, asked()))


def test_requests_of_a_newer_caller(library: Library, models: Models) -> None:
    """They lie as far apart as their size says; what is not known must be zero."""
    ffi, size = library.ffi, 40
    memory = ffi.new("char[]", 2 * size)
    handles = models["bert-seq"], models["bert-embed-mean"]
    for index, handle in enumerate(handles):
        request = ffi.cast("semantic_request *", memory + index * size)
        request.struct_size, request.model.id = size, handle
    asked = arguments(library, models) | {
        "requests": ffi.cast("semantic_request *", memory),
        "request_count": 2,
    }
    found = library.result_of(NAME, asked)
    assert found["status"].tolist() == [Status.OK] * 2
    assert [each is None for each in found["embedding"]] == [True, False]
    memory[2 * size - 1] = b"\x01"
    assert "does not know" in refused(library, NAME, asked)
