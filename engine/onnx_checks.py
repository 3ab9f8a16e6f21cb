"""What the operators of an ONNX file say: how large it unfolds, how many tokens it can embed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UnsupportedError

if TYPE_CHECKING:
    import onnx

# The largest exported models have some 10,000 nodes, in functions a few levels deep.
_MAX_NODES = 1_000_000
_MAX_DEPTH = 64
_RENAMING = {"Cast", "Identity", "DequantizeLinear"}  # the output stands for the first input
# Operator → positions of the table and of the ids among its inputs.
_LOOKUPS = {
    "Gather": (0, 1),
    "GatherBlockQuantized": (0, 1),
    "EmbedLayerNormalization": (2, 0),
    "QEmbedLayerNormalization": (2, 0),
}
_MAX_RENAMINGS = 8


def check_functions(path: Path, model: onnx.ModelProto) -> None:
    """Refuse functions that call each other so often, or so deep, that they unfold without end.

    ONNX Runtime puts the nodes of a function in the place of each call while it opens a file, and
    nothing stops it.
    """
    pending = {_key(function): list(_calls(function.node)) for function in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    for _ in range(_MAX_DEPTH):
        if not pending:
            break
        ready = {key for key, called in pending.items() if pending.keys().isdisjoint(called)}
        for key in ready:
            sizes[key] = sum(sizes.get(called, 1) for called in pending.pop(key))
    nodes = sum(sizes.get(called, 1) for called in _calls(model.graph.node))
    if pending or nodes > _MAX_NODES:
        raise UnsupportedError(
            f"{path}: its functions unfold to more than {_MAX_NODES} nodes, or call each other "
            f"more than {_MAX_DEPTH} levels deep; export the model without functions"
        )


def _key(item: onnx.FunctionProto | onnx.NodeProto) -> tuple[str, str, str]:
    name = item.op_type if hasattr(item, "op_type") else item.name
    return "" if item.domain == "ai.onnx" else item.domain, name, item.overload


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, str, str]]:
    """Yield the operator of each node, those in graphs inside nodes too."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield _key(node)
        for attribute in node.attribute:
            graphs = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
            pending.extend(inner for graph in graphs for inner in graph.node)


def count_embeddings(
    nodes: Iterable[onnx.NodeProto], tensors: Iterable[tuple[str, onnx.TensorProto]]
) -> int:
    """Return the rows of the smallest table in which the ids are looked up; 0: none is seen."""
    rows = {name: tensor.dims[0] for name, tensor in tensors if len(tensor.dims) > 1}
    origins: dict[str, str] = {}
    lookups: list[tuple[str, str]] = []
    for node in nodes:
        if node.op_type in _RENAMING and node.input and node.output:
            origins[node.output[0]] = node.input[0]
        table, ids = _LOOKUPS.get(node.op_type, (0, len(node.input)))
        if max(table, ids) < len(node.input) and not _axis(node):
            lookups.append((node.input[table], node.input[ids]))
    found = [
        rows.get(_origin(origins, table), 0)
        for table, ids in lookups
        if _origin(origins, ids) == "input_ids"
    ]
    return min((count for count in found if count > 0), default=0)


def _axis(node: onnx.NodeProto) -> int:
    return next((each.i for each in node.attribute if each.name in ("axis", "gather_axis")), 0)


def _origin(origins: dict[str, str], name: str) -> str:
    """Follow a name back through what only changes its type."""
    for _ in range(_MAX_RENAMINGS):
        if name not in origins:
            break
        name = origins[name]
    return name
