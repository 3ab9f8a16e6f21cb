"""The built library, opened in this interpreter; its binding is made from the header."""

import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from cffi import FFI

from libsemantic.engine.errors import Status
from libsemantic.ffi import generate
from libsemantic.ffi.codecs import CData

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LIBRARY = BUILD / "lib" / "libsemantic.so.0"
MODELS = ROOT / "tests" / "golden" / "models"

HEADER = generate.read_header(ROOT / "include" / "semantic.h", "cc")
FUNCTIONS = {function.name: function for function in HEADER.functions}

# The model that answers a function; the others take any.
MODEL_OF = {
    "semantic_classify_pairs": "bert-reranker",
    "semantic_classify_tokens": "bert-token",
    "semantic_classify_token_pairs": "bert-token",
    "semantic_embed": "bert-embed-mean",
}

# What a good call of each exported function answers. The tests of the conventions, of the faults
# and of a start that fails all go through this table.
GOOD: Mapping[str, object] = {
    "semantic_abi_version": 0 << 16 | 1,
    "semantic_version": "0.1.0",
    "semantic_status_name": "OK",
    "semantic_init": Status.OK,
    "semantic_cleanup": Status.OK,
    "semantic_load_model": Status.OK,
    "semantic_find_model": Status.OK,
    "semantic_list_models": Status.OK,
    "semantic_get_model_info": Status.OK,
    "semantic_unload_model": Status.OK,
    "semantic_classify": Status.OK,
    "semantic_classify_pairs": Status.OK,
    "semantic_classify_tokens": Status.OK,
    "semantic_classify_token_pairs": Status.OK,
    "semantic_embed": Status.OK,
    "semantic_count_tokens": Status.OK,
    "semantic_run_models": Status.OK,
    "semantic_cancel": Status.NOT_FOUND,  # nothing carries the key
    "semantic_get_stats": Status.OK,
    "semantic_set_log_callback": Status.OK,
    "semantic_free": None,
}


def having(parameter: str) -> list[str]:
    """Return the functions with a parameter of that name."""
    return [name for name, f in FUNCTIONS.items() if any(p.name == parameter for p in f.parameters)]


# The functions whose result says itself how each row was answered.
ROW_BY_ROW = [name for name in having("n") if name in having("model")]


def pointers(name: str) -> list[generate.Parameter]:
    """Return the parameters of a function that may be NULL."""
    return [p for p in FUNCTIONS[name].parameters if p.pointers or p.name == "callback"]


def options_of(name: str) -> str:
    """Return the struct of a function's options."""
    return next(p.type for p in FUNCTIONS[name].parameters if p.name == "options")


WITH_A_RESULT = sorted(
    name
    for name, function in FUNCTIONS.items()
    if any(p.is_out and p.pointers == 2 for p in function.parameters)
)

# The extent of each array of the result structs: fields of the same struct, or "rows" for the
# number of rows; "+1" adds one.
EXTENTS: Mapping[str, Mapping[str, str]] = {
    "semantic_rows": dict.fromkeys(
        (
            *("token_count", "scored_token_count", "truncated", "window_count", "status"),
            "message",
        ),
        "count",
    ),
    "semantic_classification": {
        "labels": "label_count",
        "label_index": "rows",
        "score": "rows",
        **dict.fromkeys(
            ("probabilities", "logits", "selected", "class_max", "class_window"),
            "rows label_count",
        ),
    },
    "semantic_token_classification": {
        "labels": "label_count",
        "row_start": "rows+1",
        **dict.fromkeys(("row", "label_index", "score", "start", "end"), "item_count"),
        "probabilities": "item_count label_count",
    },
    "semantic_embedding": {"values": "rows dimension"},
    "semantic_token_counts": {
        "row_start": "rows+1",
        **dict.fromkeys(("window_start", "window_end", "window_tokens"), "window_total"),
    },
    "semantic_answers": dict.fromkeys(
        (
            *("status", "input_index", "message", "classification", "token_classification"),
            "embedding",
        ),
        "count",
    ),
    "semantic_model_list": dict.fromkeys(("model_id", "name", "task", "state"), "count"),
    "semantic_model_info": {
        "labels": "label_count",
        "dimensions": "dimension_count",
        "layers": "layer_count",
        "prompt_names": "prompt_count",
        "file_names": "file_count",
        "file_sizes": "file_count",
        "warnings": "warning_count",
    },
    "semantic_stats": {
        **dict.fromkeys(
            ("model_id", "model_name", "model_task", "model_state", "model_device"), "model_count"
        ),
        **dict.fromkeys(
            (
                *("call_model_id", "call_model_name", "call", "accepted", "completed", "failed"),
                *("expired", "cancelled", "in_flight", "refused", "tokens", "truncated"),
                *("batches", "latency_seconds", "padding_tokens", "batch_rows_sum"),
            ),
            "call_count",
        ),
        "phase_latency": "call_count phase_count bucket_count",
        "phase_seconds": "call_count phase_count",
        "batch_bounds": "batch_bucket_count-1",
        "batch_rows": "call_count batch_bucket_count",
        "bucket_bounds": "bucket_count-1",
        "latency": "call_count bucket_count",
        "memory_owner": "memory_count",
        "memory_bytes": "memory_count",
    },
}

_DTYPES = {
    "uint64_t": np.uint64,
    "int64_t": np.int64,
    "int32_t": np.int32,
    "uint8_t": np.uint8,
    "float": np.float32,
    "double": np.float64,
}


class Library:
    """The exported functions, and C values to call them with."""

    def __init__(self, path: Path = LIBRARY) -> None:
        self.ffi = FFI()
        declarations = "".join(f"{function.declaration};\n" for function in HEADER.functions)
        self.ffi.cdef(HEADER.types + declarations)
        self.lib = self.ffi.dlopen(str(path))
        self._alive: weakref.WeakKeyDictionary[CData, object] = weakref.WeakKeyDictionary()

    def call(self, name: str, arguments: Mapping[str, CData]) -> CData:
        """Call a function with arguments by name; text answers come as str."""
        answer = getattr(self.lib, name)(*(arguments[p.name] for p in FUNCTIONS[name].parameters))
        if isinstance(answer, self.ffi.CData):
            return self.ffi.string(answer).decode()
        return answer

    def good_arguments(self, name: str, model: int, model_name: str) -> dict[str, CData]:
        """Return arguments that make the function succeed.

        ``model`` and ``model_name`` stand for a loaded model that answers the function.
        """
        ffi = self.ffi
        by_name = {
            **dict.fromkeys(("texts", "left", "context"), self.texts(b"a derivative of x")),
            **dict.fromkeys(("right", "answer"), self.texts(b"two x")),
            "requests": self.requests((model, None), (model, None)),
            "request_count": 2,
            **dict.fromkeys(("options", "callback", "user", "block"), ffi.NULL),
            "n": 1,
            "status": 0,
            "path": self.text(str(MODELS / "bert-seq")),
            "name": self.text(model_name),
            "timeout_ms": 5000,
            "cancel_key": 7,
        }
        arguments = {}
        for parameter in FUNCTIONS[name].parameters:
            if parameter.name == "error":
                arguments["error"] = self.error()
            elif parameter.is_out and parameter.name != "user":
                # Poisoned, so that a function that leaves it alone is seen.
                poison = 99 if parameter.pointers == 1 else ffi.cast("void *", 99)
                arguments[parameter.name] = ffi.new(f"{parameter.type} {'*' * parameter.pointers}")
                if parameter.pointers == 1:
                    arguments[parameter.name].id = poison
                else:
                    arguments[parameter.name][0] = poison
            elif parameter.type == "semantic_model":
                arguments[parameter.name] = self.handle(model)
            else:
                arguments[parameter.name] = by_name[parameter.name]
        return arguments

    def handle(self, model: int) -> CData:
        """Return a semantic_model by value."""
        return self.ffi.new("semantic_model *", {"id": model})[0]

    def error(self) -> CData:
        """Return a semantic_error, ready to be passed."""
        return self.ffi.new(
            "semantic_error *", {"struct_size": self.ffi.sizeof("semantic_error"), "status": 77}
        )

    def options(self, struct: str, values: Mapping[str, CData] | None = None) -> CData:
        """Return an options struct with some fields set; str for text."""
        options = self.ffi.new(f"{struct} *", {"struct_size": self.ffi.sizeof(struct)})
        texts = []
        for name, value in (values or {}).items():
            if isinstance(value, str):
                texts.append(self.text(value))
                setattr(options, name, texts[-1])
            elif name == "replaces":
                options.replaces.id = value
            else:
                setattr(options, name, value)
        self._alive[options] = texts
        return options

    def requests(self, *given: tuple[int, CData | None]) -> CData:
        """Return a semantic_request array of handles and options."""
        size = self.ffi.sizeof("semantic_request")
        values = [(size, (model,), options or self.ffi.NULL) for model, options in given]
        array = self.ffi.new("semantic_request[]", values)
        self._alive[array] = given
        return array

    def text(self, text: str) -> CData:
        """Return a NUL-terminated name or path."""
        return self.ffi.new("char[]", text.encode())

    def texts(self, *rows: bytes | tuple[bytes | None, int]) -> CData:
        """Return a semantic_text array; a pair gives bytes (None: NULL) and the length."""
        buffers, values = [], []
        for row in rows:
            data, length = row if isinstance(row, tuple) else (row, len(row))
            buffers.append(self.ffi.NULL if data is None else self.ffi.from_buffer(data))
            values.append((buffers[-1], length))
        array = self.ffi.new("semantic_text[]", values)
        self._alive[array] = buffers
        return array

    def message(self, error: CData) -> str:
        """Return the text of a semantic_error; it must be UTF-8."""
        raw: bytes = self.ffi.string(error.message)
        return raw.decode()

    def result_of(self, name: str, arguments: Mapping[str, CData]) -> dict[str, CData]:
        """Call a function that must succeed, copy its result and free it."""
        status = self.call(name, arguments)
        assert status == Status.OK, self.message(arguments["error"])
        return self.take(self.out(name, arguments))

    def out(self, name: str, arguments: Mapping[str, CData]) -> CData:
        """Return what the function left in its out value: a pointer, or the number of a handle."""
        for parameter in FUNCTIONS[name].parameters:
            if parameter.is_out and parameter.name != "user":
                value = arguments[parameter.name]
                return value.id if parameter.pointers == 1 else value[0]
        return None

    def take(self, result: CData) -> dict[str, CData]:
        """Copy a result, field by field, and free it."""
        assert result != self.ffi.NULL
        copied = self.read(result)
        self.lib.semantic_free(result)
        return copied

    def read(self, pointer: CData) -> dict[str, CData]:
        """Copy a result struct: numbers, numpy arrays, str, tuples of str, dicts for structs."""
        struct = self.ffi.typeof(pointer).item
        name = struct.cname.removeprefix("struct ")
        assert pointer.struct_size == self.ffi.sizeof(struct)
        copied: dict[str, CData] = {}
        for field, description in struct.fields:
            value, extent = getattr(pointer, field), EXTENTS[name].get(field)
            if field == "rows":
                copied[field] = self.read(value)
            elif extent is not None:
                copied[field] = self._read_array(value, self._shape(pointer, extent))
            elif description.type.kind == "struct":
                copied[field] = self._read_text(value)
            elif field != "struct_size":
                copied[field] = value
        return copied

    def _shape(self, pointer: CData, extent: str) -> tuple[int, ...]:
        shape = []
        for part in extent.split():
            field, sign, number = part.partition("+") if "+" in part else part.partition("-")
            length = pointer.rows.count if field == "rows" else getattr(pointer, field)
            shape.append(length + int(sign + number or 0))
        return tuple(shape)

    def _read_array(self, pointer: CData, shape: tuple[int, ...]) -> CData:
        count = int(np.prod(shape))
        item = self.ffi.typeof(pointer).item
        if item.kind == "pointer":
            found = [pointer[index] for index in range(count)]
            return tuple(None if each == self.ffi.NULL else self.read(each) for each in found)
        if item == self.ffi.typeof("semantic_text"):
            return tuple(self._read_text(pointer[index]) for index in range(count))
        if pointer == self.ffi.NULL:
            return None if count else np.empty(shape, _DTYPES[item.cname])
        data = self.ffi.buffer(pointer, count * self.ffi.sizeof(item))
        return np.frombuffer(bytes(data), _DTYPES[item.cname]).reshape(shape)

    def _read_text(self, text: CData) -> str:
        data = bytes(self.ffi.buffer(text.data, text.length + 1))
        assert data[-1:] == b"\0"  # not counted, but there
        return data[:-1].decode()
