"""What the decoder families share: RMS norms, grouped attention with norms of heads, gated MLPs.

Weight names are those of transformers, ``layers.0.self_attn.q_proj`` and so on. A decoder of
language models becomes an encoder by what reads its last hidden state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import BadArtifactError, UnsupportedError
from .blocks import TESTED_TOKENS, activate
from .builder import GraphBuilder
from .config_values import Size, read, read_number, read_size
from .grouped_attention import GroupedAttention, GroupedHeads, Reach
from .rotary import Tables, rotate
from .stored import check_layers

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"


@dataclass(frozen=True, slots=True)
class Decoder:
    """What config.json says about a decoder, and the prefix of its weights.

    ``limit`` is the longest text in tokens; ``norm_offset`` is added to the weights of norms.
    """

    prefix: str
    vocabulary: Size
    limit: int
    hidden: Size
    inner: Size
    layers: Size
    heads: GroupedHeads
    depth: Size
    queries: Size
    keys: Size
    activation: str
    biased: bool
    epsilon: float
    norm_offset: float


def read_decoder(
    builder: GraphBuilder,
    config: Mapping[str, object],
    *,
    activation: str,
    depth: int,
    norm_offset: float,
    scale: float | None = None,
) -> Decoder:
    """Read the keys that all decoder families share.

    ``activation`` is its name, ``depth`` that of a head where config.json does not say,
    ``scale`` the factor of the scores, by default 1 / sqrt(depth). Raises ``BadArtifactError``
    for keys or weights that are missing, ill-typed or contradict each other.
    """
    stated = read(config, "head_dim", int, depth)
    head = read_size({"head_dim": stated}, "head_dim")
    heads, groups = (
        read_size(config, key) for key in ("num_attention_heads", "num_key_value_heads")
    )
    if heads.value % groups.value:
        raise BadArtifactError(
            f"config.json: {heads.key} {heads.value} is no multiple of {groups.key}"
            f" {groups.value}; correct it"
        )
    if scale is None:
        scale = head.value**-0.5
    epsilon = read_number(config, "rms_norm_eps", 1e-6)
    if not 0.0 < epsilon < 1.0:
        raise BadArtifactError(
            f"config.json: 'rms_norm_eps' is {epsilon}, not between 0 and 1; correct it"
        )
    decoder = Decoder(
        prefix="model." if "model.embed_tokens.weight" in builder.weights else "",
        vocabulary=read_size(config, "vocab_size"),
        limit=min(read_size(config, "max_position_embeddings").value, TESTED_TOKENS),
        hidden=read_size(config, "hidden_size"),
        inner=read_size(config, "intermediate_size"),
        layers=read_size(config, "num_hidden_layers"),
        heads=GroupedHeads(heads.value, groups.value, head.value, scale),
        depth=head,
        queries=Size(f"{heads.key} * {head.key}", heads.value * head.value),
        keys=Size(f"{groups.key} * {head.key}", groups.value * head.value),
        activation=activation,
        biased=read(config, "attention_bias", bool, False),
        epsilon=epsilon,
        norm_offset=norm_offset,
    )
    check_layers(builder.weights, f"{decoder.prefix}layers", decoder.layers)
    return decoder


def read_layer_types(
    config: Mapping[str, object], layers: Size, default: Sequence[str]
) -> tuple[str, ...]:
    """Return the kind of each layer; ``default`` is what transformers makes of absence."""
    listed = read(config, "layer_types", list, list(default))
    if len(listed) != layers.value:
        raise BadArtifactError(
            f"config.json: 'layer_types' lists {len(listed)} layers, {layers.key} is"
            f" {layers.value}; correct it"
        )
    for kind in listed:
        if kind not in (FULL, SLIDING):
            raise UnsupportedError(
                f"config.json: 'layer_types' lists {kind!r:.60}; supported are {FULL}, {SLIDING}"
            )
    return tuple(listed)


def read_window(config: Mapping[str, object], decoder: Decoder, kinds: Sequence[str]) -> int:
    """Return ``sliding_window``, which a model with sliding layers must state; else 0."""
    if SLIDING not in kinds:
        return 0
    # Wider than any text is as wide as the longest.
    return min(read_size(config, "sliding_window").value, 2 * decoder.limit)


def rms_norm(builder: GraphBuilder, decoder: Decoder, x: str, name: str, size: Size) -> str:
    """Divide ``[..., size]`` by its root mean square, times weight (arXiv 1910.07467)."""
    weight = builder.weight(f"{name}.weight", size)
    if decoder.norm_offset:
        weight = builder.op("Add", [weight, builder.scalar(decoder.norm_offset)])
    if builder.fused:
        attributes = {"axis": -1, "epsilon": decoder.epsilon}
        return builder.op("SimplifiedLayerNormalization", [x, weight], attributes)
    square = builder.op("Mul", [x, x])
    mean = builder.op("ReduceMean", [square, builder.integers(-1)], {"keepdims": 1})
    root = builder.op("Sqrt", [builder.op("Add", [mean, builder.scalar(decoder.epsilon)])])
    return builder.op("Mul", [builder.op("Div", [x, root]), weight])


def self_attention(
    builder: GraphBuilder,
    decoder: Decoder,
    attention: GroupedAttention,
    x: str,
    name: str,
    tables: Tables,
    reach: Reach,
) -> str:
    """Attend from ``[batch * tokens, hidden]`` to the same; queries and keys are normed by head."""
    heads, biased = decoder.heads, decoder.biased
    projected = {
        part: builder.linear(x, f"{name}.{part}_proj", decoder.hidden, width, biased=biased)
        for part, width in (("q", decoder.queries), ("k", decoder.keys), ("v", decoder.keys))
    }
    for part, width, count in (
        ("q", decoder.queries, heads.queries),
        ("k", decoder.keys, heads.keys),
    ):
        by_head = builder.op("Reshape", [projected[part], builder.integers(-1, heads.depth)])
        normed = rms_norm(builder, decoder, by_head, f"{name}.{part}_norm", decoder.depth)
        normed = builder.fold(normed, width)
        projected[part] = rotate(builder, normed, tables, count, heads.depth)
    attended = attention.attend(projected["q"], projected["k"], projected["v"], reach)
    return builder.linear(
        attended, f"{name}.o_proj", decoder.queries, decoder.hidden, biased=biased
    )


def gated_mlp(builder: GraphBuilder, decoder: Decoder, x: str, name: str) -> str:
    """Return ``down(activation(gate(x)) * up(x))``."""
    gate, up = (
        builder.linear(x, f"{name}.{part}_proj", decoder.hidden, decoder.inner, biased=False)
        for part in ("gate", "up")
    )
    inner = builder.op("Mul", [activate(builder, gate, decoder.activation), up])
    return builder.linear(inner, f"{name}.down_proj", decoder.inner, decoder.hidden, biased=False)
