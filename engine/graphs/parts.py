"""Cut a graph where runs may leave it early, so that what lies behind costs nothing.

Each part is a model of its own and goes from one cut to the next; only the hidden state crosses
a cut. What else a part needs, such as masks, it computes again: that is little. One graph with
branches would do without, but ONNX Runtime does not prepack the weights that branches read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnx import GraphProto, NodeProto

from ..initializers import Make


@dataclass(frozen=True, slots=True)
class LayerPart:
    """The graph up to an exit after ``layer`` layers, from the exit before it.

    ``model`` is a serialized ModelProto that takes what the whole graph takes, and besides, but
    for the first part, the ``hidden`` of the part before. It gives the output of the whole graph,
    as if the layers ended here, and ``hidden``, float32 ``[batch * tokens, hidden size]``.
    ``makes`` give the initializers that the session must be handed over.
    """

    layer: int
    model: bytes
    hidden: str
    makes: tuple[Make, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """A place to leave: the value that crosses the cut, and the value to answer with."""

    layer: int
    hidden: str
    answer: str


def nodes_before(nodes: Sequence[NodeProto], wanted: Iterable[str], given: str) -> list[NodeProto]:
    """Return the nodes, in order, that lead to the ``wanted`` values from ``given`` and inputs."""
    needed = set(wanted) - {given}
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(_reads(node))
            needed.discard(given)
    return kept[::-1]


def values_of(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the names of all values that nodes read, in graphs inside them too."""
    return {name for node in nodes for name in _reads(node)}


def _reads(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from _reads_of_graph(attribute.g)


def _reads_of_graph(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from _reads(node)
