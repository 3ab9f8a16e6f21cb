"""From a folder's description to graphs that run: a model's own, or those of adapter and base."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from .adaptation import Adaptation, Part, slot_names
from .adapter_weights import AdaptedWeights, read_adapted_weights
from .artifacts import ModelSpec
from .bases import AdaptedRunner, Base
from .batching import RunControl
from .config import AdapterMode, Precision, Task
from .dense import DenseLayer
from .errors import InvalidArgumentError, UnsupportedError
from .memory import resident_bytes
from .pairing import open_runner
from .processor import byte_steps
from .providers import CPU_PROVIDER, Device
from .results import Float32
from .session import OrtModel, OrtPart, Runner, Runs
from .sharing import Shelf, file_identity
from .ticket import Ticket
from .weights import read_weights

if TYPE_CHECKING:  # it imports onnx, which only a load needs
    from .graphs import Branches, EmbeddingEnd, Graph

# Names of dtypes in safetensors, as the ONNX side spells them.
_DTYPES = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "INT8": "int8"}


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A graph as ONNX Runtime takes it, and what its file says of it.

    ``pools``: its output are vectors of texts (``graphs.embedding_end``). Where ``shared`` is not
    None the graph is only the head, and that is the rest.
    """

    model: OrtModel
    width: int
    vocab_size: int
    position_limit: int
    type_vocab_size: int
    dtype: str
    pools: bool = False
    shared: AdaptedWeights | None = None


def open_graph(
    spec: ModelSpec, dense: tuple[DenseLayer, ...], device: Device, mode: AdapterMode
) -> OpenGraph:
    """Read the ONNX file, or build the graph of safetensors as a device takes it.

    Nothing is opened on the device yet.
    """
    precision = device.graph_precision
    if mode is not AdapterMode.SHARED and spec.adapter is None:
        raise InvalidArgumentError(
            f"adapter_mode is {mode.name}, but {spec.folder} is no adapter folder; leave it 0"
        )
    if spec.onnx is not None and spec.output is not None:
        if device.lowered is not Precision.FP32:
            raise UnsupportedError(
                f"{spec.onnx.path} cannot be computed in {device.lowered.name}: positions that a "
                "graph counts itself are rounded with it; use AUTO, or safetensors of a family "
                "that is built from them"
            )
        return _open_file(spec)
    if precision not in (Precision.AUTO, Precision.FP32, Precision.FP16, Precision.INT8):
        raise UnsupportedError(
            f"{spec.model_folder} holds safetensors, which are not built in {precision.name}; use "
            "AUTO, FP32 or INT8, or put an ONNX file of that precision into the folder"
        )
    from .graphs import build_graph

    if spec.adapter is None:
        weights = read_weights(spec.model_folder)
        end = _end(spec, dense, device)
        graph = build_graph(
            spec.config,
            spec.task,
            weights,
            fused=device.provider.fused,
            branches=_branches(device),
            exits=_exits(spec),
            end=end,
            steps=_steps(device),
        )
        return _opened(_rounded(graph, device), pools=end is not None)
    if mode is not AdapterMode.MERGED and not device.provider.shares_bases:
        raise UnsupportedError(
            f"{device.place} cannot run several adapters on one base; load {spec.folder} with "
            "adapter_mode MERGED, or on cpu"
        )
    return _open_adapter(spec, dense, device, mode)


def _open_file(spec: ModelSpec) -> OpenGraph:
    assert spec.onnx is not None
    assert spec.output is not None
    model = OrtModel(
        model=str(spec.onnx.path),
        weights_folder=None,
        inputs={each.name: each.dtype for each in spec.onnx.inputs},
        output=spec.output.name,
    )
    for each in spec.onnx.inputs:
        if any(isinstance(size, int) for size in each.shape or ()):
            raise UnsupportedError(
                f"{spec.onnx.path} takes {each.name!r} only of shape {list(each.shape or ())}; "
                "export it with free dimensions for batch and tokens"
            )
    vocabulary = spec.onnx.vocab_size or spec.config.get("vocab_size")
    return OpenGraph(
        model,
        spec.output.width or 0,
        vocabulary if isinstance(vocabulary, int) else 0,
        spec.position_limit,
        0,
        spec.onnx.dtype,
    )


def _open_adapter(
    spec: ModelSpec, dense: tuple[DenseLayer, ...], device: Device, mode: AdapterMode
) -> OpenGraph:
    """Build the whole model, or its head, with an adapter; compare the adapter with its base."""
    from .graphs import FAMILIES, build_graph

    assert spec.adapter is not None
    family = FAMILIES[spec.family]
    weights = read_adapted_weights(
        spec.adapter,
        read_weights(spec.model_folder),
        family.prefix,
        family.ignorable[spec.task],
    )
    unused = tuple(pattern for patterns in family.ignorable.values() for pattern in patterns)
    part = Part.WHOLE if mode is AdapterMode.MERGED else Part.HEAD
    adaptation = weights.adaptation(part, unused)
    whole = part is Part.WHOLE
    end = _end(spec, dense, device) if whole else None
    graph = build_graph(
        spec.config,
        spec.task,
        weights.weights,
        fused=device.provider.fused,
        branches=_branches(device),
        exits=_exits(spec) if whole else (),
        adaptation=adaptation,
        end=end,
        steps=_steps(device),
    )
    weights.check(graph)
    rounded = _rounded(graph, device)
    return _opened(rounded, None if whole else weights, pools=end is not None)


def _end(spec: ModelSpec, dense: tuple[DenseLayer, ...], device: Device) -> "EmbeddingEnd | None":
    """Return what makes vectors of token states on the CPU; None for other tasks.

    Other devices may compute in less than float32, which would round the vectors too.
    """
    from .graphs import EmbeddingEnd

    on_cpu = device.provider.name == CPU_PROVIDER
    return EmbeddingEnd(spec.pooling, dense) if spec.pooling and on_cpu else None


def _rounded(graph: "Graph", device: Device) -> "Graph":
    """Return a built graph in the precision that is asked of the graph itself."""
    from .graphs.half import as_half

    return as_half(graph) if device.graph_precision is Precision.FP16 else graph


def _steps(device: Device) -> int:
    """Return the steps of what layers read in int8; 0 for other precisions."""
    return byte_steps() if device.graph_precision is Precision.INT8 else 0


def _branches(device: Device) -> "Branches":
    """Return the lengths at which a graph for a device branches."""
    from .graphs import DEFAULT_BRANCHES, Branches

    return DEFAULT_BRANCHES if device.provider.branches else Branches(whole=None)


def _exits(spec: ModelSpec) -> tuple[int, ...]:
    """Return the numbers of layers after which runs may end; a shared base runs them all."""
    from .graphs import FAMILIES

    return spec.layers if FAMILIES[spec.family].exits else ()


def _opened(
    graph: "Graph", shared: AdaptedWeights | None = None, *, pools: bool = False
) -> OpenGraph:
    model = _as_model(graph)
    dtype = "+".join(_DTYPES[each] for each in graph.dtype.split("+"))
    return OpenGraph(
        model,
        graph.width,
        graph.vocab_size,
        graph.position_limit,
        graph.type_vocab_size,
        dtype,
        pools,
        shared,
    )


def _as_model(graph: "Graph") -> OrtModel:
    return OrtModel(
        model=graph.model,
        parts=tuple(
            OrtPart(part.layer, part.model, part.hidden, part.makes) for part in graph.parts
        ),
        weights_folder=graph.weights_folder,
        inputs=dict.fromkeys(graph.inputs, "int64"),
        output=graph.output,
        makes=graph.makes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """What answers a model's calls, the base that it shares, and what that took of memory now."""

    runner: Runs
    base: Base | None
    base_grown_bytes: int


def open_model(
    spec: ModelSpec,
    opened: OpenGraph,
    device: Device,
    *,
    threads: int,
    runs: int,
    bases: Shelf[Base],
    control: RunControl,
    ticket: Ticket,
) -> Running:
    """Open the graph on a device; the base of an adapter only if no other adapter has it open.

    ``threads`` of one run, ``runs`` at a time.

    Raise as ``Runner`` does, DeadlineError while another load opens the same base.
    """
    weights = opened.shared
    if weights is None:
        runner = open_runner(
            opened.model,
            device,
            threads=threads,
            runs=runs,
            weight_bytes=spec.weight_bytes,
            control=control,
        )
        return Running(runner, None, 0)
    before = resident_bytes()
    identities = tuple(map(file_identity, spec.base_files))
    computing = device.place, device.precision, device.arena_bytes, threads, runs > 1
    key = (spec.model_folder, identities, computing)
    make = partial(_open_base, spec, weights, device, threads, runs, control)
    base = bases.share(key, make, ticket)
    base_grown = max(0, resident_bytes() - before)
    head = None
    if spec.task is not Task.EMBEDDING:
        # What follows the one state of a text is too little work for more threads.
        few = spec.task is Task.SEQUENCE_CLASSIFICATION
        head = Runner(opened.model, device, threads=1 if few else threads, control=control)
    return Running(AdaptedRunner(base, _inputs(base, weights), head), base, base_grown)


def _open_base(
    spec: ModelSpec,
    weights: AdaptedWeights,
    device: Device,
    threads: int,
    runs: int,
    control: RunControl,
) -> Base:
    from .graphs import build_graph

    before = resident_bytes()
    # The whole model was compared with its weights when the adapter was.
    encoder = Adaptation(Part.ENCODER, spare=("*",))
    graph = build_graph(
        spec.config,
        Task.EMBEDDING,
        weights.base,
        fused=device.provider.fused,
        branches=_branches(device),
        adaptation=encoder,
        steps=_steps(device),
    )
    runner = open_runner(
        _as_model(_rounded(graph, device)),
        device,
        threads=threads,
        runs=runs,
        weight_bytes=spec.base_bytes,
        control=control,
    )
    return Base(
        folder=spec.model_folder,
        runner=runner,
        linears=graph.encoder_linears,
        weight_bytes=spec.base_bytes,
        grown_bytes=max(0, resident_bytes() - before),
    )


def _inputs(base: Base, weights: AdaptedWeights) -> Mapping[str, Float32]:
    """Return the updates of the encoder by the inputs of its graph."""
    inputs: dict[str, Float32] = {}
    for name in base.linears & weights.updates.keys():
        down, up = slot_names(name)
        inputs[down], inputs[up] = weights.updates[name].down, weights.updates[name].up
    return inputs
