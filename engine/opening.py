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
from .errors import InvalidArgumentError, UnsupportedError
from .memory import resident_bytes
from .processor import byte_steps
from .results import Float32
from .session import Device, OrtModel, OrtPart, Runner, Runs
from .sharing import Shelf, file_identity
from .ticket import Ticket
from .weights import read_weights

if TYPE_CHECKING:  # it imports onnx, which only a load needs
    from .graphs import Graph

# Names of dtypes in safetensors, as the ONNX side spells them.
_DTYPES = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "INT8": "int8"}


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A graph as ONNX Runtime takes it, and what its file says of it.

    Where ``shared`` is not None the graph is only the head, and that is the rest. ``steps``: of
    the inputs of int8 layers, 0 for a model that is built in fp32, or not built.
    """

    model: OrtModel
    width: int
    vocab_size: int
    position_limit: int
    type_vocab_size: int
    dtype: str
    steps: int = 0
    shared: AdaptedWeights | None = None


def open_graph(spec: ModelSpec, precision: Precision, mode: AdapterMode) -> OpenGraph:
    """Read the ONNX file, or build the graph of safetensors; nothing is opened on a device yet."""
    if mode is not AdapterMode.SHARED and spec.adapter is None:
        raise InvalidArgumentError(
            f"adapter_mode is {mode.name}, but {spec.folder} is no adapter folder; leave it 0"
        )
    if spec.onnx is not None and spec.output is not None:
        return _open_file(spec)
    if precision not in (Precision.AUTO, Precision.FP32, Precision.INT8):
        raise UnsupportedError(
            f"{spec.model_folder} holds safetensors, which run in FP32 or INT8, not in "
            f"{precision.name}; use one of these, or put an ONNX file of that precision into the "
            "folder"
        )
    from .graphs import build_graph

    steps = byte_steps() if precision is Precision.INT8 else 0
    if spec.adapter is None:
        weights = read_weights(spec.model_folder)
        exits = _exits(spec)
        return _opened(
            build_graph(spec.config, spec.task, weights, exits=exits, steps=steps), steps
        )
    return _open_adapter(spec, mode, steps)


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


def _open_adapter(spec: ModelSpec, mode: AdapterMode, steps: int) -> OpenGraph:
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
    exits = _exits(spec) if part is Part.WHOLE else ()
    graph = build_graph(
        spec.config, spec.task, weights.weights, exits=exits, adaptation=adaptation, steps=steps
    )
    weights.check(graph)
    return _opened(graph, steps, weights if part is Part.HEAD else None)


def _exits(spec: ModelSpec) -> tuple[int, ...]:
    """Return the numbers of layers after which runs may end; a shared base runs them all."""
    from .graphs import FAMILIES

    return spec.layers if FAMILIES[spec.family].exits else ()


def _opened(graph: "Graph", steps: int, shared: AdaptedWeights | None = None) -> OpenGraph:
    model = _as_model(graph)
    dtype = "+".join(_DTYPES[each] for each in graph.dtype.split("+"))
    return OpenGraph(
        model,
        graph.width,
        graph.vocab_size,
        graph.position_limit,
        graph.type_vocab_size,
        dtype,
        steps,
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


def open_runner(
    spec: ModelSpec,
    opened: OpenGraph,
    device: Device,
    *,
    threads: int,
    bases: Shelf[Base],
    control: RunControl,
    ticket: Ticket,
) -> Running:
    """Open the graph on a device; the base of an adapter only if no other adapter has it open.

    Raise as ``Runner`` does, DeadlineError while another load opens the same base.
    """
    weights = opened.shared
    if weights is None:
        return Running(Runner(opened.model, device, threads=threads, control=control), None, 0)
    before = resident_bytes()
    identities = tuple(map(file_identity, spec.base_files))
    key = (spec.model_folder, identities, device.place, threads, opened.steps)
    make = partial(_open_base, spec, weights, device, threads, control, opened.steps)
    base = bases.share(key, make, ticket)
    base_grown = max(0, resident_bytes() - before)
    base.runner.require(device)
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
    control: RunControl,
    steps: int,
) -> Base:
    from .graphs import build_graph

    before = resident_bytes()
    # The whole model was compared with its weights when the adapter was.
    encoder = Adaptation(Part.ENCODER, spare=("*",))
    graph = build_graph(spec.config, Task.EMBEDDING, weights.base, adaptation=encoder, steps=steps)
    runner = Runner(_as_model(graph), device, threads=threads, control=control)
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
