"""The end of an embedding graph: from token states to one vector of each text.

ONNX Runtime does what sentence-transformers' modules ``Pooling``, ``Dense`` and ``Normalize`` say:
in Python each of these few operations would cost tens of microseconds, since a run leaves none of
its code in the caches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from onnx import TensorProto

from ..dense import DenseLayer
from .blocks import token_positions
from .builder import GraphBuilder
from .finished import Head

_OUTPUT: Final = "sentence_embedding"
_ACTIVATIONS: Final = {"Tanh": "Tanh", "ReLU": "Relu", "GELU": "Gelu"}


@dataclass(frozen=True, slots=True)
class EmbeddingEnd:
    """Flags of ``1_Pooling/config.json`` that are on, and the dense layers that follow."""

    pooling: tuple[str, ...]
    dense: tuple[DenseLayer, ...]


def end_embedding(builder: GraphBuilder, head: Head, end: EmbeddingEnd) -> Head:
    """Let the graph, and each exit, answer with vectors in place of token states.

    Each row of the output, float32 ``[batch, dimension + 1]``, is the vector at unit length, and
    then the length that it had; a zero vector stays zero.
    """
    texts = _Texts(builder)
    layers = [_written(builder, layer) for layer in end.dense]

    def answer(states: str) -> str:
        chosen = [write(texts, states) for mode, write in _POOLINGS.items() if mode in end.pooling]
        x = chosen[0] if len(chosen) == 1 else builder.op("Concat", chosen, {"axis": 1})
        for layer in layers:
            x = layer(x)
        unit = builder.op("LpNormalization", [x], {"axis": -1, "p": 2})
        length = builder.op("ReduceL2", [x, builder.integers(1)], {"keepdims": 1})
        return builder.op("Concat", [unit, length], {"axis": 1})

    builder.end_exits(answer)
    return replace(head, value=answer(head.value), name=_OUTPUT, shape=("batch", None))


def _written(builder: GraphBuilder, layer: DenseLayer) -> Callable[[str], str]:
    """Write the weights of a dense layer into the graph; return what applies it."""
    operands = [builder.array(layer.weight)]
    if layer.bias is not None:
        operands.append(builder.array(layer.bias))
    kind = _ACTIVATIONS.get(layer.activation)

    def apply(x: str) -> str:
        y = builder.op("Gemm", [x, *operands], {"transB": 1})
        return y if kind is None else builder.op(kind, [y])

    return apply


class _Texts:
    """Where the texts lie in their padded rows."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        to_float = {"to": TensorProto.FLOAT}
        self.mask = builder.op("Cast", ["attention_mask"], to_float)  # [batch, tokens]
        self.count = self.sum_of(self.mask)

    def sum_of(self, weights: str) -> str:
        """Sum ``[batch, tokens]`` to ``[batch, 1]``."""
        return self.builder.op("ReduceSum", [weights, self.builder.integers(1)], {"keepdims": 1})

    def mean(self, states: str, weights: str, total: str) -> str:
        """Sum ``[batch, tokens, width]`` under weights ``[batch, tokens]``, divided by a total."""
        op, middle = self.builder.op, self.builder.integers(1)
        sums = op("MatMul", [op("Unsqueeze", [weights, middle]), states])
        return op("Div", [op("Squeeze", [sums, middle]), total])


def _first(texts: _Texts, states: str) -> str:
    return texts.builder.op("Gather", [states, texts.builder.scalar(0)], {"axis": 1})


def _highest(texts: _Texts, states: str) -> str:
    builder = texts.builder
    present = builder.op("Cast", [texts.mask], {"to": TensorProto.BOOL})
    present = builder.op("Unsqueeze", [present, builder.integers(2)])
    seen = builder.op("Where", [present, states, builder.scalar(-float("inf"))])
    return builder.op("ReduceMax", [seen, builder.integers(1)], {"keepdims": 0})


def _mean(texts: _Texts, states: str) -> str:
    return texts.mean(states, texts.mask, texts.count)


def _mean_of_root(texts: _Texts, states: str) -> str:
    return texts.mean(states, texts.mask, texts.builder.op("Sqrt", [texts.count]))


def _weighted_mean(texts: _Texts, states: str) -> str:
    """Let token k count k times, counted from 1 (SGPT)."""
    builder = texts.builder
    numbers = builder.op("Add", [token_positions(builder), builder.scalar(1)])
    numbers = builder.op("Cast", [numbers], {"to": TensorProto.FLOAT})
    weights = builder.op("Mul", [texts.mask, numbers])
    return texts.mean(states, weights, texts.sum_of(weights))


def _last(texts: _Texts, states: str) -> str:
    builder = texts.builder
    count = builder.op("Cast", [texts.count], {"to": TensorProto.INT64})
    last = builder.op("Sub", [count, builder.scalar(1)])
    return builder.op("GatherND", [states, last], {"batch_dims": 1})


# Keys of 1_Pooling/config.json, in the order in which sentence-transformers joins them.
_POOLINGS: Final[Mapping[str, Callable[[_Texts, str], str]]] = {
    "pooling_mode_cls_token": _first,
    "pooling_mode_max_tokens": _highest,
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_mean_sqrt_len_tokens": _mean_of_root,
    "pooling_mode_weightedmean_tokens": _weighted_mean,
    "pooling_mode_lasttoken": _last,
}
