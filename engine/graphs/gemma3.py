"""Gemma 3 for text: norms around each part, sliding and full layers (arXiv 2503.19786).

Weight names and arithmetic are those of ``Gemma3TextModel`` in transformers. Embedding models of
this family attend in both directions.
"""

import math
from collections.abc import Mapping

from ..config import Task
from ..errors import BadArtifactError, UnsupportedError
from .blocks import read_activation
from .builder import GraphBuilder
from .config_values import read, read_number
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
from .rotary import Tables, Theta, read_rotary, rotary_tables

_DEPTH = 256
_QUERY_SCALAR = 256.0
_PATTERN = 6  # the last of so many layers is full, unless layer_types says otherwise
_THETAS = {
    FULL: Theta("rope_theta", 1_000_000.0),
    SLIDING: Theta("rope_local_base_freq", 10_000.0),
}


def build_gemma3(builder: GraphBuilder, config: Mapping[str, object], _: Task) -> Head:
    """Write the decoder for embeddings; inputs are ids and mask.

    Raises ``UnsupportedError`` for capped scores, and both errors as ``read_decoder`` does.
    """
    scalar = read_number(config, "query_pre_attn_scalar", _QUERY_SCALAR)
    if not 0.0 < scalar < math.inf:
        raise BadArtifactError(
            f"config.json: 'query_pre_attn_scalar' is {scalar}, not a positive number; correct it"
        )
    if config.get("attn_logit_softcapping") is not None:
        raise UnsupportedError(
            "config.json: 'attn_logit_softcapping' is set; capped scores are not supported"
        )
    decoder = read_decoder(
        builder,
        config,
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        depth=_DEPTH,
        norm_offset=1.0,
        scale=scalar**-0.5,
    )
    width = decoder.hidden.value
    x = builder.hidden_state(_decode(builder, config, decoder), decoder.hidden)
    return Head(
        value=builder.unfold(x, width),
        name="last_hidden_state",
        shape=("batch", "tokens", width),
        width=width,
        vocab_size=decoder.vocabulary.value,
        position_limit=decoder.limit,
        type_vocab_size=0,
    )


def _kinds(config: Mapping[str, object], decoder: Decoder) -> tuple[str, ...]:
    """Return the kind of each layer."""
    pattern = read(config, "sliding_window_pattern", int, _PATTERN)
    if pattern < 1:
        raise BadArtifactError(
            f"config.json: 'sliding_window_pattern' is {pattern}, not positive; correct it"
        )
    default = [SLIDING if (layer + 1) % pattern else FULL for layer in range(decoder.layers.value)]
    return read_layer_types(config, decoder.layers, default)


def _reaches(config: Mapping[str, object], window: int) -> dict[str, Reach]:
    """Return what a token sees in each kind of layer."""
    if not read(config, "is_causal", bool, True):
        raise UnsupportedError(
            "config.json: 'is_causal' is false, which is not supported; the key of this family is"
            " 'use_bidirectional_attention'"
        )
    if read(config, "use_bidirectional_attention", bool, False):
        # Half of the window to each side, both ends included.
        return {FULL: EVERYTHING, SLIDING: Reach(window // 2, window // 2)}
    return {FULL: CAUSAL, SLIDING: Reach(window - 1, 0)}


def _decode(builder: GraphBuilder, config: Mapping[str, object], decoder: Decoder) -> str:
    """Return the last hidden state, ``[batch * tokens, hidden]``."""
    prefix, hidden = decoder.prefix, decoder.hidden
    kinds = _kinds(config, decoder)
    reaches = _reaches(config, read_window(config, decoder, kinds))
    tables: dict[str, Tables] = {
        kind: rotary_tables(
            builder,
            read_rotary(config, decoder.depth, _THETAS[kind], kind, scaled=kind == FULL),
            decoder.limit,
        )
        for kind in sorted(set(kinds))
    }
    attention = GroupedAttention(builder, "attention_mask", decoder.heads)
    table = f"{prefix}embed_tokens.weight"
    x = builder.fold(builder.embedding("input_ids", table, decoder.vocabulary, hidden), hidden)
    x = builder.op("Mul", [x, builder.scalar(hidden.value**0.5)])
    for layer, kind in enumerate(kinds):
        name = f"{prefix}layers.{layer}"
        y = rms_norm(builder, decoder, x, f"{name}.input_layernorm", hidden)
        y = self_attention(
            builder, decoder, attention, y, f"{name}.self_attn", tables[kind], reaches[kind]
        )
        y = rms_norm(builder, decoder, y, f"{name}.post_attention_layernorm", hidden)
        x = builder.op("Add", [x, y])
        y = rms_norm(builder, decoder, x, f"{name}.pre_feedforward_layernorm", hidden)
        y = gated_mlp(builder, decoder, y, f"{name}.mlp")
        y = rms_norm(builder, decoder, y, f"{name}.post_feedforward_layernorm", hidden)
        x = builder.op("Add", [x, y])
    return rms_norm(builder, decoder, x, f"{prefix}norm", hidden)
