"""Options of the runtime, of a load and of a run, with their defaults and limits."""

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from .errors import InvalidArgumentError

MAX_ROWS = 65_536
MAX_REQUESTS = 64
DEFAULT_MAX_TEXT_BYTES = 1 << 20
DEFAULT_WINDOW_OVERLAP = 128
DEFAULT_THRESHOLD = 0.5


class Task(IntEnum):
    """What a model answers; values of ``semantic_task``."""

    AUTO = 0
    SEQUENCE_CLASSIFICATION = 1
    TOKEN_CLASSIFICATION = 2
    EMBEDDING = 3


class Precision(IntEnum):
    """Arithmetic of the weights; values of ``semantic_precision``."""

    AUTO = 0
    FP32 = 1
    FP16 = 2
    BF16 = 3
    INT8 = 4


class LongText(IntEnum):
    """What happens to a text above ``max_tokens``; values of ``semantic_long_text``."""

    AUTO = 0
    REFUSE = 1
    CUT = 2
    WINDOWS = 3


class Shorten(IntEnum):
    """Which part of a pair may be shortened; values of ``semantic_shorten``."""

    AUTO = 0
    FIRST = 1
    SECOND = 2


class Output(IntEnum):
    """Form of a token classification; values of ``semantic_output``."""

    ENTITIES = 0
    TOKENS = 1


class Normalize(IntEnum):
    """Length of embedding vectors; values of ``semantic_normalize``."""

    AUTO = 0
    ON = 1
    OFF = 2


class AdapterMode(IntEnum):
    """How an adapter folder is loaded; values of ``semantic_adapter_mode``."""

    SHARED = 0
    MERGED = 1


class LogLevel(IntEnum):
    """What is logged; values of ``semantic_log_level``."""

    DEFAULT = 0
    OFF = 1
    ERROR = 2
    WARNING = 3
    INFO = 4
    DEBUG = 5


def _as_members(options: object, **kinds: type[IntEnum]) -> None:
    """Turn plain numbers into members of their enums, or refuse them."""
    for name, kind in kinds.items():
        value = getattr(options, name)
        if type(value) is kind:
            continue
        try:
            object.__setattr__(options, name, kind(value))
        except ValueError:
            known = ", ".join(f"{member.value} ({member.name})" for member in kind)
            raise InvalidArgumentError(f"{name} is {value!r}; it may be {known}") from None


def _refuse_negative(options: object, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if value < 0:
            raise InvalidArgumentError(f"{name} is {value}; give 0 for the default or more")


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Options of ``Registry.init``; zero and the empty string mean the default."""

    device: str = ""
    intra_op_threads: int = 0
    parallel_runs: int = 0
    queue_rows: int = 0
    queue_tokens: int = 0
    log_level: LogLevel = LogLevel.DEFAULT

    def __post_init__(self) -> None:
        _as_members(self, log_level=LogLevel)
        _refuse_negative(self, "intra_op_threads", "parallel_runs", "queue_rows", "queue_tokens")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options of ``Registry.load``; zero and the empty string mean the default."""

    name: str = ""
    task: Task = Task.AUTO
    precision: Precision = Precision.AUTO
    device: str = ""
    max_tokens: int = 0
    max_batch_rows: int = 0
    max_batch_tokens: int = 0
    max_text_bytes: int = 0
    base_path: str = ""
    replaces: int = 0
    intra_op_threads: int = 0
    parallel_runs: int = 0
    queue_rows: int = 0
    queue_tokens: int = 0
    timeout_ms: int = 0
    adapter_mode: AdapterMode = AdapterMode.SHARED
    arena_bytes: int = 0

    def __post_init__(self) -> None:
        _as_members(self, task=Task, precision=Precision, adapter_mode=AdapterMode)
        _refuse_negative(
            self,
            "max_tokens",
            "max_batch_rows",
            "max_batch_tokens",
            "max_text_bytes",
            "intra_op_threads",
            "parallel_runs",
            "queue_rows",
            "queue_tokens",
            "timeout_ms",
            "arena_bytes",
        )


@dataclass(frozen=True, slots=True)
class Demands:
    """What a caller demands of a folder beyond its options; what does not hold fails the load.

    ``families`` are values of ``model_type``, none for any; ``label_count`` is the number of
    labels, 0 for any, which adapters are held to as well unless ``adapters_count`` is False.
    Where nothing names the labels nor counts them there are ``unnamed_labels``; 0 refuses such a
    folder. ``base_path`` is the base where the folder is an adapter. ``layers``, in rising order,
    are those after which an embedding may be asked for where the folder lists none and the model
    is built from safetensors. The longest text is ``most_tokens`` where the folder declares a
    longer one; it is ``token_limit``, where that is set, or all positions where they are fewer.
    """

    families: frozenset[str] = frozenset()
    label_count: int = 0
    adapters_count: bool = True
    unnamed_labels: int = 0
    base_path: str = ""
    layers: tuple[int, ...] = ()
    most_tokens: int = 0
    token_limit: int = 0


NO_DEMANDS = Demands()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of one call; zero means the default, ``prompt_name`` None the model's own."""

    timeout_ms: int = 0
    cancel_key: int = 0
    long_text: LongText = LongText.AUTO
    window_overlap: int = 0
    shorten: Shorten = Shorten.AUTO
    dimension: int = 0
    layer: int = 0
    threshold: float = 0.0
    prompt_name: str | None = None
    output: Output = Output.ENTITIES
    normalize: Normalize = Normalize.AUTO
    max_tokens: int = 0

    def __post_init__(self) -> None:
        _as_members(self, long_text=LongText, shorten=Shorten, output=Output, normalize=Normalize)
        _refuse_negative(self, "timeout_ms", "window_overlap", "dimension", "layer", "max_tokens")
        if not 0.0 <= self.threshold <= 1.0:
            raise InvalidArgumentError(f"threshold is {self.threshold}; give 0 (default) to 1")


DEFAULT_RUN_OPTIONS = RunOptions()


def available_cpus() -> int:
    """Count the CPUs this process may use: its CPU set, cut by its cgroup quota."""
    count = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(count, quota)) if quota else max(1, count)


def _cgroup_quota() -> int:
    """Return the whole CPUs of the cgroup's quota, rounded up; 0 where there is none."""
    for read in (_version_2, _version_1):
        try:
            quota, period = read()
            if int(quota) > 0:
                return -(-int(quota) // int(period))
        except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
            continue
    return 0


def _version_2() -> list[str]:
    return Path("/sys/fs/cgroup/cpu.max").read_text().split()


def _version_1() -> list[str]:
    folder = Path("/sys/fs/cgroup/cpu")
    return [(folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
