"""A loaded model: everything a call needs, complete once it exists."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from .artifacts import ModelSpec, read_artifact
from .bases import Base
from .batching import Batcher, Limits, RunControl, RunStoppedError, Work
from .config import (
    DEFAULT_MAX_TEXT_BYTES,
    NO_DEMANDS,
    Demands,
    LoadOptions,
    LongText,
    Precision,
    RuntimeOptions,
    Task,
    available_cpus,
)
from .demands import apply_demands, base_of
from .entities import LabelScheme, label_scheme
from .errors import (
    BadArtifactError,
    InvalidArgumentError,
    OutOfMemoryError,
    SemanticError,
    UnsupportedError,
)
from .info import describe
from .memory import resident_bytes
from .opening import OpenGraph, open_graph, open_runner
from .postprocess import Pool, pooling, require_finite
from .results import Float32, ModelInfo
from .session import Session, resolve_device
from .sharing import Shelf, file_identity
from .ticket import FOREVER, Ticket
from .tokenization import HeldTokenizer, Tokenizer, load_tokenizer
from .watchdog import Watchdog
from .weights import Tensor, load_array, read_weights
from .windows import plan_windows

# What one run takes along: measured on CPU, batches pay only for short texts.
_DEFAULT_BATCH_ROWS = 32
_DEFAULT_BATCH_TOKENS = 256
_MAX_THREADS = 1024  # ONNX Runtime starts them all at once; 10,000 take minutes
_DEFAULT_QUEUE_ROWS = 1 << 16
_DEFAULT_QUEUE_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """``activation(x @ weight.T + bias)``: weight float32[out, in], bias float32[out] or None."""

    weight: Float32
    bias: Float32 | None
    activation: str


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One loaded model of one generation; immutable, used by many threads.

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
    before = resident_bytes()
    device = resolve_device(options.device or runtime.device)
    if options.precision in (Precision.FP16, Precision.BF16) and device.provider.startswith("CPU"):
        raise UnsupportedError(
            f"the CPU provider does not compute in {options.precision.name}; use AUTO or FP32"
        )
    from .graphs import FAMILIES  # imports onnx, which only a load needs

    spec = read_artifact(
        path,
        task=options.task,
        precision=options.precision,
        families=FAMILIES.keys(),
        base_path=base_of(path, options, demands),
        unnamed_labels=demands.unnamed_labels,
    )
    spec, options = apply_demands(spec, options, demands)
    ticket.check()
    opened = open_graph(spec, options.precision, options.adapter_mode)
    max_tokens, position_limit = _max_tokens(spec, opened, options.max_tokens)
    ticket.check()
    tokenizer_before = resident_bytes()
    held = shelves.tokenizers.share(
        file_identity(spec.tokenizer_path), partial(_hold_tokenizer, spec.tokenizer_path), ticket
    )
    tokenizer = held.tokenizer
    tokenizer_grown = max(0, resident_bytes() - tokenizer_before)
    spec = _check_vocabulary(spec, tokenizer, opened)
    ticket.check()
    cpus = available_cpus()
    threads = options.intra_op_threads or runtime.intra_op_threads or cpus
    if threads > _MAX_THREADS:
        raise InvalidArgumentError(
            f"intra_op_threads is {threads}; give 0 for the CPUs of the process, or at most "
            f"{_MAX_THREADS}"
        )
    with _stopped_by(ticket, watchdog) as control:
        running = open_runner(
            spec,
            opened,
            device,
            threads=threads,
            bases=shelves.bases,
            control=control,
            ticket=ticket,
        )
        pad_id = _pad_id(spec, tokenizer)
        session = Session(running.runner, pad_id=pad_id, token_types=spec.token_types)
        with np.errstate(all="ignore"):  # what overflows is refused
            width = _self_test(spec, tokenizer, session, opened, max_tokens, control)
    limits = Limits(
        parallel_runs=options.parallel_runs or runtime.parallel_runs or cpus,
        batch_rows=options.max_batch_rows or _DEFAULT_BATCH_ROWS,
        batch_tokens=options.max_batch_tokens or _DEFAULT_BATCH_TOKENS,
        queue_rows=options.queue_rows or runtime.queue_rows or _DEFAULT_QUEUE_ROWS,
        queue_tokens=options.queue_tokens or runtime.queue_tokens or _DEFAULT_QUEUE_TOKENS,
    )
    dense = tuple(_load_dense(spec))
    dimension = 0
    if spec.task is Task.EMBEDDING:
        dimension = dense[-1].weight.shape[0] if dense else width * max(1, len(spec.pooling))
        if max(spec.dimensions, default=0) > dimension:
            raise BadArtifactError(
                f"{spec.folder}: config.json allows {max(spec.dimensions)} dimensions, the model "
                f"gives {dimension}; correct its matryoshka dimensions"
            )
    grown_bytes = max(0, resident_bytes() - before - running.base_grown_bytes)
    info = describe(
        spec,
        running.base,
        name=name,
        generation=generation,
        provider=session.provider,
        device=device.place,
        dtype=opened.dtype,
        max_tokens=max_tokens,
        position_limit=position_limit,
        max_text_bytes=options.max_text_bytes or DEFAULT_MAX_TEXT_BYTES,
        vocab_size=opened.vocab_size,
        dimension=dimension,
        layers=_layers(spec, opened),
        grown_bytes=grown_bytes,
    )
    return Model(
        spec=spec,
        tokenizer=tokenizer,
        held=held,
        base=running.base,
        vocab_size=opened.vocab_size,
        batcher=Batcher(session.run, limits, watchdog),
        scheme=label_scheme(info.labels) if spec.task is Task.TOKEN_CLASSIFICATION else None,
        pool=pooling(spec.pooling) if spec.pooling else None,
        dense=dense,
        info=info,
        own_bytes=max(0, grown_bytes - tokenizer_grown),
    )


def _hold_tokenizer(path: Path) -> HeldTokenizer:
    before = resident_bytes()
    tokenizer = load_tokenizer(path)
    return HeldTokenizer(tokenizer, max(0, resident_bytes() - before))


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


def _max_tokens(spec: ModelSpec, opened: OpenGraph, asked: int) -> tuple[int, int]:
    """Return the longest window and the most it may be."""
    limit = opened.position_limit or spec.position_limit or spec.default_max_tokens
    if asked > limit:
        raise InvalidArgumentError(
            f"max_tokens is {asked}, the model has {limit} positions; give {limit} or less"
        )
    return asked or min(spec.default_max_tokens or limit, limit), limit


def _check_vocabulary(spec: ModelSpec, tokenizer: Tokenizer, opened: OpenGraph) -> ModelSpec:
    """Compare the tokenizer with the tables of the model; return the spec, perhaps with a warning.

    Special tokens may lie beyond the embeddings, as that of images does in EmbeddingGemma: a text
    with one of them is refused when it comes.
    """
    rows = opened.vocab_size
    if rows and tokenizer.vocab_size > rows:
        found = f"{spec.tokenizer_path} has token ids up to {tokenizer.vocab_size - 1}, the model"
        (encoded,) = tokenizer.encode(["a"], False)
        if int(encoded.ids.max(initial=0)) >= rows or not tokenizer.only_added_from(rows):
            raise BadArtifactError(
                f"{found} has {rows} embeddings; use the tokenizer that belongs to the model"
            )
        warning = f"{found} has {rows} embeddings; texts with the added tokens beyond are refused"
        spec = replace(spec, warnings=(*spec.warnings, warning))
    if opened.type_vocab_size and spec.token_types and tokenizer.pair is not None:
        (pair,) = tokenizer.encode_pairs(["a"], ["a"], False)
        types = int(pair.type_ids.max(initial=0)) + 1
        if types > opened.type_vocab_size:
            raise BadArtifactError(
                f"{spec.tokenizer_path} gives pairs {types} token types, the model has "
                f"{opened.type_vocab_size}; use the tokenizer that belongs to the model"
            )
    return spec


def _pad_id(spec: ModelSpec, tokenizer: Tokenizer) -> int:
    """Return the id that fills short rows; the attention mask hides it, so any id will do."""
    if spec.pad_token_id is not None:
        return spec.pad_token_id
    named = tokenizer.token_id(spec.pad_token) if spec.pad_token else None
    return next((each for each in (named, tokenizer.pad_id) if each is not None), 0)


def _self_test(
    spec: ModelSpec,
    tokenizer: Tokenizer,
    session: Session,
    opened: OpenGraph,
    max_tokens: int,
    control: RunControl,
) -> int:
    """Score two texts and check shape and values; return the width of the output."""
    encodings = tokenizer.encode(["a", "a b"], False)  # in one run, so that one is padded
    if not all(encoded.token_count for encoded in encodings):
        raise BadArtifactError(
            f"{spec.tokenizer_path} makes no tokens of a text; use the tokenizer that belongs to "
            "the model"
        )
    windows = [plan_windows(e, max_tokens, LongText.CUT).windows[0] for e in encodings]
    try:
        for part in opened.model.parts:
            control.layer = part.layer
            require_finite(session.run(windows, control)[0])
        control.layer = 0
        output = session.run(windows, control)[0]
    except OutOfMemoryError:
        raise OutOfMemoryError(
            f"the system refused the memory for two short texts in {spec.folder}; free some, or "
            "use another model"
        ) from None
    except SemanticError as error:
        raise BadArtifactError(
            f"{spec.folder} fails its self-test with two texts in one run: {error.message}; export "
            "or fetch it again"
        ) from None
    rank = {
        Task.SEQUENCE_CLASSIFICATION: (1,),
        Task.TOKEN_CLASSIFICATION: (2,),
        Task.EMBEDDING: (2,) if spec.pooling else (1,),
    }[spec.task]
    if output.ndim not in rank:
        raise BadArtifactError(
            f"output {opened.model.output!r} of {spec.folder} has rank {output.ndim + 1}, "
            f"{spec.task.name} needs rank {rank[0] + 1}; check the task"
        )
    require_finite(output)
    width = int(output.shape[-1])
    if spec.labels is not None:
        spec.labels.require_width(width, f"output {opened.model.output!r}")
    elif spec.hidden_size and spec.pooling and width != spec.hidden_size:
        raise BadArtifactError(
            f"output {opened.model.output!r} is {width} wide, config.json says hidden_size "
            f"{spec.hidden_size}; use the files of one model"
        )
    return width


def _load_dense(spec: ModelSpec) -> Sequence[DenseLayer]:
    layers = []
    for dense in spec.dense:
        tensors = read_weights(dense.weights.parent)
        weight = _dense_tensor(
            tensors, dense.weights, "linear.weight", (dense.out_features, dense.in_features)
        )
        bias = (
            _dense_tensor(tensors, dense.weights, "linear.bias", (dense.out_features,))
            if dense.bias
            else None
        )
        layers.append(DenseLayer(weight, bias, dense.activation))
    return layers


def _dense_tensor(
    tensors: dict[str, Tensor], path: Path, name: str, shape: tuple[int, ...]
) -> Float32:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
        raise BadArtifactError(
            f"{path}: {name} is {found}, config.json says {list(shape)}; fetch the folder again"
        )
    return load_array(tensor)
