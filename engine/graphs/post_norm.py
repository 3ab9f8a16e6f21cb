"""What the post-norm encoders share: layers, embeddings and heads under a family's own names.

In each layer a normalisation follows the sum of input and attention, and of that and the inner
network (arXiv 1706.03762). The families differ in positions, in what precedes the layers, in
attention, in the head, and in the names of keys and weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..config import Task
from ..errors import BadArtifactError, UnsupportedError
from .blocks import (
    activate,
    first_token,
    hide_padding,
    layer_norm,
    read_activation,
    two_way_attention,
)
from .builder import GraphBuilder
from .config_values import Size, read, read_size
from .finished import Head
from .stored import check_layers, count_labels

_DEFAULT_EPSILON: Final = 1e-12  # of transformers in most families; old checkpoints state none

# Turns a layer's name and its folded query, key and value into what was attended, folded.
Attend = Callable[[str, str, str, str], str]


@dataclass(frozen=True, slots=True)
class LayerNames:
    """Names of a layer's weights, below that of the layer; ``layers`` is that of all layers."""

    layers: str
    query: str
    key: str
    value: str
    attended: str
    attended_norm: str
    inner: str
    outer: str
    outer_norm: str


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of config.json's keys."""

    hidden: str = "hidden_size"
    inner: str = "intermediate_size"
    heads: str = "num_attention_heads"
    layers: str = "num_hidden_layers"
    activation: str = "hidden_act"
    epsilon: str = "layer_norm_eps"


@dataclass(frozen=True, slots=True)
class Encoder:
    """What config.json says about the encoder, and how its weights are called.

    ``prefix`` stands before the names of all its weights. ``types`` is None where the model
    does not read token types.
    """

    names: LayerNames
    prefix: str
    vocabulary: Size
    positions: Size
    types: Size | None
    hidden: Size
    inner: Size
    heads: Size
    layers: Size
    activation: str
    epsilon: float


@dataclass(frozen=True, slots=True)
class Classifier:
    """A sequence head on the first token: ``output(activation(dense(x)))``, names of weights."""

    dense: str
    activation: str
    output: str


BERT_LAYERS: Final = LayerNames(
    layers="encoder.layer",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attended="attention.output.dense",
    attended_norm="attention.output.LayerNorm",
    inner="intermediate.dense",
    outer="output.dense",
    outer_norm="output.LayerNorm",
)


def read_encoder(
    builder: GraphBuilder,
    config: Mapping[str, object],
    name: str,
    types: Size | None,
    *,
    names: LayerNames = BERT_LAYERS,
    keys: Keys = Keys(),
    epsilon: float = _DEFAULT_EPSILON,
) -> Encoder:
    """Read config.json; ``name`` is the prefix that the weights have where they have one.

    ``epsilon`` is the family's own where the file does not say.

    Raises ``UnsupportedError`` for decoders and relative positions of BERT's kind, and
    ``BadArtifactError`` for keys that are missing, ill-typed or contradict the weights.
    """
    position_type = read(config, "position_embedding_type", str, "absolute")
    if position_type != "absolute":
        raise UnsupportedError(
            f"config.json: position_embedding_type {position_type!r} is not supported; only"
            f" 'absolute' is"
        )
    for key in ("is_decoder", "add_cross_attention"):
        if read(config, key, bool, False):
            raise UnsupportedError(f"config.json: {key} is true; only encoders are supported")
    epsilon = read(config, keys.epsilon, float, epsilon)
    if not 0.0 < epsilon < 1.0:
        raise BadArtifactError(
            f"config.json: {keys.epsilon!r} is {epsilon}, not between 0 and 1; correct it"
        )
    prefixed = "embeddings.word_embeddings.weight" not in builder.weights and any(
        weight.startswith(f"{name}.") for weight in builder.weights
    )
    encoder = Encoder(
        names=names,
        prefix=f"{name}." if prefixed else "",
        vocabulary=read_size(config, "vocab_size"),
        positions=read_size(config, "max_position_embeddings"),
        types=types,
        hidden=read_size(config, keys.hidden),
        inner=read_size(config, keys.inner),
        heads=read_size(config, keys.heads),
        layers=read_size(config, keys.layers),
        activation=read_activation(config, keys.activation),
        epsilon=epsilon,
    )
    check_layers(builder.weights, f"{encoder.prefix}{names.layers}", encoder.layers)
    return encoder


def embed(
    builder: GraphBuilder,
    encoder: Encoder,
    width: Size,
    positions: str,
) -> str:
    """Return the normalised sum of word, type and position embeddings, ``[batch * tokens, width]``.

    ``positions``: ``[tokens]`` or ``[batch, tokens]``.
    """
    x = sum_embeddings(builder, encoder, width, positions)
    return layer_norm(builder, x, f"{encoder.prefix}embeddings.LayerNorm", width, encoder.epsilon)


def sum_embeddings(builder: GraphBuilder, encoder: Encoder, width: Size, positions: str) -> str:
    """Return the sum of word, type and position embeddings, ``[batch * tokens, width]``.

    Types where the encoder has some, positions where they are not "".
    """
    tables: list[tuple[str, str, Size]] = [("input_ids", "word", encoder.vocabulary)]
    if encoder.types is not None:
        tables.append(("token_type_ids", "token_type", encoder.types))
    if positions:
        tables.append((positions, "position", encoder.positions))
    x = ""
    for ids, table, rows in tables:
        name = f"{encoder.prefix}embeddings.{table}_embeddings.weight"
        y = builder.embedding(ids, name, rows, width)
        x = builder.op("Add", [x, y]) if x else y
    return builder.fold(x, width)


def encode(builder: GraphBuilder, encoder: Encoder, x: str) -> str:
    """Run all layers with plain attention: ``[batch * tokens, hidden]`` in and out."""
    padding = hide_padding(builder, "attention_mask")

    def attend(_: str, query: str, key: str, value: str) -> str:
        return two_way_attention(builder, query, key, value, padding, encoder.heads, encoder.hidden)

    for number in range(encoder.layers.value):
        x = layer(builder, encoder, number, x, attend)
    return x


def layer(builder: GraphBuilder, encoder: Encoder, number: int, x: str, attend: Attend) -> str:
    """Run one layer: ``[batch * tokens, hidden]`` in and out."""
    hidden, inner, names = encoder.hidden, encoder.inner, encoder.names
    name = f"{encoder.prefix}{names.layers}.{number}"
    query, key, value = (
        builder.linear(x, f"{name}.{part}", hidden, hidden)
        for part in (names.query, names.key, names.value)
    )
    attended = attend(name, query, key, value)
    attended = builder.linear(attended, f"{name}.{names.attended}", hidden, hidden)
    x = builder.op("Add", [attended, x])
    x = layer_norm(builder, x, f"{name}.{names.attended_norm}", hidden, encoder.epsilon)
    y = builder.linear(x, f"{name}.{names.inner}", hidden, inner)
    y = activate(builder, y, encoder.activation)
    y = builder.linear(y, f"{name}.{names.outer}", inner, hidden)
    x = builder.op("Add", [y, x])
    return layer_norm(builder, x, f"{name}.{names.outer_norm}", hidden, encoder.epsilon)


def head(
    builder: GraphBuilder,
    config: Mapping[str, object],
    task: Task,
    encoder: Encoder,
    x: str,
    classifier: Classifier,
    position_limit: int,
) -> Head:
    """End the graph for ``task``; ``x`` is the last hidden state, ``[batch * tokens, hidden]``.

    The token head is one linear layer, ``classifier``, in all families.
    """
    rows: Sequence[str] = ("batch", "tokens")
    hidden = encoder.hidden
    x = builder.hidden_state(x, hidden)
    if task is Task.EMBEDDING:
        name, width = "last_hidden_state", hidden
        value = builder.unfold(x, width.value)
    elif task is Task.TOKEN_CLASSIFICATION:
        name, width = "logits", count_labels(builder.weights, config, "classifier.weight")
        value = builder.unfold(builder.linear(x, "classifier", hidden, width), width.value)
    else:
        name, width = "logits", count_labels(builder.weights, config, f"{classifier.output}.weight")
        x = builder.linear(first_token(builder, x, hidden), classifier.dense, hidden, hidden)
        x = activate(builder, x, classifier.activation)
        value = builder.linear(x, classifier.output, hidden, width)
        rows = ("batch",)
    return Head(
        value=value,
        name=name,
        shape=(*rows, width.value),
        width=width.value,
        vocab_size=encoder.vocabulary.value,
        position_limit=position_limit,
        type_vocab_size=encoder.types.value if encoder.types is not None else 0,
    )
