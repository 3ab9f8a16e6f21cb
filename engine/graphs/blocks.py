"""Building blocks of ONNX graphs over weights that stay in their safetensors files.

This module imports ``onnx`` (about 75 ms), so import ``engine.graphs`` only where a graph is to
be built. Between blocks a hidden state is 2-D, ``[batch * tokens, width]`` float32: that lets
``Gemm(transB=1)`` read weights as PyTorch stores them, without a transposed copy. Attention and
outputs unfold it to ``[batch, tokens, ...]``. Values are passed by their names in the graph.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from onnx import (
    GraphProto,
    NodeProto,
    StringStringEntryProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from ..adaptation import HIDDEN_STATE, UNADAPTED, Adaptation, Part, slot_names
from ..errors import BadArtifactError, UnsupportedError
from ..results import Float32
from ..weights import Tensor, load_array
from .parts import Exit, LayerPart, nodes_before, values_of

Attributes: TypeAlias = Mapping[str, int | float | str | Sequence[int]]
_T = TypeVar("_T")

_OPSET: Final = 20  # the first with Gelu
_IR_VERSION: Final = 9  # came with opset 20; a newer number would only lock out older runtimes
FUSED: Final = "com.microsoft"
# Added to the scores of padding. Far below any score, yet finite in bfloat16 too, where the
# lowest float32 becomes an infinity.
MASKED: Final = -1e30
_TYPES: Final = {
    "F32": TensorProto.FLOAT,
    "F16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
}

# The longest text of the tests of models whose positions are computed; what config.json allows
# beyond it is not offered.
TESTED_TOKENS: Final = 32_768


@dataclass(frozen=True, slots=True)
class Activation:
    """How to write an activation: one operator, multiplied by its input where ``gated``."""

    kind: str
    attributes: Attributes
    gated: bool = False


_GELU_TANH: Final = Activation("Gelu", {"approximate": "tanh"})
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "gelu": Activation("Gelu", {}),
    "gelu_new": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "relu": Activation("Relu", {}),
    "silu": Activation("Sigmoid", {}, gated=True),
    "tanh": Activation("Tanh", {}),
}


@dataclass(frozen=True, slots=True)
class Branches:
    """The lengths in tokens at which a graph takes another way.

    Up to ``whole`` the scores of attention are computed at once, and an answer is the same, to the
    last bits, whether or not its text is padded; longer texts are never padded by this library.
    With None they are for all lengths, and the graph has no branches.
    """

    whole: int | None = 512


@dataclass(frozen=True, slots=True)
class Size:
    """A dimension and where it was read, so that a contradiction can name both sides."""

    key: str
    value: int


DEFAULT_BRANCHES: Final = Branches()


@dataclass(frozen=True, slots=True)
class Head:
    """The output of a family's graph: the value it ends in, its public name and shape, limits."""

    value: str
    name: str
    shape: tuple[str | int, ...]
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
    (embedding); ``width`` is its last dimension. Ids go up to ``vocab_size`` and
    ``type_vocab_size``, tokens up to ``position_limit``. ``dtype`` is that of the stored
    weights that run, joined by ``+`` where they differ.

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
    linears: Mapping[str, tuple[Size, Size]]
    encoder_linears: frozenset[str]
    encoder_weights: frozenset[str]


class GraphBuilder:
    """Write one graph, checking every weight it takes and remembering which it took.

    The first of ``inputs`` gives the shape ``[batch, tokens]``; those that no node reads are no
    inputs of the graph. With ``fused`` attention is
    com.microsoft.MultiHeadAttention, else plain ONNX operators for providers without it.
    ``branches`` says from which lengths on attention saves memory, ``exits`` after how many
    layers, in rising order and less than all, a run may stop: there the graph is cut into parts.
    ``adaptation`` says what becomes of the model.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        inputs: tuple[str, ...],
        *,
        fused: bool,
        branches: Branches = DEFAULT_BRANCHES,
        exits: tuple[int, ...] = (),
        adaptation: Adaptation = UNADAPTED,
    ) -> None:
        self.weights = weights
        self._adaptation = adaptation
        self._linears: dict[str, tuple[Size, Size]] = {}
        self._encoder_linears: frozenset[str] = frozenset()
        self._encoder_weights: frozenset[str] = frozenset()
        self._slots: list[ValueInfoProto] = []
        self._inputs = inputs
        self.fused = fused
        self.branches = branches
        self.exits = exits
        self._exits: list[Exit] = []
        self._nodes: list[NodeProto] = []
        self._count = 0
        self._initializers: dict[str, TensorProto] = {}
        self._constants: dict[tuple[int, tuple[int, ...], tuple[float, ...]], TensorProto] = {}
        self._floats: dict[str, str] = {}
        self._shapes: dict[tuple[int, ...], str] = {}
        self.batch_and_tokens = self.op("Shape", [inputs[0]])

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        domain: str = "",
    ) -> str:
        """Append a node with one output and return the output's name."""
        output = self._name(kind)
        node = helper.make_node(kind, inputs, [output], name=output, domain=domain)
        for key, value in (attributes or {}).items():
            node.attribute.append(helper.make_attribute(key, value))
        self._nodes.append(node)
        return output

    def choose(self, condition: str, then: Callable[[], str], other: Callable[[], str]) -> str:
        """Run one of two parts of the graph, by a bool scalar; each returns one float32 value.

        A part may use every value written before it, and nothing written in it leaves it but
        that one.
        """
        output = self._name("If")
        branches = {
            "then_branch": self._part(f"{output}/then", then),
            "else_branch": self._part(f"{output}/other", other),
        }
        self._nodes.append(helper.make_node("If", [condition], [output], output, **branches))
        return output

    def leave(self, layer: int, hidden: str, answer: str) -> None:
        """Let runs end after ``layer`` layers with ``answer``; the others go on from ``hidden``.

        ``hidden`` is ``[batch * tokens, width of the head]`` and all that may be used of what was
        written before it, but for values that depend on the inputs alone.
        """
        self._exits.append(Exit(layer, hidden, answer))

    def repeat(self, numbers: str, body: Callable[[str], str]) -> str:
        """Run ``body`` for each of int64 ``[n]``: its float32 values along a new axis 0, in order.

        The last number comes first. ``body`` is given the name of a number, and may use what
        ``choose`` may. (A Scan writes into one buffer where a Loop keeps a list, whose pieces
        lie in the way of everything that is allocated between them.)
        """
        output = self._name("Scan")
        graph = self._part(f"{output}/body", lambda: body(f"{output}/number"))
        number = helper.make_tensor_value_info(f"{output}/number", TensorProto.INT64, [])
        graph.input.append(number)
        node = helper.make_node(
            "Scan",
            [numbers],
            [output],
            output,
            body=graph,
            num_scan_inputs=1,
            scan_input_directions=[1],
            scan_output_directions=[1],
        )
        self._nodes.append(node)
        return output

    def _part(self, name: str, write: Callable[[], str]) -> GraphProto:
        """Write a float32 value into a graph of its own."""
        with self._inside() as nodes:
            output = self.op("Identity", [write()])
        value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [value])

    @contextmanager
    def _inside(self) -> Iterator[list[NodeProto]]:
        """Write nodes into a list of their own; values that are remembered in it stay in it."""
        outer = self._nodes, self._floats, self._shapes
        self._nodes, self._floats, self._shapes = [], dict(self._floats), dict(self._shapes)
        try:
            yield self._nodes
        finally:
            self._nodes, self._floats, self._shapes = outer

    def _name(self, kind: str) -> str:
        """Return a name for a node and its output that no other of the whole graph has."""
        self._count += 1
        return f"/{kind}_{self._count - 1}"

    def integers(self, *values: int) -> str:
        """Return a constant int64 vector."""
        return self._constant(TensorProto.INT64, (len(values),), values)

    def scalar(self, value: int | float) -> str:
        """Return a constant scalar: int64 for an ``int``, float32 for a ``float``."""
        kind = TensorProto.INT64 if isinstance(value, int) else TensorProto.FLOAT
        return self._constant(kind, (), (value,))

    def floats(self, *values: float) -> str:
        """Return a constant float32 vector."""
        return self._constant(TensorProto.FLOAT, (len(values),), values)

    def weight(self, name: str, *shape: Size) -> str:
        """Return a stored weight as float32, whatever its precision in the file."""
        stored = self._stored(name, shape)
        if name not in self._floats:
            self._floats[name] = self._as_float(stored, name)
        return self._floats[name]

    def labels(self, config: Mapping[str, object], name: str) -> Size:
        """Return the number of labels: the rows of the head's weight, which config.json shares."""
        tensor = self._tensor(name)
        found = tensor.shape[0] if tensor.shape else 0
        stated = {
            "num_labels": read(config, "num_labels", int, found),
            "id2label": len(read(config, "id2label", dict, {})) or found,
        }
        for key, count in stated.items():
            if count != found or found < 1:
                raise BadArtifactError(
                    f"config.json: {key!r} states {count} labels, weight {name!r} of"
                    f" {tensor.path.name} has shape {list(tensor.shape)}; they do not belong"
                    f" together"
                )
        return Size("labels", found)

    def check_layers(self, stem: str, layers: Size) -> None:
        """Require as many layers ``stem.0``, ``stem.1`` … among the weights as config.json says."""
        pattern = re.compile(re.escape(stem) + r"\.([0-9]{1,9})\.")
        matches = (pattern.match(name) for name in self.weights)
        stored = len({match[1] for match in matches if match})
        if stored != layers.value:
            raise BadArtifactError(
                f"config.json: {layers.key!r} is {layers.value}, the weights hold {stored} layers;"
                f" they do not belong together"
            )

    def linear(self, x: str, name: str, inputs: Size, outputs: Size, *, biased: bool = True) -> str:
        """Apply ``name.weight`` ``[outputs, inputs]`` and ``name.bias``: 2-D in, 2-D out."""
        y = self.stored_linear(x, name, inputs, outputs, biased=biased)
        return self.adapted(x, y, name, inputs, outputs) if self.adapts else y

    @property
    def adapts(self) -> bool:
        """Tell whether each run may bring updates of the linear layers."""
        return self._adaptation.part is Part.ENCODER

    def stored_linear(
        self, x: str, name: str, inputs: Size, outputs: Size, *, biased: bool = True
    ) -> str:
        """Apply a linear layer without what a run brings for it."""
        self._linears[name] = (inputs, outputs)
        operands = [x, self._updated(self.weight(f"{name}.weight", outputs, inputs), name)]
        if biased:
            operands.append(self.weight(f"{name}.bias", outputs))
        return self.op("Gemm", operands, {"transB": 1})

    def adapted(self, x: str, y: str, name: str, inputs: Size, outputs: Size) -> str:
        """Add to ``y``, a linear layer's output for ``x``, the update that the run brings.

        Both matrices have rank 0 where it brings none: ``y`` then stays what it is, to the bit.
        """
        down, up = self._slot(name, inputs, outputs)
        x = self.op("Gemm", [x, down], {"transB": 1})
        return self.op("Gemm", [x, up, y], {"transB": 1})

    def hidden_state(self, x: str, width: Size) -> str:
        """Mark the last hidden state, ``[batch * tokens, width]``: what follows is the head."""
        self._encoder_linears = frozenset(self._linears)
        self._encoder_weights = frozenset(self.weights.keys() & self._initializers.keys())
        if self._adaptation.part is not Part.HEAD:
            return x
        return self.fold(HIDDEN_STATE, width)

    def _updated(self, weight: str, name: str) -> str:
        """Add the update of a linear layer to its weight; ONNX Runtime does so while it loads."""
        update = self._adaptation.updates.get(name)
        if update is None:
            return weight
        down, up = slot_names(name)
        self._write(down, update.down)
        self._write(up, update.up)
        return self.op("Add", [weight, self.op("MatMul", [up, down])])

    def _slot(self, name: str, inputs: Size, outputs: Size) -> tuple[str, str]:
        """Add the inputs for an update of a linear layer, of rank 0 by default."""
        down, up = slot_names(name)
        if down in self._initializers:  # a layer that is applied twice
            return down, up
        for slot, shape in ((down, (0, inputs.value)), (up, (outputs.value, 0))):
            rank = [size or f"{name} rank" for size in shape]
            self._slots.append(helper.make_tensor_value_info(slot, TensorProto.FLOAT, rank))
            self._initializers[slot] = helper.make_tensor(slot, TensorProto.FLOAT, shape, [])
        return down, up

    def array(self, values: Float32) -> str:
        """Return a constant array, which is written into the graph."""
        name = self._name("array")
        self._write(name, values)
        return name

    def _write(self, name: str, values: Float32) -> None:
        """Write values into the graph itself."""
        self._initializers[name] = numpy_helper.from_array(values, name)

    def layer_norm(
        self, x: str, name: str, size: Size, epsilon: float, *, biased: bool = True
    ) -> str:
        """Normalise the last dimension; old checkpoints call the weights gamma and beta."""
        legacy = f"{name}.weight" not in self.weights and f"{name}.gamma" in self.weights
        scale, shift = ("gamma", "beta") if legacy else ("weight", "bias")
        operands = [x, self.weight(f"{name}.{scale}", size)]
        operands += [self.weight(f"{name}.{shift}", size)] if biased else []
        return self.op("LayerNormalization", operands, {"axis": -1, "epsilon": epsilon})

    def activation(self, x: str, name: str) -> str:
        """Apply a row of ``ACTIVATIONS``; an unknown name is ``UnsupportedError``."""
        if name not in ACTIVATIONS:
            raise UnsupportedError(
                f"activation {name!r} is not known; known are {', '.join(sorted(ACTIVATIONS))}"
            )
        row = ACTIVATIONS[name]
        y = self.op(row.kind, [x], row.attributes)
        return self.op("Mul", [x, y]) if row.gated else y

    def embedding(self, ids: str, name: str, rows: Size, width: Size) -> str:
        """Look ids of any shape up in a table: ``[..., width]``; out of range fails the run.

        A half-precision table is cast after the look-up, so that it stays mapped from its file.
        """
        return self._as_float(self.op("Gather", [self._stored(name, (rows, width)), ids]), name)

    def tokens(self) -> str:
        """Return the tokens of the longest row, padding included, int64 scalar."""
        return self.op("Gather", [self.batch_and_tokens, self.scalar(1)])

    def positions(self) -> str:
        """Return 0 … tokens - 1, int64 ``[tokens]``."""
        return self.op("Range", [self.scalar(0), self.tokens(), self.scalar(1)])

    def fold(self, x: str, width: Size) -> str:
        """Reshape ``[batch, tokens, ...]`` to ``[batch * tokens, width]``."""
        return self.op("Reshape", [x, self.integers(-1, width.value)])

    def unfold(self, x: str, *tail: int) -> str:
        """Reshape ``[batch * tokens, width]`` to ``[batch, tokens, *tail]``."""
        if tail not in self._shapes:
            parts = [self.batch_and_tokens, self.integers(*tail)]
            self._shapes[tail] = self.op("Concat", parts, {"axis": 0})
        return self.op("Reshape", [x, self._shapes[tail]])

    def split(self, x: str, parts: int) -> list[str]:
        """Cut the last dimension into equal parts."""
        first = self.op("Split", [x], {"axis": -1, "num_outputs": parts})
        names = [first, *(f"{first}_{part}" for part in range(1, parts))]
        self._nodes[-1].output.extend(names[1:])
        return names

    def first_token(self, x: str, width: Size) -> str:
        """Return the hidden state of each row's first token: ``[batch, width]``."""
        return self.op("Gather", [self.unfold(x, width.value), self.scalar(0)], {"axis": 1})

    def padding(self, mask: str) -> str:
        """Turn an int64 mask ``[batch, tokens]`` (1 text, 0 padding) into what attention takes.

        Any pattern of padding is right, and a row of nothing but padding gives no NaN.
        """
        if self.fused:
            return self.op("Cast", [mask], {"to": TensorProto.INT32})
        keep = self.op("Cast", [mask], {"to": TensorProto.BOOL})
        bias = self.op("Where", [keep, self.scalar(0.0), self.scalar(MASKED)])
        return self.op("Unsqueeze", [bias, self.integers(1, 2)])

    def attention(
        self,
        query: str,
        key: str,
        value: str,
        padding: str,
        heads: Size,
        width: Size,
        *,
        scale: float | None = None,
        bias: str = "",
    ) -> str:
        """Attend in both directions: 2-D in, 2-D out.

        Scores are multiplied by ``scale``, 1/sqrt(width / heads) where it is None; then ``bias``,
        ``[batch, heads, tokens, tokens]``, is added where it is not "".
        """
        if width.value % heads.value:
            raise BadArtifactError(
                f"{width.key} {width.value} is no multiple of {heads.key} {heads.value};"
                f" correct config.json"
            )
        depth = width.value // heads.value
        scale = 1 / math.sqrt(depth) if scale is None else scale
        if self.fused:
            inputs = [*(self.unfold(x, width.value) for x in (query, key, value)), "", padding]
            attributes: Attributes = {
                "num_heads": heads.value,
                "mask_filter_value": MASKED,
                "scale": scale,
            }
            inputs += [bias] if bias else []
            attended = self.op("MultiHeadAttention", inputs, attributes, FUSED)
            return self.fold(attended, width)
        q, k, v = (
            self.op("Transpose", [self.unfold(x, heads.value, depth)], {"perm": order})
            for x, order in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
        )
        scores = self.op("Mul", [self.op("MatMul", [q, k]), self.scalar(scale)])
        scores = self.op("Add", [scores, bias]) if bias else scores
        shares = self.op("Softmax", [self.op("Add", [scores, padding])], {"axis": -1})
        attended = self.op("MatMul", [shares, v])
        return self.fold(self.op("Transpose", [attended], {"perm": (0, 2, 1, 3)}), width)

    def finish(self, head: Head, ignorable: Sequence[str]) -> Graph:
        """Close the graph with ``head`` as its output.

        A weight that was not taken and matches no pattern of ``ignorable`` is
        ``BadArtifactError``: part of the model would silently not run.
        """
        ignorable = (*ignorable, *self._adaptation.spare)
        unused = sorted(
            name
            for name in self.weights.keys() - self._initializers.keys()
            if name in self._adaptation.own
            or not any(fnmatchcase(name, pattern) for pattern in ignorable)
        )
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise BadArtifactError(
                f"weights {', '.join(map(repr, unused[:3]))}{more} are no part of this model and"
                f" task; check that config.json, the weights and the task belong together"
            )
        self._nodes.append(helper.make_node("Identity", [head.value], [head.name], head.name))
        read = values_of(nodes_before(self._nodes, [head.name], ""))
        inputs = tuple(name for name in self._inputs if name in read)
        parts, given = [], ""
        for place in self._exits:
            nodes = nodes_before(self._nodes, [place.hidden, place.answer], given)
            nodes.append(helper.make_node("Identity", [place.answer], [head.name], head.name))
            model = self._model(nodes, inputs, given, head, place.hidden)
            parts.append(LayerPart(place.layer, model, place.hidden))
            given = place.hidden
        nodes = nodes_before(self._nodes, [head.name], given)
        model = self._model(nodes, inputs, given, head, "")
        taken = [self.weights[name] for name in self._initializers if name in self.weights]
        return Graph(
            model=model,
            parts=tuple(parts),
            weights_folder=self._folder(),
            inputs=inputs,
            output=head.name,
            width=head.width,
            vocab_size=head.vocab_size,
            position_limit=head.position_limit,
            type_vocab_size=head.type_vocab_size,
            dtype="+".join(sorted({tensor.dtype for tensor in taken})),
            linears=self._linears,
            encoder_linears=self._encoder_linears,
            encoder_weights=self._encoder_weights,
        )

    def _model(
        self, nodes: Sequence[NodeProto], inputs: Sequence[str], given: str, head: Head, hidden: str
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
        taken += self._slots
        stored = [*self._initializers.values(), *self._constants.values()]
        stored = [tensor for tensor in stored if tensor.name in read]
        graph = helper.make_graph(nodes, "libsemantic", taken, made, stored)
        opsets = [helper.make_opsetid("", _OPSET)]
        if self.fused:
            opsets.append(helper.make_opsetid(FUSED, 1))
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="libsemantic"
        )
        serialized: bytes = model.SerializeToString()
        return serialized

    def _folder(self) -> Path:
        """Return the folder of the weight files."""
        own = self._adaptation.own
        names = (name for name in self._initializers if name in self.weights and name not in own)
        return self.weights[next(names)].path.parent

    def _tensor(self, name: str, expected: str = "") -> Tensor:
        if name not in self.weights:
            raise BadArtifactError(
                f"weight {name!r}{expected} is missing from the safetensors files; check that the"
                f" task fits the model, or download it again"
            )
        return self.weights[name]

    def _stored(self, name: str, shape: tuple[Size, ...]) -> str:
        """Register a weight as external data, in the precision of its file."""
        expected = f" [{', '.join(f'{size.key} {size.value}' for size in shape)}]"
        tensor = self._tensor(name, expected)
        if tensor.shape != tuple(size.value for size in shape):
            raise BadArtifactError(
                f"weight {name!r} of {tensor.path.name} has shape {list(tensor.shape)}, expected"
                f"{expected}; config.json and weights do not belong together"
            )
        if tensor.dtype not in _TYPES:
            raise UnsupportedError(
                f"weight {name!r} is stored as {tensor.dtype}; store it as {', '.join(_TYPES)}"
            )
        if name in self._adaptation.own:
            self._write(name, load_array(tensor))
            return name
        proto = TensorProto(name=name, data_type=_TYPES[tensor.dtype], dims=tensor.shape)
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", tensor.path.name),
            ("offset", str(tensor.offset)),
            ("length", str(tensor.nbytes)),
        ):
            proto.external_data.append(StringStringEntryProto(key=key, value=value))
        self._initializers[name] = proto
        folder = self._folder()
        if folder != tensor.path.parent:
            raise BadArtifactError(
                f"weight files lie in {folder} and in {tensor.path.parent}, but ONNX"
                f" Runtime reads one folder; put them into one"
            )
        return name

    def _as_float(self, value: str, name: str) -> str:
        """Cast a value that came from the weight ``name`` to float32 where it is not."""
        if self.weights[name].dtype == "F32" or name in self._adaptation.own:
            return value
        return self.op("Cast", [value], {"to": TensorProto.FLOAT})

    def _constant(self, kind: int, shape: tuple[int, ...], values: Sequence[float]) -> str:
        key = (kind, shape, tuple(values))
        if key not in self._constants:
            name = f"/constant_{len(self._constants)}"
            self._constants[key] = helper.make_tensor(name, kind, shape, values)
        return self._constants[key].name


def read(
    config: Mapping[str, object],
    key: str,
    kind: type[_T],
    default: _T | None = None,
    place: str = "",
) -> _T:
    """Return a value of config.json of exactly the type ``kind``; null counts as absent.

    ``place`` names the table inside config.json that ``config`` is. A wrong type, or absence
    where there is no ``default``, is ``BadArtifactError``.
    """
    value = config.get(key)
    name = f"{place}.{key}" if place else key
    if value is None:
        if default is None:
            raise BadArtifactError(f"config.json lacks {name!r}; download it again")
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadArtifactError(
            f"config.json: {name!r} is of type {type(value).__name__}, not {kind.__name__};"
            f" correct it"
        )
    return value


def read_number(
    config: Mapping[str, object], key: str, default: float | None = None, place: str = ""
) -> float:
    """Return a number of config.json, written with or without a fraction; see ``read``."""
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return read(config, key, float, default, place)


def read_size(config: Mapping[str, object], key: str) -> Size:
    """Return a required positive integer of config.json together with its key."""
    value = read(config, key, int)
    if value < 1:
        raise BadArtifactError(f"config.json: {key!r} is {value}, not positive; correct it")
    return Size(key, value)
