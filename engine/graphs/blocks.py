"""Blocks that several families share, written with a ``GraphBuilder``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onnx import TensorProto

from ..errors import BadArtifactError, UnsupportedError
from .builder import Attributes, GraphBuilder
from .config_values import Size, read
from .finished import FUSED

# Added to the scores of padding. Far below any score, yet finite in bfloat16 too, where the
# lowest float32 becomes an infinity.
MASKED: Final = -1e30

# The longest text of the tests of models whose positions are computed; what config.json allows
# beyond it is not offered.
TESTED_TOKENS: Final = 32_768


@dataclass(frozen=True, slots=True)
class Activation:
    """How to write an activation: one operator, multiplied by its input where ``gated``."""

    kind: str
    attributes: Attributes
    gated: bool = False


_GELU: Final = Activation("Gelu", {})
_GELU_TANH: Final = Activation("Gelu", {"approximate": "tanh"})
_SILU: Final = Activation("Sigmoid", {}, gated=True)
ACTIVATIONS: Final[Mapping[str, Activation]] = {  # by their names in transformers
    "gelu": _GELU,
    "gelu_fast": _GELU_TANH,
    "gelu_new": _GELU_TANH,
    "gelu_python": _GELU,
    "gelu_pytorch_tanh": _GELU_TANH,
    "relu": Activation("Relu", {}),
    "silu": _SILU,
    "swish": _SILU,
    "tanh": Activation("Tanh", {}),
}


def layer_norm(
    builder: GraphBuilder, x: str, name: str, size: Size, epsilon: float, *, biased: bool = True
) -> str:
    """Normalise the last dimension; old checkpoints call the weights gamma and beta."""
    legacy = f"{name}.weight" not in builder.weights and f"{name}.gamma" in builder.weights
    scale, shift = ("gamma", "beta") if legacy else ("weight", "bias")
    operands = [x, builder.weight(f"{name}.{scale}", size)]
    operands += [builder.weight(f"{name}.{shift}", size)] if biased else []
    return builder.op("LayerNormalization", operands, {"axis": -1, "epsilon": epsilon})


def read_activation(config: Mapping[str, object], key: str, default: str | None = None) -> str:
    """Read the name of a row of ``ACTIVATIONS``; another one is ``UnsupportedError``."""
    name = read(config, key, str, default)
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"config.json: {key!r} is {name!r:.60}, an activation that is not known; known are"
            f" {', '.join(sorted(ACTIVATIONS))}"
        )
    return name


def activate(builder: GraphBuilder, x: str, name: str) -> str:
    """Apply a row of ``ACTIVATIONS``."""
    row = ACTIVATIONS[name]
    y = builder.op(row.kind, [x], row.attributes)
    return builder.op("Mul", [x, y]) if row.gated else y


def token_count(builder: GraphBuilder) -> str:
    """Return the tokens of the longest row, padding included, int64 scalar."""
    return builder.op("Gather", [builder.batch_and_tokens, builder.scalar(1)])


def token_positions(builder: GraphBuilder) -> str:
    """Return 0 … tokens - 1, int64 ``[tokens]``."""
    return builder.op("Range", [builder.scalar(0), token_count(builder), builder.scalar(1)])


def first_token(builder: GraphBuilder, x: str, width: Size) -> str:
    """Return the hidden state of each row's first token: ``[batch, width]``."""
    return builder.op("Gather", [builder.unfold(x, width.value), builder.scalar(0)], {"axis": 1})


def hide_padding(builder: GraphBuilder, mask: str) -> str:
    """Turn an int64 mask ``[batch, tokens]`` (1 text, 0 padding) into what attention takes.

    Any pattern of padding is right, and a row of nothing but padding gives no NaN.
    """
    if builder.fused:
        return builder.op("Cast", [mask], {"to": TensorProto.INT32})
    keep = builder.op("Cast", [mask], {"to": TensorProto.BOOL})
    bias = builder.op("Where", [keep, builder.scalar(0.0), builder.scalar(MASKED)])
    return builder.op("Unsqueeze", [bias, builder.integers(1, 2)])


def two_way_attention(
    builder: GraphBuilder,
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
    if builder.fused:
        inputs = [*(builder.unfold(x, width.value) for x in (query, key, value)), "", padding]
        attributes: Attributes = {
            "num_heads": heads.value,
            "mask_filter_value": MASKED,
            "scale": scale,
        }
        inputs += [bias] if bias else []
        attended = builder.op("MultiHeadAttention", inputs, attributes, FUSED)
        return builder.fold(attended, width)
    q, k, v = (
        builder.op("Transpose", [builder.unfold(x, heads.value, depth)], {"perm": order})
        for x, order in ((query, (0, 2, 1, 3)), (key, (0, 2, 3, 1)), (value, (0, 2, 1, 3)))
    )
    scores = builder.op("Mul", [builder.op("MatMul", [q, k]), builder.scalar(scale)])
    scores = builder.op("Add", [scores, bias]) if bias else scores
    shares = builder.op("Softmax", [builder.op("Add", [scores, padding])], {"axis": -1})
    attended = builder.op("MatMul", [shares, v])
    return builder.fold(builder.op("Transpose", [attended], {"perm": (0, 2, 1, 3)}), width)
