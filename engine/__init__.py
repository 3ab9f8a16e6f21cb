"""The engine of libsemantic: one registry of models on ONNX Runtime.

``REGISTRY`` is the one that the C library of this process uses too.
"""

import os

# Else ONNX Runtime, when it is imported, writes files into the user's cache folder and sends what
# it did to its makers. Only who has set the variable already may want that.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from .config import (
    AdapterMode,
    LoadOptions,
    LogLevel,
    LongText,
    Normalize,
    Output,
    Precision,
    RunOptions,
    RuntimeOptions,
    Shorten,
    Task,
)
from .counters import Call
from .errors import (
    AlreadyExistsError,
    BadArtifactError,
    CancelledError,
    ClosedError,
    DeadlineError,
    DeviceUnavailableError,
    InternalError,
    InterpreterError,
    InvalidArgumentError,
    NotFoundError,
    NotReadyError,
    OutOfMemoryError,
    OverloadedError,
    SemanticError,
    Status,
    TooLongError,
    UnsupportedError,
)
from .registry import REGISTRY, Registry
from .results import (
    Answers,
    Classification,
    Embedding,
    ModelInfo,
    ModelList,
    Rows,
    Stats,
    TokenClassification,
    TokenCounts,
)
from .stats import State
from .together import ModelRequest

__all__ = [
    "REGISTRY",
    "AdapterMode",
    "AlreadyExistsError",
    "Answers",
    "BadArtifactError",
    "Call",
    "CancelledError",
    "Classification",
    "ClosedError",
    "DeadlineError",
    "DeviceUnavailableError",
    "Embedding",
    "InternalError",
    "InterpreterError",
    "InvalidArgumentError",
    "LoadOptions",
    "LogLevel",
    "LongText",
    "ModelInfo",
    "ModelList",
    "ModelRequest",
    "Normalize",
    "NotFoundError",
    "NotReadyError",
    "OutOfMemoryError",
    "Output",
    "OverloadedError",
    "Precision",
    "Registry",
    "Rows",
    "RunOptions",
    "RuntimeOptions",
    "SemanticError",
    "Shorten",
    "State",
    "Stats",
    "Status",
    "Task",
    "TokenClassification",
    "TokenCounts",
    "TooLongError",
    "UnsupportedError",
]
