"""Turn a built graph into float16, for devices that compute in the precision of the graph.

What comes of weights becomes float16. What comes of the inputs alone (positions, angles, masks)
stays float32 and is rounded where it meets that: float16 ends at 65,504 and counts only to 2,048.
Inputs and outputs of the graph stay float32.
"""

from dataclasses import dataclass, replace
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, load_model_from_string

from .finished import Graph

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
_STORED: Final = frozenset({FLOAT, HALF, TensorProto.BFLOAT16})
# Stands for what is added to hide a token: below any score, and two of them above float16's end.
HIDDEN: Final = -30_000.0
_FLOOR: Final = "/half_floor"
_OWN: Final = "/"  # begins the names of constants that no file has

# Operators whose output has a type of its own; that of others is the type of an input.
_TYPES: Final = {
    **dict.fromkeys(("Shape", "Size", "ArgMax"), TensorProto.INT64),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "Not", "Or"), TensorProto.BOOL),
}
_TYPE_FROM: Final = {"Where": 1}  # which input, where it is not the first


def as_half(graph: Graph) -> Graph:
    """Return the graph, and its parts, computing in float16."""
    return replace(
        graph,
        model=_convert(graph.model),
        parts=tuple(replace(part, model=_convert(part.model)) for part in graph.parts),
    )


@dataclass(frozen=True, slots=True)
class _Scope:
    """Types of the values seen so far, and which of them came of weights."""

    types: dict[str, int]
    weighted: set[str]
    cast: dict[str, str]  # float32 value → its float16 copy

    def inside(self) -> "_Scope":
        return _Scope(dict(self.types), set(self.weighted), dict(self.cast))


def _convert(data: bytes) -> bytes:
    model: ModelProto = load_model_from_string(data)
    graph = model.graph
    scope = _Scope({}, set(), {})
    for tensor in graph.initializer:
        scope.types[tensor.name] = tensor.data_type
        if tensor.data_type in _STORED and not tensor.name.startswith(_OWN):
            scope.weighted.add(tensor.name)
    for value in graph.input:
        scope.types[value.name] = value.type.tensor_type.elem_type
    floor = helper.make_tensor(_FLOOR, FLOAT, [], [HIDDEN])
    graph.initializer.append(floor)
    _rewrite(graph, scope, {value.name for value in graph.output})
    converted: bytes = model.SerializeToString()
    return converted


def _rewrite(graph: GraphProto, scope: _Scope, outputs: set[str]) -> None:
    """Rewrite the nodes of a graph in place; ``outputs`` are to be float32 again."""
    nodes: list[NodeProto] = []
    for node in list(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rewrite_inside(attribute.g, scope)
        if any(a.HasField("g") for a in node.attribute):
            kinds = {_result(a.g) for a in node.attribute if a.HasField("g")}
            half = HALF in kinds
            for attribute in node.attribute:
                if half and attribute.HasField("g"):
                    _end_in_half(attribute.g)
            nodes.append(node)
            _note(scope, node, HALF if half else FLOAT, half)
            continue
        weighted = any(name in scope.weighted for name in node.input)
        kind = _type(node, scope)
        if node.op_type == "Cast" and kind == FLOAT and weighted:
            _set_target(node, HALF)
            kind = HALF
        elif weighted and _computes(node, scope):
            for index, name in enumerate(node.input):
                if name and scope.types.get(name) in _STORED - {HALF}:
                    node.input[index] = _as_half(name, scope, nodes)
            _soften(node)
            kind = HALF if kind in _STORED else kind
        if outputs & set(node.output) and kind == HALF:
            (output,) = node.output
            node.output[0] = f"{output}/half"
            nodes += [node, helper.make_node("Cast", [node.output[0]], [output], to=FLOAT)]
            # Other nodes go on with the float16 value.
            _note(scope, node, HALF, True)
            scope.types[output], scope.cast[output] = FLOAT, node.output[0]
            scope.weighted.add(output)
            continue
        nodes.append(node)
        _note(scope, node, kind, weighted and kind in _STORED)
    del graph.node[:]
    graph.node.extend(nodes)


def _computes(node: NodeProto, scope: _Scope) -> bool:
    """Tell whether a node has floating-point inputs that are to be float16."""
    return any(scope.types.get(name) in _STORED for name in node.input)


def _rewrite_inside(graph: GraphProto, outer: _Scope) -> None:
    """Rewrite a graph inside a node; note the type of its result in its output."""
    scope = outer.inside()
    for value in graph.input:
        scope.types[value.name] = value.type.tensor_type.elem_type
    _rewrite(graph, scope, set())
    (output,) = graph.output
    output.type.tensor_type.elem_type = scope.types[output.name]


def _result(graph: GraphProto) -> int:
    kind: int = graph.output[0].type.tensor_type.elem_type
    return kind


def _end_in_half(graph: GraphProto) -> None:
    """Make a graph inside a node end in float16, as the other branch does."""
    (output,) = graph.output
    if _result(graph) == HALF:
        return
    name = f"{output.name}/half"
    graph.node.append(helper.make_node("Cast", [output.name], [name], to=HALF))
    output.name = name
    output.type.tensor_type.elem_type = HALF


def _type(node: NodeProto, scope: _Scope) -> int:
    if node.op_type in _TYPES:
        return _TYPES[node.op_type]
    if node.op_type == "Cast":
        target: int = helper.get_attribute_value(node.attribute[0])
        return target
    return scope.types[node.input[_TYPE_FROM.get(node.op_type, 0)]]


def _note(scope: _Scope, node: NodeProto, kind: int, weighted: bool) -> None:
    for name in node.output:
        scope.types[name] = kind
        if weighted:
            scope.weighted.add(name)


def _as_half(name: str, scope: _Scope, nodes: list[NodeProto]) -> str:
    """Return the float16 copy of a value, which is written before it is used."""
    if name not in scope.cast:
        source, copy = name, f"{name}/half"
        if name not in scope.weighted and scope.types[name] == FLOAT:
            source = f"{name}/floor"
            nodes.append(helper.make_node("Max", [name, _FLOOR], [source]))
        nodes.append(helper.make_node("Cast", [source], [copy], to=HALF))
        scope.cast[name] = copy
        scope.types[copy] = HALF
    return scope.cast[name]


def _set_target(node: NodeProto, kind: int) -> None:
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("to", kind))


def _soften(node: NodeProto) -> None:
    """Keep what hides a token within float16."""
    for attribute in node.attribute:
        if attribute.name == "mask_filter_value":
            attribute.f = HIDDEN
