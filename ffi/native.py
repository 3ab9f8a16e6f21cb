"""The Python side of every exported function: decode, ask the registry, encode."""

from collections.abc import Callable, Mapping
from typing import Any

from libsemantic.engine import results
from libsemantic.engine.config import (
    DEFAULT_RUN_OPTIONS,
    MAX_REQUESTS,
    LoadOptions,
    RunOptions,
    RuntimeOptions,
)
from libsemantic.engine.errors import (
    InvalidArgumentError,
    SemanticError,
    Status,
    as_semantic_error,
)
from libsemantic.engine.log import one_line
from libsemantic.engine.registry import Registry
from libsemantic.engine.together import ModelRequest

from .codecs import (
    FFI,
    CData,
    Lib,
    OptionsCodec,
    ResultCodec,
    decode_array,
    decode_name,
    decode_texts,
)

Entry = Callable[..., int]

RESULT_STRUCTS: Mapping[type, str] = {
    results.Classification: "semantic_classification",
    results.TokenClassification: "semantic_token_classification",
    results.Embedding: "semantic_embedding",
    results.TokenCounts: "semantic_token_counts",
    results.Answers: "semantic_answers",
    results.ModelList: "semantic_model_list",
    results.ModelInfo: "semantic_model_info",
    results.Stats: "semantic_stats",
}

# Fields of the statistics that the C side counts.
COUNTED_IN_C = ("results_unfreed", "results_unfreed_bytes", "log_dropped")


class Boundary:
    """Binds one registry to the exported functions."""

    def __init__(self, ffi: FFI, lib: Lib, registry: Registry) -> None:
        self._ffi = ffi
        self._lib = lib
        self._registry = registry
        self._init_options = OptionsCodec(ffi, "semantic_init_options", RuntimeOptions())
        self._load_options = OptionsCodec(ffi, "semantic_load_options", LoadOptions())
        self._run_options = OptionsCodec(ffi, "semantic_run_options", DEFAULT_RUN_OPTIONS)
        self._results = ResultCodec(ffi, lib, RESULT_STRUCTS, COUNTED_IN_C)

    def entries(self) -> dict[str, Entry]:
        """Return the Python side of each exported function, by its C name."""
        registry = self._registry
        return {
            "semantic_init": self._init,
            "semantic_cleanup": self._cleanup,
            "semantic_load_model": self._load_model,
            "semantic_find_model": self._find_model,
            "semantic_list_models": self._list_models,
            "semantic_get_model_info": self._get_model_info,
            "semantic_unload_model": self._unload_model,
            "semantic_classify": self._texts(registry.classify),
            "semantic_classify_pairs": self._pairs(registry.classify_pairs),
            "semantic_classify_tokens": self._texts(registry.classify_tokens),
            "semantic_classify_token_pairs": self._pairs(registry.classify_token_pairs),
            "semantic_embed": self._texts(registry.embed),
            "semantic_count_tokens": self._texts(registry.count_tokens),
            "semantic_run_models": self._run_models,
            "semantic_cancel": self._cancel,
            "semantic_get_stats": self._get_stats,
        }

    def guard(self, entry: Entry) -> Entry:
        """Turn whatever an entry raises into a status with its text in ``error``."""

        def guarded(*arguments: Any) -> int:
            try:
                return entry(*arguments)
            except BaseException as raised:  # the boundary never throws
                # A local variable that holds it would be a cycle through its traceback: whatever
                # the failed call used would live until a garbage collection.
                return self._fail(arguments[-1], raised)

        return guarded

    def _init(self, options: CData, error: CData) -> int:
        del error
        self._registry.init(self._init_options.decode(options))
        return Status.OK

    def _cleanup(self, timeout_ms: int, error: CData) -> int:
        del error
        self._registry.cleanup(timeout_ms)
        return Status.OK

    def _load_model(self, path: CData, options: CData, model: CData, error: CData) -> int:
        del error
        folder = decode_name(self._ffi, path, "path")
        if not folder:
            raise InvalidArgumentError("path is empty; pass the folder of a model")
        model.id = self._registry.load(folder, self._load_options.decode(options))
        return Status.OK

    def _find_model(self, name: CData, model: CData, error: CData) -> int:
        del error
        model.id = self._registry.find(decode_name(self._ffi, name, "name") or "")
        return Status.OK

    def _list_models(self, out: CData, error: CData) -> int:
        del error
        return self._answer(self._registry.list_models(), out)

    def _get_model_info(self, model: int, out: CData, error: CData) -> int:
        del error
        return self._answer(self._registry.info(model), out)

    def _unload_model(self, model: int, timeout_ms: int, error: CData) -> int:
        del error
        self._registry.unload(model, timeout_ms)
        return Status.OK

    def _cancel(self, cancel_key: int) -> int:
        try:
            return Status.OK if self._registry.cancel(cancel_key) else Status.NOT_FOUND
        except BaseException as raised:  # no error value to fill: the status is all
            return int(as_semantic_error(raised).status)

    def _get_stats(self, out: CData, error: CData) -> int:
        del error
        lib = self._lib
        unfreed = lib.boundary_blocks_unfreed(), lib.boundary_blocks_unfreed_bytes()
        stats = self._ffi.cast("semantic_stats *", self._results.encode(self._registry.stats()))
        stats.results_unfreed, stats.results_unfreed_bytes = unfreed
        stats.log_dropped = lib.boundary_log_dropped()
        out[0] = stats
        return Status.OK

    def _answer(self, result: object, out: CData) -> int:
        out[0] = self._ffi.cast("void *", self._results.encode(result))
        return Status.OK

    def _texts(self, call: Callable[[int, list[Any], RunOptions], results.Result]) -> Entry:
        def entry(
            model: int, texts: CData, n: int, options: CData, out: CData, error: CData
        ) -> int:
            rows = decode_texts(self._ffi, texts, n)
            return self._answer_rows(
                call(model, rows, self._run_options.decode(options)), out, error
            )

        return entry

    def _pairs(
        self, call: Callable[[int, list[Any], list[Any], RunOptions], results.Result]
    ) -> Entry:
        def entry(
            model: int,
            left: CData,
            right: CData,
            n: int,
            options: CData,
            out: CData,
            error: CData,
        ) -> int:
            pair = decode_texts(self._ffi, left, n), decode_texts(self._ffi, right, n)
            return self._answer_rows(
                call(model, *pair, self._run_options.decode(options)), out, error
            )

        return entry

    def _run_models(
        self, requests: CData, count: int, texts: CData, n: int, out: CData, error: CData
    ) -> int:
        given = decode_array(self._ffi, "semantic_request", requests, count, MAX_REQUESTS)
        rows = decode_texts(self._ffi, texts, n)
        answers = self._registry.run_models([self._request(each) for each in given], rows)
        self._answer(answers, out)
        return self._partial(answers.first_error(), error)

    def _request(self, request: CData) -> ModelRequest:
        try:
            return ModelRequest(request.model.id, self._run_options.decode(request.options))
        except InvalidArgumentError as refused:
            return ModelRequest(request.model.id, refused=refused.detached())

    def _answer_rows(self, result: results.Result, out: CData, error: CData) -> int:
        self._answer(result, out)
        return self._partial(result.rows.first_error(), error)

    def _partial(self, failed: tuple[int, SemanticError] | None, error: CData) -> int:
        if failed is None:
            return Status.OK
        row, failure = failed
        failure.input_index = row
        self._set_error(error, Status.PARTIAL, failure)
        return Status.PARTIAL

    def _fail(self, error: CData, raised: BaseException) -> int:
        failure = as_semantic_error(raised)
        self._set_error(error, failure.status, failure)
        return int(failure.status)

    def _set_error(self, error: CData, status: Status, failure: SemanticError) -> None:
        message = one_line(failure.message).encode("utf-8", "replace")
        self._lib.boundary_set_error(error, status, failure.input_index, message, len(message))

    def report_escape(self, kind: type[BaseException], value: object, trace: object) -> None:
        """Log what escaped an entry; cffi then answers with the failure value."""
        del value, trace
        self._registry.log.error(f"a call failed outside its guard: {kind.__name__}")
