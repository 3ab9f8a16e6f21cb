"""ModernBERT and mmBERT: pre-norm encoder with rotary positions (arXiv 2412.13663).

Some layers see the whole text, the others ``local_attention`` tokens around each, with a theta of
their own. Weight names and arithmetic are those of ``ModernBertModel`` and its heads in
transformers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onnx import TensorProto

from ..config import Task
from ..errors import BadArtifactError, UnsupportedError
from .blocks import TESTED_TOKENS, activate, first_token, layer_norm, read_activation
from .builder import GraphBuilder
from .config_values import Size, read, read_number, read_size
from .finished import Head
from .grouped_attention import EVERYTHING, GroupedAttention, GroupedHeads, Reach
from .rotary import Rotary, Tables, Theta, read_rotary, rotary_tables, rotate
from .stored import check_layers, count_labels

_FULL, _SLIDING = _KINDS = ("full_attention", "sliding_attention")
_THETAS: Final = {
    _FULL: Theta("global_rope_theta", 160_000.0),
    _SLIDING: Theta("local_rope_theta", 10_000.0),
}
_POOLINGS: Final = ("cls", "mean")
_HALF: Final = 64  # how many tokens to each side a local layer sees
_PERIOD: Final = 3  # the first of so many layers is full, unless layer_types says otherwise


@dataclass(frozen=True, slots=True)
class _Encoder:
    """What config.json says about the encoder, and the prefix of its weights."""

    prefix: str
    vocabulary: Size
    positions: Size
    hidden: Size
    inner: Size
    heads: GroupedHeads
    layer_types: tuple[str, ...]
    reaches: Mapping[str, Reach]
    rotary: Mapping[str, Rotary]
    activation: str
    epsilon: float
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool


def build_modernbert(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids and mask.

    Raises ``UnsupportedError`` for variants of rotation, pooling and activation that are not
    known, ``BadArtifactError`` for config keys or weights that are missing, ill-typed or
    contradict each other.
    """
    encoder = _read_encoder(builder, config)
    hidden = encoder.hidden
    x = builder.hidden_state(_encode(builder, encoder), hidden)
    if task is Task.EMBEDDING:
        name, width = "last_hidden_state", hidden
    else:
        name, width = "logits", count_labels(builder.weights, config, "classifier.weight")
    rows: tuple[str, ...] = ("batch", "tokens")
    if task is Task.SEQUENCE_CLASSIFICATION:
        x = _pool(builder, config, x, hidden)
        rows = ("batch",)
    if task is not Task.EMBEDDING:
        biased = read(config, "classifier_bias", bool, False)
        x = builder.linear(x, "head.dense", hidden, hidden, biased=biased)
        x = activate(builder, x, read_activation(config, "classifier_activation", "gelu"))
        x = _norm(builder, encoder, x, "head.norm")
        x = builder.linear(x, "classifier", hidden, width)
    return Head(
        value=x if len(rows) == 1 else builder.unfold(x, width.value),
        name=name,
        shape=(*rows, width.value),
        width=width.value,
        vocab_size=encoder.vocabulary.value,
        position_limit=min(encoder.positions.value, TESTED_TOKENS),
        type_vocab_size=0,
    )


def _read_encoder(builder: GraphBuilder, config: Mapping[str, object]) -> _Encoder:
    prefix = "model." if any(name.startswith("model.") for name in builder.weights) else ""
    hidden, heads = read_size(config, "hidden_size"), read_size(config, "num_attention_heads")
    if hidden.value % heads.value:
        raise BadArtifactError(
            f"{hidden.key} {hidden.value} is no multiple of {heads.key} {heads.value}; correct"
            f" config.json"
        )
    depth = Size("hidden_size / num_attention_heads", hidden.value // heads.value)
    layers = read_size(config, "num_hidden_layers")
    half = _read_half_window(config)
    check_layers(builder.weights, f"{prefix}layers", layers)
    thetas = dict(_THETAS)
    if "local_rope_theta" in config and config["local_rope_theta"] is None:
        thetas[_SLIDING] = _THETAS[_FULL]  # as transformers 4 reads an explicit null
    return _Encoder(
        prefix=prefix,
        vocabulary=read_size(config, "vocab_size"),
        positions=read_size(config, "max_position_embeddings"),
        hidden=hidden,
        inner=read_size(config, "intermediate_size"),
        heads=GroupedHeads(heads.value, heads.value, depth.value, 1 / math.sqrt(depth.value)),
        layer_types=_read_layer_types(config, layers),
        reaches={_FULL: EVERYTHING, _SLIDING: Reach(half, half)},
        rotary={kind: read_rotary(config, depth, thetas[kind], kind) for kind in _KINDS},
        activation=read_activation(config, "hidden_activation", "gelu"),
        epsilon=_read_epsilon(config),
        attention_bias=read(config, "attention_bias", bool, False),
        mlp_bias=read(config, "mlp_bias", bool, False),
        norm_bias=read(config, "norm_bias", bool, False),
    )


def _read_half_window(config: Mapping[str, object]) -> int:
    """Return how many tokens to each side a local layer sees.

    transformers 5 calls it ``sliding_window``, and lets that win over ``local_attention``.
    """
    if config.get("local_attention") is None:
        return read_size({"sliding_window": _HALF} | dict(config), "sliding_window").value
    local = read_size(config, "local_attention").value
    half = read(config, "sliding_window", int, local // 2)
    if half != local // 2:
        raise BadArtifactError(
            f"config.json: 'sliding_window' is {half}, not half of 'local_attention' {local};"
            f" correct one"
        )
    return half


def _read_layer_types(config: Mapping[str, object], layers: Size) -> tuple[str, ...]:
    """Return the kind of each layer, from a list or from the period of the full ones."""
    period = read(config, "global_attn_every_n_layers", int, _PERIOD)
    if period < 1:
        raise BadArtifactError(
            f"config.json: 'global_attn_every_n_layers' is {period}, not positive; correct it"
        )
    by_period = [_SLIDING if layer % period else _FULL for layer in range(layers.value)]
    listed = read(config, "layer_types", list, by_period)
    for kind in listed:
        if kind not in _KINDS:
            raise UnsupportedError(
                f"config.json: 'layer_types' lists {kind!r}; known are {', '.join(_KINDS)}"
            )
    if len(listed) != layers.value:
        raise BadArtifactError(
            f"config.json: 'layer_types' lists {len(listed)} layers, 'num_hidden_layers' is"
            f" {layers.value}; correct one"
        )
    if config.get("global_attn_every_n_layers") is not None and listed != by_period:
        raise BadArtifactError(
            f"config.json: 'layer_types' and 'global_attn_every_n_layers' {period} disagree about"
            f" which layers see the whole text; correct one"
        )
    return tuple(listed)


def _read_epsilon(config: Mapping[str, object]) -> float:
    """Return ``norm_eps``, which some checkpoints write as ``layer_norm_eps``, or as both."""
    stated = {
        read_number(config, key)
        for key in ("norm_eps", "layer_norm_eps")
        if config.get(key) is not None
    } or {1e-5}
    if len(stated) > 1:
        raise BadArtifactError(
            f"config.json: 'norm_eps' is {config['norm_eps']}, 'layer_norm_eps' is"
            f" {config['layer_norm_eps']}; correct one"
        )
    (epsilon,) = stated
    if not 0.0 < epsilon < 1.0:
        raise BadArtifactError(
            f"config.json: 'norm_eps' is {epsilon}, not between 0 and 1; correct it"
        )
    return epsilon


def _encode(builder: GraphBuilder, encoder: _Encoder) -> str:
    """Return the last hidden state, ``[batch * tokens, hidden]``."""
    hidden = encoder.hidden
    name = f"{encoder.prefix}embeddings.tok_embeddings.weight"
    x = builder.fold(builder.embedding("input_ids", name, encoder.vocabulary, hidden), hidden)
    x = _norm(builder, encoder, x, f"{encoder.prefix}embeddings.norm")
    attention = GroupedAttention(builder, "attention_mask", encoder.heads)
    tables = {
        kind: rotary_tables(
            builder, encoder.rotary[kind], min(encoder.positions.value, TESTED_TOKENS)
        )
        for kind in sorted(set(encoder.layer_types))
    }
    for layer, kind in enumerate(encoder.layer_types):
        x = _layer(builder, encoder, layer, x, attention, tables[kind])
        if layer + 1 in builder.exits:
            early = _norm(builder, encoder, x, f"{encoder.prefix}final_norm")
            builder.leave(layer + 1, x, builder.unfold(early, hidden.value))
    return _norm(builder, encoder, x, f"{encoder.prefix}final_norm")


def _layer(
    builder: GraphBuilder,
    encoder: _Encoder,
    layer: int,
    x: str,
    attention: GroupedAttention,
    tables: Tables,
) -> str:
    name, hidden, heads = f"{encoder.prefix}layers.{layer}", encoder.hidden, encoder.heads
    # The embeddings are normalised already.
    y = x if layer == 0 else _norm(builder, encoder, x, f"{name}.attn_norm")
    biased = encoder.attention_bias
    thrice = Size("3 * hidden_size", 3 * hidden.value)
    y = builder.linear(y, f"{name}.attn.Wqkv", hidden, thrice, biased=biased)
    query, key, value = builder.split(y, 3)
    query, key = (
        rotate(builder, part, tables, heads.queries, heads.depth) for part in (query, key)
    )
    y = attention.attend(query, key, value, encoder.reaches[encoder.layer_types[layer]])
    y = builder.linear(y, f"{name}.attn.Wo", hidden, hidden, biased=biased)
    x = builder.op("Add", [x, y])
    y = _norm(builder, encoder, x, f"{name}.mlp_norm")
    inner, biased = encoder.inner, encoder.mlp_bias
    twice = Size("2 * intermediate_size", 2 * inner.value)
    value, gate = builder.split(
        builder.linear(y, f"{name}.mlp.Wi", hidden, twice, biased=biased), 2
    )
    y = builder.op("Mul", [activate(builder, value, encoder.activation), gate])
    return builder.op("Add", [x, builder.linear(y, f"{name}.mlp.Wo", inner, hidden, biased=biased)])


def _norm(builder: GraphBuilder, encoder: _Encoder, x: str, name: str) -> str:
    return layer_norm(builder, x, name, encoder.hidden, encoder.epsilon, biased=encoder.norm_bias)


def _pool(builder: GraphBuilder, config: Mapping[str, object], x: str, hidden: Size) -> str:
    """Return one hidden state for each text, ``[batch, hidden]``."""
    pooling = read(config, "classifier_pooling", str, "cls")
    if pooling not in _POOLINGS:
        raise UnsupportedError(
            f"config.json: 'classifier_pooling' is {pooling!r}; known are {', '.join(_POOLINGS)}"
        )
    if pooling == "cls":
        return first_token(builder, x, hidden)
    mask = builder.op("Cast", ["attention_mask"], {"to": TensorProto.FLOAT})
    row = builder.op("Unsqueeze", [mask, builder.integers(1)])
    total = builder.op("MatMul", [row, builder.unfold(x, hidden.value)])
    count = builder.op("ReduceSum", [mask, builder.integers(1)], {"keepdims": 1})
    count = builder.op("Max", [count, builder.scalar(1.0)])  # a row of nothing but padding
    return builder.op("Div", [builder.op("Squeeze", [total, builder.integers(1)]), count])
