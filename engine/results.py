"""What the engine answers: columns of numpy arrays, one dataclass per kind of result.

Fields carry the names of the structs in ``semantic.h``; the boundary copies them by name.
``n`` is the number of rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import SemanticError

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Rows:
    """What every result says about its rows, one entry per row.

    ``token_count``: tokens of the whole text with special tokens. ``scored_token_count``:
    those the model saw, each once. ``truncated`` 1 where they differ. ``status``: a value of
    ``Status``. ``errors``: the error, or None; ``message``: its text, or empty.
    """

    token_count: tuple[int, ...]
    scored_token_count: tuple[int, ...]
    truncated: tuple[int, ...]
    window_count: tuple[int, ...]
    status: tuple[int, ...]
    message: tuple[str, ...]
    errors: tuple[SemanticError | None, ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.errors)

    def first_error(self) -> tuple[int, SemanticError] | None:
        """Return the first failed row and its error, or None."""
        for row, error in enumerate(self.errors):
            if error is not None:
                return row, error
        return None


@dataclass(frozen=True, slots=True)
class Classification:
    """Sequence classification of ``n`` texts or pairs over ``L`` labels.

    ``label_index`` int32[n], ``score`` float32[n]; ``probabilities``, ``logits``,
    ``class_max`` float32[n, L]; ``class_window`` int32[n, L]; ``selected`` uint8[n, L].
    """

    generation: int
    rows: Rows
    labels: tuple[str, ...]
    multi_label: bool
    label_index: Int32
    score: Float32
    probabilities: Float32
    logits: Float32
    selected: UInt8
    class_max: Float32
    class_window: Int32

    @property
    def label_count(self) -> int:
        """The number of labels."""
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class TokenClassification:
    """Items (entities or tokens) found in ``n`` texts.

    ``row_start`` int64[n + 1]; per item ``row``, ``start``, ``end`` int64 (UTF-8 bytes,
    half-open), ``label_index`` int32, ``score`` float32; ``probabilities`` float32[items, L]
    for tokens, None for entities. ``model_labels`` are those of the model that answered, also
    where ``labels`` are types of entities.
    """

    generation: int
    rows: Rows
    labels: tuple[str, ...]
    row_start: Int64
    row: Int64
    label_index: Int32
    score: Float32
    start: Int64
    end: Int64
    probabilities: Float32 | None
    model_labels: tuple[str, ...]

    @property
    def label_count(self) -> int:
        """The number of labels."""
        return len(self.labels)

    @property
    def item_count(self) -> int:
        """The number of entities or tokens."""
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vectors of ``n`` texts: ``values`` float32[n, dimension]."""

    generation: int
    rows: Rows
    values: Float32

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return int(self.values.shape[1])


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of ``n`` texts and the windows that a call would use.

    ``row_start`` int64[n + 1]; per window ``window_start``, ``window_end`` (UTF-8 bytes) and
    ``window_tokens`` (with special tokens), int64, and ``window_ids``, the tokens themselves,
    int64[window_tokens].
    """

    generation: int
    rows: Rows
    row_start: Int64
    window_start: Int64
    window_end: Int64
    window_tokens: Int64
    window_ids: tuple[Int64, ...]

    @property
    def window_total(self) -> int:
        """The number of windows."""
        return len(self.window_start)


Result = Classification | TokenClassification | Embedding | TokenCounts


@dataclass(frozen=True, slots=True)
class Answers:
    """What several models say of the same texts, one entry per request.

    ``status``: a value of ``Status``; ``message``: empty where it is OK, and ``input_index`` then
    -1, as where an error concerns no row. Where a model answered, with all rows or with some, its
    result stands in the column of its task. ``errors``: the error, or None.
    """

    status: tuple[int, ...]
    input_index: tuple[int, ...]
    message: tuple[str, ...]
    classification: tuple[Classification | None, ...]
    token_classification: tuple[TokenClassification | None, ...]
    embedding: tuple[Embedding | None, ...]
    errors: tuple[SemanticError | None, ...]

    @property
    def count(self) -> int:
        """The number of requests."""
        return len(self.errors)

    def first_error(self) -> tuple[int, SemanticError] | None:
        """Return the first request that was not answered whole and its error, or None."""
        return next(((i, e) for i, e in enumerate(self.errors) if e is not None), None)


@dataclass(frozen=True, slots=True)
class ModelList:
    """Models that are loading, ready or stopping, in order of their handles."""

    model_id: UInt64
    name: tuple[str, ...]
    task: Int32
    state: Int32

    @property
    def count(self) -> int:
        """The number of models."""
        return len(self.name)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is, and what loading it took."""

    generation: int
    name: str
    path: str
    family: str
    architecture: str
    source: str
    provider: str
    dtype: str
    task: int
    multi_label: bool
    labels: tuple[str, ...]
    max_tokens: int
    position_limit: int
    max_text_bytes: int
    dimension: int
    dimensions: Int64
    layers: Int64
    prompt_names: tuple[str, ...]
    mapped_bytes: int
    grown_bytes: int
    file_names: tuple[str, ...]
    file_sizes: Int64
    warnings: tuple[str, ...]
    json: str
    device: str
    precision: str

    @property
    def label_count(self) -> int:
        """The number of labels."""
        return len(self.labels)

    @property
    def dimension_count(self) -> int:
        """The number of dimensions that a call may ask for."""
        return len(self.dimensions)

    @property
    def layer_count(self) -> int:
        """The number of layers that a call may ask for."""
        return len(self.layers)

    @property
    def prompt_count(self) -> int:
        """The number of prompts."""
        return len(self.prompt_names)

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self.file_names)

    @property
    def warning_count(self) -> int:
        """The number of warnings."""
        return len(self.warnings)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and memory of the runtime; see ``semantic_stats``."""

    running: bool
    models_loading: int
    models_ready: int
    models_stopping: int
    model_id: UInt64
    model_name: tuple[str, ...]
    model_task: Int32
    model_state: Int32
    call_model_id: UInt64
    call_model_name: tuple[str, ...]
    call: Int32
    accepted: UInt64
    completed: UInt64
    failed: UInt64
    expired: UInt64
    cancelled: UInt64
    in_flight: UInt64
    refused: UInt64
    tokens: UInt64
    truncated: UInt64
    batches: UInt64
    bucket_bounds: NDArray[np.float64]
    latency: UInt64
    memory_owner: tuple[str, ...]
    memory_bytes: Int64
    latency_seconds: NDArray[np.float64]
    phase_count: int
    phase_latency: UInt64
    phase_seconds: NDArray[np.float64]
    batch_bounds: UInt64
    batch_rows: UInt64
    batch_rows_sum: UInt64
    padding_tokens: UInt64
    model_device: tuple[str, ...]

    @property
    def model_count(self) -> int:
        """The number of models."""
        return len(self.model_name)

    @property
    def call_count(self) -> int:
        """The number of (model, kind of call) entries."""
        return len(self.call_model_name)

    @property
    def bucket_count(self) -> int:
        """The number of latency buckets; the last is open."""
        return len(self.bucket_bounds) + 1

    @property
    def batch_bucket_count(self) -> int:
        """The number of buckets of the runs by size; the last is open."""
        return len(self.batch_bounds) + 1

    @property
    def memory_count(self) -> int:
        """The number of memory owners."""
        return len(self.memory_owner)
