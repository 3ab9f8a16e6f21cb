"""Attention of many query heads over few keys and values, within a reach, in bounded memory.

Each group of neighbouring query heads shares one head of keys and values (arXiv 2305.13245). Up
to ``Branches.whole`` tokens the scores of a layer are computed at once. Longer texts go in blocks
of queries, each over the keys that it reaches, so that memory grows with the length and not with
its square. On CPU no operator of ONNX Runtime does that for causal or masked attention:
GroupQueryAttention takes heads × tokens² too. Where nothing is masked MultiHeadAttention does; it
is faster than blocks, but takes keys and values once for every query head, so that it is chosen
only where each query head has its own.
"""

from dataclasses import dataclass
from typing import Final

from onnx import TensorProto

from .blocks import MASKED, token_count, token_positions
from .builder import Attributes, GraphBuilder
from .config_values import Size
from .finished import FUSED

# Queries that are scored at once. Where they reach few keys, for all heads together; else for one
# head of keys and values, the queries of its group counted together: copies of one head of keys
# and of rows × tokens scores are then all that a block takes.
_NEAR_ROWS: Final = 64
_FAR_ROWS: Final = 512


@dataclass(frozen=True, slots=True)
class GroupedHeads:
    """Heads of queries, and of keys and values; ``depth`` of each; factor of the scores."""

    queries: int
    keys: int
    depth: int
    scale: float

    @property
    def group(self) -> int:
        """Count the query heads that share one head of keys and values."""
        return self.queries // self.keys

    @property
    def width(self) -> int:
        """Return the width of all queries of a token."""
        return self.queries * self.depth


@dataclass(frozen=True, slots=True)
class Reach:
    """How many tokens before and after its own a token sees; None: all of them."""

    before: int | None = None
    after: int | None = None


EVERYTHING: Final = Reach()
CAUSAL: Final = Reach(after=0)


class GroupedAttention:
    """The attention of all layers of one graph: what they share is computed once.

    ``mask`` is int64 ``[batch, tokens]`` (1 text, 0 padding); any pattern of padding is right.
    """

    def __init__(self, builder: GraphBuilder, mask: str, heads: GroupedHeads) -> None:
        self._builder = builder
        self._heads = heads
        keep = builder.op("Cast", [mask], {"to": TensorProto.BOOL})
        bias = builder.op("Where", [keep, builder.scalar(0.0), builder.scalar(MASKED)])
        self._padding = builder.op("Unsqueeze", [bias, builder.integers(1, 2)])
        self._kept = builder.op("Cast", [mask], {"to": TensorProto.INT32})
        self._tokens = token_count(builder)
        whole = builder.branches.whole
        self._branches = whole is not None
        if whole is not None:
            self._is_short = builder.op("LessOrEqual", [self._tokens, builder.scalar(whole)])
        lowest = builder.op("ReduceMin", [mask], {"keepdims": 0})
        self._is_full = builder.op("Equal", [lowest, builder.scalar(1)])
        self._biases: dict[Reach, str] = {}

    def attend(self, query: str, key: str, value: str, reach: Reach) -> str:
        """Attend within ``reach``, from 2-D queries, keys and values to the width of queries."""
        builder, bias = self._builder, self._whole_bias(reach)
        if not self._branches:
            return self._whole(query, key, value, bias)

        def long() -> str:
            if reach == EVERYTHING and builder.fused and self._heads.group == 1:
                return builder.choose(
                    self._is_full,
                    lambda: self._whole(query, key, value, ""),
                    lambda: self._in_blocks(query, key, value, reach),
                )
            return self._in_blocks(query, key, value, reach)

        return builder.choose(self._is_short, lambda: self._whole(query, key, value, bias), long)

    def _whole(self, query: str, key: str, value: str, bias: str) -> str:
        builder, heads = self._builder, self._heads
        width = Size("", heads.width)
        if not builder.fused:
            queries = builder.unfold(query, heads.keys, heads.group, heads.depth)
            keys, values = (builder.unfold(x, heads.keys, heads.depth) for x in (key, value))
            return builder.fold(self._scored(queries, keys, values, bias), width)
        inputs = [builder.unfold(query, width.value), self._repeated(key), self._repeated(value)]
        if bias:
            inputs += ["", self._kept] if bias == self._padding else ["", "", bias]
        attributes: Attributes = {
            "num_heads": heads.queries,
            "scale": heads.scale,
            "mask_filter_value": MASKED,
        }
        return builder.fold(builder.op("MultiHeadAttention", inputs, attributes, FUSED), width)

    def _in_blocks(self, query: str, key: str, value: str, reach: Reach) -> str:
        builder, heads = self._builder, self._heads
        near = None not in (reach.before, reach.after)
        size = _NEAR_ROWS if near else max(1, _FAR_ROWS // heads.group)
        queries = builder.unfold(query, heads.keys, heads.group, heads.depth)
        keys, values = (builder.unfold(x, heads.keys, heads.depth) for x in (key, value))
        zero, one = builder.scalar(0), builder.scalar(1)
        last = builder.op("Sub", [self._tokens, one])

        def block(start: str) -> str:
            # Beyond the end the last block repeats the last query.
            rows = builder.op("Add", [start, builder.integers(*range(size))])
            rows = builder.op("Min", [rows, last])
            own = builder.op("Gather", [queries, rows], {"axis": 1})
            first, end = zero, self._tokens
            if reach.before is not None:
                first = builder.op("Sub", [start, builder.scalar(reach.before)])
                first = builder.op("Max", [first, zero])
            if reach.after is not None:
                end = builder.op("Add", [start, builder.scalar(size + reach.after)])
                end = builder.op("Min", [end, self._tokens])
            limits = [builder.op("Unsqueeze", [x, builder.integers(0)]) for x in (first, end)]
            bias = builder.op("Slice", [self._padding, *limits, builder.integers(3)])
            if reach != EVERYTHING:
                columns = builder.op("Range", [first, end, one])
                bias = self._bias(reach, rows, columns, bias, heads.group)
            if near:
                near_keys, near_values = (
                    builder.op("Slice", [x, *limits, builder.integers(1)]) for x in (keys, values)
                )
                return self._scored(own, near_keys, near_values, bias)

            def head(number: str) -> str:
                place = builder.op("Unsqueeze", [number, builder.integers(0)])
                places = [place, builder.op("Add", [place, builder.integers(1)])]
                corners = [
                    builder.op("Concat", [limit, at], {"axis": 0})
                    for limit, at in zip(limits, places, strict=True)
                ]
                own_keys, own_values = (
                    builder.op("Slice", [x, *corners, builder.integers(1, 2)])
                    for x in (keys, values)
                )
                asking = builder.op("Slice", [own, *places, builder.integers(2)])
                return self._scored(asking, own_keys, own_values, bias)

            return builder.repeat(builder.integers(*range(heads.keys)), head)

        starts = builder.op("Range", [zero, self._tokens, builder.scalar(size)])
        blocks = builder.repeat(starts, block)
        order = (1, 0, 2, 3) if near else (2, 0, 3, 1, 4)
        rows = builder.op("Transpose", [blocks], {"perm": order})
        rows = builder.op("Reshape", [rows, builder.integers(0, -1, heads.width)])
        end = builder.op("Unsqueeze", [self._tokens, builder.integers(0)])
        rows = builder.op("Slice", [rows, builder.integers(0), end, builder.integers(1)])
        return builder.fold(rows, Size("", heads.width))

    def _scored(self, queries: str, keys: str, values: str, bias: str) -> str:
        """Attend from ``[batch, rows, heads of keys, group, depth]`` to ``[batch, rows, width]``.

        ``keys`` and ``values`` are ``[batch, columns, heads of keys, depth]``, ``bias`` fits
        ``[batch, 1, rows * group, columns]``. There may be fewer heads than the layer has.
        """
        builder, heads = self._builder, self._heads
        order = {"perm": (0, 2, 1, 3, 4)}
        rows = builder.op("Mul", [queries, builder.scalar(heads.scale)])
        rows = builder.op("Transpose", [rows], order)
        rows = builder.op("Reshape", [rows, builder.integers(0, 0, -1, heads.depth)])
        columns = builder.op("Transpose", [keys], {"perm": (0, 2, 3, 1)})
        scores = builder.op("Add", [builder.op("MatMul", [rows, columns]), bias])
        shares = builder.op("Softmax", [scores], {"axis": -1})
        values = builder.op("Transpose", [values], {"perm": (0, 2, 1, 3)})
        rows = builder.op("MatMul", [shares, values])
        rows = builder.op("Reshape", [rows, builder.integers(0, 0, -1, heads.group, heads.depth)])
        rows = builder.op("Transpose", [rows], order)
        return builder.op("Reshape", [rows, builder.integers(0, 0, -1)])

    def _whole_bias(self, reach: Reach) -> str:
        """Return what ``_whole`` adds to the scores; nothing of use where it does not run."""
        builder = self._builder
        if reach == EVERYTHING:
            return self._padding
        if reach not in self._biases:

            def write() -> str:
                positions = token_positions(builder)
                group = 1 if builder.fused else self._heads.group
                return self._bias(reach, positions, positions, self._padding, group)

            if self._branches:
                unused = builder.scalar(0.0)
                self._biases[reach] = builder.choose(self._is_short, write, lambda: unused)
            else:
                self._biases[reach] = write()
        return self._biases[reach]

    def _bias(self, reach: Reach, rows: str, columns: str, padding: str, group: int) -> str:
        """Return ``[batch, 1, rows * group, columns]``: 0 within reach, elsewhere below any score.

        ``rows`` and ``columns`` are positions, ``padding`` is ``[batch, 1, 1, columns]``.
        """
        builder = self._builder
        rows, columns = (
            builder.op("Cast", [x], {"to": TensorProto.INT32}) for x in (rows, columns)
        )
        rows = builder.op("Unsqueeze", [rows, builder.integers(1)])
        distance = builder.op("Sub", [columns, rows])
        far = []
        if reach.before is not None:
            before = builder.op("Cast", [builder.scalar(-reach.before)], {"to": TensorProto.INT32})
            far.append(builder.op("Less", [distance, before]))
        if reach.after is not None:
            after = builder.op("Cast", [builder.scalar(reach.after)], {"to": TensorProto.INT32})
            far.append(builder.op("Greater", [distance, after]))
        hidden = far[0] if len(far) == 1 else builder.op("Or", far)
        bias = builder.op("Where", [hidden, builder.scalar(MASKED), builder.scalar(0.0)])
        bias = builder.op("Add", [bias, padding])
        if group == 1:
            return bias
        factor = builder.scalar(group)
        count = builder.op("Gather", [builder.op("Shape", [rows]), builder.scalar(0)])
        count = builder.op("Mul", [count, factor])
        places = builder.op("Range", [builder.scalar(0), count, builder.scalar(1)])
        return builder.op("Gather", [bias, builder.op("Div", [places, factor])], {"axis": 2})

    def _repeated(self, x: str) -> str:
        """Return keys or values with each head once for every query: ``[batch, tokens, width]``."""
        builder, heads = self._builder, self._heads
        if heads.group == 1:
            return builder.unfold(x, heads.width)
        x = builder.unfold(x, heads.keys, 1, heads.depth)
        x = builder.op("Expand", [x, builder.integers(heads.group, 1)])
        return builder.unfold(x, heads.width)
