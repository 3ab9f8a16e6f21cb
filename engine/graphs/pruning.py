"""Leave of a list of nodes those that an output needs."""

from collections.abc import Iterator, Sequence

from onnx import GraphProto, NodeProto


def needed_nodes(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """Return the nodes, in their order, on which ``outputs`` hang; ``nodes`` are sorted."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(names_read(node))
    return kept[::-1]


def names_read(node: NodeProto) -> Iterator[str]:
    """Yield all names that a node reads, those in its inner graphs too."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from _names_in(attribute.g)


def _names_in(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph reads, its own among them."""
    for node in graph.node:
        yield from names_read(node)
    yield from (value.name for value in graph.output)
