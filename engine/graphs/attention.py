"""Attention whose memory grows with the length of a text, not with its square.

Full attention of a long text reads no mask where nothing is padded, since only then ONNX Runtime's
CPU kernel goes through the scores piece by piece. Sliding attention, in which a token sees its
neighbours at most ``reach`` tokens away, goes block by block in a long text: each block of queries
meets the keys from ``reach`` before it to ``reach`` behind it. In a short text it is full
attention with a band of scores masked, which is faster there. ``Branches`` says what long is. Both
choices are ``If`` nodes, so that one graph and one copy of the weights serve all lengths.

Queries, keys and values are ``[batch * tokens, width]``, and so is what comes back.
"""

from dataclasses import dataclass
from typing import Final

from onnx import TensorProto

from .blocks import FUSED, MASKED, Attributes, GraphBuilder, Size

_SMALLEST_BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads there are, their dimensions, and what scores are multiplied by."""

    count: int
    depth: int
    scale: float

    @property
    def width(self) -> int:
        """The dimensions of all heads together."""
        return self.count * self.depth


@dataclass(frozen=True, slots=True)
class Padding:
    """The graph's values for padding: ``mask`` [batch, tokens] of booleans, true for text.

    ``keys`` is the mask as attention takes it; ``masked`` tells whether it has to.
    """

    mask: str
    keys: str
    masked: str


@dataclass(frozen=True, slots=True)
class Sliding:
    """The graph's values for sliding attention over blocks of ``block`` queries.

    ``long`` tells whether the run goes by blocks. ``bias`` is added to the scores, ``[batch, 1,
    tokens, tokens]`` or ``[batch * blocks, 1, block, block + 2 * reach]``; ``places`` are the
    positions of the keys of each block, ``[blocks, block + 2 * reach]``.
    """

    block: int
    reach: int
    long: str
    bias: str
    places: str


def read_padding(builder: GraphBuilder, mask: str) -> Padding:
    """Prepare an int64 mask ``[batch, tokens]`` (1 text, 0 padding) for all layers of a run."""
    keep = builder.op("Cast", [mask], {"to": TensorProto.BOOL})
    smallest = builder.op("ReduceMin", [mask], {"keepdims": 0})
    padded = builder.op("Equal", [smallest, builder.scalar(0)])
    pieces = builder.scalar(builder.branches.pieces)
    short = builder.op("LessOrEqual", [builder.tokens(), pieces])
    masked = builder.op("Or", [padded, short])
    if builder.fused:
        return Padding(keep, builder.op("Cast", [mask], {"to": TensorProto.INT32}), masked)
    bias = builder.op("Unsqueeze", [_bias(builder, keep), builder.integers(1, 2)])
    return Padding(keep, bias, masked)


def attend(
    builder: GraphBuilder, query: str, key: str, value: str, padding: Padding, heads: Heads
) -> str:
    """Attend to all tokens that are no padding; a row of nothing but padding gives no NaN."""
    q, k, v = (builder.unfold(x, heads.width) for x in (query, key, value))

    def with_mask() -> str:
        if builder.fused:
            return _fused(builder, [q, k, v, "", padding.keys], heads)
        return _plain(builder, q, k, v, padding.keys, heads)

    def without() -> str:
        if builder.fused:
            return _fused(builder, [q, k, v], heads)
        return _plain(builder, q, k, v, None, heads)

    attended = builder.choose(padding.masked, with_mask, without)
    return builder.fold(attended, Size("", heads.width))


def read_sliding(builder: GraphBuilder, padding: Padding, reach: int) -> Sliding:
    """Prepare sliding attention for all layers of a run."""
    block = max(_SMALLEST_BLOCK, reach)
    tokens = builder.tokens()
    long = builder.op("Greater", [tokens, builder.scalar(builder.branches.blocks)])
    last = builder.op("Sub", [tokens, builder.scalar(1)])
    blocks = builder.op("Add", [_quotient(builder, last, block), builder.scalar(1)])
    starts = builder.op("Range", [builder.scalar(0), blocks, builder.scalar(1)])
    starts = builder.op("Mul", [starts, builder.scalar(block)])
    starts = builder.op("Unsqueeze", [starts, builder.integers(1)])
    wanted = builder.op("Add", [starts, builder.integers(*range(-reach, block + reach))])
    places = builder.op("Clip", [wanted, builder.scalar(0), last])

    def by_block() -> str:
        queries = builder.op("Add", [starts, builder.integers(*range(block))])
        near = _near(builder, queries, wanted, reach)
        inside = builder.op("Equal", [wanted, places])
        near = builder.op("And", [near, builder.op("Unsqueeze", [inside, builder.integers(1)])])
        keep = builder.op("Gather", [padding.mask, places], {"axis": 1})
        keep = builder.op("Unsqueeze", [keep, builder.integers(2)])
        bias = _bias(builder, builder.op("And", [near, keep]))
        return builder.op("Reshape", [bias, builder.integers(-1, 1, block, block + 2 * reach)])

    def by_band() -> str:
        positions = builder.positions()
        near = _near(builder, positions, positions, reach)
        keep = builder.op("Unsqueeze", [padding.mask, builder.integers(1, 2)])
        return _bias(builder, builder.op("And", [near, keep]))

    return Sliding(block, reach, long, builder.choose(long, by_block, by_band), places)


def attend_sliding(
    builder: GraphBuilder, query: str, key: str, value: str, sliding: Sliding, heads: Heads
) -> str:
    """Attend to the tokens within reach that are no padding."""
    q, k, v = (builder.unfold(x, heads.width) for x in (query, key, value))

    def attended(query: str, key: str, value: str) -> str:
        if builder.fused:
            return _fused(builder, [query, key, value, "", "", sliding.bias], heads)
        return _plain(builder, query, key, value, sliding.bias, heads)

    def by_block() -> str:
        block, width = sliding.block, heads.width
        tokens = builder.op("Unsqueeze", [builder.tokens(), builder.integers(0)])
        blocks = builder.op("Shape", [sliding.places], {"end": 1})
        more = builder.op("Sub", [builder.op("Mul", [blocks, builder.integers(block)]), tokens])
        pads = [builder.integers(0, 0, 0, 0), more, builder.integers(0)]
        whole = builder.op("Pad", [q, builder.op("Concat", pads, {"axis": 0})])
        queries = builder.op("Reshape", [whole, builder.integers(-1, block, width)])
        keys, values = (
            builder.op(
                "Reshape",
                [
                    builder.op("Gather", [x, sliding.places], {"axis": 1}),
                    builder.integers(-1, block + 2 * sliding.reach, width),
                ],
            )
            for x in (k, v)
        )
        joined = builder.op("Reshape", [attended(queries, keys, values), _like(builder, whole)])
        return builder.op("Slice", [joined, builder.integers(0), tokens, builder.integers(1)])

    found = builder.choose(sliding.long, by_block, lambda: attended(q, k, v))
    return builder.fold(found, Size("", heads.width))


def _like(builder: GraphBuilder, x: str) -> str:
    return builder.op("Shape", [x])


def _quotient(builder: GraphBuilder, x: str, divisor: int) -> str:
    return builder.op("Div", [x, builder.scalar(divisor)])


def _near(builder: GraphBuilder, queries: str, keys: str, reach: int) -> str:
    """Tell for positions ``[..., queries]`` and ``[..., keys]`` which are within reach."""
    rows = builder.op("Unsqueeze", [queries, builder.integers(-1)])
    columns = builder.op("Unsqueeze", [keys, builder.integers(-2)])
    distance = builder.op("Abs", [builder.op("Sub", [rows, columns])])
    return builder.op("LessOrEqual", [distance, builder.scalar(reach)])


def _bias(builder: GraphBuilder, keep: str) -> str:
    """Turn booleans into what is added to scores."""
    return builder.op("Where", [keep, builder.scalar(0.0), builder.scalar(MASKED)])


def _fused(builder: GraphBuilder, inputs: list[str], heads: Heads) -> str:
    attributes: Attributes = {
        "num_heads": heads.count,
        "scale": heads.scale,
        "mask_filter_value": MASKED,
    }
    return builder.op("MultiHeadAttention", inputs, attributes, FUSED)


def _plain(
    builder: GraphBuilder, query: str, key: str, value: str, bias: str | None, heads: Heads
) -> str:
    """Attend in standard operators, ``[batch, tokens, width]`` in and out."""
    shape = builder.integers(0, 0, heads.count, heads.depth)
    q, k, v = (
        builder.op("Transpose", [builder.op("Reshape", [x, shape])], {"perm": order})
        for x, order in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
    )
    scores = builder.op("Mul", [builder.op("MatMul", [q, k]), builder.scalar(heads.scale)])
    if bias is not None:
        scores = builder.op("Add", [scores, bias])
    shares = builder.op("Softmax", [scores], {"axis": -1})
    attended = builder.op("Transpose", [builder.op("MatMul", [shares, v])], {"perm": (0, 2, 1, 3)})
    return builder.op("Reshape", [attended, builder.integers(0, 0, heads.width)])
