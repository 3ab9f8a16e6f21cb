"""DeBERTa v2 and v3: attention that scores content and distance apart (arXiv 2006.03654).

Weight names and arithmetic are those of ``DebertaV2Model`` and its heads in transformers.

A score is (content·content + content·distance + distance·content) / sqrt(3 · depth). The projected
distances depend on weights alone; ONNX Runtime computes them once, while it loads. A run takes of
them what its length can reach and picks from ``[batch, heads, tokens, distances]``, so that beside
the scores of plain attention there are three arrays of their size: two terms, and the int32 index
of the picks, which all layers share.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..config import Task
from ..errors import BadArtifactError, UnsupportedError
from .blocks import (
    activate,
    hide_padding,
    layer_norm,
    read_activation,
    token_positions,
    two_way_attention,
)
from .builder import GraphBuilder
from .config_values import Size, read, read_size
from .finished import Head
from .post_norm import (
    Classifier,
    Encoder,
    LayerNames,
    head,
    layer,
    read_encoder,
    sum_embeddings,
)

_LAYERS = LayerNames(
    layers="encoder.layer",
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    attended="attention.output.dense",
    attended_norm="attention.output.LayerNorm",
    inner="intermediate.dense",
    outer="output.dense",
    outer_norm="output.LayerNorm",
)
_CONTENT_TO_POSITION, _POSITION_TO_CONTENT = "c2p", "p2c"
_DEFAULT_EPSILON = 1e-7
_MOST_DISTANCE = 1 << 15  # a list of all distances lies in the graph


@dataclass(frozen=True, slots=True)
class _Distances:
    """How attention scores distances: ``span`` rows of the table to either side.

    ``terms`` are those of ``pos_att_type``; ``shared``: projected like the content itself.
    ``buckets``: number of logarithmic ones, 0 for none, within ``farthest``.
    """

    terms: tuple[str, ...]
    shared: bool
    normed: bool
    span: int
    buckets: int
    farthest: int


def build_deberta(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids, mask and token types."""
    types = read_size(config, "type_vocab_size") if config.get("type_vocab_size") else None
    encoder = read_encoder(
        builder, config, "deberta", types, names=_LAYERS, epsilon=_DEFAULT_EPSILON
    )
    terms = _terms(config)
    x = _embed(builder, config, encoder)
    scale = 1 / math.sqrt(encoder.hidden.value / encoder.heads.value * (1 + len(terms)))
    position = None
    if read(config, "relative_attention", bool, False) and terms:
        position = _PositionScores(builder, encoder, _read_distances(config, encoder, terms), scale)
    padding = hide_padding(builder, "attention_mask")

    def attend(name: str, query: str, key: str, value: str) -> str:
        bias = position.bias(name, query, key) if position is not None else ""
        return two_way_attention(
            builder,
            query,
            key,
            value,
            padding,
            encoder.heads,
            encoder.hidden,
            scale=scale,
            bias=bias,
        )

    embedded = x
    for number in range(encoder.layers.value):
        x = layer(builder, encoder, number, x, attend)
        if number == 0 and read(config, "conv_kernel_size", int, 0) > 0:
            x = _convolve(builder, config, encoder, embedded, x)
    pooler = Classifier(
        "pooler.dense", read_activation(config, "pooler_hidden_act", "gelu"), "classifier"
    )
    return head(builder, config, task, encoder, x, pooler, encoder.positions.value)


def _terms(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the kinds of ``pos_att_type``: a list, or joined by "|" in old files."""
    value = config.get("pos_att_type")
    kinds = (
        value.lower().split("|")
        if isinstance(value, str)
        else read(config, "pos_att_type", list, [])
    )
    terms = tuple(kind.strip() for kind in kinds if isinstance(kind, str))
    known = (_CONTENT_TO_POSITION, _POSITION_TO_CONTENT)
    if len(terms) < len(kinds) or not set(terms) <= set(known) or len(set(terms)) < len(terms):
        raise UnsupportedError(
            f"config.json: pos_att_type {value!r:.100} is not supported; supported are"
            f" {', '.join(known)}, each at most once"
        )
    return terms


def _read_distances(
    config: Mapping[str, object], encoder: Encoder, terms: tuple[str, ...]
) -> _Distances:
    """Read the keys of relative attention; the most distant one is that of the longest text."""
    farthest = read(config, "max_relative_positions", int, -1)
    farthest = farthest if farthest > 0 else encoder.positions.value
    if max(farthest, encoder.positions.value) > _MOST_DISTANCE:
        raise UnsupportedError(
            f"config.json: 'max_position_embeddings' or 'max_relative_positions' is beyond"
            f" {_MOST_DISTANCE}, the most for attention that scores distances"
        )
    buckets = max(read(config, "position_buckets", int, -1), 0)
    if buckets and not 2 <= buckets // 2 < farthest - 1:
        raise BadArtifactError(
            f"config.json: 'position_buckets' is {buckets}, which does not fit distances up to"
            f" {farthest}; correct it"
        )
    norms = [part.strip() for part in read(config, "norm_rel_ebd", str, "none").lower().split("|")]
    if not set(norms) <= {"none", "layer_norm"}:
        raise UnsupportedError(
            f"config.json: norm_rel_ebd {norms!r:.100} is not supported; supported are none,"
            f" layer_norm"
        )
    return _Distances(
        terms=terms,
        shared=read(config, "share_att_key", bool, False),
        normed="layer_norm" in norms,
        span=buckets or farthest,
        buckets=buckets,
        farthest=farthest,
    )


def _embed(builder: GraphBuilder, config: Mapping[str, object], encoder: Encoder) -> str:
    """Return what goes into the layers, ``[batch * tokens, hidden]``."""
    hidden = encoder.hidden
    width = read_size(config, "embedding_size") if config.get("embedding_size") else hidden
    biased = read(config, "position_biased_input", bool, True)
    x = sum_embeddings(builder, encoder, width, token_positions(builder) if biased else "")
    name = f"{encoder.prefix}embeddings"
    if width.value != hidden.value:
        x = builder.linear(x, f"{name}.embed_proj", width, hidden, biased=False)
    return layer_norm(builder, x, f"{name}.LayerNorm", hidden, encoder.epsilon)


def _convolve(
    builder: GraphBuilder, config: Mapping[str, object], encoder: Encoder, embedded: str, x: str
) -> str:
    """Add to the first layer's output a convolution of its input, as the large v2 models do.

    It must find 0 in the place of padding. transformers also sets the states of padding to 0
    elsewhere, where no token can see them.
    """
    op, hidden = builder.op, encoder.hidden
    kernel, groups = read_size(config, "conv_kernel_size"), read(config, "conv_groups", int, 1)
    if kernel.value % 2 == 0 or groups < 1 or hidden.value % groups:
        raise BadArtifactError(
            f"config.json: 'conv_kernel_size' is {kernel.value} and 'conv_groups' {groups}; they"
            f" must be odd and a divisor of {hidden.key} {hidden.value}; correct them"
        )
    name = f"{encoder.prefix}encoder.conv"
    inputs = Size(f"{hidden.key} / conv_groups", hidden.value // groups)
    weight = builder.weight(f"{name}.conv.weight", hidden, inputs, kernel)
    bias = builder.weight(f"{name}.conv.bias", hidden)
    mask = op("Cast", ["attention_mask"], {"to": TensorProto.FLOAT})
    mask = op("Unsqueeze", [mask, builder.integers(2)])
    y = op("Mul", [builder.unfold(embedded, hidden.value), mask])
    y = op("Transpose", [y], {"perm": (0, 2, 1)})
    edge = (kernel.value - 1) // 2
    y = op("Conv", [y, weight, bias], {"pads": (edge, edge), "group": groups})
    y = builder.fold(op("Transpose", [y], {"perm": (0, 2, 1)}), hidden)
    y = activate(builder, y, read_activation(config, "conv_act", "tanh"))
    return layer_norm(builder, op("Add", [x, y]), f"{name}.LayerNorm", hidden, encoder.epsilon)


def rows_of_distances(distances: _Distances, tokens: int) -> list[int]:
    """Return the row of the table for each distance from 1 - tokens to tokens - 1.

    Up to half the buckets each distance has a row; above, rows are logarithmic
    (``make_log_bucket_position`` of transformers, in its float32).
    """
    distance = np.arange(1 - tokens, tokens)
    row = distance
    if distances.buckets:
        middle = distances.buckets // 2
        far = np.maximum(np.abs(distance), middle)
        share = np.log((far / middle).astype(np.float32)) / np.log(
            np.float32((distances.farthest - 1) / middle)
        )
        bucket = np.ceil(share * np.float32(middle - 1)).astype(np.int64) + middle
        row = np.where(np.abs(distance) <= middle, distance, np.sign(distance) * bucket)
    rows: list[int] = np.clip(row + distances.span, 0, 2 * distances.span - 1).tolist()
    return rows


class _PositionScores:
    """The part of the scores that knows distances; what all layers share is written once."""

    def __init__(
        self, builder: GraphBuilder, encoder: Encoder, distances: _Distances, scale: float
    ) -> None:
        self._builder = builder
        self._encoder = encoder
        self._distances = distances
        self._scale = scale
        name = f"{encoder.prefix}encoder"
        rows = Size("2 * distances", 2 * distances.span)
        self._table = builder.weight(f"{name}.rel_embeddings.weight", rows, encoder.hidden)
        if distances.normed:
            self._table = layer_norm(
                builder, self._table, f"{name}.LayerNorm", encoder.hidden, encoder.epsilon
            )
        self._first, self._end, self._index = self._reachable()

    def _reachable(self) -> tuple[str, str, str]:
        """Return which rows of the table a run reaches: the first, the end, and an index.

        The index counts from the first: int32 ``[batch, heads, queries, keys]``.
        """
        builder, op = self._builder, self._builder.op
        most = self._encoder.positions.value
        rows = builder.integers(*rows_of_distances(self._distances, most))
        keys = token_positions(builder)
        queries = op("Add", [keys, builder.scalar(most - 1)])  # where distance 0 has its row
        queries = op("Unsqueeze", [queries, builder.integers(1)])
        index = op("Gather", [rows, op("Sub", [queries, keys])])
        first = op("ReduceMin", [index], {"keepdims": 0})
        end = op("Add", [op("ReduceMax", [index], {"keepdims": 0}), builder.scalar(1)])
        index = op("Cast", [op("Sub", [index, first])], {"to": TensorProto.INT32})
        heads = builder.integers(self._encoder.heads.value)
        batch, tokens = (
            op("Gather", [builder.batch_and_tokens, builder.integers(axis)]) for axis in (0, 1)
        )
        shape = op("Concat", [batch, heads, tokens, tokens], {"axis": 0})
        first, end = (op("Reshape", [edge, builder.integers(1)]) for edge in (first, end))
        return first, end, op("Expand", [index, shape])

    def bias(self, name: str, query: str, key: str) -> str:
        """Return the distances' part of a layer's scores, ``[batch, heads, tokens, tokens]``."""
        name = f"{name}.attention.self"
        op = self._builder.op
        terms = []
        for term in self._distances.terms:
            if term == _CONTENT_TO_POSITION:
                content = self._heads(query, (0, 2, 1, 3))
                reached = self._projected(f"{name}.key_proj", f"{name}.pos_key_proj", (1, 2, 0), 2)
                scores, axis = op("MatMul", [content, reached]), 3
            else:
                content = self._heads(key, (0, 2, 3, 1))
                reached = self._projected(
                    f"{name}.query_proj", f"{name}.pos_query_proj", (1, 0, 2), 1
                )
                scores, axis = op("MatMul", [reached, content]), 2
            terms.append(op("GatherElements", [scores, self._index], {"axis": axis}))
        return terms[0] if len(terms) == 1 else op("Add", terms)

    def _heads(self, x: str, order: tuple[int, ...]) -> str:
        """Split a folded state into heads and transpose ``[batch, tokens, heads, depth]``."""
        heads, hidden = self._encoder.heads.value, self._encoder.hidden.value
        return self._builder.op(
            "Transpose", [self._builder.unfold(x, heads, hidden // heads)], {"perm": order}
        )

    def _projected(self, shared: str, own: str, order: tuple[int, ...], axis: int) -> str:
        """Project the table, transpose ``[rows, heads, depth]``, keep the rows that are reached.

        The scale is multiplied in here, where ONNX Runtime computes it once.
        """
        builder, op = self._builder, self._builder.op
        heads, hidden = self._encoder.heads.value, self._encoder.hidden
        name = shared if self._distances.shared else own
        x = builder.stored_linear(self._table, name, hidden, hidden)
        if builder.adapts:  # what a run brings is added only to rows that it reaches
            reached, x = (
                op("Slice", [rows, self._first, self._end, builder.integers(0)])
                for rows in (self._table, x)
            )
            x = builder.adapted(reached, x, name, hidden, hidden)
        x = op("Reshape", [x, builder.integers(-1, heads, hidden.value // heads)])
        x = op("Mul", [op("Transpose", [x], {"perm": order}), builder.scalar(self._scale)])
        if builder.adapts:
            return x
        return op("Slice", [x, self._first, self._end, builder.integers(axis)])
