"""A loaded model: everything a call needs, complete once it exists."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .artifacts import ModelSpec, read_artifact
from .bases import Base
from .batching import Batcher, RunControl, RunStoppedError, Work
from .config import (
    DEFAULT_MAX_TEXT_BYTES,
    NO_DEMANDS,
    Demands,
    LoadOptions,
    RuntimeOptions,
    Task,
    available_cpus,
)
from .demands import apply_demands, base_of
from .dense import DenseLayer, load_dense
from .devices import find_devices, require_working
from .entities import LabelScheme, label_scheme
from .errors import (
    BadArtifactError,
    DeviceUnavailableError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnsupportedError,
)
from .grouping import Limits
from .info import describe
from .load_checks import check_vocabulary, embedding_dimension, longest_window, self_test
from .memory import require_bytes, resident_bytes
from .opening import OpenGraph, Running, open_graph, open_model
from .postprocess import Pool, pooling
from .providers import Device
from .results import ModelInfo
from .scheduler import Scheduler
from .session import Session
from .sharing import Shelf
from .ticket import FOREVER, Ticket
from .tokenization import (
    HeldTokenizer,
    Tokenizer,
    identity_of,
    make_tokenizer,
    read_tokenizer,
)
from .watchdog import Watchdog

_MAX_THREADS = 1024  # ONNX Runtime starts them all at once; 10,000 take minutes
_LEAST_BYTES = 32 << 20  # any load takes more
_DEFAULT_QUEUE_ROWS = 1 << 16
_DEFAULT_QUEUE_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One loaded model of one generation; immutable, used by many threads.

    ``pools``: its graph answers with vectors (``graphs.embedding_end``), and ``pool`` is None.
    It may share its tokenizer and its base with others. ``vocab_size``: rows of its embeddings, 0
    for unknown. ``own_bytes``: what resident memory grew by while it was loaded, without both.
    """

    spec: ModelSpec
    tokenizer: Tokenizer
    held: HeldTokenizer
    base: Base | None
    vocab_size: int
    batcher: Batcher
    scheme: LabelScheme | None
    pools: bool
    pool: Pool | None
    dense: tuple[DenseLayer, ...]
    info: ModelInfo
    own_bytes: int

    @property
    def generation(self) -> int:
        """1 for a first load, one more for each replacement."""
        return self.info.generation

    @property
    def max_tokens(self) -> int:
        """The longest text or window that is scored."""
        return self.info.max_tokens


@dataclass(frozen=True, slots=True)
class Shelves:
    """What models share with each other."""

    tokenizers: Shelf[HeldTokenizer] = field(default_factory=Shelf)
    bases: Shelf[Base] = field(default_factory=Shelf)
    scheduler: Scheduler = field(default_factory=Scheduler)

    def scheduler_of(self, device: Device) -> Scheduler:
        """Return what shares the CPUs among models; a device of its own is no matter of others."""
        return Scheduler() if device.provider.memory else self.scheduler


def load_model(
    path: str,
    options: LoadOptions,
    runtime: RuntimeOptions,
    *,
    demands: Demands = NO_DEMANDS,
    name: str,
    generation: int,
    shelves: Shelves,
    watchdog: Watchdog,
    ticket: Ticket,
) -> Model:
    """Read, check and open the model in a folder, and let it score a first text.

    Raise a SemanticError that names what is wrong and the remedy; nothing is kept then.
    """
    # The system's own refusals would say of a folder that it cannot be read.
    require_bytes(_LEAST_BYTES, "to load a model")
    before = resident_bytes()
    devices = find_devices(options.device or runtime.device, options.precision, options.arena_bytes)
    passed_over: list[str] = []
    for device in devices:
        try:
            found = _open(path, options, demands, runtime, device, shelves, watchdog, ticket)
            break
        except _WORTH_ANOTHER_DEVICE as error:
            if device is devices[-1]:
                raise
            passed_over.append(f"device auto passed over {device.place}: {error.message}")
    spec, opened, tokenizer = found.spec, found.graph, found.held.tokenizer
    row, dense = device.provider, found.dense
    limits = Limits(
        parallel_runs=_parallel_runs(options, runtime, device),
        padding=row.padding,
        batch_rows=options.max_batch_rows or row.batch_rows,
        batch_tokens=options.max_batch_tokens or row.batch_tokens,
        queue_rows=options.queue_rows or runtime.queue_rows or _DEFAULT_QUEUE_ROWS,
        queue_tokens=options.queue_tokens or runtime.queue_tokens or _DEFAULT_QUEUE_TOKENS,
    )
    dimension = embedding_dimension(spec, dense, found.width)
    grown_bytes = max(0, resident_bytes() - before - found.running.base_grown_bytes)
    info = describe(
        replace(spec, warnings=(*spec.warnings, *passed_over)),
        found.running.base,
        name=name,
        generation=generation,
        provider=found.session.provider,
        device=device.place,
        precision=_precision(spec, device),
        dtype=opened.dtype,
        max_tokens=found.max_tokens,
        position_limit=found.position_limit,
        max_text_bytes=options.max_text_bytes or DEFAULT_MAX_TEXT_BYTES,
        vocab_size=opened.vocab_size,
        dimension=dimension,
        layers=_layers(spec, opened),
        grown_bytes=grown_bytes,
    )
    return Model(
        spec=spec,
        tokenizer=tokenizer,
        held=found.held,
        base=found.running.base,
        vocab_size=opened.vocab_size,
        batcher=Batcher(found.session.run, limits, watchdog, shelves.scheduler_of(device)),
        scheme=label_scheme(info.labels) if spec.task is Task.TOKEN_CLASSIFICATION else None,
        pools=opened.pools,
        pool=pooling(spec.pooling) if spec.pooling and not opened.pools else None,
        dense=dense,
        info=info,
        own_bytes=max(0, grown_bytes - found.tokenizer_grown),
    )


# With "auto" these lead on to the next device; if they lie in the model, the last one raises again.
_WORTH_ANOTHER_DEVICE = (
    BadArtifactError,
    DeviceUnavailableError,
    OutOfMemoryError,
    UnsupportedError,
)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model open on a device, tried with a first text."""

    spec: ModelSpec
    dense: tuple[DenseLayer, ...]
    graph: OpenGraph
    held: HeldTokenizer
    tokenizer_grown: int
    running: Running
    session: Session
    width: int
    max_tokens: int
    position_limit: int


def _open(
    path: str,
    options: LoadOptions,
    demands: Demands,
    runtime: RuntimeOptions,
    device: Device,
    shelves: Shelves,
    watchdog: Watchdog,
    ticket: Ticket,
) -> _Opened:
    """Read and check the folder, open the model on one device, let it score two texts."""
    require_working(device)
    ticket.check()
    from .graphs import FAMILIES  # imports onnx, which only a load needs

    spec = read_artifact(
        path,
        task=options.task,
        precision=device.graph_precision,
        families=FAMILIES.keys(),
        base_path=base_of(path, options, demands),
        unnamed_labels=demands.unnamed_labels,
    )
    spec, options = apply_demands(spec, options, demands)
    ticket.check()
    dense = load_dense(spec)
    opened = open_graph(spec, dense, device, options.adapter_mode)
    max_tokens, position_limit = longest_window(spec, opened, options.max_tokens)
    ticket.check()
    held, tokenizer_grown = _share_tokenizer(spec.tokenizer_path, shelves.tokenizers, ticket)
    tokenizer = held.tokenizer
    spec = check_vocabulary(spec, tokenizer, opened)
    ticket.check()
    threads = options.intra_op_threads or runtime.intra_op_threads or available_cpus()
    if threads > _MAX_THREADS:
        raise InvalidArgumentError(
            f"intra_op_threads is {threads}; give 0 for the CPUs of the process, or at most "
            f"{_MAX_THREADS}"
        )
    with _stopped_by(ticket, watchdog) as control:
        running = open_model(
            spec,
            opened,
            device,
            threads=threads,
            runs=_parallel_runs(options, runtime, device),
            bases=shelves.bases,
            control=control,
            ticket=ticket,
        )
        pad_id = _pad_id(spec, tokenizer)
        session = Session(running.runner, pad_id=pad_id, token_types=spec.token_types)
        with np.errstate(all="ignore"):  # what overflows is refused
            width = self_test(spec, tokenizer, session, opened, max_tokens, control)
    return _Opened(
        spec,
        dense,
        opened,
        held,
        tokenizer_grown,
        running,
        session,
        width,
        max_tokens,
        position_limit,
    )


def parallel_runs(runtime: RuntimeOptions) -> int:
    """Return how many runs of all models may share the CPUs.

    One more than there are, so that no CPU is idle while a caller whose run has ended hands over to
    the next: of MiniLM that gives 8 callers 15 % more, and two more give no more.
    """
    return runtime.parallel_runs or available_cpus() + 1


def _parallel_runs(options: LoadOptions, runtime: RuntimeOptions, device: Device) -> int:
    row = device.provider
    if row.memory:
        asked = options.parallel_runs or runtime.parallel_runs or row.parallel_runs
        return asked or parallel_runs(runtime)
    together = parallel_runs(runtime)
    return min(options.parallel_runs or row.parallel_runs or together, together)


def _precision(spec: ModelSpec, device: Device) -> str:
    """Name what the model computes in: as its ONNX file does, or as was asked."""
    return device.precision.name.lower() if spec.onnx is None else spec.onnx.dtype


def _share_tokenizer(
    path: Path, tokenizers: Shelf[HeldTokenizer], ticket: Ticket
) -> tuple[HeldTokenizer, int]:
    """Return the tokenizer of a file, the same one for all files that make the same.

    The number is what resident memory grew by for it now: 0 where it was there already.
    """
    data = read_tokenizer(path)
    grown = 0

    def hold() -> HeldTokenizer:
        nonlocal grown
        before = resident_bytes()
        tokenizer = make_tokenizer(path, data)
        grown = max(0, resident_bytes() - before)
        return HeldTokenizer(tokenizer, grown)

    return tokenizers.share(identity_of(data), hold, ticket), grown


@contextmanager
def _stopped_by(ticket: Ticket, watchdog: Watchdog) -> Iterator[RunControl]:
    """Stop what ONNX Runtime does for a load, as far as it lets itself be stopped, in time."""
    control = RunControl((Work((), ticket),))
    ticket.interrupt = control.expire
    try:
        if control.deadline < FOREVER:
            watchdog.watch(control)
        ticket.check()
        yield control
    except RunStoppedError:
        ticket.check()
        raise
    finally:
        ticket.interrupt = None
        watchdog.release(control)
    ticket.check()


def _layers(spec: ModelSpec, opened: OpenGraph) -> tuple[int, ...]:
    """Return the numbers of layers that a call may ask for, the last one included."""
    early = tuple(part.layer for part in opened.model.parts)
    count = spec.config.get("num_hidden_layers")
    return (*early, count) if early and isinstance(count, int) else early


def _pad_id(spec: ModelSpec, tokenizer: Tokenizer) -> int:
    """Return the id that fills short rows; the attention mask hides it, so any id will do."""
    if spec.pad_token_id is not None:
        return spec.pad_token_id
    named = tokenizer.token_id(spec.pad_token) if spec.pad_token else None
    return next((each for each in (named, tokenizer.pad_id) if each is not None), 0)
