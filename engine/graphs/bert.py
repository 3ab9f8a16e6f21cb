"""BERT: post-norm encoder with learned positions and token types (arXiv 1810.04805).

Weight names and arithmetic are those of ``BertModel`` and its heads in transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import Task
from ..errors import BadArtifactError, UnsupportedError
from .blocks import GraphBuilder, Head, Size, check_layers, read, read_size

_DEFAULT_EPSILON = 1e-12  # transformers' default; old checkpoints do not state it


@dataclass(frozen=True, slots=True)
class _Encoder:
    """What config.json says about the encoder, and the prefix of its weights."""

    prefix: str
    vocabulary: Size
    positions: Size
    types: Size
    hidden: Size
    inner: Size
    heads: Size
    layers: Size
    activation: str
    epsilon: float


def build_bert(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the encoder and the head of ``task``; inputs are ids, mask and token types.

    Raises ``UnsupportedError`` for relative positions and decoders, ``BadArtifactError`` for
    config keys or weights that are missing, ill-typed or contradict each other.
    """
    encoder = _read_encoder(builder, config)
    hidden = encoder.hidden
    x = _encode(builder, encoder)
    if task is Task.EMBEDDING:
        name, width = "last_hidden_state", hidden
    else:
        name, width = "logits", builder.labels(config, "classifier.weight")
    if task is Task.SEQUENCE_CLASSIFICATION:
        x = builder.first_token(x, hidden)
        x = builder.activation(
            builder.linear(x, f"{encoder.prefix}pooler.dense", hidden, hidden), "tanh"
        )
        value = builder.linear(x, "classifier", hidden, width)
        rows: tuple[str, ...] = ("batch",)
    else:
        if task is Task.TOKEN_CLASSIFICATION:
            x = builder.linear(x, "classifier", hidden, width)
        value = builder.unfold(x, width.value)
        rows = ("batch", "tokens")
    return Head(
        value=value,
        name=name,
        shape=(*rows, width.value),
        width=width.value,
        vocab_size=encoder.vocabulary.value,
        position_limit=encoder.positions.value,
        type_vocab_size=encoder.types.value,
    )


def _read_encoder(builder: GraphBuilder, config: Mapping[str, object]) -> _Encoder:
    """Read config.json, refusing variants of BERT that this graph would compute wrongly."""
    position_type = read(config, "position_embedding_type", str, "absolute")
    if position_type != "absolute":
        raise UnsupportedError(
            f"config.json: position_embedding_type {position_type!r} is not supported; only"
            f" 'absolute' is"
        )
    for key in ("is_decoder", "add_cross_attention"):
        if read(config, key, bool, False):
            raise UnsupportedError(f"config.json: {key} is true; only encoders are supported")
    epsilon = read(config, "layer_norm_eps", float, _DEFAULT_EPSILON)
    if not 0.0 < epsilon < 1.0:
        raise BadArtifactError(
            f"config.json: 'layer_norm_eps' is {epsilon}, not between 0 and 1; correct it"
        )
    prefixed = "bert.embeddings.word_embeddings.weight" in builder.weights
    encoder = _Encoder(
        prefix="bert." if prefixed else "",
        vocabulary=read_size(config, "vocab_size"),
        positions=read_size(config, "max_position_embeddings"),
        types=read_size(config, "type_vocab_size"),
        hidden=read_size(config, "hidden_size"),
        inner=read_size(config, "intermediate_size"),
        heads=read_size(config, "num_attention_heads"),
        layers=read_size(config, "num_hidden_layers"),
        activation=read(config, "hidden_act", str),
        epsilon=epsilon,
    )
    check_layers(builder.weights, f"{encoder.prefix}encoder.layer.", encoder.layers)
    return encoder


def _encode(builder: GraphBuilder, encoder: _Encoder) -> str:
    """Return the last hidden state, ``[batch * tokens, hidden]``."""
    hidden = encoder.hidden
    name = f"{encoder.prefix}embeddings"
    words, types, positions = (
        builder.embedding(ids, f"{name}.{table}_embeddings.weight", rows, hidden)
        for ids, table, rows in (
            ("input_ids", "word", encoder.vocabulary),
            ("token_type_ids", "token_type", encoder.types),
            (builder.positions(), "position", encoder.positions),
        )
    )
    x = builder.op("Add", [builder.op("Add", [words, types]), positions])
    x = builder.layer_norm(x, f"{name}.LayerNorm", hidden, encoder.epsilon)
    x = builder.fold(x, hidden)
    padding = builder.padding("attention_mask")
    for layer in range(encoder.layers.value):
        x = _layer(builder, encoder, f"{encoder.prefix}encoder.layer.{layer}", x, padding)
    return x


def _layer(builder: GraphBuilder, encoder: _Encoder, name: str, x: str, padding: str) -> str:
    hidden, inner = encoder.hidden, encoder.inner
    query, key, value = (
        builder.linear(x, f"{name}.attention.self.{part}", hidden, hidden)
        for part in ("query", "key", "value")
    )
    attended = builder.attention(query, key, value, padding, encoder.heads, hidden)
    attended = builder.linear(attended, f"{name}.attention.output.dense", hidden, hidden)
    x = builder.layer_norm(
        builder.op("Add", [attended, x]),
        f"{name}.attention.output.LayerNorm",
        hidden,
        encoder.epsilon,
    )
    y = builder.linear(x, f"{name}.intermediate.dense", hidden, inner)
    y = builder.linear(
        builder.activation(y, encoder.activation), f"{name}.output.dense", inner, hidden
    )
    return builder.layer_norm(
        builder.op("Add", [y, x]), f"{name}.output.LayerNorm", hidden, encoder.epsilon
    )
