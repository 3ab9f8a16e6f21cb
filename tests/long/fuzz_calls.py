"""Calls of the C API with odd options and texts, for the fuzzer.

A call is a JSON document: the function, the options by name, their announced size and the bytes
behind them, the texts and the lengths they are passed with. Lengths never lie within reach: what
is announced is there, or is so long that it must be refused unread.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from libsemantic.engine.config import DEFAULT_MAX_TEXT_BYTES, MAX_ROWS
from libsemantic.engine.errors import SemanticError, Status
from libsemantic.ffi.codecs import MAX_STRUCT_SIZE, CData
from tests.abi.binding import FUNCTIONS, Library, options_of
from tests.abi.harness import Models

SECRET: Final = "xyzzy"  # in every text: nothing that is said may hold it
GOLDENS: Final = ("bert-seq", "bert-token", "bert-reranker", "bert-embed-mean")
_LEFT, _RIGHT = ("texts", "left", "context"), ("right", "answer")
_ERRORS: Final = {error.status: error for error in SemanticError.__subclasses__()}


def first_calls() -> list[bytes]:
    """Return a good call of each function, some with options and broken texts."""
    texts = [f"{SECRET} math", "", None, f"jane.roe@example.org {SECRET} é\ud800", "a " * 200]
    run = {"timeout_ms": 1000, "cancel_key": 7, "long_text": 3, "window_overlap": 16}
    load = {"name": "other", "device": "cpu", "max_tokens": 32, "max_text_bytes": 100}
    options: Mapping[str, Mapping[str, object]] = {
        "semantic_init": {"device": "auto", "intra_op_threads": 2, "log_level": 1},
        "semantic_load_model": load | {"intra_op_threads": 1, "queue_rows": 10},
        "semantic_embed": run | {"dimension": 64, "normalize": 1, "prompt_name": ""},
        "semantic_classify": run | {"threshold": 0.5},
        "semantic_classify_tokens": run | {"output": 1},
        "semantic_classify_pairs": run | {"shorten": 2},
    }
    calls: list[bytes] = []
    for name, function in FUNCTIONS.items():
        if any(parameter.name == "error" for parameter in function.parameters):
            call = {
                "call": name,
                "options": options.get(name, run),
                "size": None,
                "tail": "",
                "name": "golden bert-seq",
                "timeout_ms": 0,
                "texts": texts,
                "others": texts[::-1],
                "lengths": [],
                "n": None,
                "model": None,
            }
            calls.append(json.dumps(call).encode())
    return calls


def read_call(data: bytes, folder: Path) -> None:
    """Make the call, read what it answers, free it; raise what it said."""
    del folder
    try:
        call = json.loads(data)
    except (ValueError, RecursionError):
        return
    function = call.get("call") if isinstance(call, dict) else None
    # A cleanup would cost each input a load of all models.
    if not isinstance(function, str) or function not in FUNCTIONS or "cleanup" in function:
        return
    library, models = _library()
    arguments = models.arguments(function)
    _fill(library, models, arguments, function, call)
    status = library.call(function, arguments)
    if "error" not in arguments:
        return
    error = arguments["error"]
    assert error.status == status
    message = library.message(error)
    out = library.out(function, arguments)
    if status in (Status.OK, Status.PARTIAL):
        if isinstance(out, library.ffi.CData) and out != library.ffi.NULL:
            _check_answer(library.take(out))
        elif function == "semantic_load_model":
            assert library.lib.semantic_unload_model(library.handle(out), 0, error) == Status.OK
    else:
        assert out in (None, 0, library.ffi.NULL)
        assert message
    assert SECRET not in message
    if status not in (Status.OK, Status.PARTIAL):
        raise _ERRORS[Status(status)](message)


@cache
def _library() -> tuple[Library, Models]:
    library = Library()
    models = Models(library)
    for folder in GOLDENS:
        _ = models[folder]
    return library, models


def _check_answer(answer: Mapping[str, CData]) -> None:
    rows = answer.get("rows")
    if rows is not None:
        assert not any(SECRET in said for said in rows["message"])
        assert Status.INTERNAL not in rows["status"].tolist()
    if "input_index" in answer:  # several answers
        assert not any(SECRET in said for said in answer["message"])
        assert Status.INTERNAL not in answer["status"].tolist()


def _fill(
    library: Library,
    models: Models,
    arguments: dict[str, CData],
    function: str,
    call: Mapping[str, object],
) -> None:
    """Put what the document says into the arguments, as far as it can be passed."""
    ffi = library.ffi
    for names, key in ((_LEFT, "texts"), (_RIGHT, "others")):
        texts, count = _texts(library, call.get(key), call.get("lengths"))
        for name in names:
            if name in arguments:
                arguments[name] = texts
                arguments["n"] = min(count, arguments["n"]) if key == "others" else count
    asked = call.get("n")
    if "n" in arguments and type(asked) is int:
        within = 0 <= asked <= arguments["n"]
        arguments["n"] = asked if within or MAX_ROWS < asked < 2**64 else arguments["n"]
    for name in ("name", "path"):
        value = call.get(name)
        if name in arguments and isinstance(value, str):
            arguments[name] = ffi.new("char[]", _bytes(value))
    if "options" in arguments:
        arguments["options"], arguments["behind the options"] = _options(
            library, options_of(function), call
        )
    if "requests" in arguments:
        options, arguments["behind the requests"] = _options(library, "semantic_run_options", call)
        handles = [models[folder] for folder in GOLDENS]
        arguments["requests"] = library.requests(*((handle, options) for handle in handles))
        arguments["request_count"] = len(handles)
    timeout = call.get("timeout_ms")
    if "timeout_ms" in arguments and type(timeout) is int:
        arguments["timeout_ms"] = int(ffi.cast("int64_t", timeout))
    handle = call.get("model")
    is_value = "model" in arguments and ffi.typeof(arguments["model"]).kind == "struct"
    if is_value and type(handle) is int:
        arguments["model"] = library.handle(handle % 2**64)
    if function == "semantic_unload_model":  # the golden models stay
        arguments["model"] = library.handle((1 << 40) + arguments["model"].id % 2**40)


def _texts(library: Library, texts: object, lengths: object) -> tuple[CData, int]:
    rows: list[tuple[bytes | None, int]] = []
    announced = lengths if isinstance(lengths, list) else []
    for index, text in enumerate(texts if isinstance(texts, list) else []):
        data = _bytes(text) if isinstance(text, str) else None
        length = len(data or b"")
        other = announced[index] if index < len(announced) else None
        if type(other) is int and (0 <= other <= length or data is None):
            length = other % 2**64
        elif type(other) is int and DEFAULT_MAX_TEXT_BYTES < other < 2**64:
            length = other
        rows.append((data, length))
    return library.texts(*rows[:MAX_ROWS]), len(rows[:MAX_ROWS])


def _options(
    library: Library, struct: str, call: Mapping[str, object]
) -> tuple[CData, list[CData]]:
    """Return an options struct with as much memory behind it as may be looked at.

    What it points to, and itself, lives as long as the list.
    """
    ffi = library.ffi
    values = call.get("options")
    if values is None:
        return ffi.NULL, []
    size = ffi.sizeof(struct)
    memory = ffi.new("char[]", MAX_STRUCT_SIZE + size)
    options = ffi.cast(f"{struct} *", memory)
    announced, tail = call.get("size"), call.get("tail")
    options.struct_size = announced % 2**64 if type(announced) is int else size
    if isinstance(tail, str):
        behind = _bytes(tail)[:MAX_STRUCT_SIZE]
        ffi.buffer(memory)[size : size + len(behind)] = behind
    kept: list[CData] = [memory]
    for name, field in ffi.typeof(struct).fields:
        value = values.get(name) if isinstance(values, dict) else None
        if name == "struct_size" or value is None:
            continue
        if field.type.kind == "pointer" and isinstance(value, str):
            kept.append(ffi.new("char[]", _bytes(value)))
            setattr(options, name, kept[-1])
        elif field.type.kind == "struct" and type(value) is int:
            options.replaces.id = (1 << 40) + value % 2**40
        elif field.type.kind == "primitive" and isinstance(value, int | float):
            whole = field.type.cname in ("float", "double")
            setattr(options, name, float(value) if whole else _fit(library, field, value))
        elif field.type.kind == "enum" and isinstance(value, int | float):
            setattr(options, name, _fit(library, field, value))
    return options, kept


def _fit(library: Library, field: CData, value: float) -> int:
    """Return a number as the field's type holds it; what is no whole number as 0."""
    number = int(value) if abs(value) < 1e40 else 0
    kind = "int32_t" if field.type.kind == "enum" else field.type
    return int(library.ffi.cast(kind, number))


def _bytes(text: str) -> bytes:
    """Return UTF-8, broken where the text holds a lone surrogate."""
    return text.encode("utf-8", "surrogatepass")
