"""Qwen3: a decoder with norms on the heads of queries and keys (arXiv 2505.09388).

Weight names and arithmetic are those of ``Qwen3Model`` and its heads in transformers. Embedding
models of this family read the last token of a text; some attend in both directions.
"""

from collections.abc import Mapping

from onnx import TensorProto

from ..config import Task
from ..errors import BadArtifactError
from .blocks import read_activation, token_positions
from .builder import GraphBuilder
from .config_values import read
from .decoder import (
    FULL,
    SLIDING,
    Decoder,
    gated_mlp,
    read_decoder,
    read_layer_types,
    read_window,
    rms_norm,
    self_attention,
)
from .finished import Head
from .grouped_attention import CAUSAL, EVERYTHING, GroupedAttention, Reach
from .rotary import Theta, read_rotary, rotary_tables
from .stored import count_labels

_DEPTH = 128
_WINDOWED_LAYERS_FROM = 28  # transformers' default of max_window_layers


def build_qwen3(builder: GraphBuilder, config: Mapping[str, object], task: Task) -> Head:
    """Write the decoder and the head of ``task``; inputs are ids and mask.

    Raises ``UnsupportedError`` and ``BadArtifactError`` as ``read_decoder`` does.
    """
    decoder = read_decoder(
        builder,
        config,
        activation=read_activation(config, "hidden_act", "silu"),
        depth=_DEPTH,
        norm_offset=0.0,
    )
    hidden = decoder.hidden
    x = builder.hidden_state(_decode(builder, config, decoder), hidden)
    rows: tuple[str, ...] = ("batch", "tokens")
    if task is Task.EMBEDDING:
        name, width = "last_hidden_state", hidden
        value = builder.unfold(x, width.value)
    else:
        name, width = "logits", count_labels(builder.weights, config, "score.weight")
        biased = task is Task.TOKEN_CLASSIFICATION
        if task is Task.SEQUENCE_CLASSIFICATION:
            rows = ("batch",)
            x = _last_token(builder, config, decoder, x)
        value = builder.linear(x, "score", hidden, width, biased=biased)
        if task is Task.TOKEN_CLASSIFICATION:
            value = builder.unfold(value, width.value)
    return Head(
        value=value,
        name=name,
        shape=(*rows, width.value),
        width=width.value,
        vocab_size=decoder.vocabulary.value,
        position_limit=decoder.limit,
        type_vocab_size=0,
    )


def _reaches(config: Mapping[str, object], decoder: Decoder) -> list[Reach]:
    """Return what the tokens of each layer see."""
    sliding = read(config, "use_sliding_window", bool, False)
    start = read(config, "max_window_layers", int, _WINDOWED_LAYERS_FROM)
    default = [
        SLIDING if sliding and layer >= start else FULL for layer in range(decoder.layers.value)
    ]
    kinds = read_layer_types(config, decoder.layers, default)
    if SLIDING in kinds and not sliding:
        raise BadArtifactError(
            f"config.json: 'layer_types' lists {SLIDING}, use_sliding_window is false; correct one"
        )
    window = read_window(config, decoder, kinds)
    if read(config, "is_causal", bool, True):
        near, far = Reach(before=window - 1, after=0), CAUSAL
    else:  # transformers then counts the window to each side, without the token itself
        near, far = Reach(before=window, after=window), EVERYTHING
    return [near if kind == SLIDING else far for kind in kinds]


def _decode(builder: GraphBuilder, config: Mapping[str, object], decoder: Decoder) -> str:
    """Return the last hidden state, ``[batch * tokens, hidden]``."""
    prefix, hidden = decoder.prefix, decoder.hidden
    reaches = _reaches(config, decoder)
    theta = Theta("rope_theta", 10_000.0)
    tables = rotary_tables(builder, read_rotary(config, decoder.depth, theta), decoder.limit)
    attention = GroupedAttention(builder, "attention_mask", decoder.heads)
    table = f"{prefix}embed_tokens.weight"
    x = builder.fold(builder.embedding("input_ids", table, decoder.vocabulary, hidden), hidden)
    for layer, reach in enumerate(reaches):
        name = f"{prefix}layers.{layer}"
        y = rms_norm(builder, decoder, x, f"{name}.input_layernorm", hidden)
        y = self_attention(builder, decoder, attention, y, f"{name}.self_attn", tables, reach)
        x = builder.op("Add", [x, y])
        y = rms_norm(builder, decoder, x, f"{name}.post_attention_layernorm", hidden)
        x = builder.op("Add", [x, gated_mlp(builder, decoder, y, f"{name}.mlp")])
    return rms_norm(builder, decoder, x, f"{prefix}norm", hidden)


def _last_token(
    builder: GraphBuilder, config: Mapping[str, object], decoder: Decoder, x: str
) -> str:
    """Return the hidden state ``[batch, hidden]`` that the classifier of transformers reads.

    It is the last one whose id is not ``pad_token_id``, even where the text itself ends in that
    token.
    """
    seen = "attention_mask"
    if config.get("pad_token_id") is not None:
        padding = read(config, "pad_token_id", int)
        if not 0 <= padding < decoder.vocabulary.value:
            raise BadArtifactError(
                f"config.json: 'pad_token_id' is {padding}, {decoder.vocabulary.key} is"
                f" {decoder.vocabulary.value}; correct it"
            )
        same = builder.op("Equal", ["input_ids", builder.scalar(padding)])
        other = builder.op("Not", [same])
        other = builder.op("Cast", [other], {"to": TensorProto.INT64})
        seen = builder.op("Mul", [seen, other])
    positions = builder.op("Mul", [seen, token_positions(builder)])
    last = builder.op("ArgMax", [positions], {"axis": 1, "keepdims": 1})
    unfolded = builder.unfold(x, decoder.hidden.value)
    return builder.op("GatherND", [unfolded, last], {"batch_dims": 1})
