"""The finished graph: serialized, cut into parts where runs may leave it early."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from ..adaptation import HIDDEN_STATE
from ..initializers import Make
from .config_values import Size
from .parts import Exit, LayerPart, nodes_before, values_of

FUSED: Final = "com.microsoft"
_OPSET: Final = 20  # the first with Gelu
_IR_VERSION: Final = 9  # came with opset 20; a newer number would only lock out older runtimes


@dataclass(frozen=True, slots=True)
class Head:
    """The output of a family's graph: the value it ends in, its public name and shape, limits."""

    value: str
    name: str
    shape: tuple[str | int | None, ...]
    width: int
    vocab_size: int
    position_limit: int
    type_vocab_size: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A built graph and what a session and its tasks must know of it.

    ``model`` is a serialized ModelProto without weights; where there are ``parts`` it is what
    follows the last of them. Give a session ``weights_folder`` as
    ``session.model_external_initializers_file_folder_path``. ``inputs`` are int64 ``[batch,
    tokens]``. ``output`` is float32, by task: ``logits`` ``[batch, labels]`` (sequence) or
    ``[batch, tokens, labels]`` (token), ``last_hidden_state`` ``[batch, tokens, hidden]``
    (embedding), or what ``end_embedding`` makes of that; ``width`` is the last dimension of the
    former. Ids go up to ``vocab_size`` and
    ``type_vocab_size``, tokens up to ``position_limit``. ``dtype`` is that of the stored
    weights that run, joined by ``+`` where they differ, or INT8 where they are quantized. Then
    ``makes`` give the initializers of ``model`` that the session must be handed over.

    ``linears`` are the inputs and outputs of every linear layer by name, of the whole model;
    ``encoder_linears`` and ``encoder_weights`` name those before the last hidden state. The graph
    of an encoder has two more inputs for each of the former (``slot_names``), without which it is
    the unadapted model; that of a head takes ``HIDDEN_STATE``, float32 ``[batch, tokens, hidden]``,
    besides ``inputs``.
    """

    model: bytes
    parts: tuple[LayerPart, ...]
    weights_folder: Path
    inputs: tuple[str, ...]
    output: str
    width: int
    vocab_size: int
    position_limit: int
    type_vocab_size: int
    dtype: str
    makes: tuple[Make, ...]
    linears: Mapping[str, tuple[Size, Size]]
    encoder_linears: frozenset[str]
    encoder_weights: frozenset[str]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written for a graph: its nodes in order, inputs, values that it holds, and exits.

    ``slots`` are inputs that have a default among the ``initializers``. ``makes`` give others,
    by the name of the first that they give.
    """

    nodes: Sequence[NodeProto]
    inputs: Sequence[str]
    slots: Sequence[ValueInfoProto]
    initializers: Sequence[TensorProto]
    makes: Mapping[str, Make]
    exits: Sequence[Exit]
    fused: bool


@dataclass(frozen=True, slots=True)
class Serialized:
    """A whole graph as bytes: the parts before ``model``, and the inputs that nodes read."""

    model: bytes
    parts: tuple[LayerPart, ...]
    inputs: tuple[str, ...]
    makes: tuple[Make, ...]


def serialize(written: Written, head: Head) -> Serialized:
    """End what was written with ``head`` as its output, and cut it at the exits."""
    end = helper.make_node("Identity", [head.value], [head.name], head.name)
    all_nodes = [*written.nodes, end]
    read = values_of(nodes_before(all_nodes, [head.name], ""))
    inputs = tuple(name for name in written.inputs if name in read)
    parts, given = [], ""
    for place in written.exits:
        nodes = nodes_before(all_nodes, [place.hidden, place.answer], given)
        nodes.append(helper.make_node("Identity", [place.answer], [head.name], head.name))
        model = _model(written, nodes, inputs, given, head, place.hidden)
        parts.append(LayerPart(place.layer, model, place.hidden, _makes(written, nodes)))
        given = place.hidden
    nodes = nodes_before(all_nodes, [head.name], given)
    model = _model(written, nodes, inputs, given, head, "")
    return Serialized(model, tuple(parts), inputs, _makes(written, nodes))


def _makes(written: Written, nodes: Sequence[NodeProto]) -> tuple[Make, ...]:
    read = values_of(nodes)
    return tuple(make for name, make in written.makes.items() if name in read)


def _model(
    written: Written,
    nodes: Sequence[NodeProto],
    inputs: Sequence[str],
    given: str,
    head: Head,
    hidden: str,
) -> bytes:
    """Serialize nodes that take ``inputs`` and ``given``, and give the head and ``hidden``."""
    int64, float32 = TensorProto.INT64, TensorProto.FLOAT
    taken = [helper.make_tensor_value_info(x, int64, ["batch", "tokens"]) for x in inputs]
    made = [helper.make_tensor_value_info(head.name, float32, head.shape)]
    for values, name in ((taken, given), (made, hidden)):
        if name:
            values.append(helper.make_tensor_value_info(name, float32, ["rows", head.width]))
    read = values_of(nodes)
    if HIDDEN_STATE in read:
        taken.append(helper.make_tensor_value_info(HIDDEN_STATE, float32, [None] * 3))
    taken += written.slots
    stored = [tensor for tensor in written.initializers if tensor.name in read]
    graph = helper.make_graph(nodes, "libsemantic", taken, made, stored)
    opsets = [helper.make_opsetid("", _OPSET)]
    if written.fused:
        opsets.append(helper.make_opsetid(FUSED, 1))
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="libsemantic"
    )
    serialized: bytes = model.SerializeToString()
    return serialized
