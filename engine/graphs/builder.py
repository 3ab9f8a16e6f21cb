"""Write ONNX graphs over weights that stay in their safetensors files.

This package imports ``onnx`` (about 75 ms), so import ``engine.graphs`` only where a graph is to
be built. Between blocks a hidden state is 2-D, ``[batch * tokens, width]`` float32: that lets
``Gemm(transB=1)`` read weights as PyTorch stores them, without a transposed copy. Attention and
outputs unfold it to ``[batch, tokens, ...]``. Values are passed by their names in the graph.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from onnx import GraphProto, NodeProto, TensorProto, helper

from ..adaptation import HIDDEN_STATE, UNADAPTED, Adaptation, Part
from ..results import Float32
from ..weights import Tensor
from .config_values import Size
from .finished import Graph, Head, Written, serialize
from .parts import Exit
from .quantized import MOST_INPUTS, Int8
from .stored import StoredWeights
from .updates import Updates

Attributes: TypeAlias = Mapping[str, int | float | str | Sequence[int]]


@dataclass(frozen=True, slots=True)
class Branches:
    """The lengths in tokens at which a graph takes another way.

    Up to ``whole`` the scores of attention are computed at once, and an answer is the same, to the
    last bits, whether or not its text is padded; longer texts are never padded by this library.
    With None they are for all lengths, and the graph has no branches.
    """

    whole: int | None = 512


DEFAULT_BRANCHES: Final = Branches()


class GraphBuilder:
    """Write one graph, checking every weight it takes and remembering which it took.

    The first of ``inputs`` gives the shape ``[batch, tokens]``; those that no node reads are no
    inputs of the graph. With ``fused`` attention is
    com.microsoft.MultiHeadAttention, else plain ONNX operators for providers without it.
    ``branches`` says from which lengths on attention saves memory, ``exits`` after how many
    layers, in rising order and less than all, a run may stop: there the graph is cut into parts.
    ``adaptation`` says what becomes of the model. With ``steps`` the linear layers before the
    last hidden state and the table of ids are int8, the layers' inputs in so many steps.
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
        steps: int = 0,
    ) -> None:
        self.weights = weights
        self._adaptation = adaptation
        self._stored = StoredWeights(weights, adaptation.own)
        self._updates = Updates(self._stored, adaptation)
        self._int8 = Int8(self._stored, steps)
        self._linears: dict[str, tuple[Size, Size]] = {}
        self._encoder_linears: frozenset[str] = frozenset()
        self._encoder_weights: frozenset[str] = frozenset()
        self._inputs = inputs
        self.fused = fused
        self.branches = branches
        self.exits = exits
        self._exits: list[Exit] = []
        self._nodes: list[NodeProto] = []
        self._count = 0
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

    def split(self, x: str, parts: int) -> list[str]:
        """Cut the last dimension into equal parts."""
        first = self.op("Split", [x], {"axis": -1, "num_outputs": parts})
        names = [first, *(f"{first}_{part}" for part in range(1, parts))]
        self._nodes[-1].output.extend(names[1:])
        return names

    def leave(self, layer: int, hidden: str, answer: str) -> None:
        """Let runs end after ``layer`` layers with ``answer``; the others go on from ``hidden``.

        ``hidden`` is ``[batch * tokens, width of the head]`` and all that may be used of what was
        written before it, but for values that depend on the inputs alone.
        """
        self._exits.append(Exit(layer, hidden, answer))

    def end_exits(self, write: Callable[[str], str]) -> None:
        """Let runs that leave early answer with what ``write`` makes of their answers."""
        self._exits = [replace(each, answer=write(each.answer)) for each in self._exits]

    def _part(self, name: str, write: Callable[[], str]) -> GraphProto:
        """Write a float32 value into a graph of its own."""
        with self._inside() as nodes:
            output = self.op("Identity", [write()])
        value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [value])

    @contextmanager
    def _inside(self) -> Iterator[list[NodeProto]]:
        """Write nodes into a list of their own; values that are remembered in it stay in it."""
        outer = self._nodes, self._floats, self._shapes, self._int8.rows
        self._nodes, self._floats, self._shapes = [], dict(self._floats), dict(self._shapes)
        self._int8.rows = dict(self._int8.rows)
        try:
            yield self._nodes
        finally:
            self._nodes, self._floats, self._shapes, self._int8.rows = outer

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

    def array(self, values: Float32) -> str:
        """Return a constant array, which is written into the graph."""
        name = self._name("array")
        self._stored.write(name, values)
        return name

    def _constant(self, kind: int, shape: tuple[int, ...], values: Sequence[float]) -> str:
        key = (kind, shape, tuple(values))
        if key not in self._constants:
            name = f"/constant_{len(self._constants)}"
            self._constants[key] = helper.make_tensor(name, kind, shape, values)
        return self._constants[key].name

    def weight(self, name: str, *shape: Size) -> str:
        """Return a stored weight as float32, whatever its precision in the file."""
        self._stored.take(name, shape)
        if name not in self._floats:
            self._floats[name] = self._as_float(name, name)
        return self._floats[name]

    def embedding(self, ids: str, name: str, rows: Size, width: Size) -> str:
        """Look ids of any shape up in a table: ``[..., width]``; out of range fails the run.

        A half-precision table is cast after the look-up, so that it stays mapped from its file.
        """
        self._stored.take(name, (rows, width))
        if self._int8.on and ids == self._inputs[0]:  # tables of types and positions are small
            return self._int8.look_up(self, ids, name)
        return self._as_float(self.op("Gather", [name, ids]), name)

    def _as_float(self, value: str, name: str) -> str:
        """Cast a value that came from the weight ``name`` to float32 where it is not."""
        if self._stored.is_float(name):
            return value
        return self.op("Cast", [value], {"to": TensorProto.FLOAT})

    def linear(self, x: str, name: str, inputs: Size, outputs: Size, *, biased: bool = True) -> str:
        """Apply ``name.weight`` ``[outputs, inputs]`` and ``name.bias``: 2-D in, 2-D out."""
        if self._int8.on and inputs.value <= MOST_INPUTS:
            self._stored.take(f"{name}.weight", (outputs, inputs))
            if biased:
                self._stored.take(f"{name}.bias", (outputs,))
            self._linears[name] = (inputs, outputs)
            update = self._adaptation.updates.get(name)
            y = self._int8.linear(self, x, name, update, biased=biased)
        else:
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
        weight = self.weight(f"{name}.weight", outputs, inputs)
        operands = [x, self._updates.merged(self, weight, name)]
        if biased:
            operands.append(self.weight(f"{name}.bias", outputs))
        return self.op("Gemm", operands, {"transB": 1})

    def adapted(self, x: str, y: str, name: str, inputs: Size, outputs: Size) -> str:
        """Add to ``y``, a linear layer's output for ``x``, the update that the run brings.

        Both matrices have rank 0 where it brings none: ``y`` then stays what it is, to the bit.
        """
        down, up = self._updates.slot(name, inputs, outputs)
        x = self.op("Gemm", [x, down], {"transB": 1})
        return self.op("Gemm", [x, up, y], {"transB": 1})

    def hidden_state(self, x: str, width: Size) -> str:
        """Mark the last hidden state, ``[batch * tokens, width]``: what follows is the head."""
        self._encoder_linears = frozenset(self._linears)
        self._encoder_weights = self._stored.taken
        self._int8.on = False  # a head is little work
        if self._adaptation.part is not Part.HEAD:
            return x
        return self.fold(HIDDEN_STATE, width)

    def fold(self, x: str, width: Size) -> str:
        """Reshape ``[batch, tokens, ...]`` to ``[batch * tokens, width]``."""
        return self.op("Reshape", [x, self.integers(-1, width.value)])

    def unfold(self, x: str, *tail: int) -> str:
        """Reshape ``[batch * tokens, width]`` to ``[batch, tokens, *tail]``."""
        if tail not in self._shapes:
            parts = [self.batch_and_tokens, self.integers(*tail)]
            self._shapes[tail] = self.op("Concat", parts, {"axis": 0})
        return self.op("Reshape", [x, self._shapes[tail]])

    def finish(self, head: Head, ignorable: Sequence[str]) -> Graph:
        """Close the graph with ``head`` as its output.

        A weight that was not taken and matches no pattern of ``ignorable`` is
        ``BadArtifactError``: part of the model would silently not run.
        """
        stored = self._stored
        stored.require_all((*ignorable, *self._adaptation.spare))
        written = Written(
            nodes=self._nodes,
            inputs=self._inputs,
            slots=self._updates.slots,
            initializers=[*stored.initializers.values(), *self._constants.values()],
            makes=self._int8.makes,
            exits=self._exits,
            fused=self.fused or self._int8.steps > 0,
        )
        serialized = serialize(written, head)
        return Graph(
            model=serialized.model,
            parts=serialized.parts,
            weights_folder=stored.folder,
            inputs=serialized.inputs,
            output=head.name,
            width=head.width,
            vocab_size=head.vocab_size,
            position_limit=head.position_limit,
            type_vocab_size=head.type_vocab_size,
            dtype="INT8" if self._int8.steps else stored.dtype,
            makes=serialized.makes,
            linears=self._linears,
            encoder_linears=self._encoder_linears,
            encoder_weights=self._encoder_weights,
        )
